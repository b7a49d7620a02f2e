"""The page in a headless browser, against a real server: what a person sees is what the engine said.

Needs Chromium: the system's (``chromium`` on the path) or Playwright's own.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.harness import Running, running

from headstart.control.depth import FixedDepth
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, Scripted
from headstart.engine.engine import Engine
from headstart.engine.request import Output
from headstart.target.model import Target

playwright_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow
expect = playwright_api.expect
PROMPT = "abcabcabcabcabcabc <b>bold</b>"
NAUGHTY = "<img src=x onerror=alert(1)>"
KEY = "a-key-of-mine"


class LateDrafter(Scripted):
    """Says nothing, slowly: rounds last long enough for a person to act."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def draft(self, request: DraftRequest) -> Draft:
        time.sleep(self._seconds)
        return EMPTY


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        system = shutil.which("chromium")
        try:
            made = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except playwright_api.Error as error:
            pytest.skip(f"no Chromium: {error}")
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty tab; what the page logs as an error or fails to load by policy fails the test."""
    made = browser.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    made.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
    yield made
    made.close()
    assert not complaints


def ask(page: Any, text: str, **settings: Any) -> None:
    for name, value in settings.items():
        page.locator(f"#{name.replace('_', '-')}").fill(str(value))
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answers(page: Any) -> list[str]:
    return [
        str(text) for text in page.locator("article.model .text").evaluate_all("all => all.map(e => e.textContent)")
    ]


def truth(target: Target, *said: str, **params: Any) -> Output:
    """What plain decoding says to a conversation."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    with Engine(target) as engine:
        return engine.generate([messages], SamplingParams(**params))[0]


def test_both_ways_say_what_the_engine_says(target: Target, page: Any) -> None:
    """An oracle that errs now and then drafts, so that some tokens are coloured and some are not."""
    params = {"max_tokens": 60, "temperature": 0.8, "seed": 5}
    expected = truth(target, PROMPT, **params)
    knows = {tuple(expected.prompt_token_ids): expected.token_ids}
    drafters = [NgramDrafter(), OracleDrafter(knows, acceptance=0.7)]
    with (
        Engine(target, drafters, controller=FixedDepth(4)) as engine,
        running(engine) as up,
    ):
        page.goto(up.url)
        expect(page.locator("#about")).to_contain_text("tiny")
        page.get_by_label("Compare both").check()
        page.get_by_label("Drafter").select_option("oracle")
        ask(page, PROMPT, **params)
        expect(page.locator("#status")).to_have_text("Done.")
        record = engine.record
    assert answers(page) == [expected.text, expected.text]
    expect(page.locator(".verdict")).to_contain_text("identical")
    assert page.locator("article.user .text").text_content() == PROMPT
    assert page.locator("article b").count() == 0

    speculative, plain = page.locator("article.model").all()
    visible = sum(bool(text) for text in speculative.locator(".d1").all_text_contents())
    assert 10 < visible <= record.accepted  # a token in the middle of a character shows no text
    assert plain.locator(".d1").count() == 0
    feet = [each.locator(".foot").text_content() for each in (speculative, plain)]
    assert all("60 tokens" in foot and "seed 5" in foot for foot in feet)
    assert "mean acceptance length 1.00" in feet[1]
    length = f"{59 / (record.rounds - 59):.2f}"  # plain decoding took 59 of the rounds
    assert f"mean acceptance length {length}" in feet[0]
    expect(page.locator("#length")).to_have_text(length)
    expect(page.locator("#rate")).to_have_text(f"{100 * record.accepted / record.drafted:.0f} %")
    assert page.locator("#positions .bar").count() == 4
    assert page.locator("#depths path").count() == 1
    shares = re.findall(r"(\d+) %", page.locator("#positions-text").text_content())
    expected_shares = [100 * share for share in record.acceptance_by_position]
    assert [float(share) for share in shares] == pytest.approx(expected_shares, abs=0.51)
    items = page.locator("#legend li").all_inner_texts()
    assert [next((n for n in ("own", "ngram", "oracle") if n in item), None) for item in items] == [
        "own",
        "ngram",
        "oracle",
    ]
    lines = page.locator("#legend .token").evaluate_all("all => all.map(e => getComputedStyle(e).textDecorationStyle)")
    assert lines[1:] == ["solid", "dashed"]


def test_turns_add_up_to_a_conversation(up: Running, target: Target, page: Any) -> None:
    page.goto(up.url)
    ask(page, "one", max_tokens=12, temperature=0, seed=1)
    expect(page.locator("#status")).to_have_text("Done.")
    page.get_by_label("Plain", exact=True).check()
    ask(page, NAUGHTY)
    expect(page.locator("article.model:not(.busy)")).to_have_count(2)
    first = truth(target, "one", max_tokens=12, temperature=0).text
    assert answers(page) == [first, truth(target, "one", first, NAUGHTY, max_tokens=12, temperature=0).text]
    assert page.locator("article img").count() == 0
    page.get_by_role("button", name="New chat").click()
    assert answers(page) == []


def test_what_a_model_writes_is_text(up: Running, target: Target, page: Any) -> None:
    """The API's answer is replaced by one that is full of markup."""
    pieces = [{"text": NAUGHTY, "drafter": "<i>odd</i>"}, {"text": "<script>alert(2)</script>", "drafter": None}]
    round = {"depth": 4, "drafted": 4, "deepest": 4, "accepted": 1, "pieces": pieces}
    chunk = {"choices": [{"delta": {}, "finish_reason": "stop"}], "speculation": {"rounds": [round]}}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.goto(up.url)
    ask(page, "hi")
    expect(page.locator("#status")).to_have_text("Done.")
    assert answers(page) == [NAUGHTY + "<script>alert(2)</script>"]
    assert page.locator("article img, article script, #legend i").count() == 0


def test_stop_ends_the_request_and_keeps_what_came(target: Target, page: Any) -> None:
    slow = LateDrafter(0.02)
    with Engine(target, [slow], controller=FixedDepth(4)) as engine, running(engine) as up:
        page.goto(up.url)
        ask(page, PROMPT, max_tokens=400, temperature=1, seed=2)
        expect(page.locator("article.model .token").nth(5)).to_be_attached()
        page.keyboard.press("Escape")
        expect(page.locator("#status")).to_have_text("Stopped.")
        expect(page.locator("article.model .foot")).to_contain_text("stopped")
        up.idle()
        assert engine.record.emitted < 399
        assert len(answers(page)[0]) > 3


def test_a_key_is_asked_for_and_kept_in_memory_only(engine: Engine, page: Any) -> None:
    with running(engine, keys=[KEY]) as up:
        page.goto(up.url)
        expect(page.locator("#problem")).to_contain_text("API key")
        page.get_by_label("API key").fill("wrong-wrong")
        page.get_by_label("API key").press("Tab")
        expect(page.locator("#problem")).to_contain_text("does not know")
        page.get_by_label("API key").fill(KEY)
        page.get_by_label("API key").press("Tab")
        expect(page.locator("#about")).to_contain_text("tiny")
        expect(page.locator("#problem")).to_be_hidden()
        ask(page, "hi", max_tokens=5)
        expect(page.locator("#status")).to_have_text("Done.")
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.reload()
        expect(page.locator("#problem")).to_contain_text("API key")


def test_failures_are_said_in_words_and_give_the_message_back(engine: Engine, page: Any) -> None:
    with running(engine) as up:
        page.goto(up.url)
        expect(page.locator("#about")).to_contain_text("tiny")
        ask(page, "too long for it", max_tokens=100000)
        expect(page.locator("#problem")).to_contain_text("100000")
        assert page.get_by_label("Message", exact=True).input_value() == "too long for it"
        assert page.locator("article").count() == 0
    ask(page, "anyone there?", max_tokens=5)
    expect(page.locator("#problem")).to_contain_text("cannot be reached")
    assert page.get_by_label("Message", exact=True).input_value() == "anyone there?"
