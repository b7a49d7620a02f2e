"""One tiny engine with a byte-level tokenizer, and a server on it, for all tests that leave both as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.tiny import save_tiny
from tests.serve.harness import Brake, Running, running

from headstart.control.depth import FixedDepth
from headstart.draft.ngram import NgramDrafter
from headstart.engine.engine import Engine
from headstart.target.load import load_target
from headstart.target.model import Target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Every byte is a token, so that most characters beyond ASCII span several."""
    folder = save_tiny(tmp_path_factory.mktemp("tiny-serve"), 0, chat=True)
    return load_target(folder, kv_tokens=8192)


@pytest.fixture
def engine(target: Target) -> Iterator[Engine]:
    with Engine(target, [NgramDrafter()], controller=FixedDepth(4), max_sequences=8) as made:
        yield made


@pytest.fixture
def brake(target: Target) -> Iterator[Brake]:
    """A hand on the target's forward calls."""
    with Brake(target) as held:
        yield held


@pytest.fixture(scope="module")
def up(target: Target) -> Iterator[Running]:
    """A server with the usual settings."""
    with (
        Engine(target, [NgramDrafter()], controller=FixedDepth(4), max_sequences=8) as made,
        running(made) as server,
    ):
        yield server
