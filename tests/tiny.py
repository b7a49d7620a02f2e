"""Tiny random models of real architectures, for tests: milliseconds to build, every code path of a large one."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from headstart.target.model import Target

VOCAB = 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 768,
    # wide enough that a random model's output is varied and its choices are not ties
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = 12


def configs() -> dict[str, PretrainedConfig]:
    """One small configuration per architecture that is tested."""
    return {
        "llama": LlamaConfig(**SIZES, head_dim=32),
        "qwen2": Qwen2Config(**SIZES, head_dim=32),
        "qwen3": Qwen3Config(**SIZES, head_dim=32),
        "mistral": MistralConfig(**SIZES, head_dim=32, sliding_window=WINDOW),
        "gemma3": Gemma3TextConfig(
            **SIZES, head_dim=16, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
        ),
        "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=WINDOW),
        "gpt2": GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=768, bos_token_id=None, eos_token_id=None
        ),
    }


NATIVE = ("llama", "qwen2", "qwen3", "mistral")
VARIANTS = (*NATIVE, *(f"{name}/torch" for name in NATIVE), "gemma3", "gemma2", "gpt2")
"""Architectures on the kernels they run on by default, and those with native kernels on torch's too."""


def model(name: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A fresh random model; the same seed gives the same weights."""
    torch.manual_seed(seed)
    config = configs()[name.removesuffix("/torch")]
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    return made


def target(
    name: str = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    kv_tokens: int = 4096,
    seed: int = 0,
    exact: bool = True,
    draft_weights: str | None = None,
) -> Target:
    """A target around a fresh random model, without a tokenizer; ``name`` is one of ``VARIANTS``."""
    made = model(name, dtype, seed)
    kernels = "torch" if name.endswith("/torch") else "native" if name in NATIVE else "auto"
    return Target(
        made,
        None,
        name=f"tiny-{name}",
        kv_tokens=kv_tokens,
        exact=exact,
        kernels=kernels,
        draft_weights=draft_weights,
    )


def ids(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()
