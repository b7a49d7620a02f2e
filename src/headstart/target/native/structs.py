"""What ``kernels.c`` is passed: its functions' arguments, and its structures field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int64, c_void_p

from headstart.target.native.build import Signatures
from headstart.target.native.rows import FIELDS


class Linear(ctypes.Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("kind", c_int64),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Linear) for name in ("qkv", "o", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm", "keys", "values")),
        ("window", c_int64),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "inner", "vocab")),
        ("eps", c_float),
        ("scale", c_float),
        *((name, c_int64) for name in ("embed_kind", "kv_kind", "slots")),
        *((name, c_void_p) for name in ("embed", "cosines", "sines", "norm")),
        ("head", Linear),
        ("exact", Linear),
        ("layer", POINTER(Layer)),
        ("shares", c_void_p),
        ("least_share", c_float),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "wanted", "most_keys")),
        *((name, c_void_p) for name in (*FIELDS, "logits", "best")),
        *((name, c_int64) for name in ("most_best", "visible")),
        *((name, c_void_p) for name in ("shared", "private")),
    )


SIGNATURES: Signatures = {
    "shared_floats": (c_int64, (POINTER(Model), c_int64, c_int64, c_int64)),
    "private_floats": (c_int64, (POINTER(Model), c_int64, c_int64)),
    "forward": (None, (POINTER(Model), POINTER(Step), c_int64)),
    "move_rows": (None, (POINTER(Model), c_void_p, c_int64, c_int64)),
    "top": (None, (c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64)),
    "likeliest": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64)),
}
