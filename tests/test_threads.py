"""Waiting threads: a default that the user's environment overrides."""

from __future__ import annotations

import os

import pytest

from headstart.threads import SPINS, wait_gently


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    wait_gently()
    assert os.environ["GOMP_SPINCOUNT"] == SPINS
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    wait_gently()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    wait_gently()
    assert "GOMP_SPINCOUNT" not in os.environ
