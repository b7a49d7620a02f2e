"""The target: any decoder-only model of transformers, run as one flat forward call per step.

Knows token ids, positions and KV extents. Does not know requests, drafts, sampling or text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.decode.segment import Segment
from headstart.errors import InvalidParameter, RequestTooLarge, UnsupportedModel
from headstart.target import attention
from headstart.target.batch import FlatBatch
from headstart.target.kv import Extent, KVPool, LayerShape, PoolCache, ShapeProbe
from headstart.target.native.build import BuildFailed
from headstart.target.native.forward import NativeForward, Unsuitable, refuse_unsuitable
from headstart.target.numerics import (
    KEY_MULTIPLES,
    AttentionClass,
    RowClass,
    RowTiledLinear,
    probe_attention,
    raise_lows,
    tile_linears,
)

log = logging.getLogger(__name__)

KERNELS = ("auto", "native", "torch")
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest difference between the kernels' logits and transformers', relative to their size. transformers rounds every
intermediate result to bfloat16 there; the kernels do not."""
INT8_TOLERANCE = 0.3

SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the load-time probe found, part of the engine's info output.

    ``kernels`` is ``native`` or ``torch``. ``exact_rows`` is the verdict of the whole-model check: logits of rows
    computed in blocks equal those computed one at a time, bit for bit. ``linear`` maps weight shapes to row counts
    ``low … high``; ``attention`` likewise for query rows, with keys padded to multiples of ``keys``. ``reason`` says
    why rows are not exact.
    """

    exact_rows: bool
    kernels: str = "torch"
    linear: dict[str, tuple[int, int]] = field(default_factory=dict)
    attention: tuple[int, int] = (1, 1)
    keys: int = 1
    reason: str | None = None


class Target:
    """A model, its KV pool and its numerics.

    Args:
        model: a decoder-only ``PreTrainedModel`` in eval mode, on its device, in its dtype. Its linear layers are
            replaced in place when ``exact``.
        tokenizer: the model's tokenizer; ``None`` for models of token ids only.
        name: how reports call it.
        kv_tokens: capacity of the KV pool in tokens.
        max_model_len: longest prompt plus output in tokens; default and upper bound is the model's own.
        exact: keep rows bitwise independent of their neighbours. A draft model does without.
        kernels: ``native`` for the C kernels, ``torch`` for transformers' own modules, ``auto`` for native where the
            architecture, the device and a compiler allow it.
        weights: ``int8`` holds weights in 8 bits (native kernels only). This changes the model, and its ``name``.

    Raises:
        UnsupportedModel: recurrent or hybrid state that cannot be rolled back, or no pluggable attention.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        name: str = "model",
        kv_tokens: int,
        max_model_len: int | None = None,
        exact: bool = True,
        kernels: str = "auto",
        weights: str | None = None,
    ) -> None:
        refuse_unsupported(model, name)
        check_kernels(kernels, weights)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name if weights is None else f"{name} ({weights})"
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        self.logits_width = int(config.vocab_size)
        self.vocab_size = real_vocab_size(tokenizer, self.logits_width)
        own_length = getattr(config, "max_position_embeddings", None)
        self.max_model_len = min(x for x in (max_model_len, own_length, kv_tokens) if x is not None)
        self.eos_ids = eos_ids(model, tokenizer)

        attention.register()
        model.set_attn_implementation(attention.NAME)
        shapes = self._layer_shapes()
        self._least_rows = 1
        self._row_class = RowClass(1, 64)
        self._native = self._make_native(shapes, kv_tokens, kernels, weights)
        if self._native is not None:
            failure = self._check_rows() if exact else None
            self.numerics = Numerics(exact and failure is None, "native", reason=failure)
            return
        kinds = sorted({(s.kv_heads, s.key_dim, s.value_dim) for s in shapes})
        found = [probe_attention(*kind, self.dtype, self.device) for kind in kinds] if exact else []
        block = max((c.keys for c in found), default=KEY_MULTIPLES[0])
        self.pool = KVPool(shapes, kv_tokens, self.dtype, self.device, block)
        self.numerics = self._make_exact(kinds, found) if exact else Numerics(exact_rows=False, reason="not asked for")

    @property
    def info(self) -> dict[str, Any]:
        """What is loaded and how exact it is, as plain values."""
        return {
            "model": self.name,
            "architecture": type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "vocab_size": self.vocab_size,
            "max_model_len": self.max_model_len,
            "kv_tokens": self.pool.capacity,
            "kv_bytes": self.pool.bytes,
            "kernels": self.numerics.kernels,
            "exact_rows": self.numerics.exact_rows,
            "numerics": {
                "linear": {shape: list(rows) for shape, rows in self.numerics.linear.items()},
                "attention": list(self.numerics.attention),
                "keys": self.numerics.keys,
                "reason": self.numerics.reason,
            },
        }

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        """One flat forward call; returns the wanted rows' logits ``[wanted, logits_width]``, segment by segment, in the
        model's dtype (native kernels: float32).

        Writes every row's keys and values into its segment's extent. Calling again with the same rows is harmless.
        """
        for segment in segments:
            if segment.base + len(segment.tokens) > segment.extent.size:
                raise RequestTooLarge(
                    f"{segment.base + len(segment.tokens)} rows do not fit an extent of {segment.extent.size} slots"
                )
        if self._native is not None:
            return self._native(segments)
        batch = FlatBatch(
            segments,
            scratch=self.pool.scratch,
            block=self.pool.block,
            dtype=self.dtype,
            device=self.device,
            least_rows=self._least_rows,
        )
        cache = PoolCache(self.pool, batch.slots, batch.run)
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            cache=cache,
            use_cache=True,
            logits_to_keep=batch.logits_index,
            flat_batch=batch,
            row_class=self._row_class,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def commit(self, extent: Extent, base: int, path: Sequence[int]) -> None:
        """Keep the KV rows ``path`` (row numbers of the segment at ``base``, root included) as positions ``base``
        onwards; what lies behind them will be overwritten."""
        self.pool.move(extent, [base + row for row in path], base)

    def _layer_shapes(self) -> list[LayerShape]:
        probe = ShapeProbe()
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        with torch.inference_mode():
            self.model(input_ids=ids, position_ids=torch.zeros_like(ids), cache=probe, use_cache=True)
        layers = sorted(probe.shapes)
        if layers != list(range(len(layers))) or not layers:
            raise UnsupportedModel(
                f"{self.name} ({type(self.model).__name__}): only layers {layers} keep keys and values, so the rest "
                "hold state that cannot be rolled back. Use a model with attention in every layer."
            )
        return [probe.shapes[i] for i in layers]

    def _make_native(
        self, shapes: Sequence[LayerShape], kv_tokens: int, kernels: str, weights: str | None
    ) -> NativeForward | None:
        """The C kernels over a pool of their own, if they suit this model and agree with transformers' forward."""
        if kernels == "torch":
            return None
        try:
            refuse_unsuitable(self.model)
            self.pool = KVPool(shapes, kv_tokens, self.dtype, self.device, panels=True)
            native = NativeForward(self.model, self.pool, self.max_model_len, int8=weights == "int8")
            self._compare(native, INT8_TOLERANCE if weights else TOLERANCE[self.dtype])
        except (Unsuitable, BuildFailed) as error:
            if kernels == "native" or weights is not None:
                asked = "kernels" if weights is None else "weights"
                raise InvalidParameter(asked, f"native kernels cannot run {self.name} here: {error}") from error
            log.info("%s runs on torch's kernels (%s)", self.name, error)
            return None
        native.release(self.model)
        return native

    def _compare(self, native: NativeForward, tolerance: float, length: int = 40) -> None:
        """Raise ``Unsuitable`` unless the kernels' logits are those of transformers' own forward, up to rounding."""
        length = min(length, self.max_model_len)
        ids = torch.randint(0, self.vocab_size, (1, length), generator=torch.Generator().manual_seed(5))
        positions = torch.arange(length)[None]
        with torch.inference_mode():
            own = self.model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()
        extent = self.pool.reserve(length)
        if extent is None:
            raise Unsuitable("the KV pool is too small for the comparison")
        try:
            error = float((native([Segment(extent, 0, ids[0].tolist())]) - own).norm() / own.norm())
        finally:
            self.pool.release(extent)
        if not error <= tolerance:
            raise Unsuitable(f"logits differ from transformers' forward by {error:.2g} of their size")

    def _make_exact(self, kinds: Sequence[tuple[int, int, int]], found: Sequence[AttentionClass]) -> Numerics:
        linear = tile_linears(self.model)
        low, high = max(c.rows.low for c in found), min(c.rows.high for c in found)
        failure = None
        for least in (1, 2, 4, 8, 16):  # the probe compares samples; the whole model compares everything
            raise_lows(self.model, least)
            self._row_class = RowClass(max(low, least), max(high, least))
            self._least_rows = self._common_low()
            failure = self._check_rows()
            if failure is None:
                break
        reason = None
        if failure is not None:
            inexact = [f"linear {name}" for name, c in linear.items() if not c.exact]
            inexact += [f"attention {kind}" for kind, c in zip(kinds, found, strict=True) if not c.rows.exact]
            reason = "; ".join([failure, *inexact])
            log.warning("%s: rows are not bitwise exact on this device (%s)", self.name, reason)
        ranges = {name: (max(c.low, least), max(c.high, least)) for name, c in linear.items()}
        return Numerics(
            reason is None, "torch", ranges, (self._row_class.low, self._row_class.high), self.pool.block, reason
        )

    def _common_low(self) -> int:
        """Rows to fill a batch up to at once: what most weights need. A layer that needs more fills up by itself."""
        weights: dict[int, int] = {}
        for module in self.model.modules():
            if isinstance(module, RowTiledLinear):
                low = module.row_class.low
                weights[low] = weights.get(low, 0) + module.weight.numel()
        return max(weights, key=lambda low: weights[low], default=1)

    def _check_rows(self, start: int = 48, length: int = 24) -> str | None:
        """Decode ``length`` tokens one row at a time, then in blocks of several widths; compare every logit bit.

        They lie across the end of the first block of keys, so that rows of one call differ in padded width.
        """
        start = min(start, self.max_model_len - length - 1)
        if start < 0:
            start, length = 0, self.max_model_len
        extent = self.pool.reserve(start + length)
        if extent is None:
            return "the KV pool is too small for the check"
        try:
            generator = torch.Generator().manual_seed(7)
            ids = torch.randint(0, self.vocab_size, (start + length,), generator=generator).tolist()
            if start:
                self.forward([Segment(extent, 0, ids[:start], first_logits=start)])
            rows = range(start, start + length)
            single = torch.cat([self.forward([Segment(extent, i, ids[i : i + 1])]) for i in rows])
            for width in (2, 3, 5, 8, 9, length):
                blocks = [self.forward([Segment(extent, i, ids[i : i + width])]) for i in rows[::width]]
                different = (torch.cat(blocks) != single).any(dim=-1).sum().item()
                if different:
                    return f"{different} of {length} logit rows differ in blocks of {width}"
            return None
        finally:
            self.pool.release(extent)


def check_kernels(kernels: str, weights: str | None) -> None:
    """Raise ``InvalidParameter`` for a choice that does not exist."""
    if kernels not in KERNELS:
        raise InvalidParameter("kernels", f"must be one of {', '.join(KERNELS)}, got {kernels!r}")
    if weights not in (None, "int8"):
        raise InvalidParameter("weights", f"must be int8 or left out, got {weights!r}")
    if weights is not None and kernels == "torch":
        raise InvalidParameter("weights", f"{weights} needs the native kernels; leave kernels at auto")


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


__all__ = ["Numerics", "Target", "eos_ids", "kv_bytes_per_token", "real_vocab_size", "refuse_unsupported"]
