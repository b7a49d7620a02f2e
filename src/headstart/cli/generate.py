"""``headstart generate``: one prompt, one answer. Text goes to stdout and nothing else does.

Knows how to read a prompt, print text as it comes and account for it; decoding is the engine's.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headstart.cli import options
from headstart.cli.answer import Colour, as_json, colours, legend, stats
from headstart.cli.files import check_writable, read_text, write_json
from headstart.cli.guard import guarded, interrupted, our_warnings, quiet_libraries, stages, stderr
from headstart.cli.routes import HELP, checked_routes
from headstart.control.limits import check_depth
from headstart.draft.ensemble import AUTO, JOINT, PLAIN, PREDICTION
from headstart.errors import InvalidParameter

if TYPE_CHECKING:
    from headstart.decode.params import SamplingParams
    from headstart.engine.engine import Engine
    from headstart.engine.request import Chunk, Output, Prompt

RESET = "\x1b[0m"

Number = options.SAMPLING


@guarded
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.")],
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="A system message before the prompt.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print text as it comes.", rich_help_panel=options.OUTPUT)
    ] = False,
    show_drafts: Annotated[
        bool,
        typer.Option(
            "--show-drafts",
            help="Stream, and colour the tokens that were drafted and accepted, by drafter.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    model: options.Model = "smollm2",
    draft_model: options.DraftModel = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="ROUTE",
            help=f"{HELP} [default: ngram+model with --draft-model, else auto]",
            rich_help_panel=options.SPECULATION,
        ),
    ] = None,
    prediction: Annotated[
        Path | None,
        typer.Option(
            "--prediction",
            metavar="FILE",
            help="A text file of what the answer will be like, such as the text to be edited; drafted from first.",
            rich_help_panel=options.SPECULATION,
        ),
    ] = None,
    depth: options.Depth = None,
    nodes: options.Nodes = None,
    verify: options.Verify = "coupled",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Longest answer, in tokens.", rich_help_panel=Number)
    ] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", help="0 is greedy.", rich_help_panel=Number)
    ] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", metavar="P", help="1 is off.", rich_help_panel=Number)] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", metavar="K", help="0 is off.", rich_help_panel=Number)] = 0,
    min_p: Annotated[float, typer.Option("--min-p", metavar="P", help="0 is off.", rich_help_panel=Number)] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Same seed, same text. [default: drawn]", rich_help_panel=Number),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Ends the answer. May be repeated.", rich_help_panel=Number),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", metavar="X", help="1 is off.", rich_help_panel=Number)
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", metavar="X", help="0 is off.", rich_help_panel=Number)
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", metavar="X", help="0 is off.", rich_help_panel=Number)
    ] = 0.0,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            metavar="N",
            help="Log-probabilities of the N best tokens at each place, in the JSON file.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    n: Annotated[
        int, typer.Option("--n", metavar="N", help="Answers to one prompt, decoded together.", rich_help_panel=Number)
    ] = 1,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    kernels: options.Kernels = "auto",
    weights: options.Weights = None,
    json: options.Json = None,
    force: options.Force = False,
) -> None:
    """Decode one prompt. The answer goes to stdout, everything else to stderr."""
    check_writable(json, force)
    route = _route(drafter, draft_model)
    if depth is not None:
        check_depth("--depth", depth)
    stream = stream or show_drafts
    if stream and n > 1:
        raise InvalidParameter("--n", f"{n} answers cannot be streamed side by side; leave out --stream or --n")
    if raw and system is not None:
        raise InvalidParameter("--system", "needs the chat template, which --raw leaves out")
    if logprobs is not None and json is None:
        raise InvalidParameter("--logprobs", "are written to the JSON file; add --json FILE")
    predicted = None if prediction is None else read_text("--prediction", prediction)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise InvalidParameter("prompt", "is empty; at least one word is needed")

    from headstart.decode.params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed if seed is not None else secrets.randbits(32),
        stop=tuple(stop or ()),
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logprobs=logprobs,
        n=n,
        verify=verify,  # type: ignore[arg-type]  # checked there
    )
    console = stderr()
    with ExitStack() as stack:
        stack.enter_context(our_warnings(console))
        with stages(console) as say:
            say("loading torch and transformers")
            quiet_libraries()
            from headstart.engine.load import load_engine

            engine = load_engine(
                model,
                drafters=[] if route == PLAIN else [route],
                draft_model=draft_model,
                depth=depth,
                nodes=nodes,
                dtype=dtype,
                device=device,
                threads=threads,
                kernels=kernels,
                weights=weights,
                max_sequences=n,
                progress=say,
            )
            stack.enter_context(engine)
        route = engine.default_drafter
        given = _prompt(text, system, raw, engine, console)
        if predicted:
            route = PREDICTION if route == PLAIN else f"{PREDICTION}{JOINT}{route}"
        output, stopped = _decode(engine, given, params, predicted, stream, colours(route) if show_drafts else {})
    if json is not None:
        write_json(json, as_json(output, engine, text, params, route, "auto" if depth is None else depth), force)
    for line in stats(output, route, params):
        console.print(line, style="dim", markup=False, soft_wrap=True)
    if show_drafts:
        console.print(legend(output, route), markup=False, soft_wrap=True)
    if stopped:
        interrupted("interrupted; what was produced so far is shown")


def _route(drafter: str | None, draft_model: str | None) -> str:
    route = drafter if drafter is not None else (AUTO if draft_model is None else "ngram+model")
    return next(iter(checked_routes([route], draft_model)), PLAIN)


def _prompt(text: str, system: str | None, raw: bool, engine: Engine, console: Console) -> Prompt:
    tokenizer = engine.target.tokenizer
    if raw:
        return text
    if system is None and tokenizer is not None and not tokenizer.chat_template:
        console.print("no chat template; the prompt is taken as it is", style="dim")
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def _decode(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    prediction: str | None,
    stream: bool,
    shown: Mapping[str, Colour],
) -> tuple[Output, bool]:
    """Decode and print, drafted tokens in the colour ``shown`` for their drafter; on Ctrl-C what was produced so far,
    and ``True``."""
    if not Console().is_terminal or Console().color_system is None:
        shown = {}
    from headstart.engine.request import Speculation

    request = engine.submit(prompt, params, Speculation(prediction=prediction))
    stopped = False
    try:
        while not request.done:
            engine.step()
            while stream and request.chunks:
                _print_chunk(request.chunks.popleft(), shown)
    except KeyboardInterrupt:
        stopped = True
    finally:
        engine.cancel(request)
    while stream and request.chunks:
        _print_chunk(request.chunks.popleft(), shown)
    output = request.output()
    if stream:
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(f"{completion.text}\n" for completion in output.completions))
    sys.stdout.flush()
    return output, stopped


def _print_chunk(chunk: Chunk, shown: Mapping[str, Colour]) -> None:
    for text, drafter in zip(chunk.texts, chunk.drafters, strict=True):
        colour = shown.get(drafter) if drafter is not None and text else None
        sys.stdout.write(text if colour is None else f"{colour.code}{text}{RESET}")
    sys.stdout.write(chunk.tail)
    sys.stdout.flush()
