"""What ``headstart try`` measured: runs, rows, totals, and the JSON they make. Pure functions of numbers.

Knows neither models nor clocks: whoever measures fills in ``Run`` and ``Row``. Rates count the tokens after the first
delivery over the seconds after it (decode only); the rate with the prompt's computation is kept beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PLAIN = "plain"
LAW = "law"
"""Not compared: the rule keeps the target's law, not the tokens of plain decoding."""
NOT_APPLICABLE = "n.a."


@dataclass(frozen=True, slots=True)
class Run:
    """One request. ``seconds`` from submission to end, ``decode_seconds`` from first delivery to end; ``decode_tokens``
    are the tokens delivered in the latter. ``None`` where a route does not tell."""

    token_ids: tuple[int, ...]
    seconds: float
    decode_seconds: float
    decode_tokens: int
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    fallbacks: Mapping[str, int] = field(default_factory=dict)

    @property
    def tok_s(self) -> float | None:
        """Tokens per second after the first delivery."""
        return _ratio(self.decode_tokens, self.decode_seconds)

    @property
    def tok_s_total(self) -> float | None:
        """Tokens per second, prompt included."""
        return _ratio(len(self.token_ids), self.seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt on one route. ``baseline`` is the route whose output and speed it is compared with; ``None`` for a
    baseline itself. ``identical`` is ``None`` where nothing was compared, and ``not_compared`` says why. ``promised``:
    a difference would be a broken promise."""

    route: str
    baseline: str | None
    number: int
    prompt: str
    kind: str
    temperature: float
    run: Run
    identical: bool | None = None
    not_compared: str | None = None
    first_difference: int | None = None
    top_two_gap: float | None = None
    promised: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    """All prompts of one route: sums of tokens over sums of seconds."""

    route: str
    baseline: str | None
    prompts: int
    tokens: int
    seconds: float
    decode_tokens: int
    decode_seconds: float
    tok_s: float | None
    tok_s_total: float | None
    speedup: float | None
    speedup_total: float | None
    drafted: int | None
    accepted: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    compared: int
    identical: int
    fallbacks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under what the numbers were measured; ``exact_rows`` and ``reason`` are the target's own verdict."""

    model: str
    draft_model: str | None
    dtype: str
    device: str
    exact_rows: bool
    reason: str | None
    threads: int
    depth: int | str
    nodes: int | None
    max_tokens: int
    verify: str
    seed: int
    repeat: int
    against: str | None
    versions: Mapping[str, str]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, ``None`` when they are equal; where one ends early, its length."""
    if list(a) == list(b):
        return None
    short = min(len(a), len(b))
    return next((i for i in range(short) if a[i] != b[i]), short)


def median_run(runs: Sequence[Run]) -> Run:
    """The run of median decode time per token; the faster of the middle two, so that it is one that happened."""
    ordered = sorted(runs, key=lambda run: run.decode_seconds / max(1, run.decode_tokens))
    return ordered[(len(ordered) - 1) // 2]


def speedup(row: Row, rows: Iterable[Row]) -> float | None:
    """Decode rate over the same prompt's on the baseline route."""
    base = _base(row, rows)
    return None if base is None else _over(row.run.tok_s, base.run.tok_s)


def totals(rows: Sequence[Row]) -> list[Total]:
    """One total per route, in order of first appearance."""
    made: dict[str, Total] = {}
    for name in dict.fromkeys(row.route for row in rows):
        made[name] = _total([row for row in rows if row.route == name], None)
    for name, total in made.items():
        base = made.get(total.baseline or "")
        if base is not None:
            made[name] = _total([row for row in rows if row.route == name], base)
    return list(made.values())


def by_kind(rows: Sequence[Row], route: str) -> dict[str, float]:
    """Decode speedup of one route over its baseline, for each kind of prompt where both have a rate. A user's own
    prompts have no kind; each stands for itself."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt if row.kind == "user" else row.kind, []).append(row)
    out: dict[str, float] = {}
    for kind, members in groups.items():
        total = next((t for t in totals(members) if t.route == route), None)
        if total is not None and total.speedup is not None:
            out[kind] = total.speedup
    return out


def broken(rows: Iterable[Row], conditions: Conditions) -> list[Row]:
    """Rows that differ although identity was promised: by the rule, on a device with exact rows."""
    return [row for row in rows if conditions.exact_rows and row.promised and row.identical is False]


def acceptance_rate(run: Run) -> float | None:
    """Accepted over drafted tokens; ``None`` when nothing was drafted or a route does not tell."""
    return _ratio(run.accepted, run.drafted)


def mean_acceptance_length(run: Run) -> float | None:
    """Tokens per round after the first delivery, rounds without a draft included."""
    return _ratio(run.decode_tokens, run.rounds)


def as_json(rows: Sequence[Row], conditions: Conditions, advice: Sequence[str], interrupted: bool) -> dict[str, Any]:
    """Everything measured, as plain values."""
    return {
        **asdict(conditions),
        "versions": dict(conditions.versions),
        "interrupted": interrupted,
        "measure": "tok_s and speedup: tokens after the first delivery / seconds after it; *_total: prompt included",
        "results": [_row_json(row, rows) for row in rows],
        "totals": [{**_plain(total), "fallbacks": dict(total.fallbacks)} for total in totals(rows)],
        "broken_promises": len(broken(rows, conditions)),
        "advice": list(advice),
    }


def _row_json(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    run, base = row.run, _base(row, rows)
    return {
        "route": row.route,
        "baseline": row.baseline,
        "prompt": row.prompt,
        "kind": row.kind,
        "temperature": row.temperature,
        "tokens": len(run.token_ids),
        "seconds": run.seconds,
        "decode_tokens": run.decode_tokens,
        "decode_seconds": run.decode_seconds,
        "tok_s": run.tok_s,
        "tok_s_total": run.tok_s_total,
        "speedup": speedup(row, rows),
        "speedup_total": None if base is None else _over(run.tok_s_total, base.run.tok_s_total),
        "drafted": run.drafted,
        "accepted": run.accepted,
        "rounds": run.rounds,
        "acceptance_rate": acceptance_rate(run),
        "mean_acceptance_length": mean_acceptance_length(run),
        "identical": row.identical,
        "not_compared": row.not_compared,
        "first_difference": row.first_difference,
        "top_two_gap": row.top_two_gap,
        "fallbacks": dict(run.fallbacks),
        "token_ids": list(run.token_ids),
    }


def _plain(total: Total) -> dict[str, Any]:
    return {name: getattr(total, name) for name in Total.__dataclass_fields__}


def _base(row: Row, rows: Iterable[Row]) -> Row | None:
    return next((r for r in rows if r.route == row.baseline and r.number == row.number), None)


def _total(rows: Sequence[Row], base: Total | None) -> Total:
    runs = [row.run for row in rows]
    tokens, seconds = sum(len(run.token_ids) for run in runs), sum(run.seconds for run in runs)
    decode_tokens, decode_seconds = sum(run.decode_tokens for run in runs), sum(run.decode_seconds for run in runs)
    tok_s, tok_s_total = _ratio(decode_tokens, decode_seconds), _ratio(tokens, seconds)
    drafted, accepted = _sum(run.drafted for run in runs), _sum(run.accepted for run in runs)
    fallbacks: Counter[str] = Counter()
    for run in runs:
        fallbacks.update(run.fallbacks)
    return Total(
        route=rows[0].route,
        baseline=rows[0].baseline,
        prompts=len(rows),
        tokens=tokens,
        seconds=seconds,
        decode_tokens=decode_tokens,
        decode_seconds=decode_seconds,
        tok_s=tok_s,
        tok_s_total=tok_s_total,
        speedup=None if base is None else _over(tok_s, base.tok_s),
        speedup_total=None if base is None else _over(tok_s_total, base.tok_s_total),
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=_ratio(accepted, drafted),
        mean_acceptance_length=_ratio(decode_tokens, _sum(run.rounds for run in runs)),
        compared=sum(row.identical is not None for row in rows),
        identical=sum(row.identical is True for row in rows),
        fallbacks=fallbacks,
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _over(rate: float | None, base: float | None) -> float | None:
    return None if rate is None or not base else rate / base


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if any(value is None for value in known) else sum(value for value in known if value is not None)
