"""Decode speed with a client's prediction of the output: right, nearly right and wrong, in one interleaved run.

    python benchmarks/predicted_outputs.py --per-kind 6 --json predicted_outputs.json

Kinds of request, made from Spec-Bench's prompts:

    repeat    a passage is to be repeated; the prediction is the passage, which is in the prompt too
    mend      a passage with misspelt words is to be corrected; the prediction is the misspelt passage
    again     a question; the prediction is the model's own answer with one word in twenty changed
    wrong     the same question; the prediction is the answer to another one

Each request is decoded every way in turn, in an order that rotates: plain, with n-gram drafts, with the prediction
alone, and with the prediction before n-gram drafts. Speeds are sums of emitted tokens over sums of seconds after the
first token; every output is compared with the plain one, token by token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.decode.params import SamplingParams
    from headstart.engine.engine import Engine

KINDS = ("repeat", "mend", "again", "wrong")
WAYS = {"plain": ("none", False), "ngram": ("ngram", False), "prediction": ("none", True), "both": ("ngram", True)}
"""Drafter, and whether the prediction goes with the request."""
DEFAULT_PROMPTS = Path(__file__).resolve().parents[2] / "shared" / "spec_bench" / "question.jsonl"
PASSAGE = 90
"""Words of a passage."""


@dataclass(frozen=True)
class Request:
    """A prompt and what its answer is predicted to be."""

    kind: str
    prompt: str
    prediction: str


@dataclass(frozen=True)
class Run:
    """One request decoded one way."""

    kind: str
    number: int
    way: str
    tokens: int
    seconds: float
    mean_acceptance_length: float | None
    accepted: dict[str, int]
    predicted: tuple[int, int]
    identical: bool


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS, help="Spec-Bench's question.jsonl")
    parser.add_argument("--per-kind", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.json and options.json.exists():
        sys.exit(f"{options.json} exists; name another file")
    if not options.prompts.is_file():
        sys.exit(f"{options.prompts}: no such file; give --prompts FILE in Spec-Bench's format")

    from headstart.threads import wait_gently

    wait_gently()
    import transformers

    transformers.logging.disable_progress_bar()
    from headstart.decode.params import SamplingParams
    from headstart.engine.load import load_engine

    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=0)
    load_before = os.getloadavg()[0]
    runs: list[Run] = []
    with load_engine(options.model, dtype=options.dtype, max_sequences=1, threads=options.threads) as engine:
        requests = make_requests(engine, params, options.prompts, options.per_kind)
        for way in WAYS:
            decode(engine, requests[0], 0, way, params)
        for number, request in enumerate(requests):
            names = list(WAYS)
            order = names[number % len(names) :] + names[: number % len(names)]
            done = {way: decode(engine, request, number, way, params) for way in order}
            truth = done["plain"][1]
            fresh = [replace(run, identical=ids == truth) for run, ids in done.values()]
            runs += fresh
            speeds = ", ".join(f"{run.way} {run.tokens / run.seconds:.0f}" for run in fresh)
            print(f"[{number + 1}/{len(requests)}] {request.kind}: {speeds} tok/s", file=sys.stderr, flush=True)
        info = engine.info
    print(table(runs))
    if options.json:
        report = {"info": info, "load_before": load_before, "runs": [asdict(run) for run in runs]}
        temporary = options.json.with_suffix(".part")
        temporary.write_text(json.dumps(report, indent=1))
        temporary.rename(options.json)


def make_requests(engine: Engine, params: SamplingParams, prompts: Path, count: int) -> list[Request]:
    """``count`` requests of each kind, kinds taking turns."""
    from headstart.engine.request import Speculation

    entries = [json.loads(line) for line in prompts.read_text().splitlines()]
    articles = [e["turns"][0] for e in entries if e["category"] == "summarization"]
    questions = [e["turns"][0] for e in entries if e["category"] == "qa"]
    generator = random.Random(0)
    out = []
    answers = []
    for i in range(count + 1):
        ask = [{"role": "user", "content": questions[i * len(questions) // (count + 1)]}]
        answers.append((ask[0]["content"], engine.generate([ask], params, Speculation(drafter="none"))[0].text))
    for i in range(count):
        words = articles[i * len(articles) // count].split(":", 1)[-1].split()
        passage = " ".join(words[:PASSAGE])
        misspelt = " ".join(_misspell(word, generator) for word in words[:PASSAGE])
        question, answer = answers[i]
        out += [
            Request("repeat", f"Repeat the following text word for word.\n\n{passage}", passage),
            Request(
                "mend", f"Correct the spelling in the following text and change nothing else.\n\n{misspelt}", misspelt
            ),
            Request("again", question, " ".join(_other(word, generator) for word in answer.split(" "))),
            Request("wrong", question, answers[i + 1][1]),
        ]
    return out


def _misspell(word: str, generator: random.Random) -> str:
    """One word in ten loses a letter."""
    if len(word) < 5 or generator.random() > 0.1:
        return word
    at = generator.randrange(1, len(word) - 1)
    return word[:at] + word[at + 1 :]


def _other(word: str, generator: random.Random) -> str:
    """One word in twenty becomes another."""
    return word if generator.random() > 0.05 else generator.choice(("quite", "seven", "lamp", "however"))


def decode(engine: Engine, request: Request, number: int, way: str, params: SamplingParams) -> tuple[Run, list[int]]:
    """Decode one request one way; its numbers, not compared yet, and the output's ids."""
    from headstart.engine.request import Speculation

    drafter, predicts = WAYS[way]
    # a tenant of its own: what was said to the same prompt before must not help
    speculation = Speculation(
        drafter=drafter, tenant=f"{way} {number}", prediction=request.prediction if predicts else None
    )
    output = engine.generate([[{"role": "user", "content": request.prompt}]], params, speculation)[0]
    completion = output.completions[0]
    run = Run(
        kind=request.kind,
        number=number,
        way=way,
        tokens=max(0, len(completion.token_ids) - 1),
        seconds=output.seconds - (output.first_token_seconds or 0.0),
        mean_acceptance_length=completion.record.mean_acceptance_length,
        accepted={name: counts.accepted for name, counts in completion.record.by_drafter.items()},
        predicted=(completion.accepted_prediction_tokens, completion.rejected_prediction_tokens),
        identical=True,
    )
    return run, completion.token_ids


def table(runs: Sequence[Run]) -> str:
    """Markdown: tokens per second by kind and way, over plain, tokens a round, and who drafted."""
    lines = [
        "| kind | way | tok/s | over plain | length | accepted | of the prediction | identical |",
        "|---|" * 1 + "---|" * 7,
    ]
    for kind in KINDS:
        plain = _speed([run for run in runs if (run.kind, run.way) == (kind, "plain")])
        for way in WAYS:
            mine = [run for run in runs if (run.kind, run.way) == (kind, way) and run.tokens]
            if not mine or plain is None:
                continue
            speed = _speed(mine) or 0.0
            lengths = [run.mean_acceptance_length for run in mine if run.mean_acceptance_length is not None]
            names = sorted({name for run in mine for name in run.accepted})
            accepted = ", ".join(f"{name} {sum(run.accepted.get(name, 0) for run in mine)}" for name in names)
            right, wrong = (sum(run.predicted[i] for run in mine) for i in range(2))
            cells = (
                kind,
                way,
                f"{speed:.0f}",
                f"{speed / plain:.2f}",
                f"{sum(lengths) / len(lengths):.2f}" if lengths else "–",
                accepted or "–",
                f"{right} of {right + wrong}" if right + wrong else "–",
                f"{sum(run.identical for run in mine)} of {len(mine)}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _speed(runs: Sequence[Run]) -> float | None:
    seconds = sum(run.seconds for run in runs)
    return sum(run.tokens for run in runs) / seconds if seconds else None


if __name__ == "__main__":
    main()
