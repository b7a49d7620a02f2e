"""Several drafters: whom to ask, whose draft goes on, what asking costs, and that nobody is forgotten."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from tests.control.test_adaptive import chain, free, linear, load

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import Allowance, DepthController, DepthQuery, FixedDepth, Outcome, Proposal, RoundCost
from headstart.control.patience import LITTLE_PATIENCE, LONGEST_NAP, PATIENCE, Patience
from headstart.control.price import PROBE_EVERY, PROBE_SHARE, USUAL_LAG, Prices
from headstart.decode.draft import EMPTY, Draft

PLAIN = 0.010
"""Seconds of a plain step on the curves of these tests."""


def ask(drafter: str, sequence_id: int = 0, context: int = 100, **more: object) -> DepthQuery:
    return DepthQuery(sequence_id, drafter, 100, context, **more)  # type: ignore[arg-type]


def said(drafter: str, draft: Draft, **more: object) -> Proposal:
    return Proposal(ask(drafter), draft, more.pop("free", True), True)  # type: ignore[arg-type]


def rounds(controller: AdaptiveDepth, drafter: str, seconds: float, hits: Sequence[int], context: int = 100) -> None:
    """Rounds in which ``drafter`` was asked for four tokens, took ``seconds`` and had ``hits[i]`` accepted."""
    for count in hits:
        controller.allow([ask(drafter, context=context)], load())
        outcome = Outcome(0, drafter, Draft((1, 2, 3, 4)), tuple(range(count)))
        cost = RoundCost(5, 500, PLAIN, PLAIN + seconds, False, {drafter: seconds}, {drafter: 4}, {drafter: 1})
        controller.observe([outcome], cost)


def next_depth(controller: DepthController, query: DepthQuery, *so_far: Proposal) -> int:
    controller.allow([ask("first")], load())
    return controller.allow_next([query], [so_far], load())[0].depth


def test_the_dear_one_is_asked_where_the_cheap_one_has_too_little_to_say() -> None:
    controller = AdaptiveDepth(linear(0.02))
    rounds(controller, "model", 4 * 0.1 * PLAIN, [4, 4, 3, 4, 2, 4, 4, 4] * 20)
    model = ask("model", dear=True)
    assert next_depth(controller, model) > 2
    assert next_depth(controller, model, said("first", EMPTY)) > 2
    assert next_depth(controller, model, said("first", chain(0.1))) > 2
    assert next_depth(controller, model, said("first", chain(*[0.97] * 12))) == 0


def test_a_dear_one_that_is_too_dear_is_left_alone_but_for_probes_of_bounded_cost() -> None:
    controller = AdaptiveDepth(free())
    price = 0.8 * PLAIN
    rounds(controller, "model", 4 * price, [1, 0, 1, 1, 0] * 20)
    depths = [next_depth(controller, ask("model", dear=True), said("first", chain(0.5))) for _ in range(2000)]
    asked = [depth for depth in depths if depth]
    assert set(asked) == {4}
    spent = sum(asked) * price / (2000 * PLAIN)
    assert PROBE_SHARE / 2 < spent <= PROBE_SHARE * 1.1


def test_probing_finds_out_that_a_dear_one_has_become_good() -> None:
    controller = AdaptiveDepth(free())
    price = 0.2 * PLAIN
    rounds(controller, "model", 4 * price, [0] * 300)
    query = ask("model", dear=True)
    taken = 0
    for _ in range(1500):
        depth = controller.allow([query], load())[0].depth
        if depth:
            draft, spent = Draft(tuple(range(depth))), depth * price
            cost = RoundCost(5, 500, PLAIN, PLAIN + spent, False, {"model": spent}, {"model": depth}, {"model": 1})
            controller.observe([Outcome(0, "model", draft, tuple(range(depth)))], cost)
        taken = taken + 1 if depth else 0
        if taken == 20:
            break
    assert taken == 20


def test_a_cheap_second_one_is_asked_for_what_it_brings() -> None:
    controller = AdaptiveDepth(linear(0.02))
    rounds(controller, "ngram", 0.01 * PLAIN, [1] * 50)
    for _ in range(50):  # what it says is usually worth about a token
        controller.trim([said("ngram", chain(0.9, 0.3))], load())
    query = ask("ngram")
    assert next_depth(controller, query) > 0
    assert next_depth(controller, query, said("first", chain(0.2))) > 0
    sure = said("first", chain(*[0.97] * 12))
    asked = sum(next_depth(controller, query, sure) > 0 for _ in range(160))
    assert 160 // PROBE_EVERY - 1 <= asked <= 160 // PROBE_EVERY


def test_of_several_drafts_the_best_goes_on() -> None:
    controller = AdaptiveDepth(linear(0.05))
    weak, strong = said("a", chain(0.3, 0.3)), said("b", chain(0.9, 0.9, 0.9))
    for order in ([weak, strong], [strong, weak]):
        out = controller.trim(order, load())
        assert [len(draft) for draft in out] == [3 if p is strong else 0 for p in order]
    assert [len(d) for d in controller.trim([said("a", EMPTY), strong], load())] == [0, 3]
    assert [len(d) for d in controller.trim([strong, said("b", EMPTY)], load())] == [3, 0]
    hopeless = AdaptiveDepth(linear(10.0))
    assert [len(d) for d in hopeless.trim([weak, strong], load())] == [0, 0]
    assert hopeless.skips == {"acceptance too low": 1}


def test_batch_mates_with_several_drafts_share_the_rows() -> None:
    controller = AdaptiveDepth(linear(0.25))
    sure, unsure = chain(0.95, 0.95, 0.95), chain(0.3, 0.3)
    proposals = [
        Proposal(ask("a", 0), unsure, True, True),
        Proposal(ask("b", 0), sure, True, True),
        Proposal(ask("a", 1), unsure, True, True),
    ]
    assert [len(d) for d in controller.trim(proposals, load(2))] == [0, 3, 0]


@pytest.mark.parametrize("controller", [AdaptiveDepth(free()), AdaptiveDepth(linear(5.0)), FixedDepth(4)])
def test_a_sampled_draft_stands_whatever_was_drawn(controller: DepthController) -> None:
    """Drafts must not peek: with q, neither asking on nor choosing may depend on the tokens or their confidence."""
    generator = random.Random(3)
    for _ in range(50):
        tokens = tuple(generator.randrange(64) for _ in range(3))
        confidence = tuple(generator.random() for _ in range(3))
        drawn = said("model", Draft(tokens, None, confidence, torch.full((3, 64), 1 / 64)), free=False)
        after = said("other", chain(*[generator.random() for _ in range(4)]))
        assert controller.allow_next([ask("other")], [[drawn]], load()) == [Allowance(0, 0)]
        assert controller.trim([drawn], load()) == [drawn.draft]
        assert controller.trim([drawn, after], load()) == [drawn.draft, EMPTY]
        before = said("first", EMPTY if isinstance(controller, FixedDepth) else after.draft)
        assert controller.trim([before, drawn], load()) == [EMPTY, drawn.draft]


def test_a_fixed_depth_takes_the_first_with_something_to_say() -> None:
    controller = FixedDepth(3)
    assert next_depth(controller, ask("b"), said("a", EMPTY)) == 3
    assert next_depth(controller, ask("b")) == 3
    assert next_depth(controller, ask("b"), said("a", chain(0.01))) == 0
    first, second = said("a", chain(0.01)), said("b", chain(0.9))
    assert controller.trim([first, second], load()) == [first.draft, EMPTY]
    assert controller.trim([said("a", EMPTY), second], load()) == [EMPTY, second.draft]
    fixed = ask("b", asked=2)
    assert AdaptiveDepth(linear(10.0)).allow_next([fixed], [[said("a", EMPTY)]], load())[0].depth == 2
    assert AdaptiveDepth(linear(10.0)).allow_next([fixed], [[said("a", chain(0.1))]], load())[0].depth == 0


def test_catching_up_is_not_taken_for_the_price_of_a_draft() -> None:
    prices = Prices()

    def asked(context: int, seconds: float, sequence_id: int = 0) -> None:
        prices.begin()
        prices.asked(sequence_id, "model", context)
        prices.observe(RoundCost(5, 500, PLAIN, PLAIN, False, {"model": seconds}, {"model": 4}, {"model": 1}))

    asked(1000, 2.0)  # the whole prompt
    asked(1005, 3.0)  # an accident
    for i in range(2, 6):
        assert prices.token("model") is None
        asked(1000 + 5 * i, 0.008)
    for i in range(6, 20):
        asked(1000 + 5 * i, 0.008)
    assert prices.token("model") == pytest.approx(0.002)
    assert prices.catch_up("model", 500) == 0.0  # not known yet
    asked(600, 0.008 + 600 * 0.001, sequence_id=1)
    assert prices.token("model") == pytest.approx(0.002)
    assert prices.catch_up("model", 500) == pytest.approx(0.5)
    assert prices.catch_up("model", USUAL_LAG) == 0.0
    assert prices.lag(1, "model", 700) == 100
    prices.forget(1)
    assert prices.lag(1, "model", 700) == 700


def test_a_slow_hour_changes_no_decision() -> None:
    """A drafter that nearly pays must not look cheap, or dear, because the machine was otherwise when it was timed."""

    def depth(then: float, now: float, price: float) -> int:
        controller = AdaptiveDepth(linear(0.02))
        for i, pace in enumerate([then] * 40 + [now] * 400):
            asked = {"model": 4} if i < 40 else {}
            controller.allow([ask("model")] if asked else [], load())
            seconds = {"model": 4 * price * PLAIN * pace} if asked else {}
            forward = PLAIN * pace * (1.08 if asked else 1.0)
            cost = RoundCost(
                1 + 4 * bool(asked), 500, forward, forward + sum(seconds.values()), False, seconds, asked,
                dict.fromkeys(asked, 1), 4 * bool(asked),
            )  # fmt: skip
            outcomes = [Outcome(0, "model", Draft((1, 2, 3, 4)), (0, 1, 2, 3)[: 3 + i % 2])] if asked else []
            controller.observe(outcomes, cost)
        return controller.allow([ask("model", dear=True)], load())[0].depth

    for then, now in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0)):
        assert depth(then, now, 0.5) > 0
        assert depth(then, now, 1.6) == 0


def test_a_long_way_to_catch_up_must_pay_too() -> None:
    def depth(catch_up: float, room: int) -> int:
        controller = AdaptiveDepth(free())
        rounds(controller, "model", 4 * 0.2 * PLAIN, [3] * 100)
        late = {"model": 0.8 * PLAIN + 10_000 * catch_up}
        controller.allow([ask("model", 7, 10_000)], load())
        controller.observe([], RoundCost(5, 500, PLAIN, 10.0, True, late, {"model": 4}, {"model": 1}))
        query = DepthQuery(8, "model", room, 10_000, dear=True)
        return controller.allow([query], load())[0].depth

    assert depth(0.0, 100) > 0
    assert depth(1e-6, 100) > 0
    assert depth(1e-4, 100) == 0  # a second, for a hundred tokens at 10 ms
    assert depth(2e-5, 100) > 0
    assert depth(2e-5, 4) == 0


def test_one_that_costs_next_to_nothing_never_rests() -> None:
    patience = Patience()
    for _ in range(200):
        patience.learn(0, "prediction", -0.003)
        assert not patience.rests(0, "prediction")


def asked_until_it_rests(patience: Patience, sequence_id: int, worth: float, *, alone: bool = False) -> int:
    asked = 0
    while not patience.rests(sequence_id, "bad"):
        patience.learn(sequence_id, "bad", worth, alone=alone)
        asked += 1
        assert asked < 100
    return asked


def test_a_new_sequence_gets_little_patience_where_asking_was_in_vain_for_others() -> None:
    patience = Patience()
    assert asked_until_it_rests(patience, 0, -0.02) == PATIENCE
    assert asked_until_it_rests(patience, 1, -0.02) == LITTLE_PATIENCE
    assert asked_until_it_rests(patience, 2, -0.02, alone=True) == PATIENCE


def test_patience_ends_sooner_where_others_wait_and_asking_costs_more() -> None:
    assert asked_until_it_rests(Patience(), 0, -0.16) == 2
    assert asked_until_it_rests(Patience(), 0, -1.0) == 1
    assert asked_until_it_rests(Patience(), 0, -1.0, alone=True) == PATIENCE


def test_patience_is_by_drafter() -> None:
    patience = Patience()
    for _ in range(PATIENCE + 10):
        patience.learn(0, "bad", -1.0)
        patience.learn(0, "good", 1.0)
    assert not patience.rests(0, "good")
    assert sum(patience.rests(0, "bad") for _ in range(100)) == LONGEST_NAP
    assert not patience.rests(0, "bad")
    assert patience.worth(0, "good") > 0 > patience.worth(0, "bad")
    assert patience.worth(5, "good") == pytest.approx(1.0)  # as for others
    patience.forget(0)
    assert patience.worth(0, "bad") == pytest.approx(-1.0)


def test_luck_is_by_sequence_and_drafter() -> None:
    controller = AdaptiveDepth(free())
    rate = controller.acceptance.conditional
    for _ in range(40):
        controller.observe([Outcome(0, "a", Draft((1,)), ())], RoundCost(2, 200, PLAIN, PLAIN))
    assert rate(0, "a", 1, None) < 0.3
    assert rate(0, "b", 1, None) == pytest.approx(0.6)
