"""Which ways take part, and what is said of those that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.peers.make_env import REQUIREMENTS, llama_options
from benchmarks.peers.models import Models
from benchmarks.peers.place import PEERS, stamp
from benchmarks.ways import line_up


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.setenv("HEADSTART_PEERS", str(tmp_path / "peers"))
    return Models(tmp_path / "model", tmp_path / "model.gguf")


def installed(*peers: str) -> None:
    for peer in peers:
        stamp(peer).parent.mkdir(parents=True)
        stamp(peer).write_text("{}")


def test_peers_that_are_not_installed_are_named_with_advice(models: Models) -> None:
    line = line_up(models, 2)
    assert set(line.missing) == set(PEERS)
    assert line.missing["vllm"].endswith("run python -m benchmarks.peers.make_env vllm")
    assert {way.process for way in line.ways} == {"headstart", "headstart int8", "headstart int4", "transformers"}


def test_every_way_has_a_process_and_its_plain(models: Models) -> None:
    installed(*PEERS)
    models.gguf("q4_1").touch()
    models.openvino("int4").mkdir(parents=True)
    line = line_up(models, 2)
    assert set(line.missing) == {"llama.cpp bf16", "openvino fp16"}
    names = [way.name for way in line.ways]
    assert len(set(names)) == len(names)
    for way in line.ways:
        assert way.process in line.processes
        assert way.plain in names
    command = line.processes["vllm ngram"].command()
    assert command[0].endswith("peers/vllm/bin/python")
    assert json.loads(command[-1])["mode"] == "ngram"


def test_names_choose(models: Models) -> None:
    chosen = line_up(models, 2, ["headstart", "transformers plain"], ["*oracle*", "headstart int?*"])
    assert [way.name for way in chosen.ways] == [
        *("headstart plain", "headstart ngram chain", "headstart ngram tree", "headstart drafter int4"),
        *("headstart ngram+int4", "headstart draft model", "headstart wrong", "transformers plain"),
    ]
    assert set(chosen.processes) == {"headstart", "transformers"}


def test_versions_are_exact() -> None:
    for peer in PEERS:
        pins = (REQUIREMENTS / f"{peer}.txt").read_text().splitlines()
        assert all("==" in pin for pin in pins if not pin.startswith("#"))


def test_llama_cpp_is_never_compiled_for_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = "avx512f avx512bw avx512dq avx512vl avx512cd avx512_bf16 amx_tile amx_int8 amx_bf16"
    monkeypatch.setattr("benchmarks.peers.make_env.processor", lambda: {"flags": everything})
    options = llama_options()
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_BF16=ON"} <= set(options)
    assert not any("AMX" in option or "VNNI" in option for option in options)
