"""How far to guess: depth by sequence and round."""
