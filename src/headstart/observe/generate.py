"""Writes what is made from the table of names: ``python -m headstart.observe.generate docs``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from headstart.observe.dashboard import dashboard_json
from headstart.observe.reference import reference_markdown
from headstart.observe.rules import rules_yaml

FILES: dict[str, Callable[[], str]] = {
    "metrics.md": reference_markdown,
    "observability/rules.yml": rules_yaml,
    "observability/dashboard.json": dashboard_json,
}
"""Path below the folder of documentation, and what makes the file."""


def main(folder: Path) -> None:
    """Write all files below ``folder``."""
    for name, make in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
