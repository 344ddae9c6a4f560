"""The unit of an expression's value, as far as it can be told: through rates, quantiles, sums and conversions.

Owns the inference; the units of names are `agent.lint.facts_units`'s. What is not certain is None. A function that keeps the
unit of its argument is a row of `_KEEPS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from agent.lint.catalogue import PARTS, key_of, stem_of
from agent.lint.expressions import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Node,
    Number,
    Selector,
    Subquery,
    names,
    selectors,
)
from agent.lint.facts_units import CONVERSIONS, ENDINGS, RATES, RATIOS, SHARES, UNITS, Unit
from agent.lint.findings import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What an expression's value is: its unit, the metric it comes from, whether it is a sum over series (then it has no
    upper end), and whether it is a quantile of that metric's buckets (`buckets` is their name)."""

    unit: Unit
    name: str
    summed: bool = False
    buckets: str = ""


_KEEPS = frozenset(
    {
        *(
            "avg_over_time",
            "max_over_time",
            "min_over_time",
            "last_over_time",
            "first_over_time",
            "abs",
            "ceil",
            "floor",
        ),
        *("round", "sort", "sort_desc", "clamp", "clamp_max", "clamp_min", "label_replace", "label_join", "scalar"),
    }
)
_KEEPING_AGGREGATIONS = frozenset({"avg", "max", "min", "topk", "bottomk", "quantile", "sum"})


def unit_of_name(name: str) -> Unit | None:
    """The unit of a metric; of a histogram's part that of what it observes."""
    key = key_of(name)
    stem = stem_of(key)
    known = UNITS.get(key) or UNITS.get(stem)
    if known is not None:
        return known
    if stem.endswith("_ratio") and stem.startswith(RATIOS):
        return Unit.RATIO
    return next((unit for ending, unit in ENDINGS if stem.endswith(ending)), None)


def quantity(node: Node, judged: Judged, depth: int = 0) -> Quantity | None:
    """What an expression's value is; None where it cannot be told. Recorded names are followed."""
    if depth > 20:
        return None

    def inner(of: Node) -> Quantity | None:
        return quantity(of, judged, depth + 1)

    if isinstance(node, Selector):
        return _of_selector(node, judged, inner)
    if isinstance(node, Subquery):
        return inner(node.inner)
    if isinstance(node, Aggregate):
        found = inner(node.inner) if node.op in _KEEPING_AGGREGATIONS else None
        return replace(found, summed=True) if found and node.op == "sum" else found
    if isinstance(node, Call):
        return _of_call(node, inner)
    return _of_binary(node, inner) if isinstance(node, Binary) else None


Inner = Callable[[Node], Quantity | None]


def _of_selector(node: Selector, judged: Judged, inner: Inner) -> Quantity | None:
    if node.name in judged.recorded:
        return inner(judged.recorded[node.name])
    unit = unit_of_name(node.name) if node.name else None
    printed = judged.catalogue.printed.get(node.name)
    counted = printed.type in ("counter", "histogram", "summary") if printed else node.name.endswith(("_total", *PARTS))
    return None if unit is None or counted else Quantity(unit=unit, name=node.name)


def _of_call(node: Call, inner: Inner) -> Quantity | None:
    if node.name in _KEEPS and node.arguments:
        return inner(node.arguments[0])
    if node.name == "quantile_over_time":
        return inner(node.arguments[1])
    if node.name == "histogram_quantile":
        found = next((s.name for s in selectors(node) if s.name.endswith("_bucket")), "")
        unit = unit_of_name(found) if found else None
        return Quantity(unit=unit or Unit.COUNT, name=found.removesuffix("_bucket"), buckets=found) if found else None
    if node.name in ("rate", "irate"):
        found = next(iter(names(node)), "")
        rate = RATES.get(key_of(found))
        return Quantity(unit=rate, name=found) if rate else None
    return None


def _of_binary(node: Binary, inner: Inner) -> Quantity | None:
    return _BINARY[node.op](node, inner) if node.op in _BINARY else None


def _times(node: Binary, inner: Inner) -> Quantity | None:
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(other, Number):
            return converted(inner(side), other.value)
    return None


def _divided(node: Binary, inner: Inner) -> Quantity | None:
    if isinstance(node.right, Number):
        return converted(inner(node.left), 1 / node.right.value) if node.right.value else None
    if is_share(node, inner):
        return Quantity(unit=Unit.RATIO, name=min(names(node.left), default=""))
    mean = mean_of(node)
    if mean:
        unit = unit_of_name(mean)
        return Quantity(unit=unit, name=mean) if unit else None
    counts = isinstance(node.right, Aggregate) and node.right.op in ("count", "group")
    if counts and isinstance(node.left, Aggregate) and node.left.op == "sum":
        return inner(node.left.inner)
    return None


def is_share(node: Binary, inner: Inner) -> bool:
    """Whether a quotient is a part by its whole: known counters, or one gauge by a sum that it is in."""
    part, whole = names(node.left), names(node.right)
    if len(part) != 1:
        return False
    (one,) = part
    known = [w for p, w in SHARES if key_of(one).endswith(p)]
    if len(whole) == 1 and any(key_of(next(iter(whole))).endswith(w) for w in known):
        return same_shape(node) and (part != whole or _is_narrower(node))
    left = inner(node.left)
    adds = any(isinstance(found, Binary) and found.op == "+" for found in unwrapped(node.right))
    return left is not None and adds and one in whole and all(unit_of_name(name) is left.unit for name in whole)


def same_shape(node: Binary) -> bool:
    """Whether both sides ask for the same of their counters: the same functions over the same windows."""
    left, right = (frozenset(_shape(side)) for side in (node.left, node.right))
    return left == right


def _shape(node: Node) -> Iterator[str]:
    yield from (found.name for found in unwrapped(node) if isinstance(found, Call))
    for selector in selectors(node):
        yield selector.text.removeprefix(selector.name).rpartition("}")[2]


def _is_narrower(node: Binary) -> bool:
    """Whether the left side has the matchers of the right one and more."""
    left, right = ([frozenset(s.matchers) for s in selectors(side)] for side in (node.left, node.right))
    return len(left) == len(right) == 1 and left[0] > right[0]


def unwrapped(node: Node) -> tuple[Node, ...]:
    """The chain of aggregations and calls around what an expression is about, that included."""
    chain = [node]
    while True:
        last = chain[-1]
        if isinstance(last, Aggregate | Subquery):
            chain.append(last.inner)
        elif isinstance(last, Call) and len(last.arguments) == 1:
            chain.append(last.arguments[0])
        else:
            return tuple(chain)


def mean_of(node: Binary) -> str:
    """The histogram whose sum is divided by its count, or Triton's duration by its number; "" for any other quotient."""
    part, whole = names(node.left), names(node.right)
    if node.op != "/" or len(part) != 1 or len(whole) != 1:
        return ""
    (one,), (other,) = part, whole
    if one.endswith("_sum") and other == f"{one.removesuffix('_sum')}_count":
        return one.removesuffix("_sum")
    if (
        key_of(one).startswith("nv_inference_")
        and one.endswith("_duration_us")
        and key_of(other).startswith("nv_inference_")
    ):
        return one
    return ""


def _plus(node: Binary, inner: Inner) -> Quantity | None:
    left, right = inner(node.left), inner(node.right)
    same = left is not None and right is not None and left.unit is right.unit
    return replace(left, summed=True) if same and left is not None else None


def _minus(node: Binary, inner: Inner) -> Quantity | None:
    """A constant minus a ratio or percentage is one too: the share that is free."""
    right = inner(node.right)
    whole = {Unit.RATIO: 1.0, Unit.PERCENT: 100.0}
    if isinstance(node.left, Number) and right is not None and whole.get(right.unit) == node.left.value:
        return right
    return None


def _left(node: Binary, inner: Inner) -> Quantity | None:
    return None if node.to_bool else inner(node.left)


def _either(node: Binary, inner: Inner) -> Quantity | None:
    left, right = inner(node.left), inner(node.right)
    return left if left is not None and right is not None and left.unit is right.unit else None


_BINARY: Mapping[str, Callable[[Binary, Inner], Quantity | None]] = {
    "*": _times,
    "/": _divided,
    "+": _plus,
    "-": _minus,
    "or": _either,
    **dict.fromkeys(("and", "unless", *COMPARISONS), _left),
}


def converted(found: Quantity | None, factor: float) -> Quantity | None:
    """A quantity times a factor, where that is a conversion."""
    if found is None:
        return None
    unit = next((u for (of, by), u in CONVERSIONS.items() if of is found.unit and math.isclose(by, factor)), None)
    return None if unit is None else replace(found, unit=unit, buckets="")
