"""``headstart generate``: the text and nothing but the text on stdout, however it is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny import refused

from headstart.engine.engine import Engine


def answer(call: Any, *arguments: object, **more: Any) -> str:
    result = call("generate", *arguments, **more)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_one_text_however_it_is_made(call: Any, tiny: str, tiny_base: str, temperature: float) -> None:
    base = ("aa bb aa bb", "--model", tiny, "--max-tokens", 24, "--temperature", temperature, "--seed", 5)
    plain = answer(call, *base, "--drafter", "none")
    assert plain.endswith("\n")
    assert answer(call, *base) == plain
    assert answer(call, *base, "--stream") == plain
    assert answer(call, *base, "--show-drafts") == plain
    assert answer(call, *base, "--draft-model", tiny_base) == plain
    assert answer(call, *base, "--draft-model", tiny_base, "--drafter", "model+ngram", "--depth", 3) == plain
    assert answer(call, *base, "--depth", 0) == plain
    arguments = ("-", *base[1:])
    assert answer(call, *arguments, input="aa bb aa bb") == plain


def test_numbers_go_to_stderr(call: Any, tiny: str) -> None:
    result = call("generate", "aa bb", "--model", tiny, "--max-tokens", 8, "--show-drafts", "--temperature", 0.5)
    assert "8 tokens in" in result.stderr or "tokens in" in result.stderr
    assert "seed " in result.stderr
    assert "drafted by ngram and accepted" in result.stderr
    assert "of the target's own" in result.stderr
    assert "tokens in" not in result.stdout


def test_colours_mark_accepted_drafts(call: Any, tiny: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    base = ("aa bb aa bb", "--model", tiny, "--max-tokens", 24)
    plain = answer(call, *base)
    for route, depth, codes in (("model+ngram", 3, {"\x1b[32m"}), ("ngram+model", None, {"\x1b[32m", "\x1b[36m"})):
        more = () if depth is None else ("--depth", depth)
        coloured = answer(call, *base, "--show-drafts", "--draft-model", "self", "--drafter", route, *more)
        found = {code for code in ("\x1b[32m", "\x1b[36m") if code in coloured}
        assert found <= codes
        assert found or depth is None
        for code in (*found, "\x1b[0m"):
            coloured = coloured.replace(code, "")
        assert coloured == plain


def test_a_prediction_changes_the_colours_only(call: Any, tiny: str, tmp_path: Path) -> None:
    base = ("aa bb", "--model", tiny, "--max-tokens", 24, "--depth", 3)
    plain = answer(call, *base)
    file = tmp_path / "prediction.txt"
    for text in (plain[:-1], "something else", ""):
        file.write_text(text)
        for more in ((), ("--drafter", "none"), ("--show-drafts",)):
            result = call("generate", *base, "--prediction", file, *more)
            assert (result.exit_code, result.stdout) == (0, plain)
            assert ("of the prediction's" in result.stderr) == bool(text)
            if text and "--show-drafts" in more:
                assert "drafted by prediction and accepted" in result.stderr
    file.write_bytes(b"\xff\xfe")
    refused(call("generate", *base, "--prediction", file), "--prediction", "UTF-8")
    refused(call("generate", *base, "--prediction", tmp_path / "none.txt"), "--prediction", "none.txt")


def test_json(call: Any, tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    out = answer(call, "aa bb", "--model", tiny, "--max-tokens", 8, "--json", file, "--logprobs", 2, "--n", 2,
                 "--temperature", 1, "--seed", 3)  # fmt: skip
    found = json.loads(file.read_text())
    assert {"model", "dtype", "device", "exact_rows", "threads", "versions", "prompt", "prompt_tokens", "seed",
            "completions", "seconds", "first_token_seconds"} <= set(found)  # fmt: skip
    assert [c["index"] for c in found["completions"]] == [0, 1]
    assert out == "\n".join(f"{c['text']}\n" for c in found["completions"])
    for completion in found["completions"]:
        assert len(completion["token_ids"]) == len(completion["from_draft"]) == len(completion["logprobs"])
        assert len(completion["logprobs"][0]["top"]) == 2
    refused(call("generate", "aa", "--model", tiny, "--json", file), "--json", "exists")


def test_prompt_forms(call: Any, tiny: str, tiny_base: str, tmp_path: Path) -> None:
    def prompt_tokens(*arguments: object) -> int:
        file = tmp_path / "out.json"
        answer(call, "aa", "--max-tokens", 1, "--json", file, *(("--force",) if file.exists() else ()), *arguments)
        return int(json.loads(file.read_text())["prompt_tokens"])

    assert prompt_tokens("--model", tiny, "--raw") == 2
    assert prompt_tokens("--model", tiny) == len("<user>aa<assistant>")
    assert prompt_tokens("--model", tiny, "--system", "b") == len("<system>b<user>aa<assistant>")
    assert prompt_tokens("--model", tiny_base) == 2
    refused(call("generate", "aa", "--model", tiny_base, "--system", "b"), "chat template")


def test_stop_ends_the_text(call: Any, tiny: str) -> None:
    base = ("aa bb", "--model", tiny, "--max-tokens", 24)
    whole = answer(call, *base)[:-1]
    letter = next(c for c in whole[3:] if c.isprintable() and c.isascii())
    stopped = answer(call, *base, "--stop", letter)[:-1]
    assert stopped == whole[: whole.index(letter)]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "/no/such/folder"), ("/no/such/folder",)),
        (("--drafter", "eagle9"), ("--drafter", "eagle9")),
        (("--drafter", "model"), ("--draft-model",)),
        (("--drafter", "ngram+model"), ("--draft-model",)),
        (("--drafter", "ngram+none"), ("--drafter", "none")),
        (("--drafter", "none", "--draft-model", "self"), ("--draft-model",)),
        (("--depth", "-1"), ("--depth",)),
        (("--dtype", "int3"), ("dtype", "int3")),
        (("--top-p", "2"), ("top_p",)),
        (("--top-k", "-1"), ("top_k",)),
        (("--min-p", "2"), ("min_p",)),
        (("--repetition-penalty", "0"), ("repetition_penalty",)),
        (("--presence-penalty", "9"), ("presence_penalty",)),
        (("--frequency-penalty", "9"), ("frequency_penalty",)),
        (("--stop", ""), ("stop",)),
        (("--n", "0"), ("n:",)),
        (("--n", "2", "--stream"), ("--n", "--stream")),
        (("--logprobs", "2"), ("--logprobs", "--json")),
        (("--raw", "--system", "x"), ("--system", "--raw")),
        (("--verify", "hope"), ("verify",)),
        (("--max-tokens", "100000"), ("max_tokens", "512")),
        (("--json", "/"), ("--json",)),
    ],
)
def test_mistakes_are_named(call: Any, tiny: str, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    given = arguments if "--model" in arguments else ("--model", tiny, *arguments)
    refused(call("generate", "aa", *given), *parts)


def test_an_empty_prompt_is_refused(call: Any, tiny: str) -> None:
    refused(call("generate", "", "--model", tiny), "prompt", "empty")
    refused(call("generate", "-", "--model", tiny, input="\n"), "prompt", "empty")
    assert call("generate").exit_code == 2


@pytest.mark.parametrize("stream", [True, False])
def test_an_interrupt_shows_what_was_produced(call: Any, tiny: str, monkeypatch: Any, stream: bool) -> None:
    base = ("aa bb", "--model", tiny, "--max-tokens", 24, "--drafter", "none")
    whole = answer(call, *base)
    step, steps = Engine.step, []

    def interrupted(self: Engine) -> bool:
        steps.append(1)
        if len(steps) == 12:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    result = call("generate", *base, *(("--stream",) if stream else ()))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "Traceback" not in result.output
    shown = result.stdout.rstrip("\n")
    assert shown
    assert whole.startswith(shown)
    assert len(shown) < len(whole) - 1


def test_a_failing_drafter_costs_speed_and_is_reported(call: Any, tiny: str, monkeypatch: Any) -> None:
    from headstart.draft.ngram import NgramDrafter

    base = ("aa bb", "--model", tiny, "--max-tokens", 8)
    whole = answer(call, *base)

    def broken(self: Any, requests: Any) -> Any:
        raise RuntimeError("out of guesses")

    monkeypatch.setattr(NgramDrafter, "propose", broken)
    result = call("generate", *base)
    assert (result.exit_code, result.stdout) == (0, whole)
    assert "the drafter failed in" in result.stderr
    assert "out of guesses" in result.stderr
