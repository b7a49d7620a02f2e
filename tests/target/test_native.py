"""The native kernels: layouts, the best tokens of a row, int8, and machines that cannot build them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests import tiny
from transformers import AutoModelForCausalLM, LlamaConfig

from headstart.decode.params import SamplingParams
from headstart.decode.segment import Segment
from headstart.draft.ngram import NgramDrafter
from headstart.engine.engine import Engine
from headstart.errors import InvalidParameter
from headstart.target import model as model_module
from headstart.target.model import Target
from headstart.target.native import build
from headstart.target.native.build import BuildFailed
from headstart.target.native.forward import Unsuitable, has_matrix_unit, refuse_unsuitable
from headstart.target.native.layout import interleave, pack, pack4, pack_tiles, quantise, quantise4


def test_panels_hold_every_weight_once() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.arange(50 * 6).view(50, 6).remainder(101).to(dtype)
        panels = pack(weight)
        assert panels.shape == (2, 6, 32)
        order = [16 * (j % 2) + j // 2 for j in range(32)] if dtype == torch.bfloat16 else list(range(32))
        for row in (0, 1, 15, 16, 31, 32, 49):
            at = order.index(row % 32)
            assert torch.equal(panels[row // 32, :, at], weight[row])
        assert not panels[1, :, [order.index(r) for r in range(18, 32)]].any()


def test_tiles_hold_pairs_of_columns() -> None:
    weight = torch.arange(50 * 48).view(50, 48).remainder(251).bfloat16()
    panels = pack_tiles(weight)
    assert panels.shape == (2, 2, 2, 16, 16, 2)
    for row in (0, 1, 15, 16, 31, 32, 49):
        held = panels[row // 32, :, row % 32 // 16, :, row % 16].flatten()
        assert torch.equal(held[:48], weight[row])
        assert not held[48:].any()
    assert not panels[1, :, 1, :, 2:].any()


def test_int8_panels_hold_four_columns_of_an_output_together() -> None:
    weight = (torch.arange(50 * 8).view(50, 8) % 255 - 127).to(torch.int8)
    panels = pack(weight)
    assert panels.shape == (2, 2, 32, 4)
    for row in (0, 1, 31, 32, 49):
        assert torch.equal(panels[row // 32, :, row % 32].flatten().int() - 128, weight[row].int())
    assert (panels[1, :, 18:] == 128).all()


def test_gates_and_ups_take_turns() -> None:
    gate, up = torch.arange(32.0).view(32, 1), -torch.arange(32.0).view(32, 1)
    both = interleave(gate, up).flatten().tolist()
    assert both[:16] == list(range(16))
    assert both[16:32] == [-x for x in range(16)]
    assert both[32:48] == list(range(16, 32))


def test_quantised_weights_are_near() -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 64)
    eighth, scale = quantise(weight)
    assert (eighth.float() * scale[:, None] - weight).abs().max() <= scale.max() / 2 + 1e-6


@pytest.mark.parametrize("k", [64, 48])
def test_weights_of_four_bits_are_near_and_keep_a_grid_of_sixteen(k: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, k)
    q, step, minimum = quantise4(weight)
    assert q.shape == (40, k)
    assert step.shape == minimum.shape == (40, 2)
    groups = torch.arange(k) // 32

    def rebuilt() -> torch.Tensor:
        return minimum.float()[:, groups] + step.float()[:, groups] * q

    assert (rebuilt() - weight).abs().max() <= 0.51 * step.float().max() + 0.01
    weight = rebuilt()
    q, step, minimum = quantise4(weight)
    assert (rebuilt() - weight).abs().max() <= 0.02


@pytest.mark.parametrize("k", [64, 48])
def test_int4_panels_hold_bytes_of_two_outputs_then_steps_and_minima(k: int) -> None:
    q = (torch.arange(50 * k).view(50, k) % 16).to(torch.uint8)
    step, minimum = (torch.arange(100.0).view(50, 2) + x for x in (0.0, 128.0))
    panels = pack4(q, step.bfloat16(), minimum.bfloat16())
    assert panels.shape == (2, 16 * k + 2 * 128)
    for row in (0, 1, 15, 16, 31, 32, 49):
        of = panels[row // 32]
        for column in (0, 5, 31, 32, k - 1):
            group, quad = column // 32, column % 32 // 4
            at = group * 640 + quad * 64 + row % 16 * 4 + column % 4
            assert (of[at] >> (4 if row % 32 >= 16 else 0)) & 15 == q[row, column]
            pairs = of[min(512 * (group + 1), 16 * k) + 128 * group :][:128].contiguous().view(torch.bfloat16)
            assert pairs[2 * (row % 32) + 1] == step[row, group].bfloat16()
            assert pairs[2 * (row % 32)] == minimum[row, group].bfloat16()


def test_the_likeliest_tokens_and_their_probabilities() -> None:
    torch.manual_seed(0)
    for logits in (torch.randn(5, 64), 20 * torch.randn(3, 61), torch.zeros(2, 64), torch.randn(0, 64)):
        shares = logits.softmax(dim=-1)
        for name in ("llama", "llama/torch"):
            found = tiny.target(name).likeliest(logits)
            best = shares.sort(dim=-1, descending=True, stable=True)
            assert [list(one.ids) for one in found] == best.indices[:, :2].tolist()
            for one, expected in zip(found, best.values[:, :2].tolist(), strict=True):
                assert list(one.probabilities) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_top_is_a_stable_sort(count: int) -> None:
    target = tiny.target()
    torch.manual_seed(count)
    for logits in (torch.randn(5, 64), torch.randn(5, 64).round(), torch.zeros(2, 64)):
        wanted = logits.sort(dim=-1, descending=True, stable=True).indices[:, :count].tolist()
        assert target.top(logits, count) == wanted
        assert tiny.target("llama/torch").top(logits, count) == wanted
    assert target.top(torch.randn(0, 64), count) == []


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_fewer_bits_are_another_model_and_lossless_against_itself(weights: str) -> None:
    whole = tiny.target()
    target = Target(tiny.model(), None, name="tiny", kv_tokens=1024, weights=weights)
    assert target.name == f"tiny ({weights})"
    assert target.numerics.exact_rows
    prompts = [tiny.ids(5, 3) * 6, tiny.ids(9, 1)]
    params = SamplingParams(max_tokens=40, temperature=0.7, seed=1)
    plain = Engine(target).generate(prompts, params)
    assert [o.token_ids for o in Engine(target, [NgramDrafter()]).generate(prompts, params)] == [
        o.token_ids for o in plain
    ]
    assert [o.token_ids for o in Engine(whole).generate(prompts, params)] != [o.token_ids for o in plain]


PORTABLE = tuple(f for f in build.FLAGS if f != "-march=native")
NO_MATRIX_UNIT = (*build.FLAGS, "-mno-amx-bf16")


@pytest.fixture
def built_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[str, ...]], None]]:
    """Kernels compiled with other flags, until the test ends."""

    def build_with(flags: tuple[str, ...]) -> None:
        monkeypatch.setattr(build, "FLAGS", flags)
        build.library.cache_clear()

    yield build_with
    build.library.cache_clear()


def some_logits(dtype: torch.dtype, **setting: str) -> torch.Tensor:
    """Of a prompt in one call, then of single tokens, a chain and a tree after it."""
    target = Target(tiny.model("llama", dtype), None, name="tiny", kv_tokens=1024, kernels="native", **setting)
    assert target.numerics.exact_rows
    extent = target.pool.reserve(128)
    parts = [Segment(extent, 0, tiny.ids(40, 2)), *(Segment(extent, 40 + i, [i + 3]) for i in range(3))]
    parts += [Segment(extent, 43, tiny.ids(12, 5)), Segment(extent, 55, tiny.ids(6, 1), parents=[-1, 0, 0, 1, 2, 2])]
    return torch.cat([target.forward([part]) for part in parts])


@pytest.mark.parametrize("flags", [PORTABLE, NO_MATRIX_UNIT], ids=["portable", "no matrix unit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("setting", [{}, {"weights": "int8"}, {"weights": "int4"}], ids=["whole", "int8", "int4"])
def test_other_processors_compute_the_same(
    setting: dict[str, str],
    dtype: torch.dtype,
    flags: tuple[str, ...],
    built_with: Callable[[tuple[str, ...]], None],
) -> None:
    """What runs where there is no AVX-512 or no AMX: other instructions, the same sums. In bfloat16 the halves of the
    activations round, and with 8-bit activations after it a whole step may."""
    if "-march=native" in flags and not has_matrix_unit():
        pytest.skip("this processor has no matrix unit")
    here = some_logits(dtype, **setting)
    built_with(flags)
    there = some_logits(dtype, **setting)
    if dtype == torch.float32:
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4)
        if flags == NO_MATRIX_UNIT:
            assert torch.equal(there, here)  # sums of integers
    else:
        assert (there - here).norm() / here.norm() < (0.05 if setting else 0.004)


@pytest.mark.parametrize("held", ["weights", "draft_weights"])
def test_int4_computes_what_its_weights_say(held: str) -> None:
    """Against transformers' forward with the weights as they come out of 4 bits; one inner size is no whole group."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**tiny.SIZES, "intermediate_size": 112}, head_dim=32)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    target = Target(model, None, name="tiny", kv_tokens=1024, **{held: "int4"})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            q, step, minimum = quantise4(module.weight.detach())
            groups = torch.arange(module.in_features) // 32
            module.weight.data = minimum.float()[:, groups] + step.float()[:, groups] * q
    ids = tiny.ids(40, 2)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    forward = target.forward if held == "weights" else target.draft
    got = forward([Segment(target.pool.reserve(64), 0, ids)])
    assert (got - expected).norm() / expected.norm() < 0.05  # 8-bit activations


def test_without_a_compiler_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise BuildFailed("no C compiler found")

    monkeypatch.setattr(model_module, "NativeForward", none)
    target = Target(tiny.model(), None, name="tiny", kv_tokens=1024)
    assert target.numerics.kernels == "torch"
    assert target.numerics.exact_rows
    for setting in ({"kernels": "native"}, {"weights": "int8"}, {"draft_weights": "int4"}):
        with pytest.raises(InvalidParameter, match="no C compiler found"):
            Target(tiny.model(), None, name="tiny", kv_tokens=1024, **setting)


def test_a_compiler_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    monkeypatch.setattr(build, "FLAGS", ("--no-such-flag",))
    with pytest.raises(BuildFailed, match="failed"):
        build.library()
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    build.library.cache_clear()
    with pytest.raises(BuildFailed, match="no C compiler"):
        build.library()
    build.library.cache_clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "bias"),
        ({"head_dim": 16}, "head dimension 16"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_other_shapes_are_left_to_torch(change: dict[str, object], reason: str) -> None:
    config = LlamaConfig(**{**tiny.SIZES, "head_dim": 32, **change})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with pytest.raises(Unsuitable, match=reason):
        refuse_unsuitable(model)
    assert Target(model, None, kv_tokens=1024).numerics.kernels == "torch"
