"""The table of names, and all that is made from it: the files in docs are current, the queries parse and exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from headstart.observe import names
from headstart.observe.dashboard import SECTIONS
from headstart.observe.generate import FILES, main
from headstart.observe.names import METRICS, label_names
from headstart.observe.reference import GROUPS, reference_markdown
from headstart.observe.rules import ALERTS, recordings

DOCS = Path(__file__).resolve().parents[2] / "docs"
OF_VLLM = {
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds",
}
QUERIES = [
    *(query for _, panels in SECTIONS for panel in panels for query, _ in panel.queries),
    *(expression for _, _, expression in recordings()),
    *(alert.expression for alert in ALERTS),
]


def test_names_are_well_formed_and_differ() -> None:
    exposed = [metric.name for metric in METRICS]
    assert len(set(exposed)) == len(exposed)
    for metric in METRICS:
        assert re.fullmatch(r"headstart_[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert label_names(metric, False)[0] == names.MODEL
        assert label_names(metric, True)[-1] == (names.ROUTE if metric.routed else label_names(metric, False)[-1])
    assert {f"headstart_{suffix}" for suffix in OF_VLLM} <= set(exposed)


@pytest.mark.parametrize("file", FILES)
def test_files_made_from_the_table_are_current(file: str) -> None:
    made = FILES[file]()
    assert (DOCS / file).read_text("utf-8") == made, "run: python -m headstart.observe.generate docs"


def test_the_generator_writes_what_is_checked(tmp_path: Path) -> None:
    main(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == set(FILES)


@pytest.mark.parametrize("query", QUERIES)
def test_queries_parse_and_ask_for_what_exists(query: str) -> None:
    promql_parser.parse(query.replace("$__rate_interval", "5m"))
    known = {name for m in METRICS for name in (m.name, *(m.name + s for s in ("_bucket", "_sum", "_count")))}
    assert set(re.findall(r"headstart_\w+", query)) <= known
    by_name = {metric.name: metric for metric in METRICS}
    for name, selector in re.findall(r"(headstart_\w+)\{([^}]*)\}", query):
        metric = by_name.get(re.sub(r"_(bucket|sum|count)$", "", name)) or by_name[name]
        asked = set(re.findall(r"(\w+)!?=~?\"", selector)) - {"instance", "job"}
        assert asked <= set(label_names(metric, True)), name


def test_the_rules_are_a_rule_file() -> None:
    groups = yaml.safe_load(FILES["observability/rules.yml"]())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(ALERTS) + len(recordings())
    assert {rule["labels"]["severity"] for rule in rules if "alert" in rule} <= {"info", "warning", "critical"}
    recorded = [(rule["record"], rule["labels"]["engine_kind"]) for rule in rules if "record" in rule]
    assert len(set(recorded)) == len(recorded)
    assert all(rule["annotations"]["summary"] for rule in rules if "alert" in rule)


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    board = json.loads(FILES["observability/dashboard.json"]())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    shown = {name for panel in board["panels"] for t in panel.get("targets", []) for name in _asked(t["expr"])}
    assert {names.EMITTED.name, names.ROUNDS.name, names.FALLBACKS.name, names.KV_USED.name} <= shown


def test_every_metric_is_in_the_reference_once() -> None:
    text = reference_markdown()
    for metric in METRICS:
        assert text.count(f"\n| `{metric.name}` | {metric.kind} |") == 1
    assert GROUPS[0][1] is METRICS[0]


def _asked(query: str) -> set[str]:
    return set(re.findall(r"headstart_\w+", query))
