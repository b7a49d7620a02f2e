"""Architectures that cannot be run losslessly are refused by name and reason."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, JambaConfig, Lfm2Config, MambaConfig, RecurrentGemmaConfig

from headstart.errors import UnsupportedModel
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
