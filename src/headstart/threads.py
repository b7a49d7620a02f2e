"""How worker threads wait for each other. To be called before torch is imported; imports nothing heavy itself.

GNU OpenMP lets a thread that waits at a barrier spin for milliseconds before it sleeps. On a machine with anything
else to do, the spinning thread keeps the very thread it waits for off the processor: with two busy neighbours on two
cores a step of 9 ms took 700 ms, and 20 ms once waiting threads slept soon (docs/performance.md).
"""

from __future__ import annotations

import os

SPINS = "4000"


def wait_gently() -> None:
    """Let waiting OpenMP threads sleep soon, unless the user's environment says how they should wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
