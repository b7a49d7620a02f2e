"""Architectures that cannot be run losslessly are refused by name and reason."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    JambaConfig,
    Lfm2Config,
    MambaConfig,
    NemotronConfig,
    PhimoeConfig,
    RecurrentGemmaConfig,
)

from headstart.errors import InvalidParameter, UnsupportedModel
from headstart.target.model import Target

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MambaConfig(**SMALL, state_size=8), "rolled back"),
        (RecurrentGemmaConfig(**SMALL, num_attention_heads=2, intermediate_size=64), "rolled back"),
        (
            JambaConfig(
                **SMALL,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=64,
                num_experts=2,
                use_mamba_kernels=False,
                attn_layer_period=2,
                attn_layer_offset=1,
                mamba_d_state=8,
            ),
            "rolled back",
        ),
        (
            Lfm2Config(
                **SMALL,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=64,
                layer_types=["conv", "full_attention"],
            ),
            "conv layers",
        ),
    ],
    ids=["mamba", "recurrent-gemma", "jamba", "lfm2"],
)
def test_refused(config: object, reason: str) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with pytest.raises(UnsupportedModel) as caught:
        Target(model, None, name="some-model", kv_tokens=64)
    assert "some-model" in str(caught.value)
    assert type(model).__name__ in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BertConfig(**SMALL, num_attention_heads=2, intermediate_size=64), "differ from its own forward"),
        (
            NemotronConfig(**SMALL, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64, head_dim=16),
            "keyword arguments",
        ),
        (
            PhimoeConfig(
                **SMALL,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=64,
                num_local_experts=2,
                sliding_window=12,
            ),
            "differ from its own forward",
        ),
        (
            PhimoeConfig(
                **SMALL,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=64,
                num_local_experts=2,
                sliding_window=1000,
            ),
            "max_model_len=1000",
        ),
    ],
    ids=["bidirectional", "drops keyword arguments", "hidden short window", "hidden long window"],
)
def test_what_does_not_go_through_the_registry_is_found_by_comparison(config: object, reason: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with pytest.raises(UnsupportedModel) as caught:
        Target(model, None, name="some-model", kv_tokens=4096)
    assert reason in str(caught.value)


def test_a_hidden_window_does_not_matter_within_it() -> None:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "num_local_experts": 2}
    model = AutoModelForCausalLM.from_config(PhimoeConfig(**SMALL, **sizes, sliding_window=1000)).eval()
    assert Target(model, None, kv_tokens=4096, max_model_len=1000).max_model_len == 1000


def test_settings_are_checked() -> None:
    for setting in ({"kernels": "magic"}, {"weights": "int3"}, {"max_model_len": 0}, {"max_model_len": 10**6}):
        with pytest.raises(InvalidParameter, match=next(iter(setting))):
            Target(tiny.model(), None, **{"kv_tokens": 512, **setting})
    with pytest.raises(InvalidParameter, match="kv_tokens"):
        Target(tiny.model(), None)
    with pytest.raises(InvalidParameter, match="kernels"):
        Target(tiny.model("gpt2"), None, kv_tokens=512, kernels="native")
    with pytest.raises(InvalidParameter, match="weights"):
        Target(tiny.model("gpt2"), None, kv_tokens=512, weights="int8")
