"""A transformers model's weights, handed to the C kernels; one call per step.

Knows which architectures have the shape the kernels compute (llama, mistral, qwen2, qwen3) and how segments become
rows. Does not know requests or sampling; whether it is right is checked by ``Target`` against transformers' own
forward.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.decode.likeliest import Likeliest
from headstart.decode.segment import Segment
from headstart.target.kv import KVPool, Layout
from headstart.target.native.build import declared, library
from headstart.target.native.layout import (
    INT4,
    KINDS,
    LANES,
    PANEL,
    TILES,
    interleave,
    pack,
    pack4,
    pack_tiles,
    quantise,
    quantise4,
)
from headstart.target.native.rows import FIELDS, Rows
from headstart.target.native.structs import SIGNATURES, Layer, Linear, Model, Step

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})

LEAST_SHARE = 0.002
"""Share of every query head's attention below which a copy skips a panel of 32 keys (docs/performance.md compares)."""


class Unsuitable(Exception):
    """The model does not have the shape the kernels compute; the message says what differs."""


class NativeForward:
    """The forward pass of one model over one KV pool.

    Args:
        model: on the CPU, in float32 or bfloat16. Its weights are copied into panels; see ``release``.
        pool: whose keys and values the kernels read and write, in ``pool_layout``.
        positions: longest context in tokens.
        weights: ``int8`` holds weights in 8 bits with one scale per output, ``int4`` in 4 with a step and a minimum for
            every 32 columns, but the head in 8. This changes the model.
        drafts_for: the same model over the same pool, which this one drafts for. It skips keys that the other's last
            rows hardly attended to, and has the logits that matter from the other's head, where that is in floats: its
            own is then in as few bits as the rest and only finds out which.

    Raises:
        Unsuitable: the model has another shape. BuildFailed: there is no library.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pool: KVPool,
        positions: int,
        *,
        weights: str | None = None,
        drafts_for: NativeForward | None = None,
    ) -> None:
        refuse_unsuitable(model)
        self._library = declared(library(), SIGNATURES)
        self._tiles = has_matrix_unit()
        self._keep: list[torch.Tensor] = []
        config = model.config
        inside: Any = model.model
        first = inside.layers[0].self_attn
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._tables: tuple[torch.Tensor, torch.Tensor] = (
            self._rope(inside, positions) if drafts_for is None else drafts_for._tables
        )
        cosines, sines = self._tables
        exact = None if drafts_for is None else drafts_for._exact_head()
        in_head = "int8" if weights == "int4" and exact is None else weights
        layers = (Layer * len(inside.layers))()
        for target, source, keys, values in zip(layers, inside.layers, pool.keys, pool.values, strict=True):
            self._fill(target, source, weights)
            target.keys, target.values = keys.data_ptr(), values.data_ptr()
        self._model = Model(
            layers=len(layers),
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            dim=first.head_dim,
            inner=config.intermediate_size,
            vocab=config.vocab_size,
            eps=config.rms_norm_eps,
            scale=first.scaling,
            embed_kind=KINDS[model.dtype],
            kv_kind=TILES if pool.layout == "tiles" else KINDS[model.dtype],
            slots=pool.keys[0].shape[1],
            embed=self._pointer(inside.embed_tokens.weight.detach()),
            cosines=self._pointer(cosines),
            sines=self._pointer(sines),
            norm=self._pointer(inside.norm.weight.detach().float()),
            head=self._linear(model.lm_head.weight.detach(), None, in_head),
            layer=layers,
        )
        self._drafts_for = drafts_for  # its weights must stay
        if exact is not None:
            self._model.exact = exact
        if drafts_for is not None:
            self._share_attention(drafts_for)
        self._width = int(config.vocab_size)
        self._step = Step()
        self._room = 0, 0, 0
        self._shared = self._private = torch.empty(0)
        self._found: tuple[torch.Tensor, int, int, array[int]] | None = None
        """The last call's logits, if their best tokens were asked for: of how many columns, how many, and which."""
        self._passed = ctypes.byref(self._model), ctypes.byref(self._step)

    def _exact_head(self) -> Linear | None:
        head = self._model.head
        return head if head.kind in (KINDS[torch.float32], KINDS[torch.bfloat16], TILES) else None

    def _share_attention(self, target: NativeForward) -> None:
        """Let ``target`` note which keys matter, and this one skip the others."""
        self.shares = torch.zeros(self._model.layers, self._model.kv_heads, self._model.slots // PANEL)
        for forward, least in ((target, 0.0), (self, LEAST_SHARE)):
            forward._model.shares, forward._model.least_share = forward._pointer(self.shares), least

    def __call__(self, segments: Sequence[Segment], best: int = 0, visible: int = 0) -> torch.Tensor:
        """Logits of the wanted rows, float32 ``[wanted, vocab]``; keys and values are written to the pool. The ``best``
        of each row's first ``visible`` columns are found on the way, for ``top``.

        What stands around the call of the kernels is kept short: the call before has emptied the caches, and Python
        that takes 50 µs otherwise takes ten times as long.
        """
        rows = Rows()
        for segment in segments:
            rows.add(segment)
        packed, begins = rows.packed()
        threads = torch.get_num_threads()
        self._make_room(len(rows.ids), rows.most_keys, threads)
        logits = torch.empty(len(rows.want), self._model.head.n)
        step = self._step
        step.rows, step.wanted, step.most_keys = len(rows.ids), len(rows.want), rows.most_keys
        step.logits = logits.data_ptr()
        found = array("q", bytes(8 * best * len(rows.want)))
        step.best, step.most_best, step.visible = found.buffer_info()[0], best, visible
        first = packed.buffer_info()[0]
        for name, begin in zip(FIELDS, begins, strict=True):
            setattr(step, name, first + packed.itemsize * begin)
        self._library.forward(*self._passed, threads)
        logits = logits if logits.shape[1] == self._width else logits[:, : self._width]
        self._found = (logits, visible, best, found) if best else None
        return logits

    def _make_room(self, rows: int, keys: int, threads: int) -> None:
        """Scratch memory for a call of so many rows over so many keys each."""
        if rows <= self._room[0] and keys <= self._room[1] and threads == self._room[2]:
            return
        rows, keys = max(rows, self._room[0]), max(keys, self._room[1])
        self._room = rows, keys, threads
        model = self._passed[0]
        self._shared = torch.empty(self._library.shared_floats(model, rows, keys, threads))
        self._private = torch.empty(self._library.private_floats(model, rows, keys) * threads)
        self._step.shared, self._step.private = self._shared.data_ptr(), self._private.data_ptr()

    def move(self, source: Sequence[int], destination: int) -> None:
        """Copy what the ascending slots ``source`` of the pool hold to the slots from ``destination``, none behind the
        first of them, on."""
        slots = array("q", source)
        self._library.move_rows(self._passed[0], slots.buffer_info()[0], len(slots), destination)

    def top(self, logits: torch.Tensor, vocab_size: int, count: int) -> list[list[int]]:
        """The ``count`` best of the first ``vocab_size`` columns of every row of float32 ``logits``, best first, the
        lower column first on ties."""
        if self._found is not None and self._found[0] is logits and self._found[1:3] == (vocab_size, count):
            best = self._found[3]
        else:
            rows, stride, threads = logits.shape[0], logits.stride(0), torch.get_num_threads()
            best = array("q", bytes(8 * rows * count))
            self._library.top(logits.data_ptr(), rows, vocab_size, stride, count, best.buffer_info()[0], threads)
        return [best[i : i + count].tolist() for i in range(0, len(best), count)]

    def likeliest(self, logits: torch.Tensor, vocab_size: int) -> list[Likeliest]:
        """The two best of the first ``vocab_size`` columns of every row of float32 ``logits``, the lower one on ties,
        and their shares of the softmax."""
        rows, stride = logits.shape[0], logits.stride(0)
        ids, shares = array("q", bytes(16 * rows)), array("f", bytes(8 * rows))
        threads = torch.get_num_threads()
        self._library.likeliest(
            logits.data_ptr(), rows, vocab_size, stride, ids.buffer_info()[0], shares.buffer_info()[0], threads
        )
        pairs = range(0, 2 * rows, 2)
        return Likeliest.of_rows([ids[i : i + 2] for i in pairs], [shares[i : i + 2] for i in pairs])

    @staticmethod
    def release(model: PreTrainedModel) -> None:
        """Free the weights that are now held in panels; ``model`` cannot run any more."""
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def _fill(self, target: Layer, source: Any, weights: str | None) -> None:
        attention, mlp = source.self_attn, source.mlp
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [part.bias for part in parts]
        bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
        target.qkv = self._linear(torch.cat([part.weight.detach() for part in parts]), bias, weights)
        target.o = self._linear(attention.o_proj.weight.detach(), attention.o_proj.bias, weights)
        gate_up = interleave(mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())
        target.gate_up = self._linear(gate_up, None, weights)
        target.down = self._linear(mlp.down_proj.weight.detach(), mlp.down_proj.bias, weights)
        target.attention_norm = self._pointer(source.input_layernorm.weight.detach().float())
        target.mlp_norm = self._pointer(source.post_attention_layernorm.weight.detach().float())
        for name in ("q_norm", "k_norm"):
            norm = getattr(attention, name, None)
            setattr(target, name, None if norm is None else self._pointer(norm.weight.detach().float()))
        target.window = sliding_window(attention) or 0

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, weights: str | None) -> Linear:
        n, k = weight.shape
        fill = -n % PANEL
        linear = Linear(n=n + fill, k=k)
        if weights == "int4":
            linear.panels, linear.kind = self._pointer(pack4(*quantise4(weight))), INT4
        elif weights is None and weight.dtype == torch.bfloat16 and self._tiles:
            linear.panels, linear.kind = self._pointer(pack_tiles(weight)), TILES
        else:
            if weights == "int8":
                weight, scale = quantise(weight)
                linear.scale = self._pointer(torch.cat([scale, scale.new_zeros(fill)]))
            linear.panels, linear.kind = self._pointer(pack(weight)), KINDS[weight.dtype]
        if bias is not None:
            linear.bias = self._pointer(torch.cat([bias.detach().float(), torch.zeros(fill)]))
        return linear

    def _rope(self, inside: Any, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``[positions, dim]`` in float32, from the model's own rotary embedding."""
        with torch.inference_mode():
            cosines, sines = inside.rotary_emb(torch.zeros(1), position_ids=torch.arange(positions)[None])
        return cosines[0].float().contiguous(), sines[0].float().contiguous()

    def _pointer(self, tensor: torch.Tensor) -> int:
        tensor = tensor.contiguous()
        self._keep.append(tensor)
        return tensor.data_ptr()


def has_matrix_unit() -> bool:
    """Whether the kernels use the processor's matrix unit. Raises ``BuildFailed`` where there are no kernels."""
    ask = library().matrix_unit
    ask.restype = ctypes.c_int64
    return bool(ask())


def pool_layout(dtype: torch.dtype) -> Layout:
    """The layout of the pool that the kernels need for keys and values in ``dtype``. Raises ``BuildFailed``."""
    return "tiles" if dtype == torch.bfloat16 and has_matrix_unit() else "panels"


def sliding_window(attention: Any) -> int | None:
    """The window transformers would pass for this layer: the layer's own attribute, or in mistral the config's."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return getattr(attention.config, "sliding_window", None)


def refuse_unsuitable(model: PreTrainedModel) -> None:
    """Raise ``Unsuitable`` unless the kernels compute exactly this architecture."""
    kind, config = type(model).__name__, model.config
    if kind not in ARCHITECTURES:
        raise Unsuitable(f"{kind} is not among {', '.join(sorted(ARCHITECTURES))}")
    if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
        raise Unsuitable(f"{model.dtype} on {model.device}; the kernels run float32 and bfloat16 on the CPU")
    if config.hidden_act not in ("silu", "swish"):
        raise Unsuitable(f"activation {config.hidden_act}, not silu")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in STATIC_ROPE:
        raise Unsuitable(f"rotary embedding of type {rope} depends on the length")
    inside: Any = model.model
    for layer in inside.layers:
        attention, mlp = layer.self_attn, layer.mlp
        linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if any(type(linear) is not torch.nn.Linear for linear in [*linears, model.lm_head]):
            raise Unsuitable("a projection is not a plain linear layer")
        if mlp.gate_proj.bias is not None or mlp.up_proj.bias is not None or model.lm_head.bias is not None:
            raise Unsuitable("the feed-forward layer or the head has a bias")
    sizes = {
        "head dimension": (inside.layers[0].self_attn.head_dim, PANEL),
        "hidden size": (config.hidden_size, PANEL),
        "intermediate size": (config.intermediate_size, LANES),
    }
    for name, (size, multiple) in sizes.items():
        if size % multiple:
            raise Unsuitable(f"{name} {size} is no multiple of {multiple}")
