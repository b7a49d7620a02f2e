"""Micro-benchmarks inside one process: the target's step, a round's parts, and how they grow.

A round's parts are the engine's own: drafting, the forward call, the rules of acceptance, the rest. They are counted
from the moment when every prompt has been computed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

from benchmarks.prompts import Prompt, chat_encoder, long_prompts, sample
from benchmarks.ways import KV_TOKENS, MAX_SEQUENCES
from headstart.control.adaptive import AdaptiveDepth
from headstart.decode.params import SamplingParams
from headstart.decode.record import StepTimes
from headstart.decode.segment import Segment
from headstart.draft.base import DraftRequest
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import WrongDrafter
from headstart.engine.costs import cost_curve
from headstart.engine.engine import Engine
from headstart.engine.load import TREE_FLOOR, make_drafter
from headstart.target.load import load_target
from headstart.target.model import Target

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
CONTEXTS = (64, 512, 1024, 2048, 4096, 8000)
SEQUENCES = (1, 2, 4, 8, 16)
GROWTH = (1000, 2000, 4000, 8000)
REPEATS = 5
TOKENS = 64
MODES = ("plain", "ngram", "int4", "ngram+int4")
WRONG = WrongDrafter.name


@dataclass(frozen=True)
class Bench:
    """What the sections share: a loaded target and prompts."""

    dtype: str
    target: Target
    sample: tuple[Prompt, ...]
    long: tuple[Prompt, ...]


@cache
def _bench(model: str, dtype: str, path: Any, per_group: int) -> Bench:
    target = load_target(model, dtype=dtype, max_sequences=MAX_SEQUENCES, kv_tokens=KV_TOKENS, draft_weights="int4")
    encode = chat_encoder(target.tokenizer)
    long = long_prompts(path, [n - 2 * TOKENS for n in GROWTH], 1, encode)
    return Bench(dtype, target, tuple(sample(path, per_group, encode)), tuple(long))


def bench(options: argparse.Namespace) -> Bench:
    return _bench(options.model, options.dtype, options.prompts, options.per_group)


def engine(target: Target, mode: str) -> Engine:
    """As ``load_engine`` makes them, on the target that is there."""
    if mode == "plain":
        return Engine(target, max_sequences=MAX_SEQUENCES, prefix_cache=False)
    drafters = [make_drafter(name, target) for name in mode.split("+")] if mode != WRONG else [_wrong(target)]
    return Engine(
        target,
        drafters,
        default_drafter="+".join(drafter.name for drafter in drafters),
        controller=AdaptiveDepth(cost_curve(target), tree=True),
        max_sequences=MAX_SEQUENCES,
        prefix_cache=False,
    )


def _wrong(target: Target) -> WrongDrafter:
    """Proposes the last token of the vocabulary, over and over."""
    return WrongDrafter(token=target.vocab_size - 1)


def steps(of: Bench) -> dict[str, Any]:
    """Milliseconds of one forward call by weights, rows and context: the target's, and that of its copy."""
    computes = {of.dtype: of.target.forward, str(of.target.draft_weights): of.target.draft}
    found: dict[str, list[list[float]]] = {weights: [] for weights in computes}
    for context in CONTEXTS:
        extent = of.target.pool.reserve(context + max(ROWS))
        if extent is None:
            raise RuntimeError("the KV pool is too small for this section")
        try:
            for weights, forward in computes.items():
                times = [min(_step(forward, extent, context, rows) for _ in range(REPEATS)) for rows in ROWS]
                found[weights].append([round(1000 * seconds, 2) for seconds in times])
        finally:
            of.target.pool.release(extent)
    return {"rows": list(ROWS), "contexts": list(CONTEXTS), "ms": found}


def _step(forward: Callable[[list[Segment]], Any], extent: Any, context: int, rows: int) -> float:
    segment = Segment(extent, context, [0] * rows)
    began = perf_counter()
    forward([segment])
    return perf_counter() - began


def rounds(of: Bench) -> list[dict[str, Any]]:
    """Parts of a round at concurrency 1, greedy and sampled, over a sample of Spec-Bench."""
    out = []
    for temperature in (0.0, 0.8):
        for mode in MODES:
            made, times, count = engine(of.target, mode), StepTimes(), 0
            for prompt in of.sample:
                fresh, played = decode(made, [prompt.ids], temperature)
                times.add(fresh)
                count += played
            out.append({"mode": mode, "temperature": temperature, **parts(times, count)})
    return out


def sequences(of: Bench) -> list[dict[str, Any]]:
    """Parts of a round by the number of sequences, greedy."""
    short = sorted(of.sample, key=lambda prompt: len(prompt.ids))[: max(len(of.sample) // 2, 1)]
    out = []
    for mode in MODES:
        for count in SEQUENCES:
            times, played = decode(engine(of.target, mode), [short[i % len(short)].ids for i in range(count)], 0.0)
            out.append({"mode": mode, "sequences": count, **parts(times, played)})
    return out


def contexts(of: Bench) -> list[dict[str, Any]]:
    """Parts of a round by the length of the context, greedy, one sequence."""
    out = []
    for mode in MODES:
        for length, prompt in zip(GROWTH, of.long, strict=True):
            times, played = decode(engine(of.target, mode), [prompt.ids], 0.0)
            out.append({"mode": mode, "context": length, **parts(times, played)})
    return out


def decode(made: Engine, prompts: Sequence[Sequence[int]], temperature: float) -> tuple[StepTimes, int]:
    """Decode together; the parts and the number of rounds after the last prompt was computed."""
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=0)
    requests = [made.submit(list(ids), params) for ids in prompts]
    while any(request.first_token is None for request in requests):
        made.step()
    before, played = StepTimes(), 0
    before.add(made.times)
    while not all(request.done for request in requests):
        made.step()
        played += 1
    now = made.times
    passed = {part: getattr(now, part) - getattr(before, part) for part in ("draft", "forward", "verify", "rest")}
    return StepTimes(**passed), played


def parts(times: StepTimes, count: int) -> dict[str, Any]:
    """Milliseconds per round of each part, and the share outside the forward call."""
    each = {
        part: round(1000 * getattr(times, part) / max(count, 1), 3) for part in ("draft", "forward", "verify", "rest")
    }
    return {"rounds": count, **each, "outside": round(1 - times.forward / times.total, 4) if times.total else 0.0}


def drafters(of: Bench) -> list[dict[str, Any]]:
    """Microseconds of the n-gram drafter alone by length of the history: per round and per token drafted.

    Rounds are those of an output that goes on as the text does: propose, learn the best next tokens of every row (here
    the true one), observe.
    """
    out = []
    for nodes, name in ((8, "chain of 8"), (16, "tree of 16")):
        for length, prompt in zip(GROWTH, of.long, strict=True):
            drafter = NgramDrafter(tree_min_path=TREE_FLOOR) if nodes > 8 else NgramDrafter()
            history = list(prompt.ids)
            began = perf_counter()
            drafter.propose([_ask(history, len(prompt.ids), nodes)])
            first, drafted, spent, played = perf_counter() - began, 0, 0.0, 0
            follow = history[: 2 * TOKENS]
            for token in follow:
                history.append(token)
                began = perf_counter()
                [draft] = drafter.propose([_ask(history, len(prompt.ids), nodes)])
                drafter.learn(0, [(tuple(history[-2:]), (token,))])
                if len(draft):
                    drafter.observe(0, draft, 0)
                spent += perf_counter() - began
                drafted += len(draft)
                played += 1
            round_us, token_us = 1e6 * spent / played, 1e6 * spent / max(drafted, 1)
            out.append({"drafter": name, "context": length, "first_ms": round(1000 * first, 2)})
            out[-1] |= {"round_us": round(round_us, 1), "token_us": round(token_us, 1)}
    return out


def _ask(history: Sequence[int], prompt_length: int, nodes: int) -> DraftRequest:
    return DraftRequest(0, history, prompt_length, 8, nodes, SamplingParams(), 0)
