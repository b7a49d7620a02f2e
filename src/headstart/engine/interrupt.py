"""Ctrl-C waits until a round is over: a round that is torn apart would leave its sequences in two minds.

Knows signals, and nothing of what it protects.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back SIGINT inside the block and let it act at its end. Outside the main thread, where Python delivers no
    signals, and under foreign handlers it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.default_int_handler(*held[0])
