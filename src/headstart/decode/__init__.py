"""One round and its mathematics: sampling, noise, acceptance rules, records. Knows tensors and nothing else."""
