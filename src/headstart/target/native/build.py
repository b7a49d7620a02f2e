"""Compile the kernels once with the system's C compiler, into the user's cache, and load them.

Knows compilers and files. A machine without a compiler simply gets ``None`` and a reason, and runs on torch's kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from headstart.target.cache import cache_dir

SOURCE = Path(__file__).with_name("kernels.c")
HEADERS = ("vector.h", "int8.h", "int4.h", "tiles.h", "products.h", "attention.h", "attention_tiles.h", "best.h")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
COMPILERS = ("cc", "gcc", "clang")


Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""What functions return and take, by name."""


class BuildFailed(Exception):
    """The kernels cannot be had here; the message says why."""


@cache
def library() -> ctypes.CDLL:
    """The loaded kernels, compiled now if this machine has not seen this source before (about two seconds).

    Raises:
        BuildFailed: no compiler, or it refuses the source.
    """
    return built("kernels", [SOURCE, *(SOURCE.with_name(name) for name in HEADERS)], FLAGS)


@cache
def noise_library() -> ctypes.CDLL:
    """``noise.c``, likewise."""
    return built("noise", [SOURCE.with_name(name) for name in ("noise.c", "vector.h")], (*FLAGS, "-ffp-contract=off"))


def built(
    name: str, sources: Sequence[Path], flags: Sequence[str], load: type[ctypes.CDLL] = ctypes.CDLL
) -> ctypes.CDLL:
    """The library of the first of ``sources``; the others are what it includes. ``load`` says whether Python's lock is
    held in calls (``ctypes.PyDLL``).

    Raises:
        BuildFailed: no compiler, or it refuses the source.
    """
    compiler = next(
        (path for name in (os.environ.get("CC"), *COMPILERS) if name and (path := shutil.which(name))), None
    )
    if compiler is None:
        raise BuildFailed("no C compiler found (tried $CC, cc, gcc, clang)")
    version = _run([compiler, "--version"]).splitlines()[0]
    texts = [source.read_text() for source in sources]
    key = hashlib.sha256("\0".join((*texts, *flags, version, _processor())).encode()).hexdigest()[:16]
    target = cache_dir() / "native" / f"{name}-{key}.so"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}-", suffix=".so", dir=target.parent)
        os.close(handle)
        try:
            _run([compiler, *flags, str(sources[0]), "-o", temporary, "-lm"])
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    try:
        return load(str(target))
    except OSError as error:
        raise BuildFailed(f"{target} cannot be loaded ({error})") from error


def declared(library: ctypes.CDLL, signatures: Signatures) -> ctypes.CDLL:
    """The library, told what its functions return and take."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} does not run ({error})") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise BuildFailed(f"{command[0]} failed: {lines[0]}")
    return done.stdout


def _processor() -> str:
    """What ``-march=native`` depends on: a cache shared by two machines must not mix their code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
