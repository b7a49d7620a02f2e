"""A result of ``benchmarks.run`` as markdown tables, for the terminal and for docs/benchmarks.md alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.claims import claims
from benchmarks.markdown import NONE, number, ratio, share, table
from benchmarks.selection import Selection, whole
from benchmarks.theory import prediction

OURS = "headstart plain"


def everything(result: Mapping[str, Any]) -> str:
    """All sections that the result has rows for."""
    told = Selection(result)
    parts = [heading(result)]
    parts += [tasks(told, w) for w in told.workloads("tasks")]
    parts += [batches(told, w) for w in told.workloads("batches")]
    parts += [lengths(told, w) for w in told.workloads("lengths")]
    parts += [theory(told, w) for w in told.workloads("theory")]
    parts += [processes(result), absent(told), targets(told)]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(result: Mapping[str, Any]) -> str:
    """Machine, model, command and sessions."""
    machine, settings = result["machine"], result["settings"]
    sessions = result["sessions"]
    resumed = sum(session["resumed"] for session in sessions)
    lines = [
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{', '.join(machine['instructions']) or 'no vector extensions told'}; {machine['system']}; {machine['date']}",
        f"- Model: {settings['model']}, {settings['threads']} threads for every way",
        f"- Command: `{result['command']}`",
        f"- Load before: {', '.join(str(session['load']) for session in sessions)}"
        + (f"; {len(sessions)} sessions, {resumed} of them resumed: every item lies within one" if resumed else ""),
    ]
    return "\n".join([*lines, *(f"- {note}" for note in result.get("notes", ()))])


def tasks(told: Selection, workload: Mapping[str, Any]) -> str:
    """Two tables: overall by way, and speedup by task group."""
    name = workload["name"]
    rows, by_group = [], []
    groups = told.groups(name)
    for way in told.ways_in(name):
        about = told.ways[way]
        plain = None if about["plain"] == way else told.speedup(name, way, about["plain"])
        same = told.identical(name, way)
        rows.append(
            [
                way,
                about["weights"],
                number(told.speed(name, way)),
                number(told.speed(name, way, of=whole)),
                ratio(told.speedup(name, way, OURS)) if way != OURS else "1",
                ratio(plain),
                number(plain.median, 2) if plain else NONE,
                share(told.total(name, way, "accepted"), told.total(name, way, "drafted")),
                f"{same[0]} of {same[1]}" if same else NONE,
                number(_ms(told.first_seconds(name, way)), 0),
            ]
        )
        speeds = [told.speed(name, way, group) for group in groups]
        gains = [None if about["plain"] == way else told.speedup(name, way, about["plain"], g) for g in groups]
        by_group.append(
            [way, *(number(s, 0) + (f" ({g.ratio:.2f})" if g else "") for s, g in zip(speeds, gains, strict=True))]
        )
    items = len({(row.group, row.item) for row in told.rows if row.workload == name})
    head = [
        "way",
        "weights",
        "tok/s",
        "with prompt",
        "over headstart plain",
        "over its own plain",
        "median",
    ]
    return "\n\n".join(
        [
            f"### {_title(workload)}",
            f"{items} prompts, one at a time, up to {workload['max_tokens']} tokens. tok/s: tokens after the first "
            "over their time; with prompt: all tokens over all time; in brackets a 95 % bootstrap interval over "
            "prompts; median: of the ratios prompt by prompt; identical: outputs equal to the way's own plain; TTFT: "
            "median.",
            table([*head, "accepted", "identical", "TTFT, ms"], rows),
            "tok/s by task group, in brackets over the way's own plain:",
            table(["way", *groups], by_group),
        ]
    )


def batches(told: Selection, workload: Mapping[str, Any]) -> str:
    """Throughput by concurrency, and over the way's own plain."""
    name = workload["name"]
    groups = told.groups(name)
    rows = []
    for way in told.ways_in(name):
        plain = told.ways[way]["plain"]
        cells = []
        for group in groups:
            gain = None if plain == way else told.speedup(name, way, plain, group, of=whole)
            text = number(told.speed(name, way, group, of=whole), 0)
            cells.append(text + (f" ({gain.ratio:.2f})" if gain else ""))
        rows.append([way, told.ways[way]["weights"], *cells])
    return "\n\n".join(
        [
            f"### {_title(workload)}",
            f"Tokens per second of all requests together, prompts included, up to {workload['max_tokens']} tokens "
            "each; in brackets over the way's own plain at the same concurrency.",
            table(["way", "weights", *groups], rows),
        ]
    )


def lengths(told: Selection, workload: Mapping[str, Any]) -> str:
    """Decode speed and time to first token by prompt length."""
    name = workload["name"]
    groups = told.groups(name)
    speeds, firsts = [], []
    for way in told.ways_in(name):
        weights = told.ways[way]["weights"]
        speeds.append([way, weights, *(number(told.speed(name, way, g), 0) for g in groups)])
        firsts.append([way, weights, *(number(told.first_seconds(name, way, g), 2) for g in groups)])
    return "\n\n".join(
        [
            f"### {_title(workload)}",
            f"tok/s after the first token, {workload['max_tokens']} tokens:",
            table(["way", "weights", *groups], speeds),
            "Median seconds to the first token:",
            table(["way", "weights", *groups], firsts),
        ]
    )


def theory(told: Selection, workload: Mapping[str, Any]) -> str:
    """Oracles against the prediction of the calibrated curve, and the drafter that is always wrong."""
    name = workload["name"]
    rows = []
    for way in told.ways_in(name):
        if way == OURS:
            continue
        gain = told.speedup(name, way, OURS)
        expected = prediction(told, name, way)
        met = gain.ratio / expected[0] if gain and expected else None
        rows.append(
            [
                way.removeprefix("headstart "),
                ratio(gain),
                number(expected[0], 2) if expected else NONE,
                str(expected[1]) if expected else NONE,
                number(met, 2),
                share(told.total(name, way, "accepted"), told.total(name, way, "drafted")),
            ]
        )
    return "\n\n".join(
        [
            f"### {_title(workload)}",
            "An oracle proposes the true next tokens, each spoiled with a set probability; predicted is the best "
            "speedup over all depths from that acceptance and the curve calibrated at load, without any time outside "
            "the forward call. *fixed*: held to that depth; otherwise depth is adaptive.",
            table(["drafter", "measured", "predicted", "at depth", "measured / predicted", "accepted"], rows),
        ]
    )


def processes(result: Mapping[str, Any]) -> str:
    """Start-up, memory and versions of every process."""
    rows = []
    for name, info in result["processes"].items():
        versions = ", ".join(f"{package} {version}" for package, version in info["versions"].items())
        settings = ", ".join(f"{name}: {value}" for name, value in info.get("settings", {}).items() if value != "")
        peak = info.get("peak_bytes")
        start, memory = number(info["startup_seconds"]), number(peak / 2**20 if peak else None, 0)
        rows.append([name, start, memory, info["weights"], versions, settings or NONE])
    head = ["process", "start, s", "peak memory, MiB", "weights", "versions", "settings"]
    return "### Processes\n\nStart: from launching the interpreter to ready, files cached.\n\n" + table(head, rows)


def absent(told: Selection) -> str:
    """What could not be run, and what failed on single items."""
    lines = [f"- {name}: {reason}" for name, reason in told.result["missing"].items()]
    for workload in told.result["workloads"]:
        for way in told.ways:
            errors = told.errors(workload["name"], way)
            if errors:
                lines.append(f"- {way}, {workload['name']}: {len(errors)} items failed ({errors[0]})")
    return "### Not measured\n\n" + "\n".join(lines) if lines else ""


def targets(told: Selection) -> str:
    """What was to be shown, and what came out."""
    rows = [[claim.text, claim.wanted, claim.measured, claim.verdict] for claim in claims(told)]
    return "### Targets\n\n" + table(["target", "wanted", "measured", ""], rows) if rows else ""


def _title(workload: Mapping[str, Any]) -> str:
    name: str = workload["name"]
    return name[0].upper() + name[1:]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
