"""A long mixed load with faults against ``headstart serve``, and what must hold all the while and at the end.

    python -m benchmarks.soak                     # 30 minutes on the built-in model
    python -m benchmarks.soak --minutes 2 --json soak.json

The server is a process of its own. Ordinary requests, whole and streamed, must come back with the text that plain
decoding gave at the start; beside them clients leave, send too much or nonsense, or read slowly, and for a fifth of the
time the drafter raises. Exit code 0 when every check holds, 1 when one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.soak.clients import Load
from benchmarks.soak.process import ServerProcess

WARM = 0.25
"""Share of the time after which memory has to be flat."""

MOST_GROWTH = 0.02
"""Of resident memory, from the second quarter of the run to the last."""

QUIET, RAISES = 0.4, 0.6
"""Shares of the time between which the drafter raises."""


def main() -> int:
    """Run, check, print; returns the exit code."""
    options = arguments()
    seconds = options.minutes * 60
    with ServerProcess(options.model, seconds * QUIET, seconds * RAISES) as server:
        load = Load(server.url, options.concurrency, options.seed)
        say(f"server {server.process.pid} at {server.url}; learning what plain decoding says")
        asyncio.run(load.learn())
        server.start_clock()
        say(f"{options.minutes:g} minutes at concurrency {options.concurrency}")
        asyncio.run(load.run(seconds, server.sample))
        server.settle()
        metrics, samples, code = server.metrics(), list(server.samples), server.stop()
    outcome = report(load, metrics, samples, code)
    for check in outcome["checks"]:
        say(f"{'ok  ' if check['holds'] else 'FAIL'} {check['name']}: {check['detail']}")
    if options.json is not None:
        options.json.write_text(json.dumps(outcome, indent=2) + "\n")
    return 0 if all(check["holds"] for check in outcome["checks"]) else 1


def report(load: Load, metrics: dict[str, float], samples: list[tuple[float, int]], code: int) -> dict[str, Any]:
    """What happened, and whether it should have."""
    checks: list[dict[str, Any]] = []

    def check(name: str, holds: bool, detail: object) -> None:
        checks.append({"name": name, "holds": holds, "detail": str(detail)})

    counts = load.counts
    check("every request came to its end", load.sent == sum(counts.values()), f"{load.sent} sent, {dict(counts)}")
    check("no surprise", not load.surprises, load.surprises[:5] or "every answer was the one its kind has")
    served = counts["whole"] + counts["stream"] + counts["slow"]
    check(
        "texts were those of plain decoding", served > 0 and not load.differ, f"{served} compared, {load.differ} differ"
    )
    check("no 500", not any(status >= 500 for status in load.statuses), dict(sorted(load.statuses.items())))
    idle = {name: metrics[name] for name in ("kv_slots_used", "sequences_running", "sequences_waiting")}
    check("nothing is held at the end", not any(idle.values()), idle)
    failures = metrics.get("drafter_failures_total", 0.0)
    check("the drafter did raise", failures > 0, f"{failures:g} times")
    check("it drafted before and after", metrics["spec_decode_num_draft_tokens_total"] > 0, "draft tokens verified")
    before, after = _memory(samples, WARM, 2 * WARM), _memory(samples, 1 - WARM, 1.0)
    growth = after / before - 1 if before else 0.0
    check(
        "memory is flat", growth <= MOST_GROWTH, f"{before / 2**20:.1f} MiB, later {after / 2**20:.1f} ({growth:+.2%})"
    )
    check("the server stopped cleanly", code == 0, f"exit code {code}")
    seconds = samples[-1][0] - samples[0][0] if samples else 0.0
    return {
        "date": time.strftime("%Y-%m-%d"),
        "seconds": seconds,
        "sent": load.sent,
        "counts": dict(counts),
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
        "tokens": load.tokens,
        "memory_bytes": [[round(at, 1), size] for at, size in samples[:: max(1, len(samples) // 200)]],
        "checks": checks,
    }


def _memory(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Median resident memory over a part of the run."""
    if not samples:
        return 0.0
    first, last = samples[0][0], samples[-1][0]
    part = sorted(size for at, size in samples if start <= (at - first) / max(last - first, 1e-9) <= end)
    return float(part[len(part) // 2]) if part else 0.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", default="smollm2", metavar="NAME", help="as headstart serve takes it")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="clients at once")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    return parser.parse_args()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
