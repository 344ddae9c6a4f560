"""Rows and panels of a dashboard's JSON; nodes, metric names and labels of its PromQL."""

from collections.abc import Iterator
from typing import Any

from promql_parser import AggregateExpr, BinaryExpr, Call, MatchOp, VectorSelector, parse


def walk_query(node: Any) -> Iterator[Any]:
    """Return every node of a parsed expression, the outermost first."""
    yield node
    inner = [getattr(node, part, None) for part in ("expr", "param", "lhs", "rhs", "vector_selector")]
    for child in (*inner, *getattr(node, "args", ())):
        if child is not None:
            yield from walk_query(child)


def read_metrics(node: Any) -> tuple[str, ...]:
    """Return the metric names of a parsed expression, each once."""
    return tuple(dict.fromkeys(name for inner in walk_query(node) if (name := _metric(inner))))


def read_labels(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the labels of an expression that it does not add itself, each with the metrics that must have it."""
    nodes = tuple(walk_query(parse(text)))
    added = {label for node in nodes for label in _added_labels(node)}
    for node in nodes:
        if metric := _metric(node):
            yield from ((matcher.name, (metric,)) for matcher in node.matchers.matchers if matcher.name != "__name__")
        elif isinstance(node, AggregateExpr) and node.modifier is not None:
            metrics = read_metrics(node.expr)
            yield from ((label, metrics) for label in node.modifier.labels if label not in added)


def _metric(node: Any) -> str:
    if not isinstance(node, VectorSelector):
        return ""
    named = (m.value for m in node.matchers.matchers if m.name == "__name__" and m.op == MatchOp.Equal)
    return str(node.name or next(named, ""))


def _added_labels(node: Any) -> tuple[str, ...]:
    if isinstance(node, BinaryExpr) and node.modifier is not None:
        return tuple(node.modifier.group_labels or ())
    if isinstance(node, Call) and node.func.name in ("label_replace", "label_join"):
        return (getattr(node.args[1], "val", ""),)
    return ()


def list_panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every row and panel of a dashboard, those of folded rows too."""
    return [one for row in model["panels"] for one in (row, *row.get("panels", ()))]
