"""Other engines' pages: vLLM 0.33, vLLM V0, SGLang and llama.cpp as they look on the wire, resets and all."""

from __future__ import annotations

import pytest

from headstart.observe import names
from headstart.observe.meters import Meters
from headstart.observe.prometheus import exposition, make_registry
from headstart.observe.read import Acceptance, between, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen2.5-14B"} 2.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="Qwen/Qwen2.5-14B"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="Qwen/Qwen2.5-14B"} 100.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="Qwen/Qwen2.5-14B"} 1.79e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="Qwen/Qwen2.5-14B"} 300.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="Qwen/Qwen2.5-14B"} 300.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="Qwen/Qwen2.5-14B"} 180.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="Qwen/Qwen2.5-14B"} 120.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="Qwen/Qwen2.5-14B",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="Qwen/Qwen2.5-14B",position="1"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="Qwen/Qwen2.5-14B",position="2"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="Qwen/Qwen2.5-14B",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="Qwen/Qwen2.5-14B",position="1"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="Qwen/Qwen2.5-14B",position="2"} 20.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen2.5-14B"} 560.0
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="Qwen/Qwen2.5-14B"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="Qwen/Qwen2.5-14B"} 3.0
"""
VLLM_V0 = """\
# TYPE vllm:spec_decode_draft_acceptance_rate gauge
vllm:spec_decode_draft_acceptance_rate{model_name="m"} 0.62
# TYPE vllm:spec_decode_efficiency gauge
vllm:spec_decode_efficiency{model_name="m"} 0.55
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 62.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 100.0
# TYPE vllm:spec_decode_num_emitted_tokens_total counter
vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 90.0
"""
SGLANG = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="draft",model_name="draft",tp_rank="0"} 9.9
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="1"} 3.2
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.6
sglang:spec_accept_rate{engine_type="unified",model_name="m",tp_rank="1"} 0.6
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="m"} 40.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 90.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 20.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{is_streaming="true",model_name="m"} 10.0
"""
LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1234
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 400
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 384
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 288
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 96
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 90
"""


def test_vllm() -> None:
    found = read(VLLM)
    assert found == Acceptance(
        "vllm",
        drafts=200.0,
        draft_tokens=600.0,
        accepted=300.0,
        generated=560.0,
        requests=10.0,
        accepted_at=(140.0, 100.0, 60.0),
    )
    assert found.acceptance_rate == 0.5
    assert found.mean_acceptance_length == 2.5
    assert found.acceptance_by_position == (0.7, 0.5, 0.3)
    assert not found.all_rounds


def test_one_model_of_several() -> None:
    other = VLLM.replace("Qwen/Qwen2.5-14B", "other")
    twice = read(VLLM + "\n".join(line for line in other.splitlines() if not line.startswith("#")) + "\n")
    assert twice is not None
    assert twice.drafts == 400.0
    assert read(VLLM, model="Qwen/Qwen2.5-14B") == read(VLLM)
    assert read(VLLM, model="absent") is None


def test_vllm_before_v1_has_no_count_of_rounds() -> None:
    found = read(VLLM_V0)
    assert found is not None
    assert found.acceptance_rate == 0.62
    assert found.mean_acceptance_length is None
    assert found.emitted is None


def test_sglang_by_counters_and_by_gauges() -> None:
    found = read(SGLANG)
    assert found is not None
    assert (found.drafts, found.generated, found.requests) == (40.0, 110.0, 10.0)
    assert found.mean_acceptance_length == 2.5
    assert found.acceptance_rate == 0.6
    gauges = read("\n".join(line for line in SGLANG.splitlines() if "total" not in line) + "\n")
    assert gauges is not None
    assert gauges.mean_acceptance_length == pytest.approx(3.1)


def test_llamacpp() -> None:
    found = read(LLAMACPP)
    assert found is not None
    assert (found.engine, found.generated) == ("llamacpp", 400.0)
    assert found.acceptance_rate == 0.75
    assert found.mean_acceptance_length == 4.0
    assert read(LLAMACPP, model="any") == found  # it does not say which model it serves


def test_headstart_reads_itself() -> None:
    meters = Meters("m", routes=True)
    with meters:
        for route in ("a", "b"):
            meters.add(names.DRAFTS, ("ngram", route), 10)
            meters.add(names.DRAFT_TOKENS, ("ngram", route), 30)
            meters.add(names.ACCEPTED, ("ngram", route), 15)
            meters.add(names.EMITTED, ("ngram", route), 35)
            meters.add(names.ROUNDS, ("ngram", "drafted", route), 10)
            meters.add(names.ROUNDS, ("ngram", "plain", route), 10)
            meters.add(names.GENERATION_TOKENS, ("ngram", route), 36)
            meters.add(names.FINISHED, ("ngram", "stop", route), 1)
            for position, count in (("0", 10), ("1", 10), ("2", 10)):
                meters.add(names.DRAFTS_AT, ("ngram", position, route), count)
            meters.add(names.ACCEPTED_AT, ("ngram", "0", route), 10)
            meters.add(names.ACCEPTED_AT, ("ngram", "1", route), 5)
    found = read(exposition(make_registry(meters))[0].decode())
    assert found is not None
    assert found.engine == "headstart"
    assert found.mean_acceptance_length == 70 / 40
    assert found.all_rounds
    assert found.acceptance_rate == 0.5
    assert found.acceptance_by_position == (1.0, 0.5, 0.0)
    assert (found.generated, found.requests) == (72.0, 2.0)


def test_pages_without_speculation() -> None:
    assert read("") is None
    assert read("# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 3\n") is None
    assert read('vllm:generation_tokens_total{model_name="m"} 5\n') is None
    with pytest.raises(ValueError, match="model_name"):
        read("vllm:spec_decode_num_drafts_total{model_name= nonsense\n")


def test_the_difference_of_two_readings() -> None:
    before = read(VLLM)
    later = VLLM.replace("_tokens_total{engine=", "_tokens_total{x=").replace('"0"} 80.0', '"0"} 95.0')
    after = read(later.replace("} 300.0", "} 310.0").replace("} 180.0", "} 195.0").replace("} 100.0", "} 110.0"))
    assert before is not None
    assert after is not None
    change = between(before, after)
    assert (change.drafts, change.draft_tokens, change.accepted) == (20.0, 20.0, 15.0)
    assert change.accepted_at == (15.0, 0.0, 0.0)
    assert change.mean_acceptance_length == 1.75
    assert not change.restarted
    assert between(None, after) is after
    nothing = between(after, after)
    assert nothing.drafts == 0.0
    assert nothing.acceptance_rate is None
    assert nothing.mean_acceptance_length is None


def test_a_restart_in_between_is_seen() -> None:
    before = read(VLLM)
    after = read(VLLM.replace("} 180.0", "} 10.0"))
    assert before is not None
    assert after is not None
    change = between(before, after)
    assert change.restarted
    assert change.accepted == 130.0
    swapped = read(LLAMACPP)
    assert swapped is not None
    assert between(before, swapped).restarted
