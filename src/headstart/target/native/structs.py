"""What ``kernels.c`` is passed: its structures, field by field."""

from __future__ import annotations

import ctypes


class Linear(ctypes.Structure):
    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("kind", ctypes.c_int64),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Linear) for name in ("qkv", "o", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm", "keys", "values")),
        ("window", ctypes.c_int64),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "inner", "vocab")),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("embed_kind", "kv_kind", "slots")),
        *((name, ctypes.c_void_p) for name in ("embed", "cosines", "sines", "norm")),
        ("head", Linear),
        ("exact", Linear),
        ("layer", ctypes.POINTER(Layer)),
        ("shares", ctypes.c_void_p),
        ("least_share", ctypes.c_float),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "wanted", "most_keys")),
        *(
            (name, ctypes.c_void_p)
            for name in ("ids", "positions", "slots", "start", "length", "plain", "extra_at", "extra", "want")
        ),
        *((name, ctypes.c_void_p) for name in ("logits", "shared", "private")),
    )
