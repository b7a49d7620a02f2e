"""Where guesses come from: drafters, all behind one protocol."""
