"""Write docs/benchmarks.md from result files.

    python -m benchmarks.write_docs benchmarks/results/*.json

The document holds nothing that is not in the files, so that it can be checked against them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import goodput, micro_tables, tables, turns

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
RESULTS = Path(__file__).resolve().parent / "results"

HEAD = """\
# Benchmarks

headstart beside its peers and the costs of its parts, written by `python -m benchmarks.write_docs` from the files in
`benchmarks/results`. How to measure:

```bash
python -m benchmarks.peers.make_env vllm llamacpp openvino   # optional; peers that are missing are named
make bench                                                   # both of the commands below
```

Only ratios within one run mean anything: these machines drift. Every prompt goes through every way before the next
prompt does, in a turning order, one process at work while the others are stopped. Token ids go in and come out, the
same for all; emitted ids are counted up to the end of sequence, and text is never tokenised again. Peers run with the
threads given and otherwise as they choose: precision of activations and of the KV cache is their own. The draft model
is the target's own first layers, untrained, so the ways that use it show the machinery rather than a gain.
"""


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.json")
    parser.add_argument("--to", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    options.to.write_text(document([json.loads(file.read_text()) for file in options.files]), encoding="utf-8")
    print(f"wrote {options.to}")


def document(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole document: runs beside peers first, then the parts."""
    titles = {"turns": "## Never slower", "goodput": "## Servers under load", "micro": "## The parts"}
    writers = {
        "peers": tables.everything,
        "turns": turns.tables,
        "goodput": goodput.tables,
        "micro": micro_tables.everything,
    }
    parts = [HEAD] if results else [HEAD, "No result is kept here yet.\n"]
    for kind, write in writers.items():
        for result in results:
            if result["kind"] == kind:
                parts.append(f"{titles.get(kind) or beside(result)}\n\n{write(result)}")
    return "\n".join(parts)


def beside(result: Mapping[str, Any]) -> str:
    """The title of a run of ways."""
    alone = all(way["name"].startswith("headstart ") for way in result["ways"])
    return "## headstart alone" if alone else "## Beside its peers"


if __name__ == "__main__":
    main()
