"""The committed document says what the committed result files say, and nothing else."""

from __future__ import annotations

import json

from benchmarks.write_docs import DOCUMENT, RESULTS, document


def test_the_document_is_what_the_results_yield() -> None:
    results = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    assert DOCUMENT.read_text() == document(results), (
        "docs/benchmarks.md is out of date: run python -m benchmarks.write_docs benchmarks/results/*.json"
    )
