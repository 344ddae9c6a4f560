"""From the text of a PromQL expression to records, by the `promql-parser` package.

Owns the only import of that package, so that whoever does not lint never loads it, and the limits within which it is safe. A
construct that it learns is a row of `_CONVERT`. Brackets are in the `text` of what is in them and nowhere else, and
constants are folded: `0.9 * 100` is the number 90.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import promql_parser

from agent.lint.expressions import Aggregate, Binary, Call, Matcher, Node, Number, Selector, Subquery, Text

MAX_CHARACTERS = 20_000
MAX_STEPS = 800
"""The package recurses, and its stack ends the process at some 5,000; Python's recursion ends at half of this."""
_STEP = re.compile(r"[-+*/%^(]|[<>=!]=?|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|#[^\n]*")


class BadExpression(Exception):
    """What is no PromQL, in the parser's own words."""


def parse(text: str) -> Node:
    """The expression. Raises BadExpression with the parser's message."""
    if len(text) > MAX_CHARACTERS:
        raise BadExpression(f"it is longer than {MAX_CHARACTERS} characters")
    if _steps(text) > MAX_STEPS:
        raise BadExpression("it is nested too deeply")
    try:
        return _converted(promql_parser.parse(text))
    except ValueError as error:
        raise BadExpression(str(error)) from error
    except RecursionError:
        raise BadExpression("it is nested too deeply") from None


def _steps(text: str) -> int:
    """An upper bound of how deep an expression is nested: its operators and brackets, but for those in quotes and comments."""
    return len(_STEP.findall(_QUOTED.sub("", text)))


def _converted(found: Any) -> Node:
    return _CONVERT[type(found)](found)


def _number(found: Any) -> Node:
    return Number(value=float(found.val), text=str(found))


def _bracketed(found: Any) -> Node:
    inner = _converted(found.expr)
    return replace(inner, text=f"({inner.text})")


_OPS: tuple[tuple[Any, str], ...] = (
    (promql_parser.MatchOp.Equal, "="),
    (promql_parser.MatchOp.NotEqual, "!="),
    (promql_parser.MatchOp.Re, "=~"),
    (promql_parser.MatchOp.NotRe, "!~"),
)


def _matcher_op(op: Any) -> str:
    return next(text for known, text in _OPS if known == op)


def _selector(found: Any) -> Selector:
    matchers = tuple(
        Matcher(label=str(m.name), op=_matcher_op(m.op), value=str(m.value)) for m in found.matchers.matchers
    )
    name = found.name or next((m.value for m in matchers if m.label == "__name__" and m.op == "="), "")
    kept = tuple(m for m in matchers if not (name and m.label == "__name__"))
    return Selector(name=name, matchers=kept, ranged=False, text=str(found.prettify()))


def _ranged(found: Any) -> Node:
    return replace(_selector(found.vector_selector), ranged=True, text=str(found.prettify()))


def _aggregate(found: Any) -> Node:
    modifier, op, inner = found.modifier, str(found.op), _converted(found.expr)
    without = modifier is not None and modifier.type == promql_parser.AggModifierType.Without
    labels = None if modifier is None else tuple(str(label) for label in modifier.labels)
    clause = "" if labels is None else f" {'without' if without else 'by'} ({', '.join(labels)}) "
    given = "" if found.param is None else f"{_converted(found.param).text}, "
    return Aggregate(op=op, inner=inner, labels=labels, without=without, text=f"{op}{clause}({given}{inner.text})")


def _call(found: Any) -> Node:
    name, arguments = str(found.func.name), tuple(map(_converted, found.args))
    return Call(name=name, arguments=arguments, text=f"{name}({', '.join(one.text for one in arguments)})")


def _negation(found: Any) -> Node:
    inner = _converted(found.expr)
    if isinstance(inner, Number):
        return Number(value=-inner.value, text=f"-{inner.text}")
    return Call(name="-", arguments=(inner,), text=f"-{inner.text}")


_FOLD: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}


def _folded(op: str, left: Node, right: Node) -> float | None:
    """What two constants come to; None for what is not constant, or infinite, or no number."""
    if not (isinstance(left, Number) and isinstance(right, Number) and op in _FOLD):
        return None
    try:
        return float(_FOLD[op](left.value, right.value))
    except (ArithmeticError, TypeError):
        return None


def _binary(found: Any) -> Node:
    op, left, right = str(found.op), _converted(found.lhs), _converted(found.rhs)
    modifier = found.modifier
    text = f"{left.text} {op}{_modified(modifier)} {right.text}"
    folded = _folded(op, left, right)
    if folded is not None:
        return Number(value=folded, text=text)
    return Binary(
        op=op,
        left=left,
        right=right,
        brought=() if modifier is None else tuple(modifier.group_labels or ()),
        to_bool=modifier is not None and bool(modifier.return_bool),
        text=text,
    )


def _modified(modifier: Any) -> str:
    """What stands between the operator and its right side."""
    if modifier is None:
        return ""
    parts = [" bool"] if modifier.return_bool else []
    matching, card = modifier.matching, modifier.card
    if matching is not None:
        word = "on" if matching.type == promql_parser.LabelModifierType.Include else "ignoring"
        parts.append(f" {word} ({', '.join(matching.labels)})")
    sides = (
        (promql_parser.VectorMatchCardinality.ManyToOne, "group_left"),
        (promql_parser.VectorMatchCardinality.OneToMany, "group_right"),
    )
    parts += [f" {word} ({', '.join(modifier.group_labels or ())})" for side, word in sides if card == side]
    fill = modifier.fill_values
    parts += [
        f" fill_{side} ({value:g})" for side, value in (("left", fill.lhs), ("right", fill.rhs)) if value is not None
    ]
    return "".join(parts)


def _subquery(found: Any) -> Node:
    return Subquery(inner=_converted(found.expr), text=" ".join(str(found.prettify()).split()))


_CONVERT: Mapping[Any, Callable[[Any], Node]] = {
    promql_parser.NumberLiteral: _number,
    promql_parser.StringLiteral: lambda found: Text(value=str(found.val), text=str(found)),
    promql_parser.VectorSelector: _selector,
    promql_parser.MatrixSelector: _ranged,
    promql_parser.AggregateExpr: _aggregate,
    promql_parser.Call: _call,
    promql_parser.SubqueryExpr: _subquery,
    promql_parser.UnaryExpr: _negation,
    promql_parser.BinaryExpr: _binary,
    promql_parser.ParenExpr: _bracketed,
}
