"""The per-request acceptance block against counts made by hand, and where it may appear."""

from __future__ import annotations

import pytest
from tests.serve.harness import Running, chat, completion, events

from headstart.decode.record import RoundCounts, SpecRecord
from headstart.serve.acceptance import speculative_decoding

FIELDS = {
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
}


def test_counts() -> None:
    record = SpecRecord()
    for drafted, accepted in ((3, 0), (3, 3), (2, 1), (0, 0), (3, 1)):
        record.add_round(
            RoundCounts(depth=3, drafted=drafted, deepest=drafted, accepted=accepted, emitted=accepted + 1)
        )
    block = speculative_decoding(record, 3).model_dump()
    assert block == {
        "mean_acceptance_length": 1 + 5 / 4,
        "draft_acceptance_rate": 5 / 11,
        "acceptance_histogram": [1, 2, 0, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 11,
        "num_spec_tokens": 3,
    }


def test_nothing_drafted() -> None:
    block = speculative_decoding(SpecRecord(), 4)
    assert block.acceptance_histogram == [0] * 5
    assert block.mean_acceptance_length == 1.0
    assert block.draft_acceptance_rate == 0.0


@pytest.mark.parametrize("stream", [False, True])
def test_where_it_appears(up: Running, stream: bool) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    def metrics(path: str, body: dict[str, object]) -> dict[str, object]:
        reply = up.post(path, {**body, **more})
        if not stream:
            return reply.json()["metrics"]
        *others, last = events(reply)
        assert all("metrics" not in item for item in others)
        return last["metrics"]

    for path, body in (("/v1/chat/completions", chat("abcabcabc")), ("/v1/completions", completion("abcabcabc"))):
        block = metrics(path, {**body, "max_tokens": 30, "temperature": 0})["speculative_decoding"]
        assert set(block) == FIELDS
        assert sum(block["acceptance_histogram"]) == block["num_spec_steps"]
        assert sum(i * n for i, n in enumerate(block["acceptance_histogram"])) == block["num_accepted_draft_tokens"]
        assert len(block["acceptance_histogram"]) == block["num_spec_tokens"] + 1
        assert metrics(path, {**body, "n": 2}) == {"speculative_decoding": None}
        assert metrics(path, {**body, "speculation": {"depth": 0}}) == {"speculative_decoding": None}
    assert metrics("/v1/completions", completion(["a", "b"])) == {"speculative_decoding": None}
