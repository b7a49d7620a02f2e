"""Do target and drafter speak the same tokens? Compared token by token, not by ``vocab_size``.

Models of one family pad their logits differently (151936 and 152064 rows over one tokenizer), so sizes say nothing.
What matters is that no id means two things.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from headstart.errors import VocabularyMismatch

SHOWN = 3


def check_same_vocabulary(
    target: PreTrainedTokenizerBase | None,
    draft: PreTrainedTokenizerBase | None,
    target_name: str = "target",
    draft_name: str = "draft model",
) -> None:
    """Raise unless every id the two tokenizers share stands for the same token, and neither lacks ids in the middle.

    Ids at the end that only one of them has are allowed: an instruct model often adds a few, and what the drafter
    cannot say it simply never proposes.

    Raises:
        VocabularyMismatch: with the first differing tokens.
    """
    if target is None or draft is None:
        if target is not draft:
            which = target_name if target is None else draft_name
            raise VocabularyMismatch(
                f"{which} has no tokenizer, so its tokens cannot be compared; add its tokenizer files"
            )
        return
    ours = {index: token for token, index in target.get_vocab().items()}
    theirs = {index: token for token, index in draft.get_vocab().items()}
    shared = min(max(ours, default=-1), max(theirs, default=-1)) + 1
    different = [i for i in range(shared) if ours.get(i) != theirs.get(i)]
    if not different:
        return
    shown = different[:SHOWN]
    examples = "; ".join(f"id {i} is {ours.get(i)!r} in one and {theirs.get(i)!r} in the other" for i in shown)
    raise VocabularyMismatch(
        f"{draft_name} cannot draft for {target_name}: {len(different)} of {shared} shared token ids differ "
        f"({examples}). Choose a draft model of the target's own family, or use the n-gram drafter, which needs no "
        "second model."
    )
