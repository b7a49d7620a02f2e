"""Tiny models for the command line, saved once, and a way to call it in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.tiny import save_tiny
from typer.testing import CliRunner

Call = Callable[..., Any]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a chat template."""
    return save_tiny(tmp_path_factory.mktemp("tiny"), 0, chat=True)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Other weights, no chat template; a draft model for ``tiny``."""
    return save_tiny(tmp_path_factory.mktemp("tiny-base"), 1, chat=False)


@pytest.fixture
def call() -> Call:
    """Run the command line in this process; ``input`` is its stdin."""

    def run(*arguments: object, input: str | None = None) -> Any:
        from headstart.cli.main import app

        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)

    return run
