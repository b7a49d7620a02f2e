"""The flat step against the model's own forward: same logits, whatever the rows are laid out like."""

from __future__ import annotations

import pytest
import torch
from tests import tiny

from headstart.decode.segment import Segment

ARCHITECTURES = tiny.VARIANTS
LENGTH = 40


def own_logits(name: str, tokens: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch.inference_mode():
        return tiny.model(name, dtype)(input_ids=torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_prefill_equals_the_models_own_forward(name: str) -> None:
    target = tiny.target(name)
    tokens = tiny.ids(LENGTH)
    extent = target.pool.reserve(LENGTH)
    logits = target.forward([Segment(extent, 0, tokens)])
    torch.testing.assert_close(logits, own_logits(name, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mistral", "mistral/torch", "gemma3", "gemma2"])
def test_a_window_far_shorter_than_the_context(name: str) -> None:
    """Leading blocks of keys are fully masked for late rows."""
    target = tiny.target(name)
    tokens = tiny.ids(700)
    extent = target.pool.reserve(700)
    for start in range(0, 690, 64):
        target.forward([Segment(extent, start, tokens[start : start + 64], first_logits=64)])
    late = target.forward([Segment(extent, 690, tokens[690:])])
    torch.testing.assert_close(late, own_logits(name, tokens)[690:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_do_not_depend_on_their_neighbours(name: str, dtype: torch.dtype) -> None:
    target = tiny.target(name, dtype)
    assert target.numerics.exact_rows, target.numerics.reason
    tokens = tiny.ids(LENGTH)
    one = target.pool.reserve(LENGTH)
    alone = torch.cat([target.forward([Segment(one, i, [tokens[i]])]) for i in range(LENGTH)])
    for width in (1, 2, 3, 4, 5, 6, 7, 9, 13, 31, LENGTH):
        other = target.pool.reserve(LENGTH)
        blocks = [target.forward([Segment(other, i, tokens[i : i + width])]) for i in range(0, LENGTH, width)]
        assert torch.equal(torch.cat(blocks), alone), f"blocks of {width}"
        target.pool.release(other)


@pytest.mark.parametrize("name", ["llama", "llama/torch", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_sequences_side_by_side(name: str, dtype: torch.dtype) -> None:
    """A chunk of prefill, a single token and a draft of three sequences in one call, in any order."""
    target = tiny.target(name, dtype)
    texts = [tiny.ids(n, seed=n) for n in (50, 33, 21)]
    alone = []
    for text in texts:
        extent = target.pool.reserve(64)
        alone.append(target.forward([Segment(extent, 0, text)]))
        target.pool.release(extent)
    extents = [target.pool.reserve(64) for _ in texts]
    for extent, text in zip(extents, texts, strict=True):
        target.forward([Segment(extent, 0, text[:20], first_logits=20)])
    parts = [(0, 50), (2, 21), (1, 28)]
    logits = target.forward([Segment(extents[i], 20, texts[i][20:end]) for i, end in parts])
    expected = torch.cat([alone[i][20:end] for i, end in parts])
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "llama/torch", "gemma3"])
def test_every_branch_of_a_tree_is_bitwise_a_chain(name: str, dtype: torch.dtype) -> None:
    target = tiny.target(name, dtype)
    context = tiny.ids(70, seed=3)  # the tree lies across a block boundary after a few more
    extent = target.pool.reserve(128)
    for base in (20, 59, 62, 69):
        target.forward([Segment(extent, 0, context[:base], first_logits=base)])
        #            root  chain....  branches
        tokens = [7, 11, 12, 13, 21, 22, 23, 31, 32]
        parents = (-1, 0, 1, 2, 0, 4, 5, 1, 4)
        logits = target.forward([Segment(extent, base, tokens, parents)])
        for leaf in range(len(tokens)):
            path = [leaf]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            path.reverse()
            other = target.pool.reserve(128)
            chain = target.forward([Segment(other, 0, context[:base] + [tokens[i] for i in path])])
            assert torch.equal(logits[leaf], chain[-1]), f"row {leaf} at {base}"
            target.pool.release(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama/torch"])
def test_commit_keeps_a_branch_in_place_of_the_chain(name: str, dtype: torch.dtype) -> None:
    target = tiny.target(name, dtype)
    context, tokens, parents = tiny.ids(30), [7, 11, 12, 21, 22], (-1, 0, 1, 0, 3)
    extent, other = target.pool.reserve(64), target.pool.reserve(64)
    target.forward([Segment(extent, 0, context, first_logits=30)])
    target.forward([Segment(extent, 30, tokens, parents)])
    target.commit(extent, 30, [0, 3, 4])
    after = target.forward([Segment(extent, 33, [40, 41])])
    chain = target.forward([Segment(other, 0, [*context, 7, 21, 22, 40, 41])])
    assert torch.equal(after, chain[-2:])


@pytest.mark.parametrize("name", ["llama", "llama/torch"])
def test_the_pool_may_compact_between_steps(name: str) -> None:
    target = tiny.target(name, kv_tokens=1024)
    tokens = tiny.ids(60)
    first, second = target.pool.reserve(64), target.pool.reserve(64)
    expected = target.forward([Segment(second, 0, tokens)])
    target.forward([Segment(first, 0, tokens[::-1], first_logits=60)])
    target.forward([Segment(second, 0, tokens[:30], first_logits=30)])
    target.pool.release(first)
    target.pool.compact()
    assert second.start == 0
    assert torch.equal(target.forward([Segment(second, 30, tokens[30:])]), expected[30:])
