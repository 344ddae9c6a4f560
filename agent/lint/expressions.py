"""PromQL expressions as plain records, and how to walk them.

Owns the records. They are made by `agent.lint.promql`. It knows no metric and no parser. A kind of expression more is a record
here, a part of `Node` and, where it holds others, a branch of `children`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = frozenset({">", ">=", "<", "<=", "==", "!="})
SET_OPERATIONS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One label matcher: `op` is one of =, !=, =~, !~."""

    label: str
    op: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number, or what constants come to."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string argument."""

    value: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Series by name and labels; `ranged` with a range ([5m]). `name` is empty where no matcher names the metric."""

    name: str
    matchers: tuple[Matcher, ...]
    ranged: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """An aggregation. `without` tells what `labels` are; None stands for no clause at all."""

    op: str
    inner: Node
    labels: tuple[str, ...] | None
    without: bool
    text: str

    def keeps(self, label: str) -> bool:
        """Whether a label of the inner series is on the result."""
        if self.labels is None:
            return self.op in ("topk", "bottomk", "limitk", "limit_ratio")
        return (label in self.labels) != self.without


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function call; a unary minus is a call of "-"."""

    name: str
    arguments: tuple[Node, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subquery:
    """An expression over a range: `x[1h:5m]`."""

    inner: Node
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """An operation of two. `brought` are the labels of group_left or group_right, `to_bool` says that it gives 0 or 1."""

    op: str
    left: Node
    right: Node
    brought: tuple[str, ...]
    to_bool: bool
    text: str


Node = Number | Text | Selector | Aggregate | Call | Subquery | Binary


def children(node: Node) -> tuple[Node, ...]:
    """The expressions right inside one."""
    if isinstance(node, Aggregate | Subquery):
        return (node.inner,)
    if isinstance(node, Binary):
        return (node.left, node.right)
    return node.arguments if isinstance(node, Call) else ()


def walk(node: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every expression within one, itself first, each with those around it, the innermost last."""
    yield node, above
    for child in children(node):
        yield from walk(child, (*above, node))


def selectors(node: Node) -> tuple[Selector, ...]:
    """Every selector within an expression."""
    return tuple(found for found, _ in walk(node) if isinstance(found, Selector))


def names(node: Node) -> frozenset[str]:
    """Every metric name within an expression."""
    return frozenset(selector.name for selector in selectors(node) if selector.name)


def matched_names(node: Node) -> tuple[Matcher, ...]:
    """Matchers on the metric's name itself, of selectors that have no plain name."""
    return tuple(m for s in selectors(node) if not s.name for m in s.matchers if m.label == "__name__")
