"""Thresholds of one rule that cannot be judged by: numbers that would divide by nothing, or that contradict each other.

Owns these checks of what a configuration says in place of the catalogue's numbers; that it is a number and not negative
says the schema. Without them the rule would fail at every turn. A new name that may not be so is an entry of its table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from rules.verdicts.rule import Rule

NEVER_ZERO = frozenset({"above", "allowed_share", "factor", "ratio", "share", "target"})
"""What something is divided by, or multiplied by into a limit of a histogram."""

AT_MOST_ONE = frozenset({"allowed_share", "busiest_hours", "fullest_hours", "median_share"})
"""Shares of what was counted."""

ORDERED = (("warning", "critical"), ("critical_below", "below"), ("above", "critical_above"))
"""Pairs of limits of which the first must not be above the second."""


def wrong_thresholds(rule: Rule, numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with `numbers` as thresholds of the rule: their names, "" for several together, and why."""
    for name, value in numbers.items():
        if name not in rule.thresholds or not _is_number(value):
            continue
        if not _is_finite(value):
            yield name, "must be a finite number"
        elif name in NEVER_ZERO and value == 0:
            yield name, "must be above 0"
        elif name in AT_MOST_ONE and value > 1:
            yield name, f"is a share: must be at most 1, not {value:g}"
    limits = {key: numbers.get(key, row.value) for key, row in rule.thresholds.items()}
    for lower, upper in ORDERED:
        low, high = limits.get(lower), limits.get(upper)
        if _is_number(low) and _is_number(high) and _is_finite(low) and _is_finite(high) and low > high:
            yield "", f"{lower} ({low}) must not be above {upper} ({high})"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    """Also of whole numbers that no float can hold."""
    return abs(value) <= sys.float_info.max
