"""Texts and bytes of single tokens, for tokenizers that split characters and for one that does not."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from headstart.serve.tokens import TokenTexts
from headstart.target.model import Target

TEXT = "a né 你 👩‍🚀"


def sentencepiece(pieces: list[str]) -> PreTrainedTokenizerFast:
    """A vocabulary as Llama's: word marks, and bytes for what has no piece."""
    inner = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


def test_bytes_of_tokens_join_to_the_text(target: Target) -> None:
    texts = TokenTexts(target.tokenizer)
    ids = target.tokenizer(TEXT)["input_ids"]
    assert bytes(byte for token in ids for byte in texts.utf8(token) or []).decode() == TEXT


def test_parts_of_characters_stay_apart(target: Target) -> None:
    texts = TokenTexts(target.tokenizer)
    everything = [texts.text(token) for token in range(target.vocab_size)]
    assert len(set(everything)) == len(everything)
    [first, *_] = target.tokenizer("你")["input_ids"]
    assert texts.text(first) == r"bytes:\xe4"
    assert texts.text(target.tokenizer("a")["input_ids"][0]) == "a"


def test_special_tokens_have_their_names(target: Target) -> None:
    texts = TokenTexts(target.tokenizer)
    end = target.tokenizer.eos_token_id
    assert texts.text(end) == "</s>"
    assert texts.utf8(end) == list(b"</s>")


def test_word_marks_and_byte_pieces() -> None:
    texts = TokenTexts(sentencepiece(["</s>", "▁the", "the", "<0xE4>", "▁"]))
    assert [texts.text(token) for token in range(5)] == ["</s>", " the", "the", r"bytes:\xe4", " "]
    assert texts.utf8(1) == list(b" the")
    assert texts.utf8(3) == [0xE4]
    assert texts.utf8(4) == [0x20]


def test_without_a_tokenizer() -> None:
    texts = TokenTexts(None)
    assert texts.text(7) == "token_id:7"
    assert texts.utf8(7) is None
