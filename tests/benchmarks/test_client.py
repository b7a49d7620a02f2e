"""A peer's process: asked, held still, failing and ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.client import AskFailed, PeerFailed, PeerProcess
from benchmarks.peers.protocol import Request

Start = Callable[..., PeerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def begin(**config: object) -> PeerProcess:
        command = [sys.executable, "-m", "tests.benchmarks.fake_peer", json.dumps(config)]
        started.append(PeerProcess(command, tmp_path / "log"))
        return started[-1]

    yield begin
    for peer in started:
        peer.close()


def ask(mode: str, count: int = 1) -> Request:
    return Request(mode, [[7]] * count, 4, 0.0, 0, [9], "scope", [[5, 6]] * count)


def state(peer: PeerProcess) -> str:
    return Path(f"/proc/{peer._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_it_answers_and_stands_still_in_between(start: Start) -> None:
    peer = start()
    assert peer.wait_ready(60)["versions"] == {"fake": "1"}
    answer = peer.ask(ask("plain", 2), 60)
    assert [output.ids for output in answer.outputs] == [[8, 9, 0, 1]] * 2
    assert answer.outputs[0].accepted == 2
    deadline = time.monotonic() + 10
    while state(peer) != "T":  # the signal takes a moment
        assert time.monotonic() < deadline
    assert peer.ask(ask("truth"), 60).outputs[0].ids == [5, 6]
    assert peer.peak_memory() > 1 << 20


def test_an_error_costs_one_request_and_an_end_the_process(start: Start) -> None:
    peer = start()
    peer.wait_ready(60)
    with pytest.raises(AskFailed, match="ValueError: not this one"):
        peer.ask(ask("raises"), 60)
    assert peer.ask(ask("plain"), 60).outputs[0].ids[0] == 8
    with pytest.raises(PeerFailed, match="exit code 3; last said"):
        peer.ask(ask("dies"), 60)


def test_no_answer_in_time_ends_it(start: Start) -> None:
    peer = start()
    peer.wait_ready(60)
    with pytest.raises(PeerFailed, match="no answer within 0 s"):
        peer.ask(ask("sleeps"), 0.2)
    assert peer._process.poll() is not None


def test_what_cannot_load_says_why(start: Start) -> None:
    with pytest.raises(PeerFailed, match="RuntimeError: no such model"):
        start(broken=True).wait_ready(60)
