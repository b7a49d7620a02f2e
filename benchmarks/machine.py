"""What the numbers were measured on: processor, memory, system, date and load."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headstart.cli.versions import versions

INTERESTING = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """As plain values. ``load`` is the one-minute average when asked."""
    info = processor()
    return {
        "processor": info.get("model name", platform.processor() or "unknown"),
        "instructions": [name for name in INTERESTING if name in info.get("flags", "").split()],
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions(),
    }


def processor() -> dict[str, str]:
    """The first processor's fields, as the kernel tells them."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in first.splitlines())}
