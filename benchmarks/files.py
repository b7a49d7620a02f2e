"""Result files: whole or not at all, never over another, a row a line so that they stay small and can be compared."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.cli.files import check_writable


def text_of(result: Mapping[str, Any]) -> str:
    """JSON with the rows of ``result["rows"]``, if it has any, one a line."""
    rest = {name: value for name, value in result.items() if name != "rows"}
    text = json.dumps(rest, indent=1, ensure_ascii=False, allow_nan=False)
    if "rows" in result:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in result["rows"])
        text = f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}'
    return text + "\n"


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Under a temporary name first.

    Raises:
        InvalidParameter: the file is there, or cannot be written.
    """
    check_writable(path, force=False)
    handle, work = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text_of(result))
        os.chmod(work, 0o644)
        os.link(work, path)  # unlike a rename, refuses where the file has appeared in the meantime
    finally:
        os.unlink(work)
