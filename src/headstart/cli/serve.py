"""``headstart serve``: the model behind OpenAI's API. Loads, says where it listens, serves until told to stop.

Knows options and how a start looks in a terminal; serving is ``headstart.serve``'s.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel

from headstart.cli import options
from headstart.cli.guard import EXIT_BROKEN_PROMISE, guarded, our_warnings, quiet_libraries, stages, stderr
from headstart.cli.routes import HELP, checked_routes
from headstart.control.limits import check_depth
from headstart.draft.ensemble import AUTO

SERVER = "Server"
LIMITS = "Limits"
OBSERVABILITY = "Observability"


@guarded
def serve(
    model: options.Model = "smollm2",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="ROUTE",
            help=f"{HELP} May be repeated: the first is the default, requests may choose among them. "
            "[default: ngram+model with --draft-model, else auto]",
            rich_help_panel=options.SPECULATION,
        ),
    ] = None,
    draft_model: options.DraftModel = None,
    depth: options.Depth = None,
    nodes: options.Nodes = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="0 takes a free one.", rich_help_panel=SERVER)
    ] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            metavar="FILE",
            help="One API key a line; HEADSTART_API_KEY in the environment is one more. Without any, all may ask.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name",
            metavar="NAME",
            help="What clients call the model. [default: the name given to --model]",
            rich_help_panel=SERVER,
        ),
    ] = None,
    default_temperature: Annotated[
        float,
        typer.Option("--default-temperature", metavar="T", help="For requests that give none.", rich_help_panel=SERVER),
    ] = 1.0,
    default_max_tokens: Annotated[
        int | None,
        typer.Option(
            "--default-max-tokens",
            metavar="N",
            help="For chats that give none. KV room is reserved for all of it. [default: the rest of the context]",
            rich_help_panel=SERVER,
        ),
    ] = None,
    max_sequences: Annotated[
        int,
        typer.Option("--max-sequences", metavar="N", help="Sequences decoded at once.", rich_help_panel=LIMITS),
    ] = 8,
    max_queue: Annotated[
        int,
        typer.Option(
            "--max-queue", metavar="N", help="Sequences that may wait; more are answered 429.", rich_help_panel=LIMITS
        ),
    ] = 64,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len", metavar="N", help="Longest prompt and output together.", rich_help_panel=LIMITS
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option("--kv-tokens", metavar="N", help="Tokens the KV pool holds.", rich_help_panel=LIMITS),
    ] = None,
    request_timeout: Annotated[
        float,
        typer.Option(
            "--request-timeout", metavar="S", help="Seconds from arrival to the last token.", rich_help_panel=LIMITS
        ),
    ] = 600.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            metavar="S",
            help="Seconds that requests under way may go on after SIGTERM or Ctrl-C.",
            rich_help_panel=LIMITS,
        ),
    ] = 30.0,
    log_interval: Annotated[
        float,
        typer.Option(
            "--log-interval",
            metavar="S",
            help="Seconds between two log lines on acceptance and speed; none while idle. 0: never.",
            rich_help_panel=OBSERVABILITY,
        ),
    ] = 10.0,
    route_header: Annotated[
        str | None,
        typer.Option(
            "--route-header",
            metavar="NAME",
            help="HTTP header whose value becomes the label 'route' of metrics, such as X-Route.",
            rich_help_panel=OBSERVABILITY,
        ),
    ] = None,
    known_route: Annotated[
        list[str] | None,
        typer.Option(
            "--known-route",
            metavar="ROUTE",
            help="A route that has its place from the start. May be repeated.",
            rich_help_panel=OBSERVABILITY,
        ),
    ] = None,
    max_routes: Annotated[
        int,
        typer.Option(
            "--max-routes",
            metavar="N",
            help="Other values of the header that become routes; later ones are counted as 'other'.",
            rich_help_panel=OBSERVABILITY,
        ),
    ] = 20,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            metavar="URL",
            help="Send a trace of every request to this OpenTelemetry collector (OTLP over HTTP). [default: as "
            "OTEL_EXPORTER_OTLP_ENDPOINT says, else off]",
            rich_help_panel=OBSERVABILITY,
        ),
    ] = None,
    trace_content: Annotated[
        bool,
        typer.Option("--trace-content", help="Put prompts and answers into the traces.", rich_help_panel=OBSERVABILITY),
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = None,
    kernels: options.Kernels = "auto",
    weights: options.Weights = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    started = perf_counter()
    default = AUTO if draft_model is None else "ngram+model"
    routes = checked_routes(drafter or [default], draft_model)
    if depth is not None:
        check_depth("--depth", depth)
    console = stderr()
    with ExitStack() as stack:
        stack.enter_context(our_warnings(console))
        with stages(console) as say:
            say("loading torch, transformers and fastapi")
            quiet_libraries()
            from headstart.serve.keys import load_keys
            from headstart.serve.server import Server, bind, is_loopback
            from headstart.serve.settings import Settings
            from headstart.serve.telemetry import configured_traces

            settings = Settings(
                model_name=served_model_name if served_model_name is not None else model,
                default_temperature=default_temperature,
                default_max_tokens=default_max_tokens,
                max_queue=max_queue,
                request_timeout=request_timeout,
                drain_timeout=drain_timeout,
                log_interval=log_interval,
                route_header=route_header,
                known_routes=tuple(known_route or ()),
                max_routes=max_routes,
            )
            traces = configured_traces(settings, otlp_endpoint, os.environ, content=trace_content)
            keys = load_keys(api_key_file)
            socket = stack.enter_context(bind(host, port))
            if not is_loopback(host) and not keys:
                _warn_open(console, host)
            from headstart.engine.load import load_engine
            from headstart.serve.app import Service

            engine = stack.enter_context(
                load_engine(
                    model,
                    drafters=routes,
                    draft_model=draft_model,
                    depth=depth,
                    nodes=nodes,
                    dtype=dtype,
                    device=device,
                    threads=threads,
                    max_model_len=max_model_len,
                    max_sequences=max_sequences,
                    kv_tokens=kv_tokens,
                    kernels=kernels,
                    weights=weights,
                    progress=say,
                )
            )
            say("reading the tokenizer for grammars")
            engine.prepare()
        _log_to(console)
        server = Server(
            Service(engine, settings, keys, traces=traces),
            on_ready=lambda at: _ready(console, host, at, settings.model_name, bool(keys), perf_counter() - started),
        )
        server.run(sockets=[socket])
    if not server.clean:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def _warn_open(console: Console, host: str) -> None:
    text = (
        f"Listening on {host} without an API key: everybody who can reach this machine can use the model.\n"
        "Set HEADSTART_API_KEY or give --api-key-file, or leave out --host to listen on this machine only."
    )
    console.print(Panel(text, title="open to the network", style="bold red"))


def _ready(console: Console, host: str, port: int, model: str, keyed: bool, seconds: float) -> None:
    """Where it listens, and a first request to copy."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{shown}:{port}"
    key = " -H 'Authorization: Bearer YOUR-KEY'" if keyed else ""
    body = (
        f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}], "stream": true}}'
    )
    console.print(f"ready after {seconds:.1f} s: {url}/v1", style="bold green")
    console.print(
        f"curl -N {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\", markup=False, soft_wrap=True
    )
    console.print(f"  -d '{body}'", markup=False, soft_wrap=True)


def _log_to(console: Console) -> None:
    """Log lines of requests and of speculation to stderr as they are; warnings of the server beside headstart's own."""
    handler = logging.StreamHandler(console.file)
    for name in ("headstart.serve.requests", "headstart.observe.logline"):
        lines = logging.getLogger(name)
        lines.addHandler(handler)
        lines.setLevel(logging.INFO)
        lines.propagate = False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
