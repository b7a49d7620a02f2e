"""Compiled drawing against numpy's: the very same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from headstart.decode import noise
from headstart.target.native import build
from headstart.target.native.noise import accelerate

SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 1000)


def cases(count: int) -> list[tuple[torch.Tensor, int, noise.Stream, int]]:
    """Flat and peaked rows, with ties, excluded tokens, and things that should not be there."""
    rng = np.random.default_rng(0)
    out = []
    for i in range(count):
        n = 49_152 if i % 40 == 0 else int(rng.choice(SIZES))
        x = (rng.standard_normal(n) * rng.choice([0, 0.01, 1, 5, 30, 1000])).astype(np.float32)
        if rng.random() < 0.3:
            x = np.round(x)
        if rng.random() < 0.3:
            x[rng.random(n) < rng.random()] = -np.inf
        for odd in (np.nan, np.inf):
            if rng.random() < 0.04:
                x[rng.integers(n)] = odd
        if rng.random() < 0.03:
            x[:] = -np.inf
        stream, position = noise.Stream(int(rng.integers(4))), int(rng.integers(10_000))
        out.append((torch.from_numpy(x), int(rng.integers(2**63)), stream, position))
    return out


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    accelerate.cache_clear()
    build.noise_library.cache_clear()
    accelerate()


@pytest.mark.parametrize("portable", [False, True], ids=["here", "portable"])
def test_compiled_code_draws_what_numpy_draws(portable: bool, monkeypatch: pytest.MonkeyPatch, restored: None) -> None:
    noise.draw_with(None)
    some = cases(2000)
    expected = [noise.gumbel_argmax(*case) for case in some]
    two = [noise.gumbel_two(*case) for case in some]
    if portable:
        monkeypatch.setattr(build, "FLAGS", tuple(f for f in build.FLAGS if f != "-march=native"))
    accelerate.cache_clear()
    build.noise_library.cache_clear()
    assert accelerate()
    assert [noise.gumbel_argmax(*case) for case in some] == expected
    assert [noise.gumbel_two(*case) for case in some] == two


def test_two_are_the_best_two() -> None:
    for logits, seed, stream, position in cases(300):
        first, second, lag = noise.gumbel_two(logits, seed, stream, position)
        assert first == noise.gumbel_argmax(logits, seed, stream, position)
        noisy = logits.double() + noise.gumbel(seed, stream, position, len(logits))
        others = noisy.clone()
        others[first] = -torch.inf
        if not torch.isfinite(logits.max()) or not torch.isfinite(others.max()):
            assert (second, lag) == (first, float("inf"))
        else:
            assert second == int(others.argmax())
            assert lag == float(noisy[first] - others.max())


def test_numpy_draws_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch, restored: None) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    noise.draw_with(None)
    accelerate.cache_clear()
    build.noise_library.cache_clear()
    assert not accelerate()
    assert noise.gumbel_argmax(torch.tensor([0.0, 100.0]), 1, noise.Stream.SAMPLE, 0) == 1
