"""Predicted outputs: fast when right, cheap when wrong, never another text."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import tiny
from tests.cli.tiny import save_tiny
from tests.control.test_adaptive import free, linear
from tests.draft.test_alignment import edited
from tests.engine.test_ensemble import controllers
from tests.engine.test_lossless import DTYPES, PROMPTS, check, drafter, params, plain, target

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import DepthController, FixedDepth
from headstart.control.journal import Journal, replay
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import WrongDrafter
from headstart.engine.engine import Engine
from headstart.engine.load import load_engine
from headstart.engine.request import Output, Speculation
from headstart.errors import InvalidParameter

KINDS = ("right", "edited", "wrong", "prompt", "half", "twice", "short")


def predictions(kind: str, truth: Sequence[Output]) -> list[list[int]]:
    generator = random.Random(1)
    out = []
    for output in truth:
        said = output.token_ids
        out.append(
            {
                "right": said,
                "edited": [min(t, tiny.VOCAB - 1) for t in edited(said, 0.15, generator)],
                "wrong": [(t + 1) % tiny.VOCAB for t in said],
                "prompt": output.prompt_token_ids,
                "half": said[: len(said) // 2],
                "twice": said * 2,
                "short": said[:1],
            }[kind]
        )
    return out


def speculations(kind: str, truth: Sequence[Output], **more: object) -> list[Speculation]:
    return [Speculation(prediction=tokens, **more) for tokens in predictions(kind, truth)]  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_text_is_the_same_whatever_was_predicted(dtype: str, temperature: float) -> None:
    on = target(dtype)
    truth = plain(dtype, temperature)
    other = ModelDrafter(tiny.target(dtype=on.dtype, seed=1, exact=False), on)
    for controller in controllers():
        engine = Engine(on, [NgramDrafter(), other], controller=controller)
        for i, kind in enumerate(KINDS):
            choice = (None, "none", "ngram+model", "ngram+prediction", "model")[i % 5]
            check(truth, engine.generate(PROMPTS, params(temperature), speculations(kind, truth, drafter=choice)))
        alone = [
            engine.generate([p], params(temperature), s)[0]
            for p, s in zip(PROMPTS, speculations("edited", truth, depth=5), strict=True)
        ]
        check(truth, alone)
        assert not engine.record.fallbacks
    assert on.pool.used == 0


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_the_sampling_rules_stay_repeatable_beside_a_model(verify: str) -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    engine = Engine(on, [ModelDrafter(tiny.target(seed=1, exact=False), on)], controller=FixedDepth(3))
    choice = speculations("edited", truth)
    check(truth, engine.generate(PROMPTS, params(0.0, verify=verify), choice))
    first, second = (engine.generate(PROMPTS, params(0.8, verify=verify), choice) for _ in range(2))
    assert [o.token_ids for o in first] == [o.token_ids for o in second]


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_a_right_prediction_gives_whole_drafts(depth: int) -> None:
    on = target("float32")
    truth = plain("float32", 0.8)
    engine = Engine(on, [WrongDrafter()], controller=FixedDepth(depth))
    got = engine.generate(PROMPTS, params(0.8), speculations("right", truth))
    check(truth, got)
    for output in got:
        completion = output.completions[0]
        record = completion.record
        # the first token comes from prefill, and the last round has less to emit
        assert record.rounds == -(-(len(output.token_ids) - 1) // (depth + 1))
        assert record.acceptance_rate == 1.0
        assert set(record.by_drafter) == {"prediction"}
        assert completion.accepted_prediction_tokens == len(output.token_ids)
        assert completion.rejected_prediction_tokens == 0


def test_an_adaptive_depth_goes_deep_along_a_right_prediction() -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    for tree in (False, True):
        engine = Engine(on, [NgramDrafter()], controller=AdaptiveDepth(linear(0.02), tree=tree))
        check(truth, engine.generate(PROMPTS, params(0.0), speculations("right", truth)))
        assert engine.record.by_drafter["prediction"].accepted > 0.9 * engine.record.accepted
        assert (engine.record.mean_acceptance_length or 0) > 10


@pytest.mark.parametrize("controller", [FixedDepth(4), AdaptiveDepth(linear(0.05))])
def test_a_wrong_prediction_soon_leaves_the_field_to_others(controller: DepthController) -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    known = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    from headstart.draft.scripted import OracleDrafter

    engine = Engine(on, [OracleDrafter(known)], controller=controller)
    unrelated = [Speculation(prediction=[t] * 40) for t in (60, 61, 62, 63)]
    got = engine.generate(PROMPTS, params(0.0), unrelated)
    check(truth, got)
    for output in got:
        record = output.completions[0].record
        assert record.by_drafter["oracle"].accepted > 0.5 * record.emitted
    # what is drafted along a wrong prediction is little: after a few tokens there is no place to go on from
    alone = Engine(on, controller=controller).generate(PROMPTS, params(0.0), unrelated)
    check(truth, alone)
    for output in alone:
        record = output.completions[0].record
        assert record.drafted_rounds < 0.5 * record.rounds


def test_counts_are_of_the_text_and_do_not_depend_on_how_it_was_drafted() -> None:
    on = target("float32")
    truth = plain("float32", 0.8)
    for kind in KINDS:
        given = predictions(kind, truth)
        found = set()
        for controller in (FixedDepth(1), FixedDepth(6, 14), AdaptiveDepth(free()), AdaptiveDepth(linear(3.0))):
            engine = Engine(on, [NgramDrafter()], controller=controller)
            got = engine.generate(PROMPTS, params(0.8), speculations(kind, truth))
            counts = []
            for tokens, output in zip(given, got, strict=True):
                completion = output.completions[0]
                accepted, rejected = completion.accepted_prediction_tokens, completion.rejected_prediction_tokens
                assert accepted + rejected == len(tokens)
                assert 0 <= accepted <= len(output.token_ids)
                drafted = completion.record.by_drafter.get("prediction")
                assert drafted is None or kind == "twice" or drafted.accepted <= accepted
                counts.append((accepted, rejected))
            found.add(tuple(counts))
        assert len(found) == 1, kind
    without = Engine(on).generate(PROMPTS, params(0.8))[0].completions[0]
    assert (without.accepted_prediction_tokens, without.rejected_prediction_tokens) == (0, 0)


def test_every_one_of_n_follows_its_own_way() -> None:
    on = target("float32")
    truth = Engine(on).generate(PROMPTS[:1], params(0.8, n=3))[0]
    second = truth.completions[1].token_ids
    got = Engine(on, [NgramDrafter()]).generate(PROMPTS[:1], params(0.8, n=3), Speculation(prediction=second))[0]
    assert [c.token_ids for c in got.completions] == [c.token_ids for c in truth.completions]
    assert got.completions[1].rejected_prediction_tokens == 0
    assert got.completions[0].rejected_prediction_tokens > 0
    assert got.completions[1].record.by_drafter["prediction"].accepted > 20


def test_mates_keep_their_own_predictions_and_leave_nothing_behind() -> None:
    on = target("float32")
    truth = plain("float32", 0.8)
    engine = Engine(on, [drafter("ngram", on, truth)], max_sequences=3, prefill_chunk=9)
    handles = []
    for i in range(3 * len(PROMPTS)):
        which = i % len(PROMPTS)
        kind = KINDS[i % len(KINDS)]
        choice = speculations(kind, truth)[which] if i % 4 else None
        handles.append((which, engine.submit(PROMPTS[which], params(0.8), choice)))
        engine.step()
        if i % 5 == 4:
            engine.cancel(handles.pop(0)[1])
    while engine.has_work:
        engine.step()
    for which, handle in handles:
        check([truth[which]], [handle.output()])
    assert on.pool.used == 0
    assert not engine._drafting.drafters["prediction"]._alignments  # type: ignore[attr-defined]


def test_a_run_replays_to_the_same_decisions() -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    sink = io.StringIO()
    engine = Engine(on, [NgramDrafter()], controller=Journal(AdaptiveDepth(linear(0.05), tree=True), sink))
    check(truth, engine.generate(PROMPTS, params(0.0), speculations("edited", truth)))
    lines = sink.getvalue().splitlines()
    assert any('"drafter": "prediction"' in line for line in lines)
    assert replay(lines, AdaptiveDepth(linear(0.05), tree=True)) == []


def test_what_is_no_prediction_is_refused() -> None:
    on = target("float32")
    engine = Engine(on, [NgramDrafter()])
    for given, message in (
        ([tiny.VOCAB], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        (["a"], "outside the vocabulary"),
        ("text", "no tokenizer"),
        (7, "must be text or a list of token ids"),
        (b"text", "must be text or a list of token ids"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            engine.submit([1], params(0.0), Speculation(prediction=given))  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="needs a prediction"):
        engine.submit([1], params(0.0), Speculation(drafter="prediction+ngram"))
    with pytest.raises(InvalidParameter, match="needs a prediction"):
        Engine(on, default_drafter="prediction")
    assert engine.info["drafters"] == ["ngram"]
    assert not engine.has_work


def test_nothing_predicted_is_no_prediction_and_too_much_is_cut() -> None:
    on = target("float32")
    truth = plain("float32", 0.0)[0]
    engine = Engine(on, [NgramDrafter()])
    for empty in ("", []):
        request = engine.submit(PROMPTS[0], params(0.0), Speculation(prediction=empty))
        assert request.branches[0].drafter == "ngram"
        engine.cancel(request)
    huge = truth.token_ids + [1, 2, 3] * 100_000
    got = engine.generate(PROMPTS[:1], params(0.0), Speculation(prediction=huge))[0]
    check([truth], [got])
    counts = got.completions[0]
    assert counts.accepted_prediction_tokens + counts.rejected_prediction_tokens == on.max_model_len
    assert counts.accepted_prediction_tokens >= len(truth.token_ids)


def test_text_is_taken_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tokenizer: what looks like a special token is spelt out, also while others tokenise prompts with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with load_engine(save_tiny(tmp_path / "model", 0, chat=True), dtype="float32", depth=4) as engine:
        prompt = "aa bb aa bb"
        truth = engine.generate(prompt, params(0.9), Speculation(drafter="none"))[0]
        for text in (truth.text, prompt, f"</s>{truth.text}</s>", "</s>" * 50, "ü🙂\0 \ufffd" * 20, "x" * 1_000_000):
            got = engine.generate(prompt, params(0.9), Speculation(prediction=text))[0]
            check([truth], [got])
        tokenizer = engine.target.tokenizer
        assert tokenizer is not None
        eos = tokenizer("</s>", add_special_tokens=False)["input_ids"]
        assert len(eos) == 1
        found = engine._predictions.encode("a</s>")
        assert found is not None
        assert eos[0] not in found.tokens
        assert tokenizer.decode(list(found.tokens)) == "a</s>"
        assert tokenizer("</s>", add_special_tokens=False)["input_ids"] == eos
