"""The command ``headstart``: names its commands and nothing else. Each lives in a file of its own.

Loading this module is cheap: a command imports what runs a model when it is called.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headstart.cli.generate import generate
from headstart.cli.guard import EXIT_INTERRUPTED
from headstart.cli.serve import serve
from headstart.cli.try_ import try_
from headstart.cli.versions import own_version
from headstart.threads import wait_gently

app = typer.Typer(
    name="headstart",
    help="Faster decoding of large language models that never changes a token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("try")(try_)
app.command("generate")(generate)
app.command("serve")(serve)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"headstart {own_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    wait_gently()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


if __name__ == "__main__":
    main()
