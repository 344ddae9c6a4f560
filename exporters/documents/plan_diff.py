"""Differences of two plans and their cost, in words.

The module serves `sizewatch plan diff` and the last section of the report. Keys keep their names, as in the file. A key
with a better word is a row of WORDS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rules.plan.curve import operating_point
from rules.plan.money import amount, cost_per_day, price_of
from rules.plan.schema import Plan, TierPlan
from rules.telemetry.wording import format_count

WORDS: Mapping[str, str] = {
    "fleet.instances": "replicas",
    "fleet.safety_factor": "safety factor",
    "fleet.minimum_warm": "replicas always warm",
    "workload.requests_per_second.peak": "peak requests per second",
    "workload.requests_per_second.average": "average requests per second",
    "workload.prompt_tokens.mean": "prompts, mean tokens",
    "workload.prompt_tokens.p50": "prompts, P50 tokens",
    "workload.prompt_tokens.p95": "prompts, P95 tokens",
    "workload.prompt_tokens.p99": "prompts, P99 tokens",
    "workload.generation_tokens.mean": "outputs, mean tokens",
    "workload.generation_tokens.p50": "outputs, P50 tokens",
    "workload.generation_tokens.p95": "outputs, P95 tokens",
    "workload.generation_tokens.p99": "outputs, P99 tokens",
    "workload.prefix_hit_ratio": "prefix cache hits",
    "workload.archetype": "kind of traffic",
    "slo.ttft_p99_seconds": "TTFT P99 objective, s",
    "slo.tpot_p99_seconds": "TPOT P99 objective, s",
    "slo.itl_p99_seconds": "ITL P99 objective, s",
    "slo.e2e_p99_seconds": "E2E P99 objective, s",
    "slo.availability": "promised availability",
    "cost.gpu_hour_price": "price of a GPU-hour",
    "gpu.per_replica": "GPUs a replica",
    "guardrails.max_prompt_tokens": "longest prompt let in, tokens",
    "guardrails.max_generation_tokens": "longest output allowed, tokens",
    "guardrails.queue_breaker": "queued requests at which load is shed",
}
"""Words for keys in a sentence. Other keys appear as their path."""


def plan_diff(before: Plan, after: Plan) -> tuple[str, ...]:
    """Return a sentence per change, by tier in the order of `before`. Return nothing for equal plans."""
    lines: list[str] = []
    for name in (*before.tiers, *(tier for tier in after.tiers if tier not in before.tiers)):
        lines += tier_diff(name, before.tiers.get(name), after.tiers.get(name))
    return tuple(lines)


def tier_diff(name: str, before: TierPlan | None, after: TierPlan | None) -> tuple[str, ...]:
    """Return the changes of a tier. None marks a plan without the tier."""
    if before is None or after is None:
        if before is None and after is None:
            return ()
        what, tier = ("is new", after) if before is None else ("is gone", before)
        return (f"{name}: the tier {what}{_bill(tier)}",)
    old, new = _flat(before), _flat(after)
    lines = []
    for key in (*old, *(key for key in new if key not in old)):
        if old.get(key) != new.get(key):
            lines.append(f"{name}: {_changed(key, old.get(key), new.get(key))}")
    lines += [f"{name}: {line}" for line in (*_curve(before, after), *_cost(before, after))]
    return tuple(lines)


def _bill(tier: TierPlan | None) -> str:
    if tier is None or tier.fleet is None:
        return ""
    return f", {format_count(tier.fleet.instances, 'replica')}, {cost_per_day(tier.fleet.instances, price_of(tier))}"


def _flat(tier: TierPlan) -> dict[str, Any]:
    """Return the plan's values by dotted path, without the curve, which is compared as a whole."""
    whole = tier.model_dump(mode="json", exclude={"curve"}, exclude_none=True)

    def walk(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for key, value in part.items():
            if isinstance(value, dict):
                yield from walk(value, f"{path}{key}.")
            else:
                yield f"{path}{key}", value

    return dict(walk(whole, ""))


def _changed(key: str, old: Any, new: Any) -> str:
    word = WORDS.get(key, key)
    if old is None:
        return f"{word}: {_text(new)}, not given before"
    if new is None:
        return f"{word}: {_text(old)} before, not given any more"
    numbers = isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(new, bool) and old
    return f"{word}: {_text(old)} -> {_text(new)}" + (f" ({new / old - 1:+.0%})" if numbers else "")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _curve(before: TierPlan, after: TierPlan) -> Iterator[str]:
    if before.curve == after.curve:
        return
    points = [len(plan.curve.points) if plan.curve else 0 for plan in (before, after)]
    moved = (
        f"{points[0]} -> {points[1]} points" if points[0] != points[1] else f"other values at its {points[0]} points"
    )
    yield f"benchmark curve: {moved}"
    usable = [point.usable_rps if (point := operating_point(plan)) else None for plan in (before, after)]
    if usable[0] != usable[1]:
        texts = ["not known" if value is None else f"{value:.3g}" for value in usable]
        yield f"usable requests per second and replica: {texts[0]} -> {texts[1]}"


def _cost(before: TierPlan, after: TierPlan) -> Iterator[str]:
    """Yield the change of the fleet's cost per day."""
    if before.fleet is None or after.fleet is None:
        return
    old, new = (cost_per_day(plan.fleet.instances, price_of(plan)) for plan in (before, after) if plan.fleet)
    if old == new:
        return
    line = f"cost: {old} -> {new}"
    prices = [plan.cost for plan in (before, after)]
    if prices[0] is not None and prices[1] is not None and prices[0].currency == prices[1].currency:
        paid = [
            plan.fleet.instances * plan.gpu.per_replica * 24 * cost.gpu_hour_price
            for plan, cost in zip((before, after), prices, strict=True)
            if plan.fleet and cost
        ]
        apart, currency = abs(paid[1] - paid[0]), prices[0].currency
        which, more = ("saves", "") if paid[1] < paid[0] else ("costs", " more")
        line += f": {which} {amount(apart, currency)} a day{more}, {amount(apart * 365, currency)} a year"
    yield line
