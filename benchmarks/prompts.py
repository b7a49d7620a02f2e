"""The prompts of the benchmarks: Spec-Bench questions by task group, and long prompts made of them.

Knows the file's format and token counts; a tokenizer is handed in. Spec-Bench: Xia et al. 2024.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import UserError

GROUPS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "spec_bench" / "question.jsonl"

Encode = Callable[[str], list[int]]
"""From one user message to the token ids of a whole prompt."""


@dataclass(frozen=True)
class Prompt:
    """One prompt as every way gets it. ``name`` tells it from the others of its group."""

    group: str
    name: str
    ids: tuple[int, ...]


def questions(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Spec-Bench's questions by task group, in the file's order; its eight conversation categories are ``mt_bench``."""
    groups: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups[row["category"] if row["category"] in groups else "mt_bench"].append(row)
    return groups


def check_there(path: Path) -> None:
    """Raise ``UserError`` unless the file is there."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; give --prompts FILE in Spec-Bench's format")


def spread(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """``count`` evenly spaced rows, or all of them."""
    count = min(count, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def sample(path: Path, per_group: int, encode: Encode) -> list[Prompt]:
    """First turns of ``per_group`` questions of every group, groups taking turns."""
    chosen = {group: spread(rows, per_group) for group, rows in questions(path).items()}
    out = []
    for i in range(per_group):
        for group, rows in chosen.items():
            if i < len(rows):
                ids = encode(rows[i]["turns"][0])
                out.append(Prompt(group, str(rows[i]["question_id"]), tuple(ids)))
    return out


def long_prompts(path: Path, lengths: Sequence[int], count: int, encode: Encode) -> list[Prompt]:
    """``count`` prompts of exactly each length in tokens: texts of the ``rag`` and ``summarization`` groups put
    together, with a short instruction at the end, as people paste documents.

    The middle is cut, so that the chat template's beginning and end stay whole.
    """
    groups = questions(path)
    texts = [row["turns"][0] for pair in zip(groups["rag"], groups["summarization"], strict=True) for row in pair]
    out = []
    for length in lengths:
        for i in range(count):
            own = texts[i * len(texts) // count :] + texts[: i * len(texts) // count]
            text, used = "", 0
            ids = encode(_ask(text))
            while len(ids) < length:
                if used == len(own):
                    raise ValueError(f"the texts of {path} do not fill {length} tokens")
                text += own[used] + "\n\n"
                used += 1
                ids = encode(_ask(text))
            tail = min(64, length // 2)
            ids = ids[: length - tail] + ids[len(ids) - tail :]
            out.append(Prompt(f"{length} tokens", str(i), tuple(ids)))
    return out


def _ask(text: str) -> str:
    return f"{text}\nSummarise the documents above in a few sentences, quoting the most important ones."


def chat_encoder(tokenizer: Any) -> Encode:
    """Through the tokenizer's chat template, as one user message."""

    def encode(text: str) -> list[int]:
        chat = [{"role": "user", "content": text}]
        ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        return ids

    return encode
