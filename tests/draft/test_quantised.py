"""The target's quantised copy as a drafter: whose keys it reads and writes, when it stops, what it is refused."""

from __future__ import annotations

import math
from itertools import count

import pytest
import torch
from tests import tiny

from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.decode.segment import Segment
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.chains import DOUBT
from headstart.draft.quantised import QuantisedDrafter
from headstart.engine.engine import Engine
from headstart.errors import InvalidParameter
from headstart.target.model import Target

IDS = count()
GREEDY = SamplingParams(max_tokens=30)


def drafting(weights: str = "int8") -> tuple[Target, QuantisedDrafter]:
    target = tiny.target(draft_weights=weights)
    return target, QuantisedDrafter(target)


def ask(target: Target, tokens: list[int], depth: int, **more: object) -> DraftRequest:
    """A request whose history is in the pool, as in a running engine."""
    extent = target.pool.reserve(len(tokens) + depth)
    if tokens[1:]:
        target.forward([Segment(extent, 0, tokens[:-1])])
    params = more.pop("params", GREEDY)
    return DraftRequest(next(IDS), tokens, 3, depth, depth, params, seed=9, extent=extent, **more)  # type: ignore[arg-type]


def test_it_is_a_drafter_named_after_its_weights() -> None:
    _, drafter = drafting("int4")
    assert isinstance(drafter, Drafter)
    assert drafter.name == "int4"
    with pytest.raises(ValueError, match="draft_weights"):
        QuantisedDrafter(tiny.target())


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=30, temperature=0.8, seed=4)])
def test_it_is_as_sure_as_its_first_choice_leads(params: SamplingParams) -> None:
    """However unlikely the token itself is: the target is nearly the same, so it draws the same unless it is close."""
    target, drafter = drafting("int4")
    tokens = tiny.ids(12, 4)
    request = ask(target, tokens, 6, params=params)
    draft = drafter.propose([request])[0]
    law = TokenLaw(params, tokens, request.seed, target.vocab_size, frozenset())
    assert draft.confidence is not None
    for at, token in enumerate(draft.tokens):
        last = [*tokens, *draft.tokens][len(tokens) + at - 1]
        row = target.draft([Segment(request.extent, len(tokens) + at - 1, [last])])[0]
        first, _, lag = law.choose_two(row, draft.tokens[:at])
        assert first == token
        assert draft.confidence[at] == pytest.approx(1 / (1 + math.exp(-lag / DOUBT)), abs=1e-4)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_it_says_what_the_copy_says(weights: str) -> None:
    """After a history of one token, whose keys no draft ever sees computed by another model."""
    target, drafter = drafting(weights)
    extent = target.pool.reserve(64)
    for token in range(0, tiny.VOCAB, 7):
        draft = drafter.propose([ask(target, [token], 8)])[0]
        said = [token]
        for at in range(8):
            said.append(target.top(target.draft([Segment(extent, at, [said[-1]])]), 1)[0][0])
        assert list(draft.tokens) == said[1:]
        assert draft.source == weights
        assert draft.confidence is not None
        assert all(0 < c <= 1 for c in draft.confidence)


def test_what_it_writes_is_written_again_before_it_is_read() -> None:
    """Logits of the rows of a draft are those that the target computes on a pool nobody else has written to."""
    target, drafter = drafting("int4")
    request = ask(target, tiny.ids(30, 1), 6)
    draft = drafter.propose([request])[0]
    rows = [request.tokens[-1], *draft.tokens]
    after = target.forward([Segment(request.extent, 29, rows)])
    clean = tiny.target()
    extent = clean.pool.reserve(64)
    clean.forward([Segment(extent, 0, list(request.tokens[:-1]))])
    assert torch.equal(after, clean.forward([Segment(extent, 29, rows)]))


def test_it_stops_where_a_token_more_is_not_worth_it() -> None:
    target, drafter = drafting()
    tokens = tiny.ids(9, 3)
    whole = drafter.propose([ask(target, tokens, 12)])[0]
    short = drafter.propose([ask(target, tokens, 12, least=0.5)])[0]
    assert len(whole) == 12
    assert 1 <= len(short) < 12
    assert short.tokens == whole.tokens[: len(short)]
    reach = 1.0
    for confidence in short.confidence[:-1]:
        reach *= confidence
        assert reach >= 0.5
    params = SamplingParams(temperature=1.0, verify="rejection")
    sampled = drafter.propose([ask(target, tokens, 12, least=0.5, params=params, with_q=True)])[0]
    assert len(sampled) == 12  # a length that depends on what was drawn would bias the law
    assert sampled.q is not None
    assert sampled.q.shape == (12, tiny.VOCAB)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_rules_that_need_q_are_repeatable_and_mostly_accept(verify: str) -> None:
    target, drafter = drafting()
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=5, verify=verify)
    prompts = [tiny.ids(5, 1), tiny.ids(9, 2)]
    engines = [Engine(target, [drafter], controller=FixedDepth(4)) for _ in range(2)]
    first, second = (engine.generate(prompts, params) for engine in engines)
    assert [o.token_ids for o in first] == [o.token_ids for o in second]
    assert engines[0].record.acceptance_rate > 0.8


def test_a_request_that_is_refused_says_why() -> None:
    for more, words in (
        ({"draft_weights": "int3"}, "one of int8, int4"),
        ({"draft_weights": "int4", "kernels": "torch"}, "native kernels"),
        ({"draft_weights": "int8", "weights": "int8"}, "no fewer bits"),
        ({"draft_weights": "int8", "weights": "int4"}, "no fewer bits"),
    ):
        with pytest.raises(InvalidParameter, match=words) as error:
            Target(tiny.model(), None, kv_tokens=512, **more)
        assert error.value.param == "drafter"
    with pytest.raises(InvalidParameter, match="GPT2LMHeadModel"):
        Target(tiny.model("gpt2"), None, kv_tokens=512, draft_weights="int4")
