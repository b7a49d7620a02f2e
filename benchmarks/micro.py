"""What the parts of headstart cost: step time, time outside the forward call, drafters, start-up, memory, growth.

    python -m benchmarks.micro --json micro.json
    python -m benchmarks.micro --sections rounds drafters

No peers; every section is a few seconds to a minute. Times of single calls are the smallest of several, since other
work on the machine only ever adds to them; times per round are means.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks import files, prompts
from benchmarks.machine import machine
from benchmarks.micro_tables import everything
from headstart.cli.files import check_writable
from headstart.errors import UserError
from headstart.threads import wait_gently

SECTIONS = ("startup", "memory", "steps", "rounds", "sequences", "contexts", "drafters")


def main() -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=prompts.DEFAULT, help="Spec-Bench's question.jsonl")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, a .gguf file or a hub id")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-group", type=int, default=3, help="prompts per task group in the section rounds")
    parser.add_argument("--json", type=Path, help="file for the result; it must not exist")
    options = parser.parse_args()
    try:
        check_writable(options.json, force=False)
        prompts.check_there(options.prompts)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wait_gently()
    result = measure(options)
    print(everything(result))
    if options.json:
        files.write(options.json, result)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All sections asked for, as the JSON file has them."""
    words = ["python", "-m", "benchmarks.micro"]
    if tuple(options.sections) != SECTIONS:
        words += ["--sections", *options.sections]
    result: dict[str, Any] = {
        "kind": "micro",
        "machine": machine(),
        "command": shlex.join(words),
        "settings": {"model": options.model, "dtype": options.dtype, "per_group": options.per_group},
        "sections": {},
    }
    # processes of their own come first, while this one is small
    from benchmarks import parts_process

    for name in [n for n in SECTIONS if n in options.sections]:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        if name in ("startup", "memory"):
            section = getattr(parts_process, name)(options.model, options.dtype)
        else:
            from benchmarks import parts_engine

            section = getattr(parts_engine, name)(parts_engine.bench(options))
        result["sections"][name] = section
    return result


if __name__ == "__main__":
    sys.exit(main())
