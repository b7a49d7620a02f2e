"""From a journal to the result: one compact value with a row for every run, and how rows become numbers.

Token ids are compared and counted here and then left out. Knows journals and rows; tables are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.journal import Journal
from benchmarks.stats import Timed, cut_at_eos
from benchmarks.ways import Line
from benchmarks.workloads import Workload

COLUMNS = (
    "workload",
    "group",
    "item",
    "session",
    "way",
    "prompt_tokens",
    "tokens",
    "first_tokens",
    "first_seconds",
    "seconds",
    "drafted",
    "accepted",
    "rounds",
    "identical",
    "error",
)


@dataclass(frozen=True)
class Row:
    """One item on one way, sums over its prompts. ``first_seconds`` is the mean over them, ``seconds`` the wall clock
    of all; ``identical`` says whether every output equals that of the way's own plain, where it should."""

    workload: str
    group: str
    item: str
    session: int
    way: str
    prompt_tokens: int
    tokens: int
    first_tokens: int
    first_seconds: float
    seconds: float
    drafted: int | None
    accepted: int | None
    rounds: int | None
    identical: bool | None
    error: str | None

    @property
    def decoding(self) -> Timed:
        """Tokens after the first ones, and their time."""
        return Timed(self.tokens - self.first_tokens, self.seconds - self.first_seconds)

    @property
    def whole(self) -> Timed:
        """All tokens and all the time, the prompt's included."""
        return Timed(self.tokens, self.seconds)


def report(journal: Journal, line: Line, chosen: Sequence[Workload]) -> dict[str, Any]:
    """The result of all sessions of a journal, as it is written to the JSON file."""
    sessions = journal.sessions
    last: dict[str, Any] = sessions[-1]
    rows = [row for entry in journal.items for row in rows_of(entry, line, chosen, journal.settings["eos"])]
    processes: dict[str, Any] = {}
    for session in sessions:
        for name, info in session["processes"].items():
            memory = session.get("memory", {}).get(name)
            processes[name] = {**info, **({"peak_bytes": memory} if memory is not None else {})}
    return {
        "kind": "peers",
        "settings": journal.settings,
        "machine": last["machine"],
        "command": sessions[0]["command"],
        "sessions": [
            {"date": s["machine"]["date"], "load": s["machine"]["load"], "resumed": s["resumed"]} for s in sessions
        ],
        "missing": {name: reason for s in sessions for name, reason in s["failed"].items()},
        "processes": processes,
        "ways": [
            {"name": w.name, "process": w.process, "weights": w.weights, "plain": w.plain, "trained": w.trained}
            for w in line.ways
        ],
        "workloads": [
            {"name": w.name, "kind": w.kind, "temperature": w.temperature, "max_tokens": w.max_tokens} for w in chosen
        ],
        "columns": list(COLUMNS),
        "rows": [pack(row) for row in rows],
    }


def rows_of(entry: Mapping[str, Any], line: Line, chosen: Sequence[Workload], eos: Sequence[int]) -> Iterator[Row]:
    """A row for every way of a journal's item."""
    workload = next(w for w in chosen if w.name == entry["workload"])
    group, _, name = entry["item"].rpartition("/")
    item = next(i for i in workload.items if (i.group, i.name) == (group, name))
    prompt_tokens = sum(len(p.ids) for p in item.prompts)
    plain = {way.name: way.plain for way in line.ways}
    ids = {
        way: [cut_at_eos(output["ids"], eos) for output in run["outputs"]]
        for way, run in entry["runs"].items()
        if "outputs" in run
    }
    for way, run in entry["runs"].items():
        base = plain[way]
        where = (entry["workload"], group, name, entry["session"], way, prompt_tokens)
        if "error" in run:
            yield Row(*where, 0, 0, 0.0, 0.0, None, None, None, None, run["error"])
            continue
        outputs = run["outputs"]
        compared = base != way and base in ids and (workload.temperature == 0 or way.startswith("headstart"))
        yield Row(
            *where,
            tokens=sum(map(len, ids[way])),
            first_tokens=sum(min(o["first_tokens"], len(i)) for o, i in zip(outputs, ids[way], strict=True)),
            first_seconds=sum(o["first"] for o in outputs) / len(outputs),
            seconds=run["seconds"] if len(outputs) > 1 else outputs[0]["seconds"],
            drafted=total(run, "drafted"),
            accepted=total(run, "accepted"),
            rounds=total(run, "rounds"),
            identical=ids[way] == ids[base] if compared else None,
            error=None,
        )


def total(run: Mapping[str, Any], name: str) -> int | None:
    """A count over all prompts, however the peer reports it."""
    if run.get(name) is not None:
        return int(run[name])
    each = [output[name] for output in run["outputs"]]
    return sum(each) if None not in each else None


def pack(row: Row) -> list[Any]:
    values = asdict(row)
    return [round(values[c], 4) if isinstance(values[c], float) else values[c] for c in COLUMNS]


def unpack(result: Mapping[str, Any]) -> list[Row]:
    """The rows of a result file."""
    return [Row(**dict(zip(result["columns"], row, strict=True))) for row in result["rows"]]
