"""The model that decides: loading it, one flat forward call per round, its KV pool, and its numerics."""
