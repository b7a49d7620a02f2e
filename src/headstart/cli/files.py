"""Reading a text, and writing a result file whole or not at all and never over another one unasked. Knows paths, text
and JSON only."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import InvalidParameter


def read_text(option: str, path: Path) -> str:
    """The text of a file that ``option`` names.

    Raises:
        InvalidParameter: it cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InvalidParameter(option, f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidParameter(option, f"{path} is no UTF-8 text ({error.reason} at byte {error.start})") from error


def check_writable(path: Path | None, force: bool) -> None:
    """Refuse before the work what would fail after it.

    Raises:
        InvalidParameter: the file exists and ``force`` is off, or its folder does not exist or cannot be written.
    """
    if path is None:
        if force:
            raise InvalidParameter("--force", "there is no file to overwrite without --json")
        return
    if path.is_dir():
        raise InvalidParameter("--json", f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise InvalidParameter("--json", f"{path} exists; name another file or add --force to overwrite it")
    folder = path.parent
    if not folder.is_dir():
        raise InvalidParameter("--json", f"the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK):
        raise InvalidParameter("--json", f"the folder {folder} cannot be written; name another place")


def write_json(path: Path, content: Mapping[str, Any], force: bool) -> None:
    """Write ``content`` under a temporary name and give it its own when whole.

    Raises:
        InvalidParameter: the file appeared in the meantime and ``force`` is off, or the disk refuses.
    """
    check_writable(path, force)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    work: str | None = None
    try:
        handle, work = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(work, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(work, path)
        work = None
    except OSError as error:
        raise InvalidParameter("--json", f"{path} cannot be written ({error.strerror})") from error
    finally:
        if work is not None and os.path.exists(work):
            os.unlink(work)
