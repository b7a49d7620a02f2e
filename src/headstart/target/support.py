"""What can be known about a model before it runs: whether it is supported, its vocabulary, its stop ids, its sizes."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.errors import InvalidParameter, UnsupportedModel

KERNELS = ("auto", "native", "torch")
AUTO = "auto"
WEIGHTS = ("int8", "int4")
"""From most bits to fewest."""
SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention"})


def check_kernels(kernels: str, weights: str | None, draft_weights: str | None = None) -> None:
    """Raise ``InvalidParameter`` for a choice that does not exist."""
    if kernels not in KERNELS:
        raise InvalidParameter("kernels", f"must be one of {', '.join(KERNELS)}, got {kernels!r}")
    if weights not in (None, *WEIGHTS):
        raise InvalidParameter("weights", f"must be {' or '.join(WEIGHTS)}, or left out, got {weights!r}")
    if weights is not None and kernels == "torch":
        raise InvalidParameter("weights", f"{weights} needs the native kernels; leave kernels at auto")
    if draft_weights in (None, AUTO):
        return
    if draft_weights not in WEIGHTS:
        raise InvalidParameter("drafter", f"must be one of {', '.join(WEIGHTS)}, got {draft_weights!r}")
    if kernels == "torch":
        raise InvalidParameter("drafter", f"{draft_weights} needs the native kernels; leave kernels at auto")
    assert draft_weights is not None
    if weights is not None and WEIGHTS.index(draft_weights) <= WEIGHTS.index(weights):
        raise InvalidParameter(
            "drafter", f"{draft_weights} has no fewer bits than the target's {weights}; leave it out"
        )


def refuse_unsupported(model: PreTrainedModel, name: str) -> None:
    """Raise for architectures whose cache cannot be rolled back or whose attention cannot be replaced."""
    config = model.config.get_text_config()
    kind = type(model).__name__
    advice = "Use a decoder-only model with ordinary attention in every layer."
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} ({kind}): an encoder-decoder model, not decoder-only. {advice}")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModel(
            f"{name} ({kind}): keeps recurrent state, which cannot be rolled back after a rejected draft. {advice}"
        )
    other = set(getattr(config, "layer_types", None) or ()) - SUPPORTED_LAYERS
    if other:
        raise UnsupportedModel(
            f"{name} ({kind}): has {', '.join(sorted(map(str, other)))} layers, whose cache cannot be rolled back or "
            f"read by rows. {advice}"
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedModel(f"{name} ({kind}): shares keys and values between layers, not supported. {advice}")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{name} ({kind}): its attention cannot be replaced through transformers' attention registry. {advice}"
        )


def real_vocab_size(tokenizer: PreTrainedTokenizerBase | None, logits_width: int) -> int:
    """Number of ids that are tokens: a model's logits may be padded beyond its tokenizer."""
    if tokenizer is None:
        return logits_width
    return min(max(tokenizer.get_vocab().values()) + 1, logits_width)


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Ids that end a text, from the generation config, else the model config, and the tokenizer."""
    found: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for source in (getattr(generation, "eos_token_id", None), getattr(model.config, "eos_token_id", None)):
        if source is not None:
            found.update(source if isinstance(source, (list, tuple)) else [source])
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(int(i) for i in found)


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes one token takes in the KV pool, over all layers, from the configuration."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * heads * dim * 2 * model.dtype.itemsize)


def widest_window(config: Any) -> int | None:
    """The sliding window that some layer of a text configuration has, ``None`` when all see everything."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is not None:
        return window if "sliding_attention" in types else None
    return window if getattr(config, "use_sliding_window", True) else None


def rotation_changes_at(config: Any) -> int | None:
    """The length in tokens from which the rotary embedding of *all* positions is another one (LongRoPE); ``None`` when
    a position's rotation depends on the position alone."""
    parameters = getattr(config, "rope_parameters", None) or {}
    lengths = [
        rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None) or 1
        for rope in (parameters, *parameters.values())
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope"
    ]
    return min(lengths, default=None)
