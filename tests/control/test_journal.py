"""A recorded run can be decided again offline, alike or by another controller."""

from __future__ import annotations

import io

from tests import tiny

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.cost import GRID, CostCurve
from headstart.control.depth import FixedDepth
from headstart.control.journal import Journal, replay
from headstart.decode.params import SamplingParams
from headstart.draft.ngram import NgramDrafter
from headstart.engine.engine import Engine


def curve() -> CostCurve:
    return CostCurve([0.010 * (1 + 0.05 * (rows - 1)) for rows in GRID], 1e-8)


def test_a_run_replays_to_the_same_decisions() -> None:
    sink = io.StringIO()
    on = tiny.target()
    engine = Engine(on, [NgramDrafter()], controller=Journal(AdaptiveDepth(curve(), tree=True), sink))
    prompts = [tiny.ids(5, 3) * 6, tiny.ids(4, 5) * 5, tiny.ids(20, 1)]
    params = SamplingParams(max_tokens=50)
    outputs = engine.generate(prompts, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in Engine(on).generate(prompts, params)]
    lines = sink.getvalue().splitlines()
    assert len(lines) > 100
    assert replay(lines, AdaptiveDepth(curve(), tree=True)) == []
    elsewhere = replay(lines, FixedDepth(2))
    assert elsewhere
    assert {d.call for d in elsewhere} <= {"allow", "trim"}
