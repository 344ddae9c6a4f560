"""The panels' queries: two parsers take them, they read what is exported, and no tier is added to another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from promql import list_panels, read_labels, read_metrics, walk_query
from promql_parser import AggModifierType, AggregateExpr, Call, MatrixSelector, VectorSelector, parse
from promtool import complaints

from exporters.grafana.dashboards import DASHBOARDS, dashboard_json
from exporters.metrics import names
from rules.telemetry.families import FamilyKind

VALUES = {"cluster": ".*", "model": ".*", "tier": "t", "replica": ".*", "instance": ".*", "__rate_interval": "2m"}

METRICS = names.ALL
KINDS = {metric.name: metric.kind for metric in METRICS}
PARTS = ("_bucket", "_sum", "_count")


def expanded(expr: str) -> str:
    """With a value for each of Grafana's variables; KeyError for one that is not known."""
    return re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], expr)


def queries() -> Iterator[tuple[str, str, str]]:
    """Dashboard, panel or mark, and expression."""
    for dashboard in DASHBOARDS:
        model: dict[str, Any] = dashboard_json(dashboard)
        for panel in list_panels(model):
            yield from ((dashboard.uid, panel["title"], target["expr"]) for target in panel.get("targets", ()))
        yield from ((dashboard.uid, mark["name"], mark["expr"]) for mark in model["annotations"]["list"])


QUERIES = tuple(queries())


def nodes(expr: str) -> Iterator[Any]:
    """The expression and everything in it."""
    return walk_query(parse(expanded(expr)))


def named(expr: str) -> Iterable[str]:
    return read_metrics(parse(expanded(expr)))


def base(name: str) -> str:
    """The metric of a part of a histogram; the name itself of everything else."""
    stem = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
    return stem if KINDS.get(stem) is FamilyKind.HISTOGRAM else name


def test_promtool_takes_every_query(tmp_path: Path) -> None:
    file = tmp_path / "queries.yaml"
    rules = [{"record": f"q:{n}:x", "expr": expanded(expr)} for n, (_, _, expr) in enumerate(QUERIES)]
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    assert len(QUERIES) > 120
    assert complaints(file) == ""


def test_a_query_reads_only_what_sizewatch_exports() -> None:
    for uid, title, expr in QUERIES:
        assert {base(name) for name in named(expr)} <= set(KINDS), (uid, title)


def test_query_names_labels_of_its_metrics() -> None:
    """Prometheus adds `cluster` and `instance`, and buckets have `le`."""
    labels = {metric.name: {*metric.labels, "cluster", "instance"} for metric in names.ALL}
    for uid, title, expr in QUERIES:
        for label, metrics in read_labels(expanded(expr)):
            known = [
                labels[base(name)] | {"le"} if name.endswith("_bucket") else labels[base(name)] for name in metrics
            ]
            assert any(label in each for each in known), (uid, title, label)


def test_only_counters_are_read_as_rates() -> None:
    for uid, title, expr in QUERIES:
        ranged = {node.vector_selector.name for node in nodes(expr) if isinstance(node, MatrixSelector)}
        for name in named(expr):
            counts = name.endswith(PARTS) or KINDS[base(name)] is FamilyKind.COUNTER
            assert (name in ranged) == counts, (uid, title, name)


def test_no_aggregation_loses_the_tier() -> None:
    """Sums over agents' own health, which has no tier, are the exception."""
    for uid, title, expr in QUERIES:
        for node in nodes(expr):
            if not isinstance(node, AggregateExpr):
                continue
            read = {base(name) for name in read_metrics(node.expr)}
            if not any("tier" in metric.labels for metric in METRICS if metric.name in read):
                assert uid == "sizewatch-itself"
                continue
            assert node.modifier is not None, (uid, title)
            without = node.modifier.type == AggModifierType.Without
            assert ("tier" in node.modifier.labels) != without, (uid, title)


def test_quantiles_keep_tier_and_release() -> None:
    """Other releases may have other bucket edges: their buckets must not be added up."""
    found = 0
    for uid, title, expr in QUERIES:
        for node in nodes(expr):
            if isinstance(node, Call) and node.func.name == "histogram_quantile":
                found += 1
                buckets = node.args[1]
                assert isinstance(buckets, AggregateExpr), (uid, title)
                assert {"tier", "engine", "engine_version", "le"} <= set(buckets.modifier.labels), (uid, title)
                assert (str(buckets.op), buckets.modifier.type == AggModifierType.By) == ("sum", True)
    assert found > 12


def test_every_number_is_about_the_chosen_tiers() -> None:
    """A selector without the variable would show tiers that nobody asked for: a pattern does so where one is chosen."""
    for uid, title, expr in QUERIES:
        assert uid == "sizewatch-fleet" or 'tier=~"' not in expr, (uid, title)
        if uid == "sizewatch-itself":
            continue
        for node in nodes(expr):
            if isinstance(node, VectorSelector):
                assert {"cluster", "tier"} <= {one.name for one in node.matchers.matchers}, (uid, title, node.name)


def test_every_planned_number_is_shown() -> None:
    shown = {base(name) for _, _, expr in QUERIES for name in named(expr)}
    planned = {metric.name for metric in names.OWN if metric.name.startswith("sizewatch_plan_")}
    assert planned <= shown
