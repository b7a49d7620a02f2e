"""``headstart try``: equal outputs on every route, numbers with a schema, and one clear line for each mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny import refused

from headstart.cli import experiment
from headstart.cli.report import Run
from headstart.engine.engine import Engine

SRC = Path(__file__).resolve().parents[2] / "src"
PROMPTS = ("--prompt", "aa bb aa bb aa bb", "--prompt", "Why?")

ROUTES = ["plain", "ngram", "model", "ngram+model"]
ROW = {
    "route", "baseline", "prompt", "kind", "temperature", "tokens", "seconds", "decode_tokens", "decode_seconds",
    "tok_s", "tok_s_total", "speedup", "speedup_total", "drafted", "accepted", "rounds", "acceptance_rate",
    "mean_acceptance_length", "identical", "not_compared", "first_difference", "top_two_gap", "fallbacks", "token_ids",
}  # fmt: skip
TOP = {
    "model", "draft_model", "dtype", "device", "exact_rows", "reason", "threads", "depth", "nodes", "max_tokens",
    "verify", "seed", "repeat", "against", "versions", "interrupted", "measure", "results", "totals", "broken_promises",
    "advice",
}  # fmt: skip


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_every_route_is_identical_to_plain(
    call: Any, tiny: str, tiny_base: str, tmp_path: Path, temperature: float
) -> None:
    file = tmp_path / "out.json"
    result = call(
        "try", "--model", tiny, "--draft-model", tiny_base, *PROMPTS, "--max-tokens", 24, "--temperature", temperature,
        "--json", file,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert set(found) == TOP
    assert [row["route"] for row in found["results"]] == [*ROUTES, *ROUTES]
    for row in found["results"]:
        assert set(row) == ROW
        assert row["tokens"] == len(row["token_ids"]) <= 24
        assert row["temperature"] == temperature
        assert row["fallbacks"] == {}
        assert row["identical"] is (None if row["route"] == "plain" else True)
        assert row["decode_seconds"] <= row["seconds"]
    assert [total["route"] for total in found["totals"]] == ROUTES
    assert found["totals"][1]["identical"] == found["totals"][1]["compared"] == 2
    assert found["broken_promises"] == 0
    assert found["interrupted"] is False
    assert {"headstart", "torch", "transformers"} <= set(found["versions"])
    for word in (*ROUTES, "yes", "tok/s", "2 of 2"):
        assert word in result.stdout


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_other_rules_keep_the_law_above_temperature_0(call: Any, tiny: str, tmp_path: Path, verify: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "aa bb aa bb"}\n{"prompt": "aa bb aa bb", "temperature": 0.7}\n')
    file = tmp_path / "out.json"
    result = call("try", "--model", tiny, "--verify", verify, "--prompts", prompts, "--max-tokens", 16, "--json", file)
    assert result.exit_code == 0, result.output
    rows = [row for row in json.loads(file.read_text())["results"] if row["route"] == "ngram"]
    assert [(row["identical"], row["not_compared"]) for row in rows] == [(True, None), (None, "law")]
    assert "law" in result.stdout
    assert f"Rule {verify} keeps the target's law" in result.stdout


def test_against_transformers(call: Any, tiny: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "aa bb aa bb"}\n{"prompt": "aa bb aa bb", "temperature": 0.7}\n')
    file = tmp_path / "out.json"
    result = call(
        "try", "--model", tiny, "--draft-model", "self", "--dtype", "float32", "--prompts", prompts, "--max-tokens", 16,
        "--against", "transformers", "--json", file,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["results"]
    peers = ["transformers plain", "transformers lookup", "transformers assisted"]
    assert [row["route"] for row in rows] == [*ROUTES, *peers] * 2
    greedy, sampled = rows[:7], rows[7:]
    # float32 and a tiny model: the peer decodes what we decode, so token ids, limits and stop ids were the same
    assert greedy[4]["token_ids"] == greedy[0]["token_ids"]
    assert [row["identical"] for row in greedy[4:]] == [None, True, True]
    assert [row["not_compared"] for row in sampled[4:]] == [None, "n.a.", "n.a."]
    assert all(row["baseline"] == "transformers plain" for row in greedy[5:])
    assert "differs from transformers' own plain output on 0 of 1 greedy prompts" in result.stdout


def test_repeat_and_routes_can_be_restricted(call: Any, tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    arguments = ("try", "--model", tiny, "--prompt", "aa", "--max-tokens", 4, "--json", file, "--repeat", 3)
    result = call(*arguments, "--drafter", "none")
    assert result.exit_code == 0, result.output
    assert [row["route"] for row in json.loads(file.read_text())["results"]] == ["plain"]
    refused(call(*arguments, "--drafter", "ngram"), "--json", "--force")
    result = call(*arguments, "--drafter", "ngram", "--force", "--depth", 2)
    assert result.exit_code == 0, result.output
    assert [row["route"] for row in json.loads(file.read_text())["results"]] == ["plain", "ngram"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_model_without_a_chat_template_takes_text(call: Any, tiny_base: str) -> None:
    result = call("try", "--model", tiny_base, "--prompt", "aa bb", "--max-tokens", 4)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "/no/such/folder"), ("/no/such/folder",)),
        (("--model", "x.gguf"), ("x.gguf",)),
        (("--drafter", "eagle9"), ("--drafter", "eagle9", "ngram")),
        (("--drafter", "model"), ("--draft-model",)),
        (("--drafter", "ngram+model"), ("--draft-model",)),
        (("--drafter", "ngram+eagle9"), ("--drafter", "'eagle9'")),
        (("--drafter", "ngram+"), ("--drafter", "ngram+")),
        (("--drafter", "ngram+ngram"), ("--drafter", "twice")),
        (("--drafter", "ngram", "--draft-model", "self"), ("--draft-model",)),
        (("--drafter", "ngram", "--drafter", "none"), ("--drafter",)),
        (("--depth", "0"), ("--depth",)),
        (("--depth", "99"), ("--depth", "99")),
        (("--nodes", "0"), ("nodes",)),
        (("--depth", "4", "--nodes", "2"), ("nodes",)),
        (("--dtype", "int3"), ("dtype", "int3")),
        (("--device", "toaster"), ("device", "toaster")),
        (("--threads", "0"), ("threads",)),
        (("--verify", "hope"), ("verify", "hope")),
        (("--temperature", "-1"), ("temperature",)),
        (("--max-tokens", "0"), ("max_tokens",)),
        (("--max-tokens", "100000", "--prompt", "aa"), ("max_tokens", "100000", "512")),
        (("--repeat", "0"), ("--repeat",)),
        (("--against", "vllm"), ("--against", "vllm")),
        (("--prompts", "/no/such/file"), ("/no/such/file",)),
        (("--prompt", " "), ("--prompt",)),
        (("--json", "/no/such/folder/out.json"), ("--json",)),
        (("--force",), ("--force",)),
    ],
)
def test_mistakes_are_named(call: Any, tiny: str, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    given = arguments if "--model" in arguments else ("--model", tiny, *arguments)
    refused(call("try", *given), *parts)


def test_an_option_of_the_wrong_type_is_a_usage_error(call: Any) -> None:
    result = call("try", "--depth", "deep")
    assert result.exit_code == 2
    assert "--depth" in result.stderr


def test_an_interrupt_keeps_finished_prompts(call: Any, tiny: str, tmp_path: Path, monkeypatch: Any) -> None:
    run, calls = experiment.EngineRoute.run, []

    def interrupted(self: Any, *arguments: Any) -> Run:
        calls.append(self.name)
        if len(calls) == 6:  # two to warm up, two for the first prompt, the second of the second prompt
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(experiment.EngineRoute, "run", interrupted)
    file = tmp_path / "out.json"
    result = call("try", "--model", tiny, *PROMPTS, "--max-tokens", 6, "--json", file)
    assert result.exit_code == 130
    assert "1 of 2 prompts were finished" in result.stderr
    assert "Traceback" not in result.output
    assert "plain" in result.stdout
    found = json.loads(file.read_text())
    assert found["interrupted"] is True
    assert len(found["results"]) == 2


def test_an_interrupt_inside_a_step_frees_the_pool(call: Any, tiny: str, monkeypatch: Any) -> None:
    step, engines = Engine.step, []

    def interrupted(self: Engine) -> bool:
        engines.append(self)
        if len(engines) == 30:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    result = call("try", "--model", tiny, "--prompt", "aa", "--max-tokens", 40)
    assert result.exit_code == 130
    pool = engines[-1].target.pool
    assert pool.reserve(pool.capacity) is not None


def test_a_broken_promise_is_loud(call: Any, tiny: str, tmp_path: Path, monkeypatch: Any) -> None:
    from dataclasses import replace

    run = experiment.EngineRoute.run

    def wrong(self: Any, *arguments: Any) -> Run:
        right = run(self, *arguments)
        if self.name != "ngram":
            return right
        ids = right.token_ids
        return replace(right, token_ids=(*ids[:2], (ids[2] + 1) % 256, *ids[3:]))

    monkeypatch.setattr(experiment.EngineRoute, "run", wrong)
    file = tmp_path / "out.json"
    result = call("try", "--model", tiny, "--prompt", "aa bb", "--max-tokens", 6, "--json", file)
    found = json.loads(file.read_text())
    row = found["results"][1]
    assert (row["identical"], row["first_difference"]) == (False, 2)
    assert row["top_two_gap"] >= 0
    if found["exact_rows"]:
        assert result.exit_code == 1
        assert "BROKEN PROMISE" in result.stdout
        assert "differ from plain" in result.stderr
        assert found["broken_promises"] == 1
    else:
        assert result.exit_code == 0


def test_as_a_process_stdout_and_stderr_are_clean(tiny: str) -> None:
    command = [
        sys.executable,
        "-m",
        "headstart.cli.main",
        "try",
        "--model",
        tiny,
        "--prompt",
        "aa bb",
        "--max-tokens",
        "4",
    ]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "ngram" in done.stdout
    assert "\x1b" not in done.stdout
    for chatter in ("Loading weights", "it/s", "Generate config", "Warning"):
        assert chatter not in done.stderr + done.stdout
    refused_process = subprocess.run(
        [*command, "--drafter", "x"], capture_output=True, text=True, check=False, env=environment
    )
    assert refused_process.returncode == 2
    assert refused_process.stderr.count("\n") == 1


def test_version(call: Any) -> None:
    from headstart.cli.versions import own_version

    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"headstart {own_version()}\n")
