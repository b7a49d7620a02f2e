"""What a user may ask of decoding, as one frozen value, checked when it is made.

Knows nothing of models: whether a token id exists, or a length fits, is checked by the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from headstart.errors import InvalidParameter

VerifyRule = Literal["coupled", "rejection", "block"]
VERIFY_RULES: tuple[VerifyRule, ...] = ("coupled", "rejection", "block")
LogprobsMode = Literal["raw", "processed"]


def _no_bias() -> Mapping[int, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request; all of them are honoured under speculation.

    Laws are formed in this order: banned tokens, ``min_tokens`` and ``forced_tokens``; ``logit_bias``; repetition
    penalty over prompt and output (Keskar et al. 2019: divide positive, multiply negative logits), presence and
    frequency penalty over the output (OpenAI's definition); then ``temperature``, ``top_k``, ``top_p``, ``min_p``.

    ``temperature=0`` is greedy. ``top_k=0``, ``top_p=1``, ``min_p=0`` are off. ``seed=None`` lets the engine draw one.
    ``max_tokens=None`` means up to the context limit. ``forced_tokens[i]`` is the only token allowed at output
    position ``i``. ``logprobs=n`` asks for the chosen token's log-probability and the ``n`` best; ``logprobs_mode``
    picks the target's own law (``raw``: before any step above) or the law sampled from (``processed``).

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

    def __post_init__(self) -> None:
        def check(ok: bool, param: str, message: str) -> None:
            if not ok:
                raise InvalidParameter(param, message)

        def number(param: str) -> float:
            value = getattr(self, param)
            check(
                isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
                param,
                f"must be a finite number, got {value!r}",
            )
            return float(value)

        def integer(param: str, low: int) -> None:
            value = getattr(self, param)
            check(
                isinstance(value, int) and not isinstance(value, bool) and value >= low,
                param,
                f"must be an integer of at least {low}, got {value!r}",
            )

        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "banned_tokens", "forced_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

        if self.max_tokens is not None:
            integer("max_tokens", 1)
        check(0.0 <= number("temperature") <= 100.0, "temperature", f"must be in [0, 100], got {self.temperature}")
        check(
            self.temperature == 0 or self.temperature >= 1e-4,
            "temperature",
            f"must be 0 (greedy) or at least 0.0001, got {self.temperature}",
        )
        integer("top_k", 0)
        check(0.0 < number("top_p") <= 1.0, "top_p", f"must be in (0, 1], got {self.top_p}")
        check(0.0 <= number("min_p") <= 1.0, "min_p", f"must be in [0, 1], got {self.min_p}")
        check(
            0.0 < number("repetition_penalty") <= 100.0,
            "repetition_penalty",
            f"must be in (0, 100], got {self.repetition_penalty}",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            check(-2.0 <= number(name) <= 2.0, name, f"must be in [-2, 2], got {getattr(self, name)}")
        for token, bias in self.logit_bias.items():
            check(isinstance(token, int) and token >= 0, "logit_bias", f"keys must be token ids, got {token!r}")
            check(
                isinstance(bias, (int, float)) and -100.0 <= bias <= 100.0,
                "logit_bias",
                f"values must be in [-100, 100], got {bias!r} for token {token}",
            )
        for name in ("stop_token_ids", "banned_tokens", "forced_tokens"):
            for token in getattr(self, name):
                check(isinstance(token, int) and token >= 0, name, f"must hold token ids, got {token!r}")
        for text in self.stop:
            check(isinstance(text, str) and text != "", "stop", f"must hold non-empty strings, got {text!r}")
        integer("min_tokens", 0)
        if self.max_tokens is not None:
            check(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"{self.min_tokens} exceeds max_tokens {self.max_tokens}",
            )
        if self.logprobs is not None:
            integer("logprobs", 0)
        check(
            self.logprobs_mode in ("raw", "processed"),
            "logprobs_mode",
            f"must be raw or processed, got {self.logprobs_mode!r}",
        )
        if self.seed is not None:
            check(
                isinstance(self.seed, int) and not isinstance(self.seed, bool) and -(2**63) <= self.seed < 2**64,
                "seed",
                f"must be a 64-bit integer, got {self.seed!r}",
            )
        integer("n", 1)
        check(self.verify in VERIFY_RULES, "verify", f"must be one of {', '.join(VERIFY_RULES)}, got {self.verify!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
