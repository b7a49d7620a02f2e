"""A place in a grammar: masks, ends, what is forced, and tokens that are text or are not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests import spoken, tiny
from tests.engine.grammars import (
    GRAMMARS,
    on,
)
from tokenizers import AddedToken

from headstart.decode.grammar import Constraint, Grammar
from headstart.decode.params import SamplingParams
from headstart.engine import grammar as grammar_module
from headstart.engine.engine import Engine
from headstart.engine.grammar import MOST_COMPILED, Grammars
from headstart.errors import InvalidParameter


def state(grammar: Grammar, **more: Any) -> Constraint:
    made = Grammars(on().tokenizer, on().vocab_size, on().eos_ids).constraint(SamplingParams(grammar=grammar, **more))
    assert made is not None
    return made


def test_masks_depend_on_the_tokens_and_on_nothing_else() -> None:
    """Wander through drafts, good and bad, ask this and that, and compare with a state that walked straight there."""
    rng = random.Random(1)
    for name, grammar in GRAMMARS.items():
        first = state(grammar)
        for _ in range(3):
            wanders, output = first.fresh(), list[int]()
            while len(output) < 40 and not wanders.complete:
                for _ in range(rng.randrange(4)):
                    path: tuple[int, ...] = ()
                    for _ in range(rng.randrange(5)):
                        ids = np.flatnonzero(wanders.allowed(path)).tolist()
                        path += (rng.choice(ids) if rng.random() < 0.8 else rng.randrange(on().vocab_size),)
                        wanders.admits(path[rng.randrange(len(path)) :])
                        wanders.forced(path)
                straight = first.fresh()
                for token in output:
                    straight.append(token)
                mask = straight.allowed()
                assert np.array_equal(mask, wanders.allowed()), (name, output)
                assert straight.complete == wanders.complete
                forced = straight.forced()
                assert forced == wanders.forced()
                assert straight.admits(forced) == len(forced)
                token = rng.choice(np.flatnonzero(mask).tolist())
                assert wanders.admits([token]) == 1
                assert len(forced) == 0 or token == forced[0]
                output.append(token)
                wanders.append(token)
            assert wanders.admits([1]) == 0 or not wanders.complete


def test_ends_are_allowed_where_the_text_is_whole() -> None:
    (eos,), pad = on().eos_ids, on().tokenizer.pad_token_id  # type: ignore[union-attr]
    digits = on().tokenizer("01", add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    for more, ends in (({}, {eos}), ({"stop_token_ids": (pad,)}, {eos, pad}), ({"ignore_eos": True}, set())):
        here = state(Grammar.regex("[01]{1,2}"), **more)
        assert not here.allowed()[[eos, pad]].any()
        assert here.admits([eos]) == 0
        assert set(np.flatnonzero(here.allowed(digits[:1]))) & {eos, pad} == ends
        assert here.admits([digits[0], eos, eos]) == 1 + (eos in ends)
        # nothing else is left here: a law must exist, though the engine asks for none
        assert set(np.flatnonzero(here.allowed(digits))) == (ends or {eos})
        here.append(digits[0])
        assert not here.complete
        after = here.fresh()
        after.append(digits[0])
        after.append(eos)
        assert after.complete
        here.append(digits[1])
        assert here.complete


def test_a_draft_that_breaks_the_parser_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexer runs out of states along a draft; the committed text is still good, and so is another draft."""
    monkeypatch.setattr(grammar_module, "MOST_LEXER_STATES", 60)
    letters = [on().tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in "abcde"]  # type: ignore[misc]
    here = state(Grammar.regex("e|.*a.{30}b"))
    rng = random.Random(2)
    here.append(letters[0])
    failed = False
    for _ in range(10):
        path = [rng.choice(letters) for _ in range(60)]
        try:
            failed |= here.admits(path) < len(path)
            here.allowed(path)
        except ValueError as error:
            failed = True
            assert "cannot be followed any further" in str(error)  # noqa: PT017
        assert here.allowed()[letters[1]]
    assert failed
    here.append(letters[1])
    assert here.allowed()[letters[0]]


def test_grammars_are_compiled_once() -> None:
    grammars = Grammars(on().tokenizer, on().vocab_size, on().eos_ids)
    first = grammars.constraint(SamplingParams(grammar=Grammar.regex("a+")))
    again = grammars.constraint(SamplingParams(grammar=Grammar.regex("a+"), temperature=1.0))
    assert first is not again
    assert len(grammars._compiled) == 1
    for i in range(80):
        grammars.constraint(SamplingParams(grammar=Grammar.regex(f"a{{{i + 1}}}")))
    assert len(grammars._compiled) == MOST_COMPILED


def says(grammars: Grammars, tokenizer: Any, grammar: Grammar, ids: list[int]) -> bool:
    """Whether the grammar allows these tokens one after another and then the end."""
    here = grammars.constraint(SamplingParams(grammar=grammar))
    assert here is not None
    for token in ids:
        if not here.allowed()[token]:
            return False
        here.append(token)
    return here.complete or bool(here.allowed()[tokenizer.eos_token_id])


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_text_where_the_engine_delivers_it_as_text(special: bool) -> None:
    own = spoken.tokenizer()
    own.add_tokens([AddedToken("<tag>", special=special, normalized=False)], special_tokens=special)
    [tag], pieces = own.convert_tokens_to_ids(["<tag>"]), own.convert_tokens_to_ids(list("<tag>"))
    red = own("red", add_special_tokens=False)["input_ids"]
    assert (own.decode([tag], skip_special_tokens=True) == "") == special
    grammars = Grammars(own, len(own), [own.eos_token_id])
    for grammar in (Grammar.regex("<tag>red"), Grammar.lark('start: "<tag>red"'), Grammar.choice(["<tag>red"])):
        assert says(grammars, own, grammar, [tag, *red]) != special
        assert says(grammars, own, grammar, [*pieces, *red]) == special
    by_name = Grammar.lark('start: <tag> "red"')
    if special:
        assert says(grammars, own, by_name, [tag, *red])
    else:
        with pytest.raises(InvalidParameter, match="unknown special token"):
            says(grammars, own, by_name, [tag, *red])
    quoted = [own.convert_tokens_to_ids('"')]
    anything = Grammar.json_schema({"type": "string"})
    assert says(grammars, own, anything, [*quoted, tag, *quoted]) != special
    assert says(grammars, own, anything, [*quoted, *pieces, *quoted])


def test_the_tokenizer_can_be_read_beforehand() -> None:
    grammars = Grammars(on().tokenizer, on().vocab_size, on().eos_ids)
    grammars.prepare()
    read = grammars._tokens
    assert read is not None
    grammars.constraint(SamplingParams(grammar=Grammar.regex("a+")))
    assert grammars._tokens is read
    Engine(tiny.target()).prepare()  # without a tokenizer there is nothing to do
