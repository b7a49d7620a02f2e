"""The targets of the project and what a result says about each. Thresholds are written here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.markdown import ratio
from benchmarks.selection import Selection, decoding, whole
from benchmarks.stats import Speedup
from benchmarks.theory import prediction

PLAIN, CHAIN, TREE = "headstart plain", "headstart ngram chain", "headstart ngram tree"
COPY, BOTH = "headstart drafter int4", "headstart ngram+int4"
INT4_PLAIN, INT4_TREE = "headstart int4 plain", "headstart int4 ngram tree"
INT8_PLAIN, INT8_TREE = "headstart int8 plain", "headstart int8 ngram tree"
MAIN = "greedy 128"
SIXTEEN_BITS, FOUR_BITS = ("bfloat16", "bf16", "fp16", "float16"), ("int4", "q4_1")
NEVER_SLOWER = 0.97


@dataclass(frozen=True)
class Claim:
    """One row of the table of targets; ``verdict`` is ``met`` or ``not met``."""

    text: str
    wanted: str
    measured: str
    verdict: str


def claims(told: Selection) -> list[Claim]:
    """Every target that this result has the numbers for."""
    return [*_speed(told), *_peers(told), *_never_slower(told), *_theory(told), *_exactness(told)]


def _speed(told: Selection) -> Iterator[Claim]:
    for text, way, base, group, wanted in (
        ("plain over transformers plain", PLAIN, "transformers plain", None, 1.7),
        ("plain over vLLM plain", PLAIN, "vllm plain", None, 1.0),
        ("n-gram and int4 copy over own plain", BOTH, PLAIN, None, 1.7),
        ("n-gram and int4 copy over own plain, summarization", BOTH, PLAIN, "summarization", 2.2),
    ):
        gain = told.speedup(MAIN, way, base, group)
        if gain is not None:
            yield _at_least(text, gain, wanted)


def _peers(told: Selection) -> Iterator[Claim]:
    """Against the fastest setting of any peer that needs no trained drafter."""
    mine = told.best(MAIN, [way for way in (CHAIN, TREE, COPY, BOTH) if told.of(MAIN, way)])
    for text, way, weights, wanted in (
        (f"{_short(mine)} over the fastest peer with 16-bit weights", mine, SIXTEEN_BITS, 1.0),
        (f"{_short(mine)} over the fastest peer with 4-bit weights (aim)", mine, FOUR_BITS, 1.0),
        ("int4 n-gram trees over the fastest peer with 4-bit weights", INT4_TREE, FOUR_BITS, 1.0),
        ("int8 n-gram trees over the fastest peer with 4-bit weights", INT8_TREE, FOUR_BITS, 1.1),
    ):
        others = [
            name
            for name, about in told.ways.items()
            if about["weights"] in weights and not about["trained"] and not name.startswith("headstart")
        ]
        fastest = told.best(MAIN, others)
        gain = told.speedup(MAIN, way, fastest) if way and fastest else None
        if gain is not None:
            yield _at_least(f"{text}: {fastest}", gain, wanted)


def _never_slower(told: Selection) -> Iterator[Claim]:
    """The worst group of every workload, for each drafter and for the one that is always wrong."""
    for way, base in (
        (CHAIN, PLAIN),
        (TREE, PLAIN),
        (COPY, PLAIN),
        (BOTH, PLAIN),
        (INT8_TREE, INT8_PLAIN),
        (INT4_TREE, INT4_PLAIN),
    ):
        worst: tuple[float, str, Speedup] | None = None
        for workload in told.result["workloads"]:
            name = workload["name"]
            of = whole if workload["kind"] == "batches" else decoding
            for group in told.groups(name):
                gain = told.speedup(name, way, base, group, of=of)
                if gain is not None and (worst is None or gain.ratio < worst[0]):
                    worst = gain.ratio, f"{name}, {group}", gain
        if worst is not None:
            text = f"never slower, {_short(way)}: the worst group, {worst[1]}"
            yield _at_least(text, worst[2], NEVER_SLOWER)
    for workload in told.workloads("theory"):
        gain = told.speedup(workload["name"], "headstart wrong", PLAIN)
        if gain is not None:
            yield _at_least("a drafter that is always wrong over plain", gain, NEVER_SLOWER)


def _theory(told: Selection) -> Iterator[Claim]:
    for workload in told.workloads("theory"):
        for way in told.ways_in(workload["name"]):
            expected = prediction(told, workload["name"], way)
            gain = told.speedup(workload["name"], way, PLAIN)
            if expected and gain:
                met = gain.ratio / expected[0]
                text = f"measured over predicted speedup, {way.removeprefix('headstart ')}"
                yield Claim(text, "≥ 0.92", f"{met:.2f}", "met" if met >= 0.92 else "not met")


def _exactness(told: Selection) -> Iterator[Claim]:
    same = compared = 0
    for workload in told.result["workloads"]:
        for way in told.ways:
            found = told.identical(workload["name"], way) if way.startswith("headstart") else None
            if found:
                same, compared = same + found[0], compared + found[1]
    if compared:
        verdict = "met" if same == compared else "not met"
        yield Claim("headstart's outputs equal to its plain ones", "all", f"{same} of {compared}", verdict)


def _short(way: str | None) -> str:
    return (way or "").removeprefix("headstart ")


def _at_least(text: str, gain: Speedup, wanted: float) -> Claim:
    return Claim(text, f"≥ {wanted:g}", ratio(gain), "met" if gain.ratio >= wanted else "not met")
