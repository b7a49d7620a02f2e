"""What has been measured so far, one JSON object a line, so that an interrupted run can go on.

A line is a session's beginning or one finished item: all ways of an item are in one line, hence in one session, and
only within a session do ratios mean anything. A line cut off by a crash is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class JournalError(Exception):
    """The journal cannot be used; the text says what to do."""


class Journal:
    """Opened for appending.

    Args:
        path: the file.
        settings: what must agree between sessions.
        resume: whether to go on with a file that exists.

    Raises:
        JournalError: the file exists and ``resume`` is off, or it was written with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        if path.exists() and not resume:
            raise JournalError(f"{path} exists: add --resume to go on with it, or name another file with --json")
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = list(read(path))
            for line in self.lines:
                if line["kind"] == "session" and line["settings"] != json.loads(json.dumps(settings)):
                    changed = [k for k, v in line["settings"].items() if settings.get(k) != v]
                    raise JournalError(
                        f"{path} was written with other settings ({', '.join(changed) or 'new ones'}); "
                        "use the same options, or name another file with --json"
                    )
            path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        self.settings = dict(settings)
        self._file = path.open("a", encoding="utf-8")

    def begin(self, **about: Any) -> int:
        """Note a new session and return its number, from 0."""
        number = len(self.sessions)
        self._append({"kind": "session", "settings": self.settings, **about})
        return number

    def end(self, session: int, **about: Any) -> None:
        """Note what is known only when a session is over."""
        self._append({"kind": "end", "session": session, **about})

    def add(self, workload: str, item: str, session: int, runs: Mapping[str, Any]) -> None:
        """Note a finished item; on disk when this returns."""
        self._append({"kind": "item", "workload": workload, "item": item, "session": session, "runs": dict(runs)})

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """Beginnings, each with what was known at its end."""
        found = [dict(line) for line in self.lines if line["kind"] == "session"]
        for line in self.lines:
            if line["kind"] == "end":
                found[line["session"]] |= {k: v for k, v in line.items() if k not in ("kind", "session")}
        return found

    @property
    def items(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == "item"]

    def done(self) -> set[tuple[str, str]]:
        """``(workload, item)`` of every finished item."""
        return {(line["workload"], line["item"]) for line in self.items}

    def close(self) -> None:
        self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        line = json.loads(json.dumps(line))
        self.lines.append(line)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a journal."""
    for text in path.read_text(encoding="utf-8").split("\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and line.get("kind") in ("session", "item", "end"):
            yield line
