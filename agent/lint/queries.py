"""The metric and label names in one PromQL expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from agent.lint.rule_files import LintInputError

MAX_CHARACTERS = 20_000
MAX_STEPS = 800
"""Limit of operators and brackets. The parser recurses, and its stack overflows at about 5,000."""
_STEP = re.compile(r"[-+*/%^(]|[<>=!]=?|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|#[^\n]*")


@dataclass(frozen=True, slots=True)
class QueryNames:
    """Metric names of an expression, labels with the metrics that have them, and labels that the expression adds."""

    metrics: tuple[str, ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    added_labels: frozenset[str]


def read_query(text: str) -> QueryNames:
    """Return the names in an expression. Raise LintInputError for text that is not PromQL."""
    try:
        if len(text) > MAX_CHARACTERS or len(_STEP.findall(_QUOTED.sub("", text))) > MAX_STEPS:
            raise LintInputError("is no PromQL: too long or nested too deeply")
        nodes = tuple(walk_query(promql_parser.parse(text)))
    except ValueError as error:
        raise LintInputError(f"is no PromQL: {error}") from error
    except RecursionError:
        raise LintInputError("is no PromQL: too long or nested too deeply") from None
    uses = tuple(use for node in nodes for use in _label_uses(node))
    metrics = dict.fromkeys(name for node in nodes if (name := _metric(node)))
    return QueryNames(tuple(metrics), uses, frozenset(label for node in nodes for label in _added_labels(node)))


def walk_query(node: Any) -> Iterator[Any]:
    """Return every node of a parsed expression, the outermost first."""
    yield node
    inner = [getattr(node, part, None) for part in ("expr", "param", "lhs", "rhs", "vector_selector")]
    for child in (*inner, *getattr(node, "args", ())):
        if child is not None:
            yield from walk_query(child)


def _metric(node: Any) -> str:
    if not isinstance(node, promql_parser.VectorSelector):
        return ""
    named = (m.value for m in node.matchers.matchers if m.name == "__name__" and m.op == promql_parser.MatchOp.Equal)
    return str(node.name or next(named, ""))


def _label_uses(node: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    if metric := _metric(node):
        yield from ((matcher.name, (metric,)) for matcher in node.matchers.matchers)
    elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        metrics = tuple(name for inner in walk_query(node.expr) if (name := _metric(inner)))
        yield from ((label, metrics) for label in node.modifier.labels)


def _added_labels(node: Any) -> tuple[str, ...]:
    if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None:
        return tuple(node.modifier.group_labels or ())
    if isinstance(node, promql_parser.Call) and node.func.name in ("label_replace", "label_join"):
        return (getattr(node.args[1], "val", ""),)
    return ()
