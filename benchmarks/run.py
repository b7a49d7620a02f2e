"""headstart beside its peers, in one interleaved run.

    python -m benchmarks.run --json results.json
    python -m benchmarks.run --per-group 1 --workloads 'greedy 128' --ways headstart 'vllm plain' --json small.json

Every prompt goes through every way before the next prompt does, in an order that turns with every prompt; one process
computes at a time, the others are stopped. What is measured goes into a journal beside the JSON file, so a run that was
interrupted goes on with --resume; ratios are made of runs of one session only. Peers are installed with
``python -m benchmarks.peers.make_env NAME``; one that is missing or fails is named in the output with the reason.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks import files, prompts, tables
from benchmarks.journal import Journal, JournalError
from benchmarks.machine import machine
from benchmarks.peers.models import find_models, make_draft
from benchmarks.results import report
from benchmarks.session import Session
from benchmarks.ways import Line, line_up
from benchmarks.workloads import Workload, workloads
from headstart.cli.files import check_writable
from headstart.errors import UserError


def main() -> int:
    """Run, print, write; returns the exit code."""
    options = arguments()
    journal_path = options.json.with_suffix(".journal.jsonl") if options.json else Path("benchmark.journal.jsonl")
    try:
        check_writable(options.json, force=False)
        chosen, line, settings = prepare(options)
        journal = Journal(journal_path, settings, resume=options.resume)
    except (UserError, JournalError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    say(f"{len(line.ways)} ways, {sum(len(w.items) for w in chosen)} items; journal: {journal_path}")
    logs = Path(tempfile.mkdtemp(prefix="headstart-benchmark-"))
    session = Session(line, chosen, journal, options.timeout, logs, say)
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end from outside is an interruption too
    try:
        session.run(machine=machine(), command=command(options))
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; processes are ended, finished items are kept. Go on with the same options and --resume.")
    finally:
        session.close()
        journal.close()
        if session.failed:
            say(f"what the processes printed: {logs}")
        else:
            shutil.rmtree(logs, ignore_errors=True)
    if not journal.items:
        say("nothing was measured")
        return 130 if interrupted else 1
    result = report(journal, line, chosen)
    print(tables.everything(result))
    if options.json and not interrupted:
        files.write(options.json, result)
        say(f"wrote {options.json}")
    return 130 if interrupted else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=prompts.DEFAULT, help="Spec-Bench's question.jsonl")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--per-group", type=int, default=10, help="prompts per task group (default 10)")
    size.add_argument("--all", action="store_true", help="all 480 prompts")
    parser.add_argument("--workloads", nargs="+", default=["*"], metavar="NAME", help="only these; * matches anything")
    parser.add_argument(
        "--ways", nargs="+", default=[], metavar="NAME", help="only these; an engine means all its ways"
    )
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="not these")
    parser.add_argument("--most-tokens", type=int, help="new tokens at most, in every workload: for a quick look")
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder or a .gguf file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=None, help="for every way alike; default: all cores")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one request or one start")
    parser.add_argument("--json", type=Path, help="file for the result; it must not exist")
    parser.add_argument("--resume", action="store_true", help="go on with the journal of an interrupted run")
    options = parser.parse_args()
    if options.all:
        options.per_group = 80
    if options.per_group < 1:
        parser.error("--per-group must be at least 1")
    return options


def command(options: argparse.Namespace) -> str:
    """What to type to measure the same; places of files are the reader's own."""
    words = ["python", "-m", "benchmarks.run", *(["--all"] if options.all else ["--per-group", str(options.per_group)])]
    for name in ("workloads", "ways", "without"):
        given = getattr(options, name)
        words += [f"--{name}", *given] if given and given != ["*"] else []
    for name in ("most_tokens", "threads"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return shlex.join(words)


def prepare(options: argparse.Namespace) -> tuple[list[Workload], Line, dict[str, Any]]:
    """Prompts, ways, and the settings that a resumed session must share."""
    import os

    from transformers import AutoTokenizer

    if not options.prompts.is_file():
        raise JournalError(f"{options.prompts}: no such file; give --prompts FILE in Spec-Bench's format")
    threads = options.threads or os.cpu_count() or 1
    models = find_models(options.model, options.dtype)
    make_draft(models)
    tokenizer = AutoTokenizer.from_pretrained(models.folder)
    every = workloads(options.prompts, options.per_group, prompts.chat_encoder(tokenizer))
    chosen = [w for w in every if any(fnmatch(w.name, pattern) for pattern in options.workloads)]
    if options.most_tokens is not None:
        chosen = [replace(w, max_tokens=min(w.max_tokens, options.most_tokens)) for w in chosen]
    if not chosen:
        raise JournalError(f"no workload of that name; there are: {', '.join(w.name for w in every)}")
    line = line_up(models, threads, options.ways, options.without)
    if not line.ways:
        raise JournalError("no way matches --ways and --without")
    settings = {
        "model": options.model,
        "dtype": options.dtype,
        "threads": threads,
        "per_group": options.per_group,
        "most_tokens": options.most_tokens,
        "workloads": [w.name for w in chosen],
        "ways": [w.name for w in line.ways],
        "eos": eos_of(models.folder),
    }
    return chosen, line, settings


def eos_of(folder: Path) -> list[int]:
    """End-of-sequence ids, from the generation configuration or the model's."""
    from transformers import AutoConfig, GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:
        found = None
    found = found if found is not None else AutoConfig.from_pretrained(folder).eos_token_id
    return sorted(found) if isinstance(found, list) else [int(found)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
