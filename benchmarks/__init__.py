"""headstart beside its peers, and the costs of its parts. Run with ``python -m benchmarks.run`` and its neighbours."""
