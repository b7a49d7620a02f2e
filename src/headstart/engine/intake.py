"""From a checked prompt to sequences ready to be scheduled: seeds, stop ids, limits, text.

Refuses what can never fit, with the numbers, before anything is reserved. Does not know rounds or drafters.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from headstart.decode.noise import derive_seed
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.decode.sequence import Sequence
from headstart.engine.grammar import Grammars
from headstart.engine.text import TextStream
from headstart.errors import RequestTooLarge
from headstart.target.model import Target


def make_sequences(
    target: Target, prompt: list[int], params: SamplingParams, ids: Iterator[int], grammars: Grammars
) -> list[Sequence]:
    """The ``n`` sequences of a request, each with a seed of its own; ``ids`` numbers them.

    Raises:
        RequestTooLarge: prompt plus ``max_tokens`` exceeds the context or the KV budget.
        InvalidParameter: stop strings without a tokenizer; a grammar that cannot be followed.
    """
    limit = token_limit(target, len(prompt), params.max_tokens)
    if params.min_tokens > limit - len(prompt):
        room = limit - len(prompt)
        raise RequestTooLarge(
            f"min_tokens {params.min_tokens} exceeds the {room} tokens that fit after a prompt of {len(prompt)}"
        )
    constraint = grammars.constraint(params)
    seed = params.seed if params.seed is not None else secrets.randbits(63)
    stop_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= target.eos_ids
    return [
        Sequence(
            id=next(ids),
            prompt_length=len(prompt),
            tokens=list(prompt),
            params=params,
            law=TokenLaw(
                params,
                prompt,
                derive_seed(seed, i),
                target.vocab_size,
                target.eos_ids,
                None if constraint is None else constraint.fresh(),
            ),
            stop_ids=stop_ids,
            limit=limit,
            text=TextStream(target.tokenizer, prompt, params.stop, params.include_stop),
        )
        for i in range(params.n)
    ]


def token_limit(target: Target, prompt: int, max_tokens: int | None) -> int:
    """Most tokens a sequence may come to, prompt included."""
    longest = min(target.max_model_len, target.pool.capacity)
    bounds = f"the limit is {longest} (max_model_len {target.max_model_len}, KV budget {target.pool.capacity})"
    if prompt >= longest:
        raise RequestTooLarge(
            f"the prompt has {prompt} tokens and at least one must follow, but {bounds}. Shorten the prompt, or raise "
            "the smaller of the two."
        )
    if max_tokens is None:
        return longest
    if prompt + max_tokens > longest:
        raise RequestTooLarge(
            f"prompt {prompt} + max_tokens {max_tokens} = {prompt + max_tokens} tokens, but {bounds}. Ask for at most "
            f"{longest - prompt} tokens, or raise the smaller of the two."
        )
    return prompt + max_tokens
