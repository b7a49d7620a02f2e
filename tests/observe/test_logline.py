"""The periodic log line: over the interval, rounds without a draft included, silent while idle."""

from __future__ import annotations

import logging
import time

import pytest

from headstart.observe import names
from headstart.observe.logline import IntervalLine, PeriodicLog
from headstart.observe.meters import Meters


def play(meters: Meters, drafter: str, *, rounds: int, drafts: int, drafted: int, accepted: int) -> None:
    """Some rounds of depth 4."""
    with meters:
        meters.add(names.ROUNDS, (drafter, "drafted"), drafts)
        meters.add(names.ROUNDS, (drafter, "plain"), rounds - drafts)
        meters.add(names.DRAFT_TOKENS, (drafter,), drafted)
        meters.add(names.ACCEPTED, (drafter,), accepted)
        meters.add(names.EMITTED, (drafter,), accepted + rounds)
        meters.add(names.GENERATION_TOKENS, (drafter,), accepted + rounds)
        meters.add(names.POSSIBLE, (drafter,), 5 * rounds)


def test_it_tells_of_the_interval_alone() -> None:
    meters = Meters("m")
    meters.pull(
        {
            names.RUNNING: lambda: 3,
            names.WAITING: lambda: 1,
            names.KV_USED: lambda: 512,
            names.KV_CAPACITY: lambda: 4096,
        }
    )
    play(meters, "ngram", rounds=1000, drafts=1000, drafted=4000, accepted=4000)
    line = IntervalLine(meters, now=100.0)
    assert line.line(now=105.0) is None
    play(meters, "ngram", rounds=20, drafts=10, drafted=40, accepted=10)
    assert line.line(now=115.0) == (
        "mean acceptance length 1.50, acceptance rate 25.0%, system efficiency 30.0%, 3.0 tok/s, running 3, "
        "waiting 1, KV 12.5% used"
    )
    assert line.line(now=125.0) is None


def test_it_says_that_nothing_was_drafted() -> None:
    meters = Meters("m")
    line = IntervalLine(meters, now=0.0)
    play(meters, "none", rounds=10, drafts=0, drafted=0, accepted=0)
    assert line.line(now=1.0) == (
        "mean acceptance length 1.00, no drafts, system efficiency 20.0%, 10.0 tok/s, running 0, waiting 0"
    )


def test_several_drafters_are_told_apart() -> None:
    meters = Meters("m")
    line = IntervalLine(meters, now=0.0)
    play(meters, "ngram", rounds=10, drafts=10, drafted=40, accepted=20)
    play(meters, "model", rounds=10, drafts=10, drafted=40, accepted=40)
    told = line.line(now=1.0)
    assert told is not None
    assert told.endswith(
        "by drafter (model: mean acceptance length 5.00, acceptance rate 100.0%, system efficiency 100.0%; "
        "ngram: mean acceptance length 3.00, acceptance rate 50.0%, system efficiency 60.0%)"
    )
    play(meters, "ngram", rounds=10, drafts=10, drafted=40, accepted=20)
    assert "by drafter" not in str(line.line(now=2.0))


def test_it_is_logged_in_time_and_once_more_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    meters = Meters("m")
    with caplog.at_level(logging.INFO, logger="headstart.observe.logline"):
        log = PeriodicLog(meters, interval=0.01)
        play(meters, "ngram", rounds=10, drafts=10, drafted=40, accepted=20)
        until = time.monotonic() + 10
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.005)
        assert len(caplog.records) == 1
        log.close()
        assert len(caplog.records) == 1

        slow = PeriodicLog(meters, interval=3600)
        play(meters, "ngram", rounds=10, drafts=10, drafted=40, accepted=20)
        slow.close()
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["mean acceptance length 3.00"] * 2
