"""The experiment of ``headstart try``: every prompt on every route, one request at a time, routes interleaved.

Knows routes, order, repetition and comparison. Does not know how a route decodes, nor what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from headstart.cli.prompts import TryPrompt
from headstart.cli.report import LAW, NOT_APPLICABLE, Row, Run, first_difference, median_run

if TYPE_CHECKING:
    from headstart.decode.params import SamplingParams
    from headstart.engine.engine import Engine
    from headstart.engine.request import Prompt, Request

WARM_UP_TOKENS = 8

Ticker = Callable[[int, float], None]
"""Called while a request runs: tokens so far, seconds since the first of them."""


class Route(Protocol):
    """One way to decode a prompt. ``baseline`` names the route it is compared with."""

    @property
    def name(self) -> str: ...

    @property
    def baseline(self) -> str | None: ...

    def run(self, prompt: Sequence[int], params: SamplingParams, tick: Ticker) -> Run:
        """Decode one prompt, alone."""
        ...

    def promises(self, params: SamplingParams) -> str | None:
        """``None`` if the output must equal the baseline's, else why nobody says so."""
        ...

    def gap(self, prompt: Sequence[int], params: SamplingParams) -> float | None:
        """Distance in logits of the two best tokens after ``prompt``; ``None`` where it cannot be told."""
        ...


class EngineRoute:
    """A route of our own engine: a drafter by name, or ``"none"``."""

    def __init__(self, engine: Engine, name: str, drafter: str, baseline: str | None) -> None:
        self.name = name
        self.baseline = baseline
        self.engine = engine
        self.drafter = drafter
        self._runs = 0

    def run(self, prompt: Sequence[int], params: SamplingParams, tick: Ticker) -> Run:
        from headstart.engine.request import Speculation

        self._runs += 1
        # A tenant of its own: an answer seen before would be a draft no real request gets.
        tenant = f"try {self.name} {self._runs}"
        depth = 0 if self.baseline is None else None
        speculation = Speculation(drafter=self.drafter, depth=depth, tenant=tenant)
        request = self.engine.submit(list(prompt), params, speculation)
        sequence = request.branches[0].sequence

        def on_step() -> None:
            if request.first_token is not None:
                tick(len(sequence.output), perf_counter() - request.first_token)

        drive(self.engine, request, on_step)
        output = request.output()
        record = output.completions[0].record
        first = output.first_token_seconds if output.first_token_seconds is not None else output.seconds
        return Run(
            token_ids=tuple(output.token_ids),
            seconds=output.seconds,
            decode_seconds=output.seconds - first,
            decode_tokens=max(0, len(output.token_ids) - 1),
            drafted=record.drafted,
            accepted=record.accepted,
            rounds=record.rounds,
            fallbacks=dict(record.fallbacks),
        )

    def promises(self, params: SamplingParams) -> str | None:
        return None if params.verify == "coupled" or params.greedy else LAW

    def gap(self, prompt: Sequence[int], params: SamplingParams) -> float | None:
        from headstart.decode.params import SamplingParams
        from headstart.engine.request import Speculation

        look = SamplingParams(max_tokens=1, logprobs=2, ignore_eos=True)
        output = self.engine.generate([list(prompt)], look, Speculation(drafter="none", depth=0))[0]
        logprobs = output.completions[0].logprobs
        if not logprobs or len(logprobs[0].top) < 2:
            return None
        (_, best), (_, second) = logprobs[0].top[:2]
        return best - second


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt, ready: its token ids and parameters."""

    prompt: TryPrompt
    ids: tuple[int, ...]
    params: SamplingParams


class Watcher(Protocol):
    """Whoever shows progress."""

    def begin(self, case: Case, route: str) -> Ticker: ...

    def done(self, rows: Sequence[Row]) -> None: ...


def make_cases(engine: Engine, prompts: Sequence[TryPrompt], params: Sequence[SamplingParams]) -> list[Case]:
    """Encode the prompts, through the chat template where there is one, and refuse now what cannot fit later.

    Raises:
        InvalidParameter, RequestTooLarge
    """
    from headstart.engine.prompt import encode_prompt

    target = engine.target
    chat = bool(target.tokenizer is not None and target.tokenizer.chat_template)
    cases = []
    for prompt, wanted in zip(prompts, params, strict=True):
        given: Prompt = [{"role": "user", "content": prompt.text}] if chat else prompt.text
        ids = encode_prompt(given, target.tokenizer, target.vocab_size)
        engine.cancel(engine.submit(ids, wanted))
        cases.append(Case(prompt, tuple(ids), wanted))
    return cases


def warm_up(routes: Sequence[Route], case: Case) -> None:
    """A few tokens on each route, untimed: first calls pay for allocations that later ones do not."""
    from dataclasses import replace

    short = replace(case.params, max_tokens=min(WARM_UP_TOKENS, case.params.max_tokens or WARM_UP_TOKENS))
    for route in routes:
        route.run(case.ids, short, lambda tokens, seconds: None)


def measure(routes: Sequence[Route], cases: Sequence[Case], repeat: int, rows: list[Row], watcher: Watcher) -> None:
    """Run everything and append rows to ``rows``, one prompt at a time, so that an interrupt keeps whole prompts.

    The order of routes turns round with every pass: what a machine does to the first or the last (heat, caches) hits
    each route alike.
    """
    turn = 0
    for number, case in enumerate(cases):
        runs: dict[str, list[Run]] = {route.name: [] for route in routes}
        for _ in range(repeat):
            for route in routes if turn % 2 == 0 else [*reversed(routes)]:
                tick = watcher.begin(case, route.name)
                runs[route.name].append(route.run(case.ids, case.params, tick))
            turn += 1
        fresh = [_row(route, number, case, runs) for route in routes]
        rows.extend(fresh)
        watcher.done(fresh)


def _row(route: Route, number: int, case: Case, runs: dict[str, list[Run]]) -> Row:
    identical: bool | None = None
    reason: str | None = None
    difference: int | None = None
    gap: float | None = None
    promised = False
    if route.baseline is not None:
        reason = route.promises(case.params)
        if reason is None:
            base = runs[route.baseline]
            # every repetition counts, of the baseline as well: one that differs is a difference
            found = [first_difference(base[0].token_ids, run.token_ids) for run in [*base, *runs[route.name]]]
            places = [place for place in found if place is not None]
            identical, promised = not places, isinstance(route, EngineRoute)
            if places:
                difference = min(places)
                gap = route.gap([*case.ids, *base[0].token_ids[:difference]], case.params)
    prompt = case.prompt
    return Row(
        route=route.name,
        baseline=route.baseline,
        number=number,
        prompt=prompt.name,
        kind=prompt.kind,
        temperature=case.params.temperature,
        run=median_run(runs[route.name]),
        identical=identical,
        not_compared=reason,
        first_difference=difference,
        top_two_gap=gap,
        promised=promised,
    )


def drive(engine: Engine, request: Request, on_step: Callable[[], None]) -> None:
    """Play rounds until the request ends; whatever happens, its KV slots are free afterwards."""
    try:
        while not request.done:
            engine.step()
            on_step()
    finally:
        engine.cancel(request)


__all__ = [
    "LAW",
    "NOT_APPLICABLE",
    "Case",
    "EngineRoute",
    "Route",
    "Ticker",
    "Watcher",
    "drive",
    "make_cases",
    "measure",
]
