"""Which ways of decoding are compared, and which process decodes each.

A way that cannot be had on this machine is named with the reason, never left out silently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from benchmarks.peers.models import Models
from benchmarks.peers.place import PEERS, advice, environment_python, missing_environment
from benchmarks.workloads import ACCEPTANCES

KV_TOKENS = 24_576
MAX_MODEL_LEN = 8192
MAX_SEQUENCES = 16
KV_GIB = 1

SINGLE, MANY = ("tasks", "lengths"), ("tasks", "lengths", "batches")
THEORY = ("theory",)
LLAMACPP_MODES = ("plain", "ngram-simple", "ngram-map-k", "ngram-cache", "ngram-mod", "draft model")


@dataclass(frozen=True)
class Process:
    """One runner process: ``module`` of ``benchmarks.peers``, run by the interpreter of ``peer``'s environment."""

    name: str
    peer: str
    config: dict[str, Any] = field(hash=False)

    def command(self) -> list[str]:
        python = str(environment_python(self.peer)) if self.peer in PEERS else sys.executable
        return [python, "-m", f"benchmarks.peers.{self.peer}", json.dumps(self.config)]


@dataclass(frozen=True)
class Way:
    """One way to decode. ``plain`` is the way it is a faster version of; ``kinds`` the kinds of workload it takes part
    in; ``trained`` whether it needs a drafter with weights."""

    name: str
    process: str
    mode: str
    weights: str
    plain: str
    kinds: tuple[str, ...]
    trained: bool


@dataclass(frozen=True)
class Line:
    """The ways to compare, their processes by name, and what is missing with the reason."""

    ways: list[Way]
    processes: dict[str, Process]
    missing: dict[str, str]


def line_up(models: Models, threads: int, patterns: Sequence[str] = (), without: Sequence[str] = ()) -> Line:
    """Everything that can be compared for this model, narrowed to names that match ``patterns`` (all if none) and none
    of ``without``; an engine's name matches all its ways."""
    whole = _Builder(models, threads)
    whole.headstart()
    whole.transformers()
    whole.vllm()
    whole.llamacpp()
    whole.openvino()
    ways = [way for way in whole.ways if _chosen(way.name, patterns, without)]
    used = {way.process for way in ways}
    return Line(ways, {name: p for name, p in whole.processes.items() if name in used}, whole.missing)


class _Builder:
    def __init__(self, models: Models, threads: int) -> None:
        self.models, self.threads = models, threads
        self.ways: list[Way] = []
        self.processes: dict[str, Process] = {}
        self.missing: dict[str, str] = {}
        self.common = {"folder": str(models.folder), "dtype": models.dtype, "draft": str(models.draft)}

    def process(self, name: str, peer: str, config: dict[str, Any]) -> str:
        shared = {"threads": self.threads, "max_sequences": MAX_SEQUENCES}
        self.processes[name] = Process(name, peer, {**shared, **config})
        return name

    def way(self, family: str, mode: str, process: str, weights: str, kinds: tuple[str, ...]) -> None:
        trained = mode == "draft model"
        self.ways.append(Way(f"{family} {mode}", process, mode, weights, f"{family} plain", kinds, trained))

    def installed(self, peer: str) -> bool:
        reason = missing_environment(peer)
        if reason is not None:
            self.missing[peer] = reason
        return reason is None

    def headstart(self) -> None:
        config = {**self.common, "kv_tokens": KV_TOKENS}
        full = self.process("headstart", "headstart", {**config, "draft_weights": "int4"})
        dtype = self.models.dtype
        self.way("headstart", "plain", full, dtype, (*MANY, *THEORY))
        self.way("headstart", "ngram chain", full, dtype, SINGLE)
        self.way("headstart", "ngram tree", full, dtype, MANY)
        self.way("headstart", "drafter int4", full, dtype, SINGLE)
        self.way("headstart", "ngram+int4", full, dtype, MANY)
        self.way("headstart", "draft model", full, dtype, SINGLE)
        for weights in ("int8", "int4"):
            process = self.process(f"headstart {weights}", "headstart", {**config, "weights": weights})
            for mode in ("plain", "ngram tree"):
                self.way(f"headstart {weights}", mode, process, weights, MANY)
        for acceptance in ACCEPTANCES:
            for mode in (f"oracle {acceptance}", f"oracle {acceptance} fixed"):
                self.way("headstart", mode, full, dtype, THEORY)
        self.way("headstart", "wrong", full, dtype, THEORY)

    def transformers(self) -> None:
        process = self.process("transformers", "transformers", self.common)
        for mode, kinds in (("plain", MANY), ("prompt lookup", SINGLE), ("draft model", SINGLE)):
            self.way("transformers", mode, process, self.models.dtype, kinds)

    def vllm(self) -> None:
        if not self.installed("vllm"):
            return
        for mode in ("plain", "ngram", "suffix"):
            config = {**self.common, "mode": mode, "kv_gib": KV_GIB, "max_model_len": MAX_MODEL_LEN}
            self.way("vllm", mode, self.process(f"vllm {mode}", "vllm", config), self.models.dtype, MANY)

    def llamacpp(self) -> None:
        if not self.installed("llamacpp"):
            return
        draft = str(self.models.gguf("draft"))
        for weights in ("q4_1", "bf16"):
            file = self.models.gguf(weights)
            if not file.is_file():
                self.missing[f"llama.cpp {weights}"] = f"{file.name} is missing; {advice('llamacpp')}"
                continue
            for mode in LLAMACPP_MODES:
                many = mode == "plain"
                room = {"context": KV_TOKENS if many else MAX_MODEL_LEN, "max_sequences": MAX_SEQUENCES if many else 1}
                config = {"file": str(file), "draft": draft, "mode": mode, "weights": weights, **room}
                family = f"llama.cpp {weights}"
                process = self.process(f"{family} {mode}", "llamacpp", config)
                self.way(family, mode, process, weights, MANY if many else SINGLE)

    def openvino(self) -> None:
        if not self.installed("openvino"):
            return
        for weights in ("int4", "fp16"):
            folder = self.models.openvino(weights)
            if not folder.is_dir():
                self.missing[f"openvino {weights}"] = f"{folder.name} is missing; {advice('openvino')}"
                continue
            for mode in ("plain", "prompt lookup"):
                config = {"folder": str(folder), "mode": mode, "weights": weights, "kv_gib": KV_GIB}
                family = f"openvino {weights}"
                self.way(family, mode, self.process(f"{family} {mode}", "openvino", config), weights, MANY)


def _chosen(name: str, patterns: Sequence[str], without: Sequence[str]) -> bool:
    def matches(pattern: str) -> bool:
        return fnmatch(name, pattern) or fnmatch(name, f"{pattern} *")

    return (not patterns or any(map(matches, patterns))) and not any(map(matches, without))
