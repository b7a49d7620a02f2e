"""What a user may ask of decoding, as one frozen value, checked when it is made.

Knows nothing of models: whether a token id exists, or a length fits, is checked by the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from headstart.decode.grammar import Grammar
from headstart.errors import InvalidParameter

VerifyRule = Literal["coupled", "rejection", "block"]
VERIFY_RULES: tuple[VerifyRule, ...] = ("coupled", "rejection", "block")
LogprobsMode = Literal["raw", "processed"]

LEAST_TEMPERATURE = 1e-4
MOST_SEQUENCES = 128


def _no_bias() -> Mapping[int, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request; all of them are honoured under speculation.

    Laws are formed in this order: ``grammar``; banned tokens, ``min_tokens`` and ``forced_tokens``; ``logit_bias``;
    repetition penalty over prompt and output (Keskar et al. 2019: divide positive, multiply negative logits), presence
    and frequency penalty over the output (OpenAI's definition); then ``temperature``, ``top_k``, ``top_p``, ``min_p``.

    ``temperature=0`` is greedy. ``top_k=0``, ``top_p=1``, ``min_p=0`` are off. ``seed=None`` lets the engine draw one.
    ``max_tokens=None`` means up to the context limit. ``forced_tokens[i]`` is the only token allowed at output
    position ``i``. ``min_tokens`` holds back end-of-sequence and stop ids, not stop strings. ``include_stop`` keeps
    the stop string, or the text of the stop id, which a special token does not have. ``logprobs=n`` asks for the
    chosen token's log-probability and the ``n`` best; ``logprobs_mode`` picks the target's own law (``raw``: before
    any step above) or the law sampled from (``processed``).

    With ``grammar`` the output is a whole text of that grammar unless ``max_tokens`` or a stop string cuts it short:
    end-of-sequence is allowed where the text is whole and nowhere else, ``min_tokens`` gives way to it, and the
    sequence ends by itself where nothing more can follow.

    Raises:
        InvalidParameter: a value is out of range; the message names the parameter.
    """

    max_tokens: int | None = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=_no_bias)
    banned_tokens: tuple[int, ...] = ()
    forced_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    seed: int | None = None
    n: int = 1
    verify: VerifyRule = "coupled"
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "banned_tokens", "forced_tokens"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidParameter("logit_bias", f"must map token ids to numbers, got {self.logit_bias!r}")
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

        for name, low, high in _RANGES:
            _check_number(name, getattr(self, name), low, high)
        if 0 < self.temperature < LEAST_TEMPERATURE:
            message = f"must be 0 (greedy) or at least {LEAST_TEMPERATURE}, got {self.temperature}"
            raise InvalidParameter("temperature", message)
        if self.top_p <= 0:
            raise InvalidParameter("top_p", f"must be above 0, got {self.top_p}")
        for name, least in (("top_k", 0), ("min_tokens", 0), ("n", 1)):
            _check_integer(name, getattr(self, name), least)
        for name, least in (("max_tokens", 1), ("logprobs", 0)):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), least)
        if self.n > MOST_SEQUENCES:
            raise InvalidParameter("n", f"must be at most {MOST_SEQUENCES}, got {self.n}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", f"{self.min_tokens} exceeds max_tokens {self.max_tokens}")
        for name in ("stop_token_ids", "banned_tokens", "forced_tokens"):
            for token in getattr(self, name):
                _check_integer(name, token, 0)
        for token, bias in self.logit_bias.items():
            _check_integer("logit_bias", token, 0)
            _check_number("logit_bias", bias, -100.0, 100.0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParameter("stop", f"must hold non-empty strings, got {text!r}")
        for name in ("ignore_eos", "include_stop"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, f"must be true or false, got {getattr(self, name)!r}")
        for name, choices in (("logprobs_mode", ("raw", "processed")), ("verify", VERIFY_RULES)):
            if getattr(self, name) not in choices:
                raise InvalidParameter(name, f"must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidParameter("grammar", f"must be a Grammar, got {type(self.grammar).__name__}")
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63))
            if self.seed >= 2**64:
                raise InvalidParameter("seed", f"must be a 64-bit integer, got {self.seed!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


_RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def _as_tuple(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidParameter(name, f"must be a list, got {value!r}")
    return tuple(value)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    """Finite, no bool, and in range; comparing first keeps integers too large for a float out of ``math``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidParameter(name, f"must be a number in [{low:g}, {high:g}], got {value!r}")


def _check_integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParameter(name, f"must be an integer of at least {least}, got {value!r}")
