"""Reading calls of functions out of text that arrives in pieces.

    text <tool_call> {"name": "f", "arguments": {…}} </tool_call> text

Text outside calls is content, less the white space that only sets calls apart. What opens a call and turns out to be
none is content too, tag included: nothing is lost. Knows characters; not tokens, HTTP or which functions there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from headstart.serve.tools import CLOSE, OPEN

BLANK = " \n\r\t"


@dataclass(slots=True)
class CallPiece:
    """Part of the ``index``-th call. The first piece has ``id`` and ``name``; ``arguments`` is the next part of the
    JSON text of its arguments, as the model wrote it."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Piece = str | CallPiece
"""Content, or part of a call."""


class _At(Enum):
    TEXT = auto()
    CALL = auto()
    CLOSING = auto()
    """Behind the JSON of a call, before its closing tag."""
    GAP = auto()
    """Behind a call, in the white space there."""


class CallReader:
    """Splits text into content and calls. What it says depends on the text, not on how it was cut into pieces.

    A call is told as soon as its name and the beginning of its arguments are there; from then on it stays one, even if
    its arguments are cut off or turn out to be no JSON.

    Args:
        new_id: makes the id of a call.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.calls = 0
        """Calls told so far."""
        self._new_id = new_id
        self._at = _At.TEXT
        self._text = ""
        """What has come and is not decided yet."""
        self._call = _Call()
        self._told: int | None = None
        """How much of the call's arguments was told; ``None``: not even its name."""
        self._spoke = False
        self._out: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """Add text; returns what is certain now."""
        self._text += text
        return self._read(last=False)

    def finish(self) -> list[Piece]:
        """No more text will follow; returns what was held back."""
        return self._read(last=True)

    def _read(self, *, last: bool) -> list[Piece]:
        reading = True
        while reading:
            match self._at:
                case _At.TEXT:
                    reading = self._read_text(last)
                case _At.CALL:
                    reading = self._read_call(last)
                case _At.CLOSING:
                    reading = self._read_closing(last)
                case _At.GAP:
                    reading = self._read_gap(last)
        out, self._out = self._out, []
        return out

    def _read_text(self, last: bool) -> bool:
        before, tag, after = self._text.partition(OPEN)
        if tag:
            self._say(before.rstrip(BLANK))
            self._text, self._at, self._call, self._told = after, _At.CALL, _Call(), None
            return True
        # white space waits for what follows, and so does what may become a tag
        end = len(self._text)
        if not last:
            end = next(i for i in range(end + 1) if OPEN.startswith(self._text[i:]))
            end = len(self._text[:end].rstrip(BLANK))
        self._say(self._text[:end])
        self._text = self._text[end:]
        return False

    def _read_call(self, last: bool) -> bool:
        call = self._call
        self._text = call.read(self._text)
        if call.begun:
            self._tell()
        if call.over:
            self._at = _At.CLOSING
            return True
        if call.broken:
            return self._give_back()
        if last and not call.begun:
            self._give_back()
            self._read_text(last)
        return False

    def _read_closing(self, last: bool) -> bool:
        self._text = self._text.lstrip(BLANK)
        if self._text.startswith(CLOSE):
            self._text = self._text[len(CLOSE) :]
        elif CLOSE.startswith(self._text):
            if last:
                self._text = ""
            return False
        self._at = _At.GAP
        return True

    def _read_gap(self, last: bool) -> bool:
        rest = self._text.lstrip(BLANK)
        if rest:
            self._at = _At.TEXT
        if not self._spoke or (last and not rest):
            self._text = rest  # else it stands between two pieces of content
        return rest != ""

    def _give_back(self) -> bool:
        """It was no call: what was not told of it is content, and what follows is read as text."""
        raw = OPEN + self._call.raw if self._told is None else self._call.after_arguments
        self._say(raw)
        self._at = _At.TEXT
        return True

    def _tell(self) -> None:
        call = self._call
        if self._told is None:
            self._out.append(CallPiece(self.calls, self._new_id(), call.name, call.arguments))
            self.calls += 1
        elif len(call.arguments) > self._told:
            self._out.append(CallPiece(self.calls - 1, arguments=call.arguments[self._told :]))
        self._told = len(call.arguments)

    def _say(self, text: str) -> None:
        if text:
            self._spoke = True
            self._out.append(text)


class _Step(Enum):
    OPENING = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_NAME = auto()
    IN_ARGUMENTS = auto()
    NEXT = auto()
    OVER = auto()


class _Call:
    """The JSON of one call, character by character: ``name`` and ``arguments`` once each, in any order."""

    def __init__(self) -> None:
        self.raw = ""
        self.name: str | None = None
        self.arguments = ""
        self.broken = False
        self._arguments_end = 0
        self._step = _Step.OPENING
        self._key = ""
        self._string = ""
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def begun(self) -> bool:
        """Whether the name and the beginning of the arguments are there."""
        return self.name is not None and self.arguments != ""

    @property
    def after_arguments(self) -> str:
        """What came after the arguments."""
        return self.raw[self._arguments_end :]

    @property
    def over(self) -> bool:
        return self._step is _Step.OVER

    def read(self, text: str) -> str:
        """Take in text up to the end of the call, or up to what cannot belong to one; returns the rest."""
        for i, char in enumerate(text):
            if not self._take(char):
                return text[i:]
            self.raw += char
            if self.over:
                return text[i + 1 :]
        return ""

    def _take(self, char: str) -> bool:
        """Whether the character belongs to the call."""
        match self._step:
            case _Step.IN_KEY | _Step.IN_NAME:
                return self._in_string(char)
            case _Step.IN_ARGUMENTS:
                self._in_arguments(char)
                return True
        if char in BLANK:
            return True
        match self._step, char:
            case _Step.OPENING, "{":
                self._step = _Step.KEY
            case _Step.KEY, '"':
                self._step, self._string = _Step.IN_KEY, char
            case _Step.COLON, ":":
                self._step = _Step.VALUE
            case _Step.VALUE, '"' if self._key == "name" and self.name is None:
                self._step, self._string = _Step.IN_NAME, char
            case _Step.VALUE, "{" if self._key in ("arguments", "parameters") and not self.arguments:
                self._step, self.arguments, self._depth = _Step.IN_ARGUMENTS, char, 1
            case _Step.NEXT, ",":
                self._step = _Step.KEY
            case _Step.NEXT, "}" if self.name is not None:
                self._end()
            case _Step.NEXT, "<" if self.begun:  # the closing tag, one brace too early
                self._end()
                return False
            case _:
                self.broken = True
                return False
        return True

    def _in_string(self, char: str) -> bool:
        self._string += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            try:
                value = json.loads(self._string)
            except ValueError:
                self.broken = True
                return False
            if self._step is _Step.IN_KEY:
                self._step, self._key = _Step.COLON, value
            else:
                self._step, self.name = _Step.NEXT, value
        return True

    def _in_arguments(self, char: str) -> None:
        self.arguments += char
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = char == "\\"
            self._quoted = char != '"'
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._step, self._arguments_end = _Step.NEXT, len(self.raw) + 1

    def _end(self) -> None:
        self._step = _Step.OVER
        if not self.arguments:
            self.arguments = "{}"
