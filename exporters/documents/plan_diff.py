"""Differences of two plans and their cost, in words.

The module serves `sizewatch plan diff` and the last section of the report. A key is named by the end of its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rules.plan.curve import operating_point
from rules.plan.money import amount, cost_per_day, money_per_day, price_of
from rules.plan.schema import Plan, TierPlan
from rules.telemetry.wording import format_count, number


def plan_diff(before: Plan, after: Plan) -> tuple[str, ...]:
    """Return a sentence per change, by tier in the order of `before`. Return nothing for equal plans."""
    lines: list[str] = []
    for name in dict.fromkeys((*before.tiers, *after.tiers)):
        lines += tier_diff(name, before.tiers.get(name), after.tiers.get(name))
    return tuple(lines)


def tier_diff(name: str, before: TierPlan | None, after: TierPlan | None) -> tuple[str, ...]:
    """Return the changes of a tier. None marks a plan without the tier."""
    if before and after:
        changes = (*_values(before, after), *_curve(before, after), *_cost(before, after))
    elif after:
        changes = (f"the tier is new{_bill(after)}",)
    elif before:
        changes = (f"the tier is gone{_bill(before)}",)
    else:
        changes = ()
    return tuple(f"{name}: {change}" for change in changes)


def _bill(tier: TierPlan) -> str:
    if tier.fleet is None:
        return ""
    return f", {format_count(tier.fleet.instances, 'replica')}, {cost_per_day(tier.fleet.instances, price_of(tier))}"


def _values(before: TierPlan, after: TierPlan) -> Iterator[str]:
    """Yield the changed values. The curve is compared as a whole."""
    old, new = (
        dict(_flatten(tier.model_dump(mode="json", exclude={"curve"}, exclude_none=True))) for tier in (before, after)
    )
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            words = " ".join(key.split(".")[-2:]).replace("_", " ")
            yield f"{words}: {_change(old.get(key), new.get(key))}"


def _flatten(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _change(old: Any, new: Any) -> str:
    if old is None:
        return f"{_text(new)}, not given before"
    if new is None:
        return f"{_text(old)} before, not given any more"
    text = f"{_text(old)} -> {_text(new)}"
    is_number = isinstance(old, int | float) and not isinstance(new, bool | str)
    return f"{text} ({new / old - 1:+.0%})" if is_number and old else text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _curve(before: TierPlan, after: TierPlan) -> Iterator[str]:
    if before.curve == after.curve:
        return
    counts, usable = [], []
    for plan in (before, after):
        point = operating_point(plan)
        counts.append(len(plan.curve.points) if plan.curve else 0)
        usable.append(number(point.usable_rps, "") if point else "not known")
    yield f"benchmark curve: other values, {counts[0]} -> {counts[1]} points"
    if usable[0] != usable[1]:
        yield f"usable requests per second and replica: {usable[0]} -> {usable[1]}"


def _cost(before: TierPlan, after: TierPlan) -> Iterator[str]:
    """Yield the change of the fleet's cost per day."""
    texts, paid, currencies = [], [], set()
    for plan in (before, after):
        if plan.fleet is None:
            return
        price = price_of(plan)
        texts.append(cost_per_day(plan.fleet.instances, price))
        paid.append(money_per_day(plan.fleet.instances, price))
        currencies.add(price.currency)
    if texts[0] == texts[1]:
        return
    line = f"cost: {texts[0]} -> {texts[1]}"
    if paid[0] is not None and paid[1] is not None and len(currencies) == 1:
        apart, currency = abs(paid[1] - paid[0]), currencies.pop()
        change = "less" if paid[1] < paid[0] else "more"
        line += f": {amount(apart, currency)} a day {change}, {amount(apart * 365, currency)} a year"
    yield line
