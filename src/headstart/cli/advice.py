"""The numbers of ``headstart try`` in words: one table, and plain advice that claims no more than was measured.

Pure functions of rows and totals; knows no model and prints nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from headstart.cli.report import (
    Conditions,
    Row,
    Total,
    acceptance_rate,
    broken,
    by_kind,
    mean_acceptance_length,
    speedup,
    totals,
)

WORTH = 1.05
"""A gain below 5 % is within what two runs of the same thing differ by."""
LOW_ACCEPTANCE = 0.4
PEER = "transformers"
SHOWN = 5
"""Most kinds or prompts named in one sentence."""


def table(rows: Sequence[Row]) -> Table:
    """All rows by prompt, then one total per route."""
    made = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    made.add_column("prompt", no_wrap=True, max_width=28)
    made.add_column("route", no_wrap=True)
    for name in ("tok/s", "speedup", "overall", "accepted", "length"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("identical")
    previous = None
    for row in rows:
        first = row.number != previous
        if first and previous is not None:
            made.add_section()
        previous = row.number
        base = next((r for r in rows if r.route == row.baseline and r.number == row.number), None)
        overall = _quotient(row.run.tok_s_total, base.run.tok_s_total if base else None)
        made.add_row(
            _label(row) if first else "",
            row.route,
            _number(row.run.tok_s),
            _times(speedup(row, rows)),
            _times(overall),
            _percent(acceptance_rate(row.run)),
            _number(mean_acceptance_length(row.run), 2),
            _identical(row),
        )
    made.add_section()
    for i, total in enumerate(totals(rows)):
        made.add_row(
            "total" if i == 0 else "",
            total.route,
            _number(total.tok_s),
            _times(total.speedup),
            _times(total.speedup_total),
            _percent(total.acceptance_rate),
            _number(total.mean_acceptance_length, 2),
            f"{total.identical} of {total.compared}" if total.compared else "–",
            style="bold",
        )
    return made


def caption(conditions: Conditions) -> list[str]:
    """Under what the table was measured, and what its columns mean."""
    nodes = f", {conditions.nodes} nodes" if conditions.nodes else ""
    runs = f", median of {conditions.repeat}" if conditions.repeat > 1 else ""
    threads = "1 thread" if conditions.threads == 1 else f"{conditions.threads} threads"
    return [
        f"{conditions.model}, {conditions.dtype} on {conditions.device}, {threads}, depth {conditions.depth}{nodes}, "
        f"rule {conditions.verify}, seed {conditions.seed}{runs}.",
        "tok/s and speedup: decode only, that is tokens and seconds after the first token. overall: speedup of the "
        "whole request, prompt included. accepted: share of the draft tokens. length: tokens per round. identical: to "
        "plain, token by token.",
    ]


def advise(rows: Sequence[Row], conditions: Conditions) -> list[str]:
    """A few sentences: what broke, which route to use and where, what to doubt, and the peer's numbers."""
    if not rows:
        return ["Nothing was measured."]
    found = totals(rows)
    own = [total for total in found if not total.route.startswith(PEER)]
    drafted = [total for total in own if total.baseline is not None]
    out = _broken_promises(rows, conditions)
    if drafted:
        out += [_choice(rows, drafted), *(line for t in drafted for line in _doubts(t, conditions.depth == "auto"))]
    out += _exactness(rows, conditions)
    out += _peer(rows, own, [total for total in found if total.route.startswith(PEER)])
    return out


def _broken_promises(rows: Sequence[Row], conditions: Conditions) -> list[str]:
    wrong = broken(rows, conditions)
    if not wrong:
        return []
    where = ", ".join(f"{row.route} on {row.prompt} (token {row.first_difference})" for row in wrong)
    return [
        f"BROKEN PROMISE: {len(wrong)} outputs differ from plain decoding although this device computes rows exactly: "
        f"{where}. This is a bug in headstart. Please report it with the JSON file (--json)."
    ]


def _choice(rows: Sequence[Row], drafted: Sequence[Total]) -> str:
    rated = [total for total in drafted if total.speedup is not None]
    if not rated:
        return "The answers are too short to time: ask for more tokens (--max-tokens)."
    best = max(rated, key=lambda total: total.speedup or 0.0)
    gain = best.speedup or 0.0
    kinds = by_kind(rows, best.route)
    pays = _kinds(kinds, lambda ratio: ratio >= WORTH)
    costs = _kinds(kinds, lambda ratio: ratio <= 1 / WORTH)
    same = _kinds(kinds, lambda ratio: 1 / WORTH < ratio < WORTH)
    if gain >= WORTH:
        text = (
            f"Use {best.route}: {gain:.2f}× plain over {_prompts(best.prompts)} on this machine "
            f"({_times(best.speedup_total)} with the prompt's computation)."
        )
        if len(kinds) > 1:
            text += f" It pays for {pays}." if pays else ""
    else:
        text = (
            f"Nothing beats plain by 5 % over {_prompts(best.prompts)} (best: {best.route} at {gain:.2f}×): "
            "leave speculation off for a mix like this."
        )
        if len(kinds) > 1 and pays:
            text += f" It pays only for {pays}."
    if len(kinds) > 1:
        text += f" It costs time for {costs}." if costs else ""
        text += f" It makes no clear difference for {same}." if same else ""
    load = "; under load the gain is usually smaller" if gain >= WORTH else ""
    return f"{text} Measured one request at a time{load}."


def _doubts(total: Total, adaptive: bool) -> list[str]:
    out = []
    if total.drafted == 0:
        out.append(f"{total.route} proposed nothing on these prompts.")
    elif total.acceptance_rate is not None and total.acceptance_rate < LOW_ACCEPTANCE:
        out.append(
            f"{total.route} is accepted only {total.acceptance_rate:.0%} of the time overall, so most drafts are "
            + (
                "thrown away; depth was chosen so that they cost little here, and another drafter may do better."
                if adaptive
                else "work thrown away; a smaller --depth, adaptive depth or another drafter may do better."
            )
        )
    if total.fallbacks:
        reasons = ", ".join(f"{reason} {count}×" for reason, count in sorted(total.fallbacks.items()))
        out.append(f"{total.route} failed in some rounds ({reasons}); decoding went on plain there.")
    return out


def _exactness(rows: Sequence[Row], conditions: Conditions) -> list[str]:
    out = []
    compared = [row for row in rows if row.promised and row.identical is not None]
    different = [row for row in compared if row.identical is False]
    if not conditions.exact_rows and compared:
        text = (
            f"Rows are not bitwise exact on this device in {conditions.dtype}, so a draft can tip a near-tie: "
            f"{len(different)} of {len(compared)} outputs differ from plain."
        )
        gaps = [row.top_two_gap for row in different if row.top_two_gap is not None]
        if gaps:
            text += f" Where they part, the target's two best tokens are at most {max(gaps):.3g} apart in logit."
        out.append(text)
    if any(row.not_compared == "law" for row in rows):
        out.append(
            f"Rule {conditions.verify} keeps the target's law but not the tokens of plain decoding above temperature "
            "0, so those rows are marked 'law'. Rule coupled keeps the tokens."
        )
    return out


def _peer(rows: Sequence[Row], own: Sequence[Total], peers: Sequence[Total]) -> list[str]:
    out = []
    plain = next((total for total in own if total.baseline is None), None)
    theirs = next((total for total in peers if total.baseline is None), None)
    if plain and theirs and plain.tok_s and theirs.tok_s:
        best = max((t for t in own if t.tok_s), key=lambda t: t.tok_s or 0.0)
        best_peer = max((t for t in peers if t.tok_s), key=lambda t: t.tok_s or 0.0)
        out.append(
            f"Side by side: plain {plain.tok_s:.1f} tok/s here, {theirs.tok_s:.1f} in transformers; fastest route "
            f"{best.tok_s:.1f} here ({best.route}), {best_peer.tok_s:.1f} in transformers "
            f"({_short(best_peer.route)}). Speedups are over each one's own plain."
        )
    for total in peers:
        if total.baseline is not None and total.compared:
            out.append(
                f"{total.route}: output differs from transformers' own plain output on "
                f"{total.compared - total.identical} of {total.compared} greedy prompts."
            )
    return out


def _label(row: Row) -> str:
    name = row.prompt if row.kind in (row.prompt, "user") else f"{row.prompt} ({row.kind})"
    return f"{name}, T {row.temperature:g}" if row.temperature else name


def _identical(row: Row) -> Text:
    if row.identical is None:
        return Text(row.not_compared or "–", style="dim")
    if row.identical:
        return Text("yes", style="green")
    gap = "" if row.top_two_gap is None else f", gap {row.top_two_gap:.2g}"
    return Text(f"no, token {row.first_difference}{gap}", style="bold red")


def _short(route: str) -> str:
    return route.removeprefix(PEER).strip() or route


def _prompts(count: int) -> str:
    return "1 prompt" if count == 1 else f"{count} prompts"


def _kinds(kinds: dict[str, float], chosen: Callable[[float], bool]) -> str:
    found = [f"{kind} ({ratio:.2f}×)" for kind, ratio in kinds.items() if chosen(ratio)]
    more = len(found) - SHOWN
    return ", ".join(found[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _quotient(rate: float | None, base: float | None) -> float | None:
    return rate / base if rate is not None and base else None


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
