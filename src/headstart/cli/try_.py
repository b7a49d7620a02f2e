"""``headstart try``: the smallest experiment. Is it faster here, and is the output the same?

Loads the model, runs a few prompts plain and on every available route, prints one table and plain advice. Knows the
order of these things; measuring, counting and wording are in ``experiment``, ``report`` and ``advice``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headstart.cli import options
from headstart.cli.advice import advise, caption, table
from headstart.cli.files import check_writable, write_json
from headstart.cli.guard import EXIT_BROKEN_PROMISE, guarded, interrupted, our_warnings, quiet_libraries, stages, stderr
from headstart.cli.prompts import BUILT_IN, TryPrompt, read_prompts
from headstart.cli.report import PLAIN, Conditions, Row, as_json, broken
from headstart.cli.routes import HELP, checked_routes
from headstart.cli.versions import versions
from headstart.control.limits import check_depth
from headstart.draft.ensemble import AUTO, members
from headstart.draft.ensemble import PLAIN as NOBODY
from headstart.errors import InvalidParameter

if TYPE_CHECKING:
    from headstart.cli.experiment import Case, Route, Ticker
    from headstart.engine.engine import Engine

REFRESH_SECONDS = 0.5
"""Drawing takes time from what is measured; twice a second is enough to see that it moves."""
TABLE_WIDTH = 100


@guarded
def try_(
    model: options.Model = "smollm2",
    draft_model: options.DraftModel = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="ROUTE",
            help=f"Only this route: {HELP} May be repeated. [default: all there are]",
            rich_help_panel=options.SPECULATION,
        ),
    ] = None,
    depth: options.Depth = None,
    nodes: options.Nodes = None,
    verify: options.Verify = "coupled",
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT", help="Your prompt instead of the built-in ones. May be repeated."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Your prompts: one per line, a JSON list or JSONL."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Longest answer, in tokens.")] = 96,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="T", help="For all prompts, instead of each one's own."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of sampling.")] = 0,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", help="Runs per prompt and route; the median counts.")
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="PEER", help="Also measure a peer in the same run: transformers."),
    ] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    kernels: options.Kernels = "auto",
    weights: options.Weights = None,
    json: options.Json = None,
    force: options.Force = False,
) -> None:
    """Plain against speculative decoding on this machine: tokens per second, and whether the outputs are equal."""
    check_writable(json, force)
    routes = _route_names(drafter, draft_model, against)
    _check(depth, repeat, against)
    chosen = _prompts(prompt, prompts, temperature)

    from headstart.decode.params import SamplingParams

    params = [
        SamplingParams(max_tokens=max_tokens, temperature=p.temperature, seed=seed, verify=verify)  # type: ignore[arg-type]
        for p in chosen
    ]
    console = stderr()
    with ExitStack() as stack:
        stack.enter_context(our_warnings(console))
        with stages(console) as say:
            say("loading torch and transformers")
            quiet_libraries()
            from headstart.cli.experiment import make_cases, measure, warm_up
            from headstart.engine.load import load_engine, resolved

            engine = load_engine(
                model,
                drafters=routes,
                draft_model=draft_model if any("model" in members(route) for route in routes) else None,
                depth=depth,
                nodes=nodes,
                dtype=dtype,
                device=device,
                threads=threads,
                kernels=kernels,
                weights=weights,
                max_sequences=1,
                progress=say,
            )
            stack.enter_context(engine)
            routes = list(dict.fromkeys(resolved(route, engine.target) for route in routes))
            cases = make_cases(engine, chosen, params)
            ways = _routes(engine, routes, against, model, draft_model, say)
            say("warming up")
            warm_up(ways, cases[0])
        info = engine.info
        conditions = Conditions(
            model=info["model"],
            draft_model=draft_model,
            dtype=info["dtype"],
            device=info["device"],
            exact_rows=info["exact_rows"],
            reason=info["numerics"]["reason"],
            threads=info["threads"],
            depth="auto" if depth is None else depth,
            nodes=nodes,
            max_tokens=max_tokens,
            verify=verify,
            seed=seed,
            repeat=repeat,
            against=against,
            versions=versions(),
        )
        rows: list[Row] = []
        stopped = False
        try:
            with _Display(console, len(cases) * len(ways) * repeat) as display:
                measure(ways, cases, repeat, rows, display)
        except KeyboardInterrupt:
            stopped = True
    _finish(rows, conditions, json, force, stopped, len(cases))


def _finish(
    rows: Sequence[Row], conditions: Conditions, json: Path | None, force: bool, stopped: bool, wanted: int
) -> None:
    advice = advise(rows, conditions)
    if json is not None:
        write_json(json, as_json(rows, conditions, advice, stopped), force)
    out = Console(highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=max(out.width, TABLE_WIDTH))
    if rows:
        out.print(table(rows))
        for line in caption(conditions):
            out.print(line, style="dim", markup=False)
        out.print()
        for line in advice:
            out.print(line, style="bold red" if line.startswith("BROKEN") else None, markup=False, soft_wrap=True)
    wrong = broken(rows, conditions)
    if wrong:
        typer.secho(f"headstart: {len(wrong)} outputs differ from plain decoding", fg=typer.colors.RED, err=True)
    if stopped:
        finished = len({row.number for row in rows})
        interrupted(f"interrupted; {finished} of {wanted} prompts were finished" + (", and are shown" if rows else ""))
    if wrong:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def _check(depth: int | None, repeat: int, against: str | None) -> None:
    if depth is not None:
        check_depth("--depth", depth)
    if depth == 0:
        raise InvalidParameter("--depth", "0 is plain decoding, which try measures anyway; give at least 1")
    if repeat < 1:
        raise InvalidParameter("--repeat", f"must be at least 1, got {repeat}")
    if against not in (None, "transformers"):
        raise InvalidParameter("--against", f"{against!r} is no peer known here; choose transformers")


def _route_names(drafter: Sequence[str] | None, draft_model: str | None, against: str | None) -> list[str]:
    """Routes to measure beside plain, checked before anything is loaded."""
    everything = ["ngram", AUTO] if draft_model is None else ["ngram", "model", "ngram+model"]
    return checked_routes(drafter or everything, draft_model, spare_model=against is not None)


def _prompts(texts: Sequence[str] | None, file: Path | None, temperature: float | None) -> list[TryPrompt]:
    found = list(read_prompts(file)) if file is not None else []
    for number, text in enumerate(texts or (), len(found) + 1):
        if not text.strip():
            raise InvalidParameter("--prompt", "is empty; at least one word is needed")
        found.append(TryPrompt(f"prompt {number}", "user", text))
    found = found or list(BUILT_IN)
    return found if temperature is None else [replace(prompt, temperature=temperature) for prompt in found]


def _routes(
    engine: Engine,
    names: Sequence[str],
    against: str | None,
    model: str,
    draft_model: str | None,
    say: Callable[[str], None],
) -> list[Route]:
    from headstart.cli.experiment import EngineRoute

    made: list[Route] = [EngineRoute(engine, PLAIN, NOBODY, None)]
    made += [EngineRoute(engine, name, name, PLAIN) for name in names]
    if against is not None:
        from headstart.cli.peer import peer_routes

        target = engine.target
        made += peer_routes(model, draft_model, target.dtype, target.device, sorted(target.eos_ids), say)
    return made


class _Display:
    """What moves while requests run: a line on a terminal, one line per finished prompt elsewhere."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._runs = runs
        self._begun = 0
        self._task = self._progress.add_task("", total=runs)

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, case: Case, route: str) -> Ticker:
        """A new run; returns what it calls as it goes."""
        label = f"{case.prompt.name} · {route}"
        self._progress.update(self._task, description=label, completed=self._begun, refresh=True)
        self._begun += 1
        shown = perf_counter()

        def tick(tokens: int, seconds: float) -> None:
            nonlocal shown
            now = perf_counter()
            if now - shown >= REFRESH_SECONDS and seconds > 0:
                shown = now
                text = f"{label} · {tokens} tokens, {(tokens - 1) / seconds:.1f} tok/s"
                self._progress.update(self._task, description=text, refresh=True)

        return tick

    def done(self, rows: Sequence[Row]) -> None:
        """A prompt is finished on every route."""
        rates = ", ".join(f"{row.route} {row.run.tok_s:.1f}" for row in rows if row.run.tok_s is not None)
        text = f"{rows[0].prompt}: {rates} tok/s" if rates else f"{rows[0].prompt}: done"
        self._console.print(text, style="dim", markup=False, soft_wrap=True)
