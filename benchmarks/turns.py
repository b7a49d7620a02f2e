"""Never slower: headstart's drafting engines against its plain one, taking turns of a fraction of a second.

    python -m benchmarks.turns --json turns.json
    python -m benchmarks.turns --weights int8 --concurrency 8 16 --temperatures 0.8

A batch of sixteen takes ten seconds, and a shared machine changes its pace meanwhile, so whole batches cannot tell a
few percent. Here all engines decode the same requests side by side in one process and on one target, each for
``--turn`` seconds at a time, and the seconds of each are added up. The plain engine takes part twice: what it differs
from itself is what the others may differ by chance. Controllers keep what they learn from one number of sequences to
the next, as in a server. *wrong* drafts a token that is never right. All outputs must be equal.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import files, prompts
from benchmarks.machine import machine
from benchmarks.markdown import measured_on, number, share, table
from benchmarks.parts_engine import WRONG, engine
from benchmarks.ways import KV_TOKENS, MAX_SEQUENCES
from headstart.cli.files import check_writable
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord
from headstart.engine.engine import Engine
from headstart.engine.request import Request, Speculation
from headstart.errors import UserError
from headstart.target.load import load_target
from headstart.target.model import Target
from headstart.threads import wait_gently

PLAIN, AGAIN = "plain", "plain again"
WAYS = {"bfloat16": ("ngram", "ngram+int4", WRONG), "int8": ("ngram",), "int4": ("ngram",)}
REQUESTS = {1: 12, 2: 12, 4: 24, 8: 48, 16: 96}
"""Requests by how many are decoded at once."""


@dataclass
class Player:
    """One engine, its requests in progress, and the time it took."""

    name: str
    engine: Engine
    waiting: list[prompts.Prompt] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    seconds: float = 0.0

    def begin(self, chosen: Sequence[prompts.Prompt]) -> None:
        self.waiting, self.requests, self.seconds = list(chosen), [], 0.0

    @property
    def done(self) -> bool:
        return not self.waiting and all(request.done for request in self.requests)

    def turn(self, length: float, at_once: int, params: SamplingParams) -> None:
        """Decode for ``length`` seconds, or to the end."""
        began = perf_counter()
        while perf_counter() - began < length and not self.done:
            while self.waiting and sum(not request.done for request in self.requests) < at_once:
                speculation = Speculation(prefix_cache=False)
                self.requests.append(self.engine.submit(list(self.waiting.pop(0).ids), params, speculation))
            self.engine.step()
        self.seconds += perf_counter() - began

    def outputs(self) -> list[list[int]]:
        return [request.branches[0].sequence.output for request in self.requests]

    def record(self) -> SpecRecord:
        total = SpecRecord()
        for request in self.requests:
            total.merge(request.branches[0].sequence.record)
        return total


def players(target: Target, weights: str) -> list[Player]:
    """The plain engine twice, and one for every way of drafting."""
    names = {PLAIN: "plain", AGAIN: "plain", **{way: way for way in WAYS[weights]}}
    return [Player(name, engine(target, mode)) for name, mode in names.items()]


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for every kind of weights, temperature, number of sequences and way.

    Raises:
        UserError: an output differs from plain decoding.
    """
    rows = []
    for weights in options.weights:
        target = load_target(
            options.model,
            dtype="bfloat16",
            weights=None if weights == "bfloat16" else weights,
            max_sequences=MAX_SEQUENCES * (2 + len(WAYS[weights])),
            kv_tokens=2 * KV_TOKENS,
            draft_weights="int4" if weights == "bfloat16" else None,
        )
        chosen = prompts.sample(options.prompts, options.per_group, prompts.chat_encoder(target.tokenizer))
        for temperature in options.temperatures:
            params = SamplingParams(max_tokens=options.max_tokens, temperature=temperature, seed=0)
            everybody = players(target, weights)
            play(everybody, chosen[:1], 1, SamplingParams(max_tokens=8), options.turn)  # warm
            for at_once in options.concurrency:
                some = [chosen[i % len(chosen)] for i in range(REQUESTS[at_once])]
                play(everybody, some, at_once, params, options.turn)
                same = {"weights": weights, "temperature": temperature, "concurrency": at_once}
                rows += [{**same, **told} for told in results(everybody)]
                told = ", ".join(f"{row['way']} {row['speedup']:.3f}" for row in rows[-len(everybody) :])
                print(f"{weights}, temperature {temperature}, {at_once} at once: {told}", file=sys.stderr, flush=True)
    return rows


def play(
    everybody: Sequence[Player], some: Sequence[prompts.Prompt], at_once: int, params: SamplingParams, turn: float
) -> None:
    """All requests through everybody, in turns; who begins changes with every turn."""
    for player in everybody:
        player.begin(some)
    order = list(everybody)
    while not all(player.done for player in everybody):
        for player in order:
            player.turn(turn, at_once, params)
        order = order[1:] + order[:1]


def results(everybody: Sequence[Player]) -> list[dict[str, Any]]:
    """By way; speeds are compared with the mean of both plain engines."""
    plain = [player for player in everybody if player.name in (PLAIN, AGAIN)]
    expected, usual = plain[0].outputs(), sum(player.seconds for player in plain) / len(plain)
    rows = []
    for player in everybody:
        if player.outputs() != expected:
            raise UserError(f"{player.name} decoded something else than plain; this is a bug worth reporting")
        record, tokens = player.record(), sum(map(len, expected))
        rows.append(
            {
                "way": player.name,
                "tokens": tokens,
                "seconds": round(player.seconds, 3),
                "speedup": round(usual / player.seconds, 4),
                "rounds": record.rounds,
                "emitted": record.emitted,
                "drafted": record.drafted,
                "accepted": record.accepted,
            }
        )
    return rows


def tables(result: dict[str, Any]) -> str:
    """The result as markdown."""
    requests = ", ".join(f"{count} with {at_once} at once" for at_once, count in result["requests"].items())
    head = (
        f"{measured_on(result['machine'])}\n"
        f"- Command: `{result['command']}`\n"
        f"- Requests: {requests}; turns of {result['turn']:g} s; computing the prompts is included"
    )
    parts = ["\n".join([head, *(f"- {note}" for note in result.get("notes", ()))])]
    for weights in dict.fromkeys(row["weights"] for row in result["rows"]):
        mine = [row for row in result["rows"] if row["weights"] == weights]
        rows = []
        for row in mine:
            speed = row["tokens"] / row["seconds"]
            each = row["emitted"] / row["rounds"] if row["rounds"] else None
            words = [number(row["temperature"]), str(row["concurrency"]), number(speed), number(row["speedup"], 3)]
            rows.append([row["way"], *words, number(each, 2), share(row["accepted"], row["drafted"])])
        names = ["way", "temperature", "at once", "tok/s", "over plain", "tokens a round", "accepted"]
        parts.append(f"### Weights in {weights}\n\n{table(names, rows)}")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Measure, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--concurrency", nargs="+", type=int, choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--per-group", type=int, default=6, help="prompts per task group to choose from")
    parser.add_argument("--turn", type=float, default=0.4, help="seconds")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, default=prompts.DEFAULT, help="Spec-Bench's question.jsonl")
    parser.add_argument("--json", type=Path, help="file for the result; it must not exist")
    options = parser.parse_args()
    about = machine()
    try:
        check_writable(options.json, force=False)
        prompts.check_there(options.prompts)
        wait_gently()
        rows = measure(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing is written", file=sys.stderr)
        return 130
    words = ["python", "-m", "benchmarks.turns"]
    for name in ("weights", "concurrency", "temperatures", "max_tokens", "per_group", "turn"):
        given = getattr(options, name)
        if given != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", *map(str, given if isinstance(given, list) else [given])]
    result = {
        "kind": "turns",
        "machine": about,
        "command": shlex.join(words),
        "turn": options.turn,
        "requests": {str(many): REQUESTS[many] for many in options.concurrency},
        "rows": rows,
    }
    print(tables(result))
    if options.json:
        files.write(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
