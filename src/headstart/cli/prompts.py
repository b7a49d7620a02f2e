"""The prompts of ``headstart try``: six of its own, or a file of the user's.

Knows prompt files and nothing of models: chat templates, tokens and answers are the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headstart.errors import UserError

Kind = Literal["summary", "edit", "question", "code", "creative", "user"]
KINDS: tuple[Kind, ...] = ("summary", "edit", "question", "code", "creative", "user")
_TEXT_KEYS = ("prompt", "text", "turns")


@dataclass(frozen=True, slots=True)
class TryPrompt:
    """One prompt.

    ``name`` labels its row in tables; ``kind`` says what the answer will be like (``user`` for prompts read from a
    file); ``text`` is the user message; ``temperature`` is what such a request is usually served at.
    """

    name: str
    kind: Kind
    text: str
    temperature: float = 0.0


def _unwrap(text: str) -> str:
    """One line per paragraph, as people paste text: an answer can then repeat a sentence token for token."""
    return "\n\n".join(" ".join(paragraph.splitlines()) for paragraph in text.split("\n\n"))


_FERRY = """\
The night ferry from Port Ellery had been late four times in a single week, and by Friday the waiting room was full of
people who had stopped pretending to be patient. Mara Quill, who has run the harbour kiosk for nineteen years, said that
she had never seen anything like it. "They used to bring thermos flasks," she told us. "Now they bring lawyers."

The company that operates the line, Northern Sound Ferries, blames its engines. "Two of our three main units are older
than the captain," said its spokesman, Idris Vale, "and the captain retires in June." New engines have been ordered, he
added, but the yard in Holmgate cannot fit them before the end of October. Until then the timetable will be thinned: the
sailings at 06:10 and 22:45 stay, while the one at 14:30 is withdrawn on weekdays.

Not everybody accepts the explanation. Councillor Ruth Adeyemi, who chairs the transport committee, pointed to the
company's own report of last spring, which promised "a full replacement of the propulsion system within twelve months".
Nothing was replaced. "An engine does not grow old overnight," she said. "Somebody looked at it every morning and
decided that it could wait." The committee has asked for the maintenance records of the past five years and wants an
answer by the ninth of September.

For the islanders the matter is simpler. Tomas Brandt, a teacher who crosses three times a week, has begun to sleep on a
colleague's sofa on the mainland side. "I have marked more essays on that ferry than in any classroom," he said. "I do
not need it to be fast. I need it to come." His pupils, he admitted with a smile, see it differently: on the mornings
when the boat stays away, the first two lessons are cancelled."""

_MINUTES = """\
The comittee met on Tuesday the 14th of May at 10:00 in the small hall. Present was Anna Lindqvist, Peter Osei and Maria
Tavares; Jonas Weber had send his apologies. The minutes of the last meeting were accepted without changes. Anna
reported that the roof over the workshop have been repaired and that the invoice, 4,280 euros, came in below the
estimate. Peter asked weather the remaining money could be spent on new tools. It was agreed to recieve three offers
before the next meeting, which will take place on Tuesday the 11th of June at the same time and in the same place."""

_FUNCTION = '''\
def summarise_orders(orders, minimum_total=0.0):
    """Group orders by customer and return totals, largest first."""
    tmp = {}
    for order in orders:
        if order["status"] == "cancelled":
            continue
        customer = order["customer"]
        if customer not in tmp:
            tmp[customer] = {"count": 0, "total": 0.0, "last_date": None}
        tmp[customer]["count"] += 1
        tmp[customer]["total"] += order["quantity"] * order["unit_price"]
        if tmp[customer]["last_date"] is None or order["date"] > tmp[customer]["last_date"]:
            tmp[customer]["last_date"] = order["date"]
    result = []
    for customer, values in tmp.items():
        if values["total"] >= minimum_total:
            result.append((customer, values["count"], values["total"], values["last_date"]))
    result.sort(key=lambda row: row[2], reverse=True)
    return result'''

_RECORDS = """\
Invoice 2041, Harper & Sons, 12 March, 1,150.00 EUR, paid. Invoice 2042, Bluewater Clinic, 14 March, 389.90 EUR, open.
Invoice 2043, Oakfield School, 14 March, 2,760.00 EUR, paid. Invoice 2044, Studio Meridian, 19 March, 94.50 EUR, open.
Invoice 2045, Harper & Sons, 27 March, 615.20 EUR, open. Invoice 2046, Lakeside Bakery, 30 March, 208.00 EUR, paid."""

BUILT_IN: tuple[TryPrompt, ...] = (
    TryPrompt(
        "summary",
        "summary",
        "Summarise the following article in one paragraph. Support every statement with an exact quotation from the "
        f"article, in quotation marks.\n\n{_unwrap(_FERRY)}",
    ),
    TryPrompt(
        "edit",
        "edit",
        "Correct the spelling and grammar mistakes in the following text. Change nothing else and return the whole "
        f"corrected text.\n\n{_unwrap(_MINUTES)}",
    ),
    TryPrompt(
        "extract",
        "edit",
        "Return all open invoices from the list below as a JSON array of objects with the keys number, customer, date "
        f"and amount.\n\n{_unwrap(_RECORDS)}",
    ),
    TryPrompt(
        "question",
        "question",
        "Why does bread dough rise, and why does it stop rising in a cold kitchen? Explain it to a twelve-year-old.",
    ),
    TryPrompt(
        "code",
        "code",
        "Rename the variable `tmp` to `by_customer` everywhere in this Python function. Return the whole function and "
        f"change nothing else.\n\n```python\n{_FUNCTION}\n```",
    ),
    TryPrompt(
        "creative",
        "creative",
        "Write the opening of a story about a lighthouse keeper who finds a door in the sea. Avoid clichés.",
        temperature=0.9,
    ),
)


def read_prompts(path: str | Path) -> list[TryPrompt]:
    """Read prompts from a file, in the order of the file.

    Read as a JSON list if the text begins with ``[``, as JSON Lines if its first line begins with ``{``, otherwise as
    text with one prompt per line; blank lines are skipped. An entry of a list or a line is a string (lists only) or an
    object whose prompt is under ``prompt``, ``text`` or ``turns`` (a list of user messages, of which the first is
    taken, as in Spec-Bench). ``name`` or ``question_id`` names it; ``temperature`` sets its temperature, 0 if absent.

    Raises:
        UserError: the file is missing, unreadable, empty or malformed; the message says where.
    """
    source = Path(path)
    try:
        content = source.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            f"{source}: no such file. Name a file with one prompt per line, a JSON list or JSONL."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 text (byte {error.start}). Save the prompts as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror}).") from None

    start = content.lstrip()[:1]
    if start == "[":
        prompts = _from_list(source, content)
    elif start == "{":
        prompts = _from_lines(source, content)
    else:
        lines = [line.strip() for line in content.splitlines()]
        prompts = [_prompt(text, number) for number, text in enumerate(filter(None, lines), 1)]
    if not prompts:
        raise UserError(f"{source}: holds no prompts. Write one per line, a JSON list or JSONL.")
    return prompts


def _from_list(source: Path, content: str) -> list[TryPrompt]:
    try:
        entries = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{source}, line {error.lineno}: bad JSON: {error.msg} (column {error.colno}). "
            "A file that begins with [ is read as one JSON list."
        ) from None
    return [_from_entry(entry, number, f"{source}, entry {number}") for number, entry in enumerate(entries, 1)]


def _from_lines(source: Path, content: str) -> list[TryPrompt]:
    prompts: list[TryPrompt] = []
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for line_number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{source}, line {line_number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{where}: bad JSON: {error.msg} (column {error.colno}). "
                "A file that begins with { is read as one JSON object per line."
            ) from None
        if not isinstance(entry, dict):
            raise UserError(f"{where}: expected a JSON object, found {type(entry).__name__}.")
        prompts.append(_from_entry(entry, len(prompts) + 1, where))
    return prompts


def _from_entry(entry: object, number: int, where: str) -> TryPrompt:
    if isinstance(entry, str):
        if not entry.strip():
            raise UserError(f"{where}: the prompt is empty.")
        return _prompt(entry, number)
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: expected a string or an object, found {type(entry).__name__}.")
    key = next((key for key in _TEXT_KEYS if key in entry), None)
    if key is None:
        found = ", ".join(map(str, entry)) or "none"
        raise UserError(f"{where}: needs one of the keys {', '.join(_TEXT_KEYS)}; found {found}.")
    text = entry[key]
    if key == "turns" and isinstance(text, list) and text:
        text = text[0]
    if not isinstance(text, str) or not text.strip():
        wanted = "a list of strings that are not empty" if key == "turns" else "a string that is not empty"
        raise UserError(f"{where}: {key} must be {wanted}.")
    temperature = entry.get("temperature", 0.0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 100:
        raise UserError(f"{where}: temperature must be a number in [0, 100], got {temperature!r}.")
    name = entry.get("name", entry.get("question_id"))
    return _prompt(text, number, None if name is None else str(name), float(temperature))


def _prompt(text: str, number: int, name: str | None = None, temperature: float = 0.0) -> TryPrompt:
    return TryPrompt(name or f"prompt {number}", "user", text, temperature)
