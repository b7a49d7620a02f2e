"""An answer of ``headstart generate`` accounted for: the line of numbers, the legend of colours, the JSON file.

Pure functions of a finished output; prints nothing and decodes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from headstart.cli.versions import versions
from headstart.draft.ensemble import members

if TYPE_CHECKING:
    from headstart.decode.params import SamplingParams
    from headstart.engine.engine import Engine
    from headstart.engine.request import Output


class Colour(NamedTuple):
    """A name, and the escape sequence that starts it."""

    name: str
    code: str


COLOURS = (
    Colour("green", "\x1b[32m"),
    Colour("cyan", "\x1b[36m"),
    Colour("magenta", "\x1b[35m"),
    Colour("yellow", "\x1b[33m"),
)


def stats(output: Output, route: str, params: SamplingParams) -> list[str]:
    """What it cost, in a line or two."""
    tokens = sum(len(completion.token_ids) for completion in output.completions)
    parts = [f"{tokens} tokens in {output.seconds:.2f} s"]
    if output.first_token_seconds is not None:
        decoding = output.seconds - output.first_token_seconds
        later = tokens - len(output.completions)
        if later > 0 and decoding > 0:
            parts.append(f"{later / decoding:.1f} tok/s after the first token ({output.first_token_seconds:.2f} s)")
    drafted = sum(completion.record.drafted for completion in output.completions)
    accepted = sum(completion.record.accepted for completion in output.completions)
    rounds = sum(completion.record.rounds for completion in output.completions)
    emitted = sum(completion.record.emitted for completion in output.completions)
    if route == "none":
        parts.append("plain")
    elif drafted:
        parts.append(
            f"{route}: {accepted} of {drafted} draft tokens accepted ({accepted / drafted:.0%}), "
            f"{emitted / rounds:.2f} tokens per round"
        )
    else:
        parts.append(f"{route}: nothing drafted")
    found = sum(completion.accepted_prediction_tokens for completion in output.completions)
    missed = sum(completion.rejected_prediction_tokens for completion in output.completions)
    if found + missed:
        parts.append(f"{found} of the prediction's {found + missed} tokens are in the answer")
    parts.append("ended by " + ", ".join(dict.fromkeys(str(c.finish_reason.value) for c in output.completions)))
    if not params.greedy:
        parts.append(f"seed {params.seed}")
    failures = sum(sum(completion.record.fallbacks.values()) for completion in output.completions)
    return ["; ".join(parts), *([f"the drafter failed in {failures} rounds; they went on plain"] if failures else [])]


def colours(route: str) -> dict[str, Colour]:
    """The colour of each of a route's drafters, in the order they are asked."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(members(route))}


def legend(output: Output, route: str) -> str:
    """What the colours of ``--show-drafts`` mean, with counts."""
    names = Counter(name for completion in output.completions for name in completion.drafters)
    shown = [
        f"{colour.name}: {names[drafter]} tokens drafted by {drafter} and accepted"
        for drafter, colour in colours(route).items()
    ]
    return "; ".join([*shown, f"uncoloured: {names[None]} of the target's own"])


def as_json(
    output: Output, engine: Engine, text: str, params: SamplingParams, route: str, depth: int | str
) -> dict[str, Any]:
    """Everything about one answer, as plain values."""
    info = engine.info
    completions = [
        {
            "index": completion.index,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason.value,
            "stopped_by": completion.stopped_by,
            "seed": completion.seed,
            "from_draft": completion.from_draft,
            "drafters": completion.drafters,
            "stats": completion.record.as_dict(),
            **({} if completion.logprobs is None else {"logprobs": [_logprob(item) for item in completion.logprobs]}),
        }
        for completion in output.completions
    ]
    return {
        **{key: info[key] for key in ("model", "dtype", "device", "exact_rows", "threads")},
        "versions": versions(),
        "prompt": text,
        "prompt_tokens": len(output.prompt_token_ids),
        "drafter": route,
        "depth": depth,
        "verify": params.verify,
        "temperature": params.temperature,
        "seed": params.seed,
        "seconds": output.seconds,
        "first_token_seconds": output.first_token_seconds,
        "completions": completions,
    }


def _logprob(item: Any) -> dict[str, Any]:
    return {"token": item.token, "logprob": item.logprob, "rank": item.rank, "top": [list(pair) for pair in item.top]}
