"""What the benchmark and a peer's process say to each other: one JSON object a line, over stdin and stdout.

A process first says ``{"ready": info}`` or ``{"failed": reason}``. Then each line in is a `Request` and each line out
is ``{"answer": {"outputs": [...], "seconds": …}}`` or ``{"error": reason}``. Every environment can import this: it uses
the standard library only, and knows no engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol


@dataclass(frozen=True)
class Request:
    """Prompts to decode at the same time: their number is the concurrency.

    ``mode`` names a way to decode that the process knows. What a drafter remembers of other requests may serve requests
    of the same ``scope`` only: the same prompt may come again in another. ``truth`` is the continuation of each prompt,
    for drafters that follow a script.
    """

    mode: str
    prompts: list[list[int]]
    max_tokens: int
    temperature: float
    seed: int
    eos: list[int]
    scope: str
    truth: list[list[int]] = field(default_factory=list)


@dataclass
class Decoded:
    """What became of one prompt. ``ids`` are the emitted token ids, the end-of-sequence token included where it was
    emitted; ``first`` the seconds until the first of them, when ``first_tokens`` arrived together; ``seconds`` those
    until the last."""

    ids: list[int]
    first: float
    first_tokens: int
    seconds: float
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None


@dataclass
class Answer:
    """Outputs in the order of the prompts, and the seconds from the first submission to the last token."""

    outputs: list[Decoded]
    seconds: float
    drafted: int | None = None
    accepted: int | None = None
    """Draft tokens of all prompts together, where a peer counts them only so."""


class Runner(Protocol):
    """A peer, loaded."""

    def info(self) -> dict[str, Any]:
        """Versions, weights and whatever else a reader of the numbers must know."""
        ...

    def answer(self, request: Request) -> Answer: ...


def serve(make: Callable[[Mapping[str, Any]], Runner]) -> None:
    """Load what ``make`` makes of the configuration in ``argv[1]``, then answer until stdin closes.

    Whatever libraries print goes to stderr: stdout is the protocol's.
    """
    die_with_parent()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(message: Mapping[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    try:
        runner = make(json.loads(sys.argv[1]))
        say({"ready": runner.info()})
    except Exception as error:
        traceback.print_exc()
        say({"failed": describe(error)})
        return
    for line in sys.stdin:
        try:
            say({"answer": asdict(runner.answer(Request(**json.loads(line))))})
        except Exception as error:
            traceback.print_exc()
            say({"error": describe(error)})


def describe(error: BaseException) -> str:
    """One line that names the error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of ``packages``, without importing them."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, however that ends: a stopped process would stay."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
