"""The target's cost curve: measured on its own forward call, kept in the user's cache, used by depth controllers.

Knows targets and files. What the curve is used for is the controller's concern.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from pathlib import Path
from time import perf_counter

import torch

from headstart.control.cost import CostCurve, calibrate
from headstart.decode.segment import Segment
from headstart.target.cache import cache_dir
from headstart.target.model import Target

log = logging.getLogger(__name__)

METHOD = "8"
"""Part of the cache key; raise it when curves are measured differently, or the kernels' times change."""


def cost_curve(target: Target) -> CostCurve:
    """The curve of ``target`` on this machine: from the cache when one was measured, else measured now (seconds)."""
    path = cache_dir() / "costs" / f"{_key(target)}.json"
    try:
        return CostCurve.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    curve = measure_curve(target)
    if not curve.steady:
        log.info("the machine was busy while the cost curve was measured; it is used, and measured again next time")
        return curve
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".curve-", dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(curve.as_dict(), file)
        os.replace(temporary, path)
    except OSError as error:
        log.info("the cost curve is not kept (%s)", error)
    return curve


def measure_curve(target: Target) -> CostCurve:
    """Time forward calls of the target over a free part of its pool."""
    longest = min(target.max_model_len, target.pool.capacity - target.pool.used, 1024)
    extent = target.pool.reserve(longest)
    if extent is None:
        raise RuntimeError("the KV pool has no room to measure in; measure before requests run")

    def measure(rows: int, context: int) -> float:
        segment = Segment(extent, context, [0] * rows)
        started = perf_counter()
        target.forward([segment])
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return perf_counter() - started

    try:
        measure(1, 0)
        return calibrate(measure, longest)
    finally:
        target.pool.release(extent)


def _key(target: Target) -> str:
    """Everything the curve depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        processor = platform.processor()
    config = target.model.config.to_json_string()
    parts = (METHOD, target.name, config, str(target.dtype), str(target.device), target.numerics.kernels, processor)
    versions = (str(torch.get_num_threads()), str(os.cpu_count()), torch.__version__)
    return hashlib.sha256("\0".join((*parts, *versions)).encode()).hexdigest()[:16]
