"""One session: start the processes one after another, then take every item through every way.

Knows order, truth and failures; what is made of the numbers afterwards is ``results``'s concern.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.client import AskFailed, PeerFailed, PeerProcess
from benchmarks.journal import Journal
from benchmarks.peers.protocol import Answer, Request
from benchmarks.stats import cut_at_eos
from benchmarks.theory import best_depth
from benchmarks.ways import Line, Way
from benchmarks.workloads import Item, Workload
from headstart.control.cost import CostCurve

START_TIMEOUT = 600.0
WARM_TOKENS = 16
SEED = 0
# A runtime that inherits these would not choose as its documentation says.
UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


class Session:
    """Processes, and the way through the items. What the processes print goes into the folder ``logs``."""

    def __init__(
        self,
        line: Line,
        workloads: Sequence[Workload],
        journal: Journal,
        timeout: float,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self.line, self.workloads, self.journal = line, workloads, journal
        self.timeout, self.say = timeout, say
        self.logs = logs
        self.running: dict[str, PeerProcess] = {}
        self.info: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.eos: list[int] = journal.settings["eos"]
        self.truth: dict[tuple[tuple[int, ...], float, int], list[int]] = {}

    def run(self, machine: Mapping[str, Any], command: str) -> None:
        """Everything that the journal does not have yet."""
        done = self.journal.done()
        todo = [(w, i) for w in self.workloads for i in w.items if (w.name, key(i)) not in done]
        if not todo:
            return
        self.start(todo)
        number = self.journal.begin(
            machine=machine,
            command=command,
            resumed=bool(done),
            processes=self.info,
            failed={**self.line.missing, **self.failed},
        )
        began, spent = perf_counter(), 0.0
        for count, (workload, item) in enumerate(todo, start=1):
            runs = self.item(workload, item, count)
            self.journal.add(workload.name, key(item), number, runs)
            spent = perf_counter() - began
            left = spent / count * (len(todo) - count)
            self.say(f"[{count}/{len(todo)}] {workload.name}, {key(item)}: {brief(runs)}; {left / 60:.0f} min left")
        self.journal.end(number, failed={**self.line.missing, **self.failed}, memory=self.memory())

    def start(self, todo: Sequence[tuple[Workload, Item]]) -> None:
        """Start and warm every process that is needed, one at a time; hold each still afterwards."""
        kinds = {workload.kind for workload, _ in todo}
        needed = {way.process for way in self.line.ways if kinds & set(way.kinds)}
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        for name in UNSET:
            os.environ.pop(name, None)
        _, first = min(todo, key=lambda pair: len(pair[1].prompts[0].ids))
        for name, process in self.line.processes.items():
            if name not in needed:
                continue
            self.say(f"starting {name}")
            peer = PeerProcess(process.command(), self.logs / f"{name.replace(' ', '-')}.log", environment)
            self.running[name] = peer  # so that an interrupt while it loads ends it too
            try:
                self.info[name] = {**peer.wait_ready(START_TIMEOUT), "startup_seconds": peer.startup_seconds}
                peer.pause()
            except PeerFailed as error:
                self.drop(name, str(error))
                continue
            for way in self.line.ways:
                if way.process == name and set(way.kinds) != {"theory"}:
                    prompt = list(first.prompts[0].ids)
                    self.ask(way, Request(way.mode, [prompt], WARM_TOKENS, 0.0, SEED, self.eos, "warm"))

    def item(self, workload: Workload, item: Item, turn: int) -> dict[str, Any]:
        """One item through all ways, beginning with another one each time."""
        ways = [w for w in self.line.ways if workload.kind in w.kinds]
        prompts = [list(p.ids) for p in item.prompts]
        truth = self.known_truth(workload, item) if workload.kind == "theory" else []
        at = turn % len(ways)
        runs: dict[str, Any] = {}
        for way in ways[at:] + ways[:at]:
            if way.process not in self.running:
                runs[way.name] = {"error": self.failed.get(way.process, "not running")}
                continue
            request = Request(
                mode=self.mode(way),
                prompts=prompts,
                max_tokens=workload.max_tokens,
                temperature=workload.temperature,
                seed=SEED,
                eos=self.eos,
                scope=scope(workload, item),
                truth=truth,
            )
            result = self.ask(way, request)
            runs[way.name] = asdict(result) if isinstance(result, Answer) else {"error": result}
            if way.name == "headstart plain" and isinstance(result, Answer):
                for prompt, output in zip(item.prompts, result.outputs, strict=True):
                    self.truth[prompt.ids, workload.temperature, workload.max_tokens] = output.ids
        return {way.name: runs[way.name] for way in ways}

    def ask(self, way: Way, request: Request) -> Answer | str:
        """The answer, or why there is none."""
        peer = self.running.get(way.process)
        if peer is None:
            return self.failed.get(way.process, "not running")
        try:
            return peer.ask(request, self.timeout)
        except AskFailed as error:
            return str(error)
        except PeerFailed as error:
            self.drop(way.process, str(error))
            return str(error)

    def mode(self, way: Way) -> str:
        """A fixed oracle is held to the depth that pays most by the calibrated curve."""
        if not way.mode.endswith("fixed"):
            return way.mode
        _, acceptance, _ = way.mode.split()
        curve = CostCurve.from_dict(self.info[way.process]["curve"])
        return f"oracle {acceptance} depth {best_depth(curve, float(acceptance))}"

    def known_truth(self, workload: Workload, item: Item) -> list[list[int]]:
        """What plain decoding says to each prompt; asked for, untimed, where no earlier item told."""
        plain = next((w for w in self.line.ways if w.name == "headstart plain"), None)
        out = []
        for prompt in item.prompts:
            where = (prompt.ids, workload.temperature, workload.max_tokens)
            if where not in self.truth and plain is not None:
                request = Request(
                    "plain", [list(prompt.ids)], workload.max_tokens, workload.temperature, SEED, self.eos, "truth"
                )
                answer = self.ask(plain, request)
                if isinstance(answer, Answer):
                    self.truth[where] = answer.outputs[0].ids
            out.append(cut_at_eos(self.truth.get(where, []), self.eos))
        return out

    def memory(self) -> dict[str, int]:
        """Peak resident bytes by process."""
        return {name: peer.peak_memory() for name, peer in self.running.items()}

    def drop(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        self.say(f"{name}: {reason}; the run goes on without it")
        peer = self.running.pop(name, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        """End all processes."""
        for peer in self.running.values():
            peer.close()
        self.running.clear()


def key(item: Item) -> str:
    return f"{item.group}/{item.name}"


def scope(workload: Workload, item: Item) -> str:
    """Where a drafter may remember: within a list of different prompts, never where the same prompt comes again."""
    return workload.name if workload.kind in ("tasks", "theory") else f"{workload.name}, {item.group}"


def brief(runs: Mapping[str, Any]) -> str:
    """Tokens per second, way by way."""
    return ", ".join(f"{name} {text}" for name, text in _speeds(runs))


def _speeds(runs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, run in runs.items():
        if "error" in run:
            yield name, "failed"
        else:
            yield name, f"{sum(len(o['ids']) for o in run['outputs']) / max(run['seconds'], 1e-9):.0f}"
