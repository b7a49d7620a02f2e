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

from headstart.decode.likeliest import Likeliest
from headstart.decode.segment import Segment
from headstart.errors import HeadstartError, InvalidParameter, RequestTooLarge, UnsupportedModel
from headstart.target import attention
from headstart.target.batch import FlatBatch
from headstart.target.checks import own_logits, relative_difference, rows_differ
from headstart.target.extents import Extent
from headstart.target.kv import KVPool, LayerShape, Layout, PoolCache, ShapeProbe
from headstart.target.native.build import BuildFailed
from headstart.target.native.forward import NativeForward, Unsuitable, pool_layout, refuse_unsuitable
from headstart.target.native.noise import accelerate
from headstart.target.numerics import (
    KEY_MULTIPLES,
    AttentionClass,
    RowClass,
    RowTiledLinear,
    probe_attention,
    raise_lows,
    tile_linears,
)
from headstart.target.support import (
    AUTO,
    check_kernels,
    eos_ids,
    real_vocab_size,
    refuse_unsupported,
    rotation_changes_at,
    widest_window,
)

log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Largest difference from the logits of transformers' own forward, relative to their size. In 16 bits it rounds every
intermediate result; the native kernels do not."""
QUANTISED_TOLERANCE = {"int8": 0.3, "int4": 1.0}


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
        kv_tokens: capacity of the KV pool in tokens, rounded up to whole blocks.
        kv_bytes: instead, the most bytes the pool may take.
        max_model_len: longest prompt plus output in tokens; default and upper bound is the model's own.
        exact: keep rows bitwise independent of their neighbours. A draft model does without.
        kernels: ``native`` for the C kernels, ``torch`` for transformers' own modules, ``auto`` for native where the
            architecture, the device and a compiler allow it.
        weights: ``int8`` or ``int4`` holds weights in fewer bits (native kernels only). This changes the model, and its
            ``name``.
        draft_weights: hold a copy in these fewer bits as well, for ``draft`` (native kernels only); ``auto``: in 4 bits
            where that is possible and ``weights`` are not in fewer bits themselves. The attribute says what is held.

    Raises:
        UnsupportedModel: recurrent or hybrid state that cannot be rolled back, or no pluggable attention.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        name: str = "model",
        kv_tokens: int | None = None,
        kv_bytes: int | None = None,
        max_model_len: int | None = None,
        exact: bool = True,
        kernels: str = "auto",
        weights: str | None = None,
        draft_weights: str | None = None,
    ) -> None:
        accelerate()
        refuse_unsupported(model, name)
        check_kernels(kernels, weights, draft_weights)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name if weights is None else f"{name} ({weights})"
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        self.logits_width = int(config.vocab_size)
        self.vocab_size = real_vocab_size(tokenizer, self.logits_width)
        own_length = getattr(config, "max_position_embeddings", None)
        for param, value, least in (("kv_tokens", kv_tokens, 1), ("max_model_len", max_model_len, 2)):
            if value is not None and value < least:
                raise InvalidParameter(param, f"must be at least {least}, got {value}")
        if (kv_tokens is None) == (kv_bytes is None):
            raise InvalidParameter("kv_tokens", "give kv_tokens or kv_bytes, one of the two")
        if max_model_len is not None and own_length is not None and max_model_len > own_length:
            raise InvalidParameter("max_model_len", f"{max_model_len} exceeds the {own_length} of {name}")
        self._budget = (kv_tokens, kv_bytes)
        self.max_model_len = min(x for x in (max_model_len, own_length, kv_tokens, 1 << 20) if x is not None)
        self.eos_ids = eos_ids(model, tokenizer)

        self._least_rows = 1
        self._row_class = RowClass(1, 64)
        self._native: NativeForward | None = None
        self._copy: NativeForward | None = None
        self.draft_weights: str | None = None
        self._windows_seen: set[int | None] = set()
        try:
            sample, own = own_logits(model, self.vocab_size, self.max_model_len)
            attention.register()
            model.set_attn_implementation(attention.NAME)
            shapes = self._layer_shapes()
            self._native = self._make_native(shapes, kernels, sample, own, weights, draft_weights)
            if self._native is not None:
                failure = self._rows_differ() if exact else "not asked for"
                self.numerics = Numerics(failure is None, "native", reason=failure)
                return
            kinds = sorted({(s.kv_heads, s.key_dim, s.value_dim) for s in shapes})
            found = [probe_attention(*kind, self.dtype, self.device) for kind in kinds] if exact else []
            block = max((c.keys for c in found), default=KEY_MULTIPLES[0])
            self.pool = self._make_pool(shapes, block)
            difference = relative_difference(self.forward, self.pool, sample, own)
            if difference > TOLERANCE[self.dtype]:
                raise UnsupportedModel(
                    f"{name} ({type(model).__name__}): computed row by row its logits differ from its own forward by "
                    f"{difference:.2g} of their size, so something in it does not go through the attention registry"
                )
            self._refuse_hidden_window()
            self.numerics = (
                self._make_exact(kinds, found) if exact else Numerics(exact_rows=False, reason="not asked for")
            )
        except HeadstartError:
            raise
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            raise UnsupportedModel(f"{name} ({type(model).__name__}) cannot be run in flat rows: {error}") from error

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
            "draft_weights": self.draft_weights,
            "exact_rows": self.numerics.exact_rows,
            "numerics": {
                "linear": {shape: list(rows) for shape, rows in self.numerics.linear.items()},
                "attention": list(self.numerics.attention),
                "keys": self.numerics.keys,
                "reason": self.numerics.reason,
            },
        }

    @property
    def lasting_rows(self) -> bool:
        """Whether keys and values, once computed, hold for every text that begins with the same tokens."""
        changes = rotation_changes_at(self.model.config.get_text_config())
        return changes is None or self.max_model_len <= changes

    def forward(self, segments: Sequence[Segment], best: int = 0) -> torch.Tensor:
        """One flat forward call; returns the wanted rows' logits ``[wanted, logits_width]``, segment by segment, in the
        model's dtype (native kernels: float32). ``best`` says how many of each row's best tokens ``top`` will be asked
        for: then they may be found on the way.

        Writes every row's keys and values into its segment's extent. Calling again with the same rows is harmless.
        """
        for segment in segments:
            if segment.base + len(segment.tokens) > segment.extent.size:
                raise RequestTooLarge(
                    f"{segment.base + len(segment.tokens)} rows do not fit an extent of {segment.extent.size} slots"
                )
        return self._by_torch(segments) if self._native is None else self._native(segments, best, self.vocab_size)

    @torch.inference_mode()
    def _by_torch(self, segments: Sequence[Segment]) -> torch.Tensor:
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
        self._windows_seen |= batch.windows
        logits: torch.Tensor = output.logits[0]
        return logits

    def draft(self, segments: Sequence[Segment]) -> torch.Tensor:
        """As ``forward``, by the copy in ``draft_weights``, and into the same keys and values: what it writes must be
        computed by ``forward`` before that reads it."""
        assert self._copy is not None, "loaded without draft_weights"
        return self._copy(segments)

    def top(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        """The ``count`` best tokens of every row, best first, the lower id first on ties; padding ids are left out."""
        if self._native is not None:
            return self._native.top(logits, self.vocab_size, count)
        visible = logits[:, : self.vocab_size]
        if count == 1:  # torch's argmax takes the first maximum, its topk any
            return visible.argmax(dim=-1, keepdim=True).tolist()
        return visible.sort(dim=-1, descending=True, stable=True).indices[:, :count].tolist()

    def likeliest(self, logits: torch.Tensor) -> list[Likeliest]:
        """The two best tokens of every row; padding ids are left out."""
        if self._native is not None:
            return self._native.likeliest(logits, self.vocab_size)
        visible = logits[:, : self.vocab_size]
        ids = torch.tensor(self.top(logits, 2), dtype=torch.int64, device=visible.device).view(-1, 2)
        shares = visible.float().softmax(dim=-1).gather(1, ids)
        return Likeliest.of_rows(ids.tolist(), shares.tolist())

    def commit(self, extent: Extent, base: int, path: Sequence[int]) -> None:
        """Keep the KV rows ``path`` (ascending row numbers of the segment at ``base``, root included) as positions
        ``base`` onwards; what lies behind them will be overwritten."""
        if all(row == i for i, row in enumerate(path)):
            return
        if self._native is not None:
            self._native.move([extent.start + base + row for row in path], extent.start + base)
        else:
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

    def _make_pool(self, shapes: Sequence[LayerShape], block: int, layout: Layout = "rows") -> KVPool:
        tokens, most_bytes = self._budget
        if most_bytes is not None:
            per_block = block * sum(shape.bytes_per_token(self.dtype) for shape in shapes)
            blocks = most_bytes // per_block - 1  # one is the pool's scratch block
            if blocks < 1:
                message = f"{most_bytes} bytes hold less than two blocks of {block} tokens; at least {2 * per_block}"
                raise InvalidParameter("kv_bytes", f"{message} are needed")
            tokens = blocks * block
        assert tokens is not None
        self.max_model_len = min(self.max_model_len, tokens)
        return KVPool(shapes, tokens, self.dtype, self.device, block, layout)

    def _refuse_hidden_window(self) -> None:
        """Raise if the configuration has a sliding window too long for the sample to show, and attention is not
        told."""
        window = widest_window(self.model.config.get_text_config())
        if window is not None and window < self.max_model_len and not self._windows_seen - {None}:
            raise UnsupportedModel(
                f"{self.name} ({type(self.model).__name__}): its sliding window of {window} does not reach the "
                f"attention function. Load it with max_model_len={window}, where the window does not matter."
            )

    def _make_native(
        self,
        shapes: Sequence[LayerShape],
        kernels: str,
        sample: list[int],
        own: torch.Tensor,
        weights: str | None,
        draft_weights: str | None,
    ) -> NativeForward | None:
        """The C kernels over a pool of their own, if they suit this model and agree with transformers' forward."""
        if kernels == "torch":
            return None
        try:
            refuse_unsuitable(self.model)
            self.pool = self._make_pool(shapes, 64, pool_layout(self.dtype))
            native = NativeForward(self.model, self.pool, self.max_model_len, weights=weights)
            difference = relative_difference(native, self.pool, sample, own)
            if difference > max(TOLERANCE[self.dtype], QUANTISED_TOLERANCE.get(weights or "", 0.0)):
                raise Unsuitable(f"logits differ from transformers' forward by {difference:.2g} of their size")
        except (Unsuitable, BuildFailed) as error:
            if kernels == "native" or weights is not None or draft_weights not in (None, AUTO):
                asked = "weights" if weights is not None else "kernels" if kernels == "native" else "drafter"
                raise InvalidParameter(asked, f"native kernels cannot run {self.name} here: {error}") from error
            log.info("%s runs on torch's kernels (%s)", self.name, error)
            return None
        if draft_weights == AUTO:
            draft_weights = "int4" if weights is None else None
        if draft_weights is not None:
            self._copy = NativeForward(
                self.model, self.pool, self.max_model_len, weights=draft_weights, drafts_for=native
            )
            self.draft_weights = draft_weights
        native.release(self.model)
        return native

    def _make_exact(self, kinds: Sequence[tuple[int, int, int]], found: Sequence[AttentionClass]) -> Numerics:
        linear = tile_linears(self.model)
        low, high = max(c.rows.low for c in found), min(c.rows.high for c in found)
        failure = None
        for least in (1, 2, 4, 8, 16):  # the probe compares samples; the whole model compares everything
            raise_lows(self.model, least)
            self._row_class = RowClass(max(low, least), max(high, least))
            self._least_rows = self._common_low()
            failure = self._rows_differ()
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

    def _rows_differ(self) -> str | None:
        return rows_differ(self.forward, self.pool, self.vocab_size, self.max_model_len)
