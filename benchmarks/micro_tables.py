"""A result of ``benchmarks.micro`` as markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.markdown import measured_on, number, table

PARTS = ("draft", "forward", "verify", "rest")


def everything(result: Mapping[str, Any]) -> str:
    """All sections that were measured."""
    head = (
        f"{measured_on(result['machine'])}\n- Model: {result['settings']['model']}, {result['settings']['dtype']}\n"
        f"- Command: `{result['command']}`"
    )
    return "\n\n".join([head, *(SECTIONS[name](told) for name, told in result["sections"].items())]) + "\n"


def startup(told: Mapping[str, float]) -> str:
    rows = [
        ["nothing cached: model converted, kernels compiled, costs calibrated", number(told["cold"])],
        ["cached", number(told["warm"])],
        ["cached, without drafts", number(told["warm_plain"])],
        ["`headstart --help`", number(told["help"], 2)],
    ]
    return "### Start-up\n\nSeconds of `headstart generate` until its first token and its end.\n\n" + table(
        ["", "s"], rows
    )


def memory(told: Sequence[Mapping[str, Any]]) -> str:
    rows = [[entry["weights"], str(entry["kv_tokens"]), str(entry["mib"])] for entry in told]
    return "### Memory\n\nPeak resident size of a process that has loaded the model.\n\n" + table(
        ["weights", "KV tokens", "MiB"], rows
    )


def steps(told: Mapping[str, Any]) -> str:
    rows = [
        [weights, str(context), *(number(ms) for ms in line)]
        for weights, lines in told["ms"].items()
        for context, line in zip(told["contexts"], lines, strict=True)
    ]
    head = ["weights", "context", *(f"{rows} rows" if rows > 1 else "1 row" for rows in told["rows"])]
    return "### Step time\n\nMilliseconds of one forward call, smallest of five.\n\n" + table(head, rows)


def rounds(told: Sequence[Mapping[str, Any]]) -> str:
    rows = [[entry["mode"], number(entry["temperature"]), *_parts(entry)] for entry in told]
    return "### Where a round's time goes\n\nMilliseconds per round, one sequence.\n\n" + table(
        ["way", "temperature", *PARTS, "outside the forward"], rows
    )


def sequences(told: Sequence[Mapping[str, Any]]) -> str:
    rows = [[entry["mode"], str(entry["sequences"]), *_parts(entry)] for entry in told]
    return "### Growth with sequences\n\nMilliseconds per round.\n\n" + table(
        ["way", "sequences", *PARTS, "outside the forward"], rows
    )


def contexts(told: Sequence[Mapping[str, Any]]) -> str:
    rows = [[entry["mode"], str(entry["context"]), *_parts(entry)] for entry in told]
    return "### Growth with context\n\nMilliseconds per round, one sequence.\n\n" + table(
        ["way", "tokens", *PARTS, "outside the forward"], rows
    )


def drafters(told: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for entry in told:
        times = number(entry["first_ms"]), number(entry["round_us"], 0), number(entry["token_us"], 0)
        rows.append([entry["drafter"], str(entry["context"]), *times])
    head = ["drafter", "history, tokens", "first call, ms", "a round, µs", "a drafted token, µs"]
    return "### The n-gram drafter alone\n\nThe first call reads the whole prompt.\n\n" + table(head, rows)


def _parts(entry: Mapping[str, Any]) -> list[str]:
    return [*(number(entry[part], 2) for part in PARTS), f"{entry['outside']:.1%}"]


SECTIONS: dict[str, Callable[[Any], str]] = {
    "startup": startup,
    "memory": memory,
    "steps": steps,
    "rounds": rounds,
    "sequences": sequences,
    "contexts": contexts,
    "drafters": drafters,
}
