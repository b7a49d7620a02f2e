"""Depth by expected gain: what pays is drafted, what does not is not, and the text is none of its business."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import tiny

from headstart.control import cost
from headstart.control.acceptance import Acceptance
from headstart.control.adaptive import PLAIN_EVERY, AdaptiveDepth
from headstart.control.cost import GRID, CostCurve, calibrate
from headstart.control.depth import DepthQuery, Load, Outcome, Proposal, RoundCost, path_probabilities
from headstart.control.value import MARGIN
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, TreeOracleDrafter, WrongDrafter
from headstart.engine.costs import cost_curve, measure_curve
from headstart.engine.engine import Engine


def free() -> CostCurve:
    """Rows cost nothing."""
    return CostCurve([0.010] * len(GRID), 0.0)


def linear(per_row: float, per_key: float = 0.0) -> CostCurve:
    """10 ms for one row, ``per_row`` of that for each more."""
    return CostCurve([0.010 * (1 + per_row * (rows - 1)) for rows in GRID], per_key)


def query(sequence_id: int = 0, room: int = 100, context: int = 100, **more: object) -> DepthQuery:
    return DepthQuery(sequence_id, "some", room, context, **more)  # type: ignore[arg-type]


def load(sequences: int = 1, context: int = 100) -> Load:
    return Load(sequences, sequences * context, sequences)


def kept(controller: AdaptiveDepth, drafts: Sequence[Draft], context: int = 100) -> list[int]:
    proposals = [Proposal(query(i, context=context), d, True, True) for i, d in enumerate(drafts)]
    return [len(d) for d in controller.trim(proposals, load(len(drafts), context))]


def chain(*confidence: float) -> Draft:
    return Draft(tuple(range(len(confidence))), confidence=confidence)


def test_rows_are_taken_while_they_pay() -> None:
    draft = chain(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    assert kept(AdaptiveDepth(free()), [draft]) == [8]
    assert kept(AdaptiveDepth(linear(10.0)), [draft]) == [0]
    some = kept(AdaptiveDepth(linear(0.5)), [draft])[0]
    fewer = kept(AdaptiveDepth(linear(0.7)), [draft])[0]
    assert 0 < fewer < some < 8


def test_a_prompt_beside_it_does_not_make_a_draft_look_cheap() -> None:
    draft = chain(0.5, 0.5, 0.5)
    for per_row in (0.05, 0.4, 0.8):
        proposal = [Proposal(query(), draft, True, True)]
        alone = AdaptiveDepth(linear(per_row)).trim(proposal, Load(1, 100, 1))
        beside = AdaptiveDepth(linear(per_row)).trim(proposal, Load(17, 100 + 2000, 1, 16, 2000))
        assert len(beside[0]) == len(alone[0])


def test_who_waits_for_a_prompt_loses_the_time_as_well() -> None:
    proposal = [Proposal(query(), chain(*[0.8] * 8), True, True)]
    lengths = []
    for waiting in (0, 3, 12):
        beside = Load(33, 100 + 2000, 1, 32, 2000, waiting)
        lengths.append(len(AdaptiveDepth(linear(0.1)).trim(proposal, beside)[0]))
    assert lengths[0] > lengths[1] > lengths[2]


@pytest.mark.parametrize(("overhead", "least", "most"), [(0.0, 900, 1000), (0.0003, 50, 250)])
def test_asking_in_vain_is_charged_what_it_costs_the_engine(overhead: float, least: int, most: int) -> None:
    """The drafter itself takes next to no time, and never has anything to say."""
    controller = AdaptiveDepth(linear(0.5))
    asked = 0
    for _ in range(1000):
        depth = controller.allow([query()], load())[0].depth
        controller.trim([Proposal(query(), EMPTY, True, depth > 0)], load())
        asks = {"some": 1} if depth else {}
        spent = {"some": 1e-6} if depth else {}
        seconds = 0.0101 + (overhead if depth else 0.0)
        controller.observe([], RoundCost(1, 100, 0.010, seconds, False, spent, {}, asks))
        asked += depth > 0
    assert least <= asked <= most


def test_beyond_the_grid_a_curve_rises_as_over_its_second_half() -> None:
    """A matrix unit's curve is a staircase, and its last step may be a flat one."""
    staircase = CostCurve([0.010 * (1 + (rows - 1) // 32) for rows in GRID], 0.0)
    assert staircase.predict(GRID[-1], 0) == pytest.approx(0.020)
    assert staircase.predict(GRID[-1] + 32, 0) == pytest.approx(0.030)


def test_it_is_the_best_of_all_prefixes() -> None:
    generator = random.Random(1)
    for _ in range(200):
        drafts = [chain(*(generator.random() for _ in range(generator.randint(0, 6)))) for _ in range(3)]
        curve = CostCurve(sorted(generator.uniform(0.005, 0.03) for _ in GRID), 1e-7)
        probabilities = sorted((p for d in drafts for p in path_probabilities(d, d.confidence or ())), reverse=True)
        seconds = [curve.predict(3 + n, 300 + 100 * n) for n in range(len(probabilities) + 1)]
        controller = AdaptiveDepth(curve)
        gain = generator.choice((1.0, 1.5, 2.0))
        for sequence in range(3):  # in the time of 10,000 plain tokens it emitted that many times more
            controller.gains.learn(sequence, 10_000 * gain, 10_000)
        controller.allow([query(i) for i in range(3)], load(3))
        going = controller.gains.mean(range(3)) * 3 / seconds[0]
        gained = [sum(probabilities[:n]) - going * (seconds[n] - seconds[0]) for n in range(len(seconds))]
        chosen = sum(kept(controller, drafts))
        assert gained[chosen] == pytest.approx(max(gained) if max(gained) > 3 * MARGIN else 0.0)


def test_time_is_worth_what_it_usually_brings() -> None:
    """Who goes fast drafts less where a row brings little."""
    draft = chain(0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    slow, fast = AdaptiveDepth(linear(0.2)), AdaptiveDepth(linear(0.2))
    for _ in range(100):
        slow.gains.learn(0, 1, 1.0)
        fast.gains.learn(0, 2, 1.0)
    assert slow.gains.mean([0]) == slow.gains.mean([7]) == 1.0
    assert fast.gains.mean([0]) == pytest.approx(2.0, rel=0.01)
    for controller in (slow, fast):
        controller.allow([query()], load())
    fewer, more = kept(fast, [draft])[0], kept(slow, [draft])[0]
    assert 0 < fewer < more
    fast.gains.forget(0)
    assert fast.gains.mean([0]) == 1.0


def test_the_likeliest_rows_of_the_batch_come_first() -> None:
    sure, unsure = chain(0.95, 0.95, 0.95), chain(0.3, 0.3, 0.3)
    a, b = kept(AdaptiveDepth(linear(0.25)), [sure, unsure])
    assert (a, b) == (3, 0)


def test_what_is_kept_of_a_tree_is_closed_under_parents() -> None:
    tree = Draft((1, 2, 3, 4, 5, 6), (-1, 0, -1, 2, 1, 3), (0.6, 0.9, 0.3, 0.9, 0.8, 0.1))
    for price in (0.01, 0.05, 0.1, 0.2, 0.4):
        controller = AdaptiveDepth(linear(price))
        out = controller.trim([Proposal(query(), tree, True, True)], load())[0]
        assert out.problem(10) is None


def test_reasons_can_be_read() -> None:
    controller = AdaptiveDepth(linear(0.5))
    kept(controller, [chain(0.1)])
    assert controller.skips["acceptance too low"] == 1
    controller = AdaptiveDepth(linear(0.3))
    kept(controller, [chain(0.6)] * 8)
    assert controller.skips["busy batch"] > 0
    controller = AdaptiveDepth(linear(0.05, per_key=1e-6))
    assert kept(controller, [chain(0.6)], context=20_000) == [0]
    assert controller.skips["context too long"] == 1
    controller.allow([query(room=0)], load())
    controller.trim([Proposal(query(room=0), EMPTY, True, False)], load())
    assert controller.skips["output nearly finished"] == 1
    controller.trim([Proposal(query(), EMPTY, True, True)], load())
    assert controller.skips["nothing to say"] == 1


def test_a_depth_fixed_by_the_request_is_left_alone() -> None:
    controller = AdaptiveDepth(linear(10.0))
    asked = query(asked=3)
    assert controller.allow([asked], load())[0].depth == 3
    draft = chain(0.1, 0.1, 0.1)
    assert controller.trim([Proposal(asked, draft, False, True)], load()) == [draft]


@pytest.mark.parametrize("confident", [True, False])
def test_a_dear_drafter_is_asked_for_what_pays(confident: bool) -> None:
    controller = AdaptiveDepth(linear(0.05))
    first = controller.allow([query(dear=True)], load())[0].depth
    assert first == 4
    for hit_rate, expected in ((0.9, range(3, 17)), (0.05, range(1))):
        controller = AdaptiveDepth(linear(0.05))
        generator = random.Random(2)
        for _ in range(300):
            hits = 0
            while hits < 4 and generator.random() < hit_rate:
                hits += 1
            draft = Draft((1, 2, 3, 4), confidence=(0.5, 0.5, 0.5, 0.5) if confident else None)
            outcome = Outcome(0, "some", draft, tuple(range(hits)))
            cost = RoundCost(5, 500, 0.012, 0.022, draft_seconds={"some": 0.008}, drafted={"some": 4})
            controller.observe([outcome], cost)
        assert controller.allow([query(dear=True)], load())[0].depth in expected


def test_a_useless_drafter_rests_and_is_asked_again() -> None:
    controller = AdaptiveDepth(linear(0.5))
    asked = 0
    for _ in range(1000):
        depth = controller.allow([query()], load())[0].depth
        asked += depth > 0
        controller.trim([Proposal(query(), chain(0.01) if depth else EMPTY, True, depth > 0)], load())
        if depth:
            spent = {"some": 0.0003}  # 3 % of a step
            controller.observe([], RoundCost(1, 100, 0.010, 0.0103, False, spent, {"some": 1}, {"some": 1}))
    assert 1000 / 40 < asked < 1000 / 6  # half a percent of the time is lost by it
    assert controller.skips["resting"] == 1000 - asked


def test_acceptance_learns_from_confidence_depth_and_sequence() -> None:
    acceptance = Acceptance()
    assert acceptance.conditional(0, "a", 1, 0.7) == pytest.approx(0.7)
    for i in range(300):
        acceptance.learn(i, "a", 1, 0.7, i % 10 < 2)
        acceptance.learn(i, "a", 1, 0.2, i % 10 < 9)
        acceptance.learn(i, "b", 2, None, i % 10 < 5)
    assert acceptance.conditional(-1, "a", 3, 0.7) == pytest.approx(0.2, abs=0.06)
    assert acceptance.conditional(-1, "a", 1, 0.2) == pytest.approx(0.9, abs=0.06)
    assert acceptance.conditional(-1, "b", 2, None) == pytest.approx(0.5, abs=0.06)
    for _ in range(50):
        acceptance.learn(7, "b", 2, None, False)
    assert acceptance.conditional(7, "b", 2, None) < 0.5 * acceptance.conditional(-1, "b", 2, None)
    acceptance.forget(7)
    assert acceptance.conditional(7, "b", 2, None) == acceptance.conditional(-1, "b", 2, None)


def test_outcomes_teach_the_nodes_that_were_decided_and_no_others() -> None:
    controller = AdaptiveDepth(free())
    tree = Draft((1, 2, 3, 4), (-1, -1, 1, 2), (0.25, 0.5, 0.75, 0.95))
    controller.observe([Outcome(0, "some", tree, (1,))], RoundCost(5, 500, 0.01, 0.011))
    rate = controller.acceptance.conditional
    assert rate(-1, "some", 1, 0.25) < 0.25  # a sibling of the accepted one
    assert rate(-1, "some", 1, 0.5) > 0.5
    assert rate(-1, "some", 1, 0.75) < 0.75  # its child was rejected
    assert rate(-1, "some", 1, 0.95) == pytest.approx(0.95)  # never decided


def test_the_curve_is_monotone_and_follows_the_machine() -> None:
    noisy = CostCurve([0.010, 0.009, 0.012, 0.011, 0.02, 0.02, 0.03, 0.03, 0.05, 0.05, 0.06, 0.07, 0.1], 1e-8)
    times = [noisy.predict(rows, 0) for rows in range(1, 200)]
    assert times == sorted(times)
    assert noisy.predict(4, 1000) > noisy.predict(4, 0)
    for _ in range(200):
        noisy.observe(1, 100, 0.02)
    assert noisy.predict(1, 100) == pytest.approx(0.02, rel=0.02)
    assert CostCurve.from_dict(noisy.as_dict()).seconds == noisy.seconds
    with pytest.raises(ValueError, match="another grid"):
        CostCurve.from_dict({"grid": [1], "seconds": [1], "per_key": 0})


def test_a_measurement_that_cannot_be_is_taken_for_noise() -> None:
    """Rows that make a call a tenth faster: the single row was measured beside other work, each time."""
    true = linear(0.02)

    def measure(rows: int, context: int) -> float:
        return true.predict(rows, rows * context) * (1.25 if rows == 1 else 1.0)

    assert calibrate(lambda rows, context: true.predict(rows, rows * context), 4096).steady
    assert not calibrate(measure, 4096).steady


def test_an_unknown_depth_is_expected_to_do_as_the_one_before() -> None:
    """Else a drafter that is always right would be asked for one token more only after many rounds of each depth."""
    acceptance = Acceptance()
    for _ in range(60):
        for depth in (1, 2, 3):
            acceptance.learn(0, "some", depth, None, depth < 3 or _ % 2 == 0)
    assert acceptance.conditional(1, "some", 2, None) > 0.95
    third = acceptance.conditional(1, "some", 3, None)
    assert 0.45 < third < 0.6
    assert acceptance.conditional(1, "some", 9, None) == third


def test_a_token_that_costs_time_to_draft_must_be_likelier() -> None:
    value = AdaptiveDepth(linear(0.05)).value
    cheap, dear = value.least(load()), value.least(load(), 0.005)
    assert 0.02 < cheap < 0.03  # half of a row's twentieth of a step
    assert dear == pytest.approx(cheap + 0.25)
    value.gain = 2.0
    assert value.least(load(), 0.005) == pytest.approx(cheap + 0.5)
    assert value.least(load(), 1.0) == 1.0


def test_calibration_reads_a_made_up_machine() -> None:
    true = linear(0.07, 3e-8)
    curve = calibrate(lambda rows, context: true.predict(rows, rows * context), 4096)
    for rows, context in ((1, 64), (5, 64), (16, 500), (40, 64)):
        assert curve.predict(rows, rows * context) == pytest.approx(true.predict(rows, rows * context), rel=0.1)
    short = calibrate(lambda rows, _: 0.01 * rows, 70)
    assert short.per_key == 0.0
    assert short.predict(64, 0) > short.predict(4, 0)


def test_the_real_curve_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = tiny.target()
    monkeypatch.setattr(cost, "STEADY", 0.0)
    busy = cost_curve(target)
    assert not list(tmp_path.rglob("*.json"))  # measured beside other work: used, not kept
    monkeypatch.setattr(cost, "STEADY", float("inf"))
    monkeypatch.setattr(cost, "FALL", 0.0)
    first, second = cost_curve(target), cost_curve(target)
    assert first.seconds == second.seconds
    assert all(s > 0 for curve in (busy, first) for s in curve.seconds)
    assert target.pool.used == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_does_not_depend_on_depth_decisions(dtype: str, temperature: float) -> None:
    import torch

    on = tiny.target(dtype=getattr(torch, dtype))
    prompts = [tiny.ids(5, 3) * 6, tiny.ids(9, 1), tiny.ids(30, 2)]
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=4)
    truth = Engine(on).generate(prompts, params)
    script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    drafters = (NgramDrafter(), OracleDrafter(script, 0.8), TreeOracleDrafter(script, 3, 0.9), WrongDrafter(script))
    for drafter in drafters:
        for curve in (free(), linear(0.3), measure_curve(on)):
            for tree in (False, True):
                engine = Engine(on, [drafter], controller=AdaptiveDepth(curve, tree=tree))
                got = engine.generate(prompts, params)
                assert [o.token_ids for o in got] == [o.token_ids for o in truth]
                if drafter.name == "oracle" and curve.seconds[0] == curve.seconds[-1]:
                    assert engine.record.accepted  # how many is a matter of this machine's times


def play(controller: AdaptiveDepth, draft: Draft, accepted: int, sequence_id: int = 0) -> tuple[int, int]:
    """One round of one sequence; the depth that was allowed, and the nodes that went on."""
    asked = query(sequence_id)
    allowed = controller.allow([asked], load())[0].depth
    said = draft if allowed else EMPTY
    kept_ = controller.trim([Proposal(asked, said, True, bool(allowed))], load())[0]
    path = tuple(range(min(accepted, len(kept_))))
    outcome = Outcome(sequence_id, "some", kept_, path, emitted=1 + len(path))
    cost_ = RoundCost(1 + len(kept_), 100, 0.010, 0.010, draft_rows=len(kept_), asks={"some": 1})
    controller.observe([outcome], cost_)
    return allowed, len(kept_)


def test_what_was_promised_and_not_kept_discounts_later_promises() -> None:
    controller = AdaptiveDepth(free())
    assert controller.value.kept("some") == 1.0
    for _ in range(100):
        controller.value.learn_kept("some", 1, 2.0)
        controller.value.learn_kept("other", 4, 2.0)
    assert controller.value.kept("some") == pytest.approx(0.5, rel=0.05)
    assert controller.value.kept("other") == 1.0  # no more than the estimates themselves
    proposal = Proposal(query(), chain(0.8, 0.8), True, True)
    assert controller.value.paths(proposal)[0] == pytest.approx(0.4, rel=0.05)
    told = AdaptiveDepth(free())
    for i in range(60):  # every sequence is new, so that none of them has a bad name yet
        play(told, chain(0.9, 0.9), i % 2, sequence_id=i)
    assert 0.3 <= told.value.kept("some") < 0.9


def test_where_every_round_drafts_one_is_played_without_now_and_then() -> None:
    controller = AdaptiveDepth(free())
    depths = [play(controller, chain(0.9, 0.9, 0.9), 3)[0] for _ in range(3 * (PLAIN_EVERY + 1))]
    assert depths.count(0) == 3
    assert depths[PLAIN_EVERY] == 0
    controller.allow([query(0)], load(2))
    assert controller.allow([query(0), query(1)], load(2))[0].depth > 0  # counted for as many sequences
