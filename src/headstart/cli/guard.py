"""What every command does around its work: one clear line for a user's mistake, exit codes, quiet libraries.

Exit codes: 0 done, 1 a promise was broken (or a bug, with its traceback), 2 the user can mend it, 130 interrupted.
Knows errors, exit codes and loggers; does not know what a command does.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.logging import RichHandler

from headstart.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

ENGINE_EXTRA = frozenset(
    {"accelerate", "gguf", "huggingface_hub", "jinja2", "numpy", "safetensors", "tokenizers", "torch", "transformers"}
)
SERVE_EXTRA = frozenset({"fastapi", "h11", "pydantic", "starlette", "uvicorn"})
EXIT_BROKEN_PROMISE = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130


def guarded(command: Callable[P, T]) -> Callable[P, T]:
    """Turn what the user can mend, and Ctrl-C, into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            fail(str(error))
        except KeyboardInterrupt:
            interrupted()
        except ModuleNotFoundError as error:
            package = "" if error.name is None else error.name.partition(".")[0]
            if package in SERVE_EXTRA:
                fail(f"{error.name} is not installed, and serving needs it. Run: pip install 'headstart[engine,serve]'")
            if package not in ENGINE_EXTRA:
                raise
            fail(f"{error.name} is not installed, and this command runs a model. Run: pip install 'headstart[engine]'")

    return run


def fail(message: str) -> NoReturn:
    """Say what was wrong, on one line, and leave."""
    typer.secho(f"headstart: {' '.join(message.split())}", fg=typer.colors.RED, err=True)
    raise typer.Exit(EXIT_USER)


def interrupted(message: str = "interrupted; nothing was left half-written") -> NoReturn:
    """Leave after Ctrl-C."""
    typer.secho(f"headstart: {message}", fg=typer.colors.YELLOW, err=True)
    raise typer.Exit(EXIT_INTERRUPTED)


def stderr() -> Console:
    """The console for everything that is not the result."""
    return Console(stderr=True, highlight=False)


def quiet_libraries() -> None:
    """Leave only errors of transformers and the hub, and none of their progress bars; ours stay."""
    import transformers

    library: Any = transformers.logging
    library.set_verbosity_error()
    library.disable_progress_bar()  # the hub's and "Loading weights" with it
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@contextmanager
def our_warnings(console: Console) -> Iterator[None]:
    """Send headstart's own warnings through the console, so that they do not tear a live display."""
    handler = RichHandler(logging.WARNING, console=console, show_time=False, show_path=False)
    logger = logging.getLogger("headstart")
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


@contextmanager
def stages(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that shows the present stage: a spinner on a terminal, a line in a log."""
    if not console.is_terminal:
        yield lambda stage: console.print(f"{stage} …", markup=False, soft_wrap=True)
        return
    with console.status("starting …") as status:
        yield lambda stage: status.update(f"{stage} …")
