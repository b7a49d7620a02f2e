"""What a copy in fewer bits leaves to the model it drafts for: which keys matter, and the logits that do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests import tiny
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from headstart.decode.segment import Segment
from headstart.target.extents import Extent
from headstart.target.model import Target
from headstart.target.native import forward

LENGTH = 400
PANELS = 12
"""Whole panels of 32 keys among the first ``LENGTH``."""


def llama(**more: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(**{**tiny.SIZES, **more}, head_dim=32)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return made


def one_layer() -> PreTrainedModel:
    """Its keys depend on nothing but their token and position, and every query head has keys of its own."""
    return llama(num_hidden_layers=1, num_key_value_heads=4)


def drafting(model: PreTrainedModel) -> Target:
    return Target(model, None, kv_tokens=2048, draft_weights="int8")


def fill(target: Target, tokens: list[int]) -> Extent:
    extent = target.pool.reserve(len(tokens) + 64)
    assert extent is not None
    for start in range(0, len(tokens), 50):
        target.forward([Segment(extent, start, tokens[start : start + 50])])
    return extent


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_heads_that_threads_share_are_computed_as_by_one(name: str, dtype: torch.dtype, threads: None) -> None:
    """Two heads of keys on three threads, so many keys that they are worth sharing; a row, a few, and a tree."""
    target = tiny.target(name, dtype, draft_weights="int4")
    tokens = tiny.ids(LENGTH)
    segments = [([7], None), ([7, 8, 9], None), ([7, 8, 9, 3, 4], (-1, 0, 0, 1, 2))]
    found = []
    for many in (1, 2, 3, 5):
        torch.set_num_threads(many)
        extent = fill(target, tokens)
        found.append([target.forward([Segment(extent, LENGTH, rows, tree)]) for rows, tree in segments])
        found[-1].append(target.draft([Segment(extent, LENGTH, [7])]))
        target.pool.release(extent)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_the_target_notes_how_much_attention_each_panel_gets() -> None:
    tokens = tiny.ids(LENGTH)
    with torch.inference_mode():
        model = one_layer()
        model.set_attn_implementation("eager")
        attention = model(input_ids=torch.tensor([tokens]), output_attentions=True).attentions[0][0]
    target = drafting(one_layer())
    extent = fill(target, tokens)
    shares = target._copy.shares[0, :, extent.start // 32 :]  # type: ignore[union-attr]
    for row in (LENGTH - 1, 99):  # the last row is noted, whichever that was
        target.forward([Segment(extent, row, [tokens[row]])])
        panels = (row + 1) // 32
        expected = attention[:, row, : panels * 32].unflatten(1, (panels, 32)).sum(-1)
        torch.testing.assert_close(shares[:, :panels], expected, rtol=1e-3, atol=1e-5)
    target.forward([Segment(extent, LENGTH - 3, tokens[-3:])])
    most = attention[:, -3:, : PANELS * 32].unflatten(2, (PANELS, 32)).sum(-1).amax(1)
    assert (shares[:, :PANELS] >= most - 1e-5).all()  # of several rows, what any of them needs
    assert (shares[:, :PANELS] <= 3 * most + 1e-5).all()


def test_a_copy_reads_what_got_its_share_and_what_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tiny.ids(LENGTH)
    rows = [tokens[-1], 5, 6]

    def drafts(least: float) -> torch.Tensor:
        monkeypatch.setattr(forward, "LEAST_SHARE", least)
        target = drafting(one_layer())
        extent = fill(target, tokens)
        return target.draft([Segment(extent, LENGTH - 1, rows)])

    everything, most, recent = drafts(0.0), drafts(0.02), drafts(2.0)
    assert torch.equal(drafts(1e-12), everything)
    # a random model's next tokens look elsewhere than the one whose attention was noted
    away, near = (recent - everything)[0].norm(), (most - everything)[0].norm()
    assert 0 < near < 0.2 * away
    # what is left when nothing got its share is what a model sees that was shown nothing else
    alone = drafting(one_layer())
    kept = (LENGTH - 64) // 32 * 32
    extent = fill(alone, tokens[kept:])
    expected = alone.draft([Segment(extent, LENGTH - 1 - kept, rows)])
    torch.testing.assert_close(recent, expected, rtol=1e-3, atol=1e-3)


def test_the_best_logits_of_a_copy_come_from_the_targets_head() -> None:
    """With layers that add nothing the two differ in their heads alone."""
    model = llama(vocab_size=4096)
    for layer in model.model.layers:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            projection.weight.data.zero_()
    target = Target(model, None, kv_tokens=1024, draft_weights="int4")
    extent = target.pool.reserve(64)
    assert extent is not None
    rows = [Segment(extent, 0, tiny.ids(40))]
    own, copy = target.forward(rows), target.draft(rows)
    assert torch.equal(own.argmax(-1), copy.argmax(-1))
    same = (own == copy).unflatten(1, (-1, 32)).all(-1)
    assert (same.sum(-1) == 16).all()
    assert torch.nn.functional.cosine_similarity(own, copy).min() > 0.98
