"""What is decoded: named lists of items, each one or several prompts at once, with the parameters of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prompts import Encode, Prompt, long_prompts, sample

CONCURRENCY = (1, 2, 4, 8, 16)
LENGTHS = (128, 512, 1024, 2048, 4096, 6000)
LONG_TOKENS = 64
ACCEPTANCES = (0.5, 0.7, 0.9)
SHARE_OF_512 = 5
"""One in so many prompts of the sample is decoded to 512 tokens too."""


@dataclass(frozen=True)
class Item:
    """Prompts that are decoded at the same time."""

    group: str
    name: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True)
class Workload:
    """``kind`` is ``tasks``, ``batches``, ``lengths`` or ``theory`` and decides which ways take part."""

    name: str
    kind: str
    temperature: float
    max_tokens: int
    items: tuple[Item, ...]


def workloads(path: Path, per_group: int, encode: Encode) -> list[Workload]:
    """All of them, in the order in which they run."""
    prompts = sample(path, per_group, encode)
    fewer = sample(path, -(-per_group // SHARE_OF_512), encode)
    single, single_512 = one_by_one(prompts), one_by_one(fewer)
    out = [
        Workload("greedy 128", "tasks", 0.0, 128, single),
        Workload("temperature 0.8, 128", "tasks", 0.8, 128, single),
        Workload("theory", "theory", 0.0, 128, one_by_one(sample(path, -(-per_group // 2), encode))),
    ]
    for temperature, name in ((0.0, "concurrency"), (0.8, "concurrency, temperature 0.8")):
        out.append(Workload(name, "batches", temperature, 128, tuple(batches(prompts))))
    out.append(Workload("prompt length", "lengths", 0.0, LONG_TOKENS, lengths(path, -(-per_group // 5), encode)))
    out.append(Workload("greedy 512", "tasks", 0.0, 512, single_512))
    out.append(Workload("temperature 0.8, 512", "tasks", 0.8, 512, single_512))
    return out


def one_by_one(prompts: Sequence[Prompt]) -> tuple[Item, ...]:
    return tuple(Item(p.group, p.name, (p,)) for p in prompts)


def batches(prompts: Sequence[Prompt]) -> list[Item]:
    """For every concurrency as many batches as half of the prompts fill, and at least one of each."""
    half = max(len(prompts) // 2, 1)
    out = []
    for size in CONCURRENCY:
        for i in range(max(1, half // size)):
            chosen = tuple(prompts[(i * size + j) % len(prompts)] for j in range(size))
            out.append(Item(f"{size} at once", str(i), chosen))
    return out


def lengths(path: Path, count: int, encode: Encode) -> tuple[Item, ...]:
    return one_by_one(long_prompts(path, LENGTHS, count, encode))
