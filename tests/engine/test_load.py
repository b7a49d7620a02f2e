"""From names to an engine: routes, depth, and draft models of another context length."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import tiny
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.engine.load import load_engine
from headstart.engine.request import Speculation
from headstart.errors import InvalidParameter, ModelNotFound


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A target of 768 positions and a draft model of 96, with one tokenizer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    raw = Tokenizer(models.WordLevel({f"w{i}": i for i in range(tiny.VOCAB)}, unk_token="w0"))
    for name, positions in (("target", 768), ("draft", 96)):
        config = LlamaConfig(**{**tiny.SIZES, "head_dim": 32, "max_position_embeddings": positions})
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path / name)
    return str(tmp_path / "target"), str(tmp_path / "draft")


def test_all_routes_of_one_engine_say_the_same(folders: tuple[str, str]) -> None:
    target, draft = folders
    stages: list[str] = []
    with load_engine(target, draft_model=draft, dtype="float32", max_model_len=300, progress=stages.append) as engine:
        assert engine.info["drafters"] == ["ngram", "int4", "model"]
        assert isinstance(engine.controller, AdaptiveDepth)
        params = SamplingParams(max_tokens=120, temperature=0.6, seed=1)
        prompt = tiny.ids(6, 3) * 4
        texts = [
            engine.generate([prompt], params, Speculation(drafter=d))[0].token_ids
            for d in ("none", "ngram", "int4", "model", "ngram+int4+model")
        ]
        assert all(text == texts[0] for text in texts)
    assert "measuring what rows cost" in stages


def test_joined_routes_are_made_and_asked_together(folders: tuple[str, str]) -> None:
    target, _ = folders
    prompt = tiny.ids(6, 3) * 4
    with load_engine(target, drafters=["ngram+model"], draft_model="self", dtype="float32") as engine:
        assert engine.info["drafters"] == ["ngram", "model"]
        assert engine.info["default_drafter"] == "ngram+model"
        out = engine.generate([prompt], SamplingParams(max_tokens=60))[0]
        plain = engine.generate([prompt], SamplingParams(max_tokens=60), Speculation(drafter="none"))[0]
        assert out.token_ids == plain.token_ids
        assert set(out.completions[0].record.by_drafter) == {"ngram", "model"}


def test_auto_is_the_best_that_needs_nothing_else(folders: tuple[str, str]) -> None:
    target, _ = folders
    common = {"dtype": "float32", "max_model_len": 300}
    for more, default, held in (
        ({}, "ngram+int4", "int4"),
        ({"drafters": ["ngram", "auto"]}, "ngram", "int4"),
        ({"drafters": ["auto", "int8"]}, "ngram+int8", "int8"),
        ({"drafters": ["int8"]}, "int8", "int8"),
        ({"drafters": ["ngram"]}, "ngram", None),
        ({"drafters": []}, "none", None),
        ({"kernels": "torch"}, "ngram", None),
        ({"weights": "int8"}, "ngram", None),
        ({"weights": "int8", "drafters": ["int4"]}, "int4", "int4"),
        ({"depth": 3}, "ngram", None),
    ):
        with load_engine(target, **common, **more) as engine:  # type: ignore[arg-type]
            assert (engine.default_drafter, engine.info["draft_weights"]) == (default, held), more
            assert engine.generate([tiny.ids(9)], SamplingParams(max_tokens=5))[0].token_ids


def test_a_depth_is_kept_and_mistakes_are_named(folders: tuple[str, str]) -> None:
    target, draft = folders
    with load_engine(target, draft_model="self", drafters=["model"], depth=3, dtype="float32") as engine:
        assert isinstance(engine.controller, FixedDepth)
        assert engine.controller.depth == 3
        engine.generate([tiny.ids(9)], SamplingParams(max_tokens=20))
        assert engine.record.acceptance_rate == 1.0
    for mistake, error, name in (
        ({"drafters": ["psychic"]}, InvalidParameter, "drafter"),
        ({"drafters": ["model"]}, InvalidParameter, "draft_model"),
        ({"drafters": ["ngram+model"]}, InvalidParameter, "draft_model"),
        ({"drafters": ["ngram+psychic"]}, InvalidParameter, "psychic"),
        ({"drafters": ["ngram+"]}, InvalidParameter, "drafter"),
        ({"drafters": ["ngram+auto"]}, InvalidParameter, "auto"),
        ({"drafters": ["int4+int8"]}, InvalidParameter, "copies of the target"),
        ({"drafters": ["int4"], "kernels": "torch"}, InvalidParameter, "native kernels"),
        ({"drafters": ["int8"], "weights": "int8"}, InvalidParameter, "no fewer bits"),
        ({"draft_model": draft + "-nowhere"}, ModelNotFound, "nowhere"),
        ({"max_model_len": 10_000}, InvalidParameter, "max_model_len"),
        ({"depth": 77}, InvalidParameter, "depth"),
        ({"nodes": 0}, InvalidParameter, "nodes"),
    ):
        with pytest.raises(error, match=name):
            load_engine(target, **mistake)  # type: ignore[arg-type]
