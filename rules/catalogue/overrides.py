"""Overrides of thresholds by an installation: which are known, and which values make sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rules.catalogue.registry import CATALOGUE
from rules.plan.validation import Contradictions
from rules.problems import unknown_name_text

NEVER_ZERO = frozenset({"above", "allowed_share", "factor", "ratio", "share", "target"})
"""Thresholds used as a divisor, or as a factor of a histogram limit."""

AT_MOST_ONE = frozenset({"allowed_share", "busiest_hours", "fullest_hours"})
"""Thresholds that are a share of a count."""

MOST_RATIO = 10.0
"""Largest ratio that is meant as one: the catalogue's are at most 3, and more is a percentage."""

ORDERED = (
    ("warning", "critical"),
    *(("critical_below", "below"), ("above", "critical_above"), ("low", "high"), ("least_headroom", "most_headroom")),
)
"""Pairs of limits; the first must not exceed the second."""


def unknown_thresholds(rules: Any) -> Contradictions:
    """Yield the rules and thresholds of a tier that the catalogue lacks. The values may be of any type."""
    for rule, numbers in rules.items() if isinstance(rules, dict) else ():
        if rule not in CATALOGUE:
            yield (str(rule),), unknown_name_text(str(rule), tuple(CATALOGUE), "a rule")
            continue
        known = CATALOGUE[rule].thresholds
        for name in numbers if isinstance(numbers, dict) else ():
            if name not in known:
                yield (rule, str(name)), unknown_name_text(str(name), tuple(known), f"a threshold of {rule}")


def wrong_thresholds(rules: Mapping[str, Mapping[str, float]]) -> Contradictions:
    """Yield the problems of a tier's thresholds, by rule."""
    yield from unknown_thresholds(rules)
    for rule, numbers in rules.items():
        if rule not in CATALOGUE:
            continue
        thresholds = CATALOGUE[rule].thresholds
        limits = {name: numbers.get(name, threshold.value) for name, threshold in thresholds.items()}
        for name, value in numbers.items():
            if name not in limits:
                continue
            if name in NEVER_ZERO and value == 0:
                yield (rule, name), "must be above 0"
            elif name in AT_MOST_ONE and value > 1:
                yield (rule, name), f"is a share: must be at most 1, not {value:g}"
            elif thresholds[name].unit == "ratio" and value > MOST_RATIO:
                yield (rule, name), f"is a ratio: {value:g} % is written {value / 100:g}"
        for lower, upper in ORDERED:
            if lower in limits and upper in limits and limits[lower] > limits[upper]:
                yield (rule,), f"{lower} ({limits[lower]}) must not be above {upper} ({limits[upper]})"
