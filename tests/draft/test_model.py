"""The draft model: vocabularies, context limits, pools that fill up, histories that change."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from headstart.decode.params import SamplingParams
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.model import ModelDrafter
from headstart.draft.vocabulary import check_same_vocabulary
from headstart.engine.engine import Engine
from headstart.errors import VocabularyMismatch
from headstart.target.model import Target

GREEDY = SamplingParams(max_tokens=30)


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def sized(vocab: int, words: list[str] | None, *, exact: bool = True, **more: object) -> Target:
    torch.manual_seed(vocab)
    config = LlamaConfig(**{**tiny.SIZES, "vocab_size": vocab, **more})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return Target(
        model, None if words is None else tokenizer(words), name=f"vocab-{vocab}", kv_tokens=4096, exact=exact
    )


def ask(tokens: list[int], depth: int, sequence_id: int = 0, **more: object) -> DraftRequest:
    params = more.pop("params", GREEDY)
    return DraftRequest(sequence_id, tokens, 3, depth, depth, params, seed=9, **more)  # type: ignore[arg-type]


def greedy_continuation(target: Target, tokens: list[int], count: int) -> list[int]:
    return Engine(target).generate([tokens], SamplingParams(max_tokens=count))[0].token_ids


WORDS = [f"w{i}" for i in range(50)]


def test_padded_vocabularies_of_one_tokenizer_go_together() -> None:
    """As Qwen2.5: the same tokenizer under 64 and 72 rows of logits."""
    target, draft = sized(64, WORDS), sized(72, WORDS, exact=False)
    assert (target.vocab_size, draft.vocab_size) == (50, 50)
    drafter = ModelDrafter(draft, target)
    for temperature in (0.0, 1.0):
        for verify in ("coupled", "rejection", "block"):
            params = SamplingParams(max_tokens=40, temperature=temperature, seed=3, verify=verify)
            out = Engine(target, [drafter]).generate([[1, 2, 3]], params)[0]
            assert all(t < 50 for t in out.token_ids)
            if verify == "coupled" or temperature == 0:
                assert out.token_ids == Engine(target).generate([[1, 2, 3]], params)[0].token_ids


def test_padding_ids_are_never_proposed() -> None:
    target, draft = sized(64, WORDS), sized(72, WORDS, exact=False)
    with torch.no_grad():
        draft.model.lm_head.weight[50:] *= 100  # the padding shouts
    drafter = ModelDrafter(draft, target)
    for with_q in (False, True):
        params = SamplingParams(temperature=1.0, verify="rejection" if with_q else "coupled")
        for seed in range(20):
            proposal = drafter.propose([ask([1, 2, 3, seed], 6, seed, params=params, with_q=with_q)])[0]
            assert all(t < 50 for t in proposal.tokens)
            assert proposal.q is None or proposal.q.shape == (6, 50)


def test_a_longer_tail_is_allowed_and_a_different_token_is_not() -> None:
    ours = tokenizer(WORDS)
    check_same_vocabulary(ours, tokenizer([*WORDS, "extra"]))
    check_same_vocabulary(ours, tokenizer(WORDS[:40]))
    other = [*WORDS]
    other[7], other[9] = "seven", "nine"
    with pytest.raises(VocabularyMismatch) as caught:
        check_same_vocabulary(ours, tokenizer(other), "big", "small")
    message = str(caught.value)
    assert "small cannot draft for big" in message
    assert "2 of 50" in message
    assert "id 7 is 'w7' in one and 'seven' in the other" in message
    with pytest.raises(VocabularyMismatch, match="no tokenizer"):
        check_same_vocabulary(ours, None)
    check_same_vocabulary(None, None)


def test_it_proposes_what_it_would_have_said() -> None:
    target, draft = tiny.target(), tiny.target(seed=1)
    drafter = ModelDrafter(draft, target)
    assert isinstance(drafter, Drafter)
    tokens = tiny.ids(30)
    expected = greedy_continuation(draft, tokens, 6)
    proposal = drafter.propose([ask(tokens, 6)])[0]
    assert list(proposal.tokens) == expected
    assert proposal.confidence is not None
    assert all(0 < c <= 1 for c in proposal.confidence)


def test_histories_that_grow_shrink_and_are_rewritten() -> None:
    draft = tiny.target(seed=1)
    drafter = ModelDrafter(draft, tiny.target())
    tokens = tiny.ids(60)
    for history in (tokens[:20], tokens[:24], tokens[:10], [*tokens[:8], 1, 2, 3], tokens, tokens, tokens[:1]):
        assert list(drafter.propose([ask(history, 4)])[0].tokens) == greedy_continuation(draft, history, 4)
    for sampled in (tokens[:20], tokens[:24], [*tokens[:8], 1, 2, 3]):
        params = SamplingParams(temperature=0.8, presence_penalty=1.0)
        fresh = ModelDrafter(tiny.target(seed=1), tiny.target())
        request = ask(sampled, 4, 1, params=params)
        assert drafter.propose([request]) == fresh.propose([request])
    drafter.finish(1, tokens, 3, None)
    drafter.finish(0, tokens, 3, None)
    drafter.finish(0, tokens, 3, None)
    assert draft.pool.used == 0


def test_a_context_limit_shorter_than_the_targets() -> None:
    target = tiny.target()
    draft = Target(tiny.model(seed=0), None, name="short", kv_tokens=4096, max_model_len=24, exact=False)
    engine = Engine(target, [ModelDrafter(draft, target)])
    prompt = tiny.ids(10)
    plain = Engine(target).generate([prompt], GREEDY)[0]
    out = engine.generate([prompt], GREEDY)[0]
    assert out.token_ids == plain.token_ids
    record = out.completions[0].record
    assert 0 < record.drafted_rounds < record.rounds
    assert not record.fallbacks
    assert len(ModelDrafter(draft, target).propose([ask(tiny.ids(22), 6)])[0]) == 2
    assert len(ModelDrafter(draft, target).propose([ask(tiny.ids(24), 6)])[0]) == 0


def test_a_full_draft_pool_leaves_the_rest_plain() -> None:
    target = tiny.target()
    draft = tiny.target(kv_tokens=256, exact=False)
    engine = Engine(target, [ModelDrafter(draft, target)])
    prompts = [tiny.ids(30, i) for i in range(4)]
    plain = Engine(target).generate(prompts, SamplingParams(max_tokens=40))
    out = engine.generate(prompts, SamplingParams(max_tokens=40))
    assert [o.token_ids for o in out] == [o.token_ids for o in plain]
    assert draft.pool.used == 0
    assert engine.record.drafted > 0


def test_long_prompts_are_caught_up_in_pieces() -> None:
    target, draft = tiny.target(), tiny.target(seed=1)
    drafter = ModelDrafter(draft, target)
    tokens = tiny.ids(700)
    batch = drafter.propose([ask(tokens, 3, 0), ask(tokens[:5], 3, 1)])
    assert list(batch[0].tokens) == greedy_continuation(draft, tokens, 3)
    assert list(batch[1].tokens) == greedy_continuation(draft, tokens[:5], 3)


def test_tokens_only_the_target_has_cost_that_request_its_draft_and_nobody_elses() -> None:
    target, draft = sized(64, WORDS), sized(48, WORDS[:40], exact=False)
    drafter = ModelDrafter(draft, target)
    engine = Engine(target, [drafter])
    params = [SamplingParams(max_tokens=10, forced_tokens=(45,)), GREEDY, GREEDY]
    out = engine.generate([[1, 2, 3], [1, 2, 49], [4, 5, 6]], params)
    assert [o.completions[0].record.drafted > 0 for o in out[:2]] == [False, False]
    assert not engine.record.fallbacks
    assert out[0].token_ids[0] == 45


def test_a_failed_forward_of_the_draft_model_leaves_its_state_true() -> None:
    target = tiny.target()
    draft = tiny.target(exact=False)
    drafter = ModelDrafter(draft, target)
    forward, calls = draft.forward, []

    def fails_once(segments: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")
        return forward(segments)  # type: ignore[arg-type]

    draft.forward = fails_once  # type: ignore[method-assign]
    engine = Engine(target, [drafter])
    engine.generate([tiny.ids(40)], GREEDY)
    assert engine.record.fallbacks["raised"] == 1
    assert engine.record.acceptance_rate == 1.0
