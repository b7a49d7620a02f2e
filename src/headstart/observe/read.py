"""Acceptance from the ``/metrics`` page of vLLM, SGLang, llama.cpp or headstart, as numbers that can be compared.

The engines name alike what differs in meaning: vLLM counts only rounds that had a draft, so its mean length is too
high wherever drafts are missing; SGLang counts no draft tokens and shows the latest rate as a gauge. ``Acceptance``
says which it is. Reads text; does not fetch it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Engine = Literal["headstart", "vllm", "llamacpp", "sglang"]

_PREFIXES: dict[Engine, str] = {
    "headstart": "headstart_",
    "vllm": "vllm:",
    "llamacpp": "llamacpp:",
    "sglang": "sglang:",
}

MOST_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one engine's counters say, since its start or between two readings; ``None`` where it does not export them.

    ``drafts`` are rounds with a draft, ``rounds`` all of them; ``emitted`` the tokens of rounds, ``generated`` all
    output tokens, ``requests`` those finished. ``accepted_at[i]`` counts acceptances at position ``i``,
    ``drafts_at[i]`` drafts that reached it. ``length_gauge`` and ``rate_gauge`` are SGLang's own latest values.
    ``restarted``: the engine was started anew between two readings, and the numbers are since then.
    """

    engine: Engine
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    emitted: float | None = None
    rounds: float | None = None
    generated: float | None = None
    requests: float | None = None
    accepted_at: tuple[float, ...] = ()
    drafts_at: tuple[float, ...] = ()
    length_gauge: float | None = None
    rate_gauge: float | None = None
    restarted: bool = False

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; ``None`` when nothing was drafted."""
        if self.accepted is not None and self.draft_tokens:
            return self.accepted / self.draft_tokens
        return self.rate_gauge

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per round: over all rounds where the engine counts them, else over those with a draft (see
        ``all_rounds``). SGLang's is output tokens less one per request over its verify calls, so it is right between
        two readings at which nothing runs; without these counters, its gauge."""
        if self.emitted is not None and self.rounds:
            return self.emitted / self.rounds
        if self.accepted is not None and self.drafts:
            return 1.0 + self.accepted / self.drafts
        if self.generated and self.requests is not None and self.drafts:
            return (self.generated - self.requests) / self.drafts
        return self.length_gauge

    @property
    def all_rounds(self) -> bool:
        """Whether rounds without a draft are in the mean length. Where they are not, it is an upper bound."""
        return self.rounds is not None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafts accepted at each position: of those that reached it, or of all where only that is known."""
        if self.drafts_at:
            return tuple(a / d if d else 0.0 for a, d in zip(self.accepted_at, self.drafts_at, strict=True))
        return tuple(a / self.drafts for a in self.accepted_at) if self.drafts else ()


def read(text: str, model: str | None = None) -> Acceptance | None:
    """Acceptance in a page of metrics: counters summed over all label values, gauges averaged.

    Args:
        text: the page, in Prometheus' text format.
        model: leave out series with another ``model_name``.

    Returns:
        ``None`` if the page is of none of the engines known, or of one that exports nothing on speculation.

    Raises:
        ValueError: the text is not in Prometheus' format.
    """
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (model is None or sample.labels.get("model_name", model) == model)
        and sample.labels.get("engine_type") != "draft"  # SGLang's draft worker repeats the target's gauges
    ]
    for engine, prefix in _PREFIXES.items():
        own: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.name.startswith(prefix):
                own.setdefault(sample.name.removeprefix(prefix), []).append(sample)
        if any(name.startswith("spec_") for name in own):
            return _gather(engine, own)
    return None


def between(before: Acceptance | None, after: Acceptance) -> Acceptance:
    """What was counted from one reading to a later one of the same engine. A counter that fell says that the engine was
    started anew; then all of ``after`` counts."""
    if before is None:
        return after
    if before.engine != after.engine or any(a < b for b, a in zip(_counts(before), _counts(after), strict=True)):
        return replace(after, restarted=True)
    return replace(
        after,
        drafts=_minus(after.drafts, before.drafts),
        draft_tokens=_minus(after.draft_tokens, before.draft_tokens),
        accepted=_minus(after.accepted, before.accepted),
        emitted=_minus(after.emitted, before.emitted),
        rounds=_minus(after.rounds, before.rounds),
        generated=_minus(after.generated, before.generated),
        requests=_minus(after.requests, before.requests),
        accepted_at=_each_minus(after.accepted_at, before.accepted_at),
        drafts_at=_each_minus(after.drafts_at, before.drafts_at),
    )


def _gather(engine: Engine, samples: dict[str, list[Sample]]) -> Acceptance:
    accepted_at = _positions(samples.get("spec_decode_num_accepted_tokens_per_pos_total", ()))
    drafts_at = _positions(samples.get("spec_decode_num_drafts_per_pos_total", ()))
    if drafts_at:  # a position that was never accepted may have no series
        accepted_at = (accepted_at + (0.0,) * len(drafts_at))[: len(drafts_at)]
    lengths, rates = samples.get("spec_accept_length", ()), samples.get("spec_accept_rate", ())
    return Acceptance(
        engine,
        drafts=_sum(samples, "spec_decode_num_drafts_total", "spec_verify_calls_total"),
        draft_tokens=_sum(samples, "spec_decode_num_draft_tokens_total"),
        accepted=_sum(samples, "spec_decode_num_accepted_tokens_total"),
        emitted=_sum(samples, "spec_decode_num_emitted_tokens_total") if engine == "headstart" else None,
        rounds=_sum(samples, "spec_decode_rounds_total"),
        generated=_sum(samples, "generation_tokens_total", "tokens_predicted_total"),
        requests=_sum(samples, "requests_finished_total", "request_success_total", "num_requests_total"),
        accepted_at=accepted_at,
        drafts_at=drafts_at,
        length_gauge=sum(s.value for s in lengths) / len(lengths) if lengths else None,
        rate_gauge=sum(s.value for s in rates) / len(rates) if rates else None,
    )


def _sum(samples: dict[str, list[Sample]], *names: str) -> float | None:
    """Over the first of ``names`` that is there."""
    found = next((samples[name] for name in names if name in samples), None)
    return None if found is None else sum(sample.value for sample in found)


def _positions(samples: Iterable[Sample]) -> tuple[float, ...]:
    found: dict[int, float] = {}
    for sample in samples:
        position = sample.labels.get("position", "")
        if position.isdecimal() and int(position) < MOST_POSITIONS:
            found[int(position)] = found.get(int(position), 0.0) + sample.value
    return tuple(found.get(i, 0.0) for i in range(max(found, default=-1) + 1))


def _counts(of: Acceptance) -> list[float]:
    totals = (of.drafts, of.draft_tokens, of.accepted, of.emitted, of.rounds, of.generated, of.requests)
    return [value or 0.0 for value in totals]


def _minus(after: float | None, before: float | None) -> float | None:
    return None if after is None else after - (before or 0.0)


def _each_minus(after: tuple[float, ...], before: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a - (before[i] if i < len(before) else 0.0) for i, a in enumerate(after))
