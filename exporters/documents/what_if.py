"""Text and JSON of `sizewatch whatif`: result, load, the benchmark's curve, money, first limit and assumptions.

docs/what-if.md describes every key. A changed meaning raises SCHEMA. A new quantity or limit needs a row here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import RenderableType

from exporters.documents.forecast import describe_count
from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import QUANTITIES, copy_fields, format_local, format_reading, json_fields
from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.curve import LIMITED
from rules.plan.money import amount, figure
from rules.resize.fleet_cost import FleetCost
from rules.resize.production_summary import SloStatus
from rules.resize.proposal import KV
from rules.telemetry.signals import Missing
from rules.telemetry.windows import DAY_SECONDS
from rules.telemetry.wording import format_count, number
from rules.telemetry.work import SAME
from rules.what_if.answer import GIVEN, SLO, CapacityLimit, PoolsWhatIf, WhatIf

SCHEMA = 4

LIMITS: Mapping[str, str] = {SLO: "the SLO", GIVEN: "the plan's operating point"}
"""Display name of a limit that is not a quantity's."""

HOLDS: Mapping[SloStatus, str] = {
    SloStatus.KEPT: "would hold",
    SloStatus.LIKELY_KEPT: "would likely hold",
    SloStatus.LIKELY_BROKEN: "would likely break",
    SloStatus.BROKEN: "would break",
    **dict.fromkeys((SloStatus.TOO_FEW, SloStatus.NOT_KNOWN), "may or may not hold"),
}

USE = ("utilization", "utilization_one_lost")
MONEY = ("gpu_hours_per_hour", "money_per_hour", "money_per_month", "per_million_tokens")
"""Computed numbers of a count and of a cost in the JSON."""

ASSUMED = "Assumed: load spread evenly; requests and engine as at the peak; traffic of other hours grows as the peak."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedLimit:
    """Limit in words, and where the asked replicas meet it (None: not known).

    `rps` is the tier's load there, `headroom` its distance (0.25: a quarter more), `fewest_replicas` stay within it.
    """

    limit: CapacityLimit
    words: str
    rps: float | None = None
    headroom: float | None = None
    fewest_replicas: int | None = None


def reach_limit(what_if: WhatIf, limit: CapacityLimit) -> ReachedLimit:
    words = LIMITS.get(limit.name, "")
    if limit.name in QUANTITIES:
        name, unit = QUANTITIES[limit.name]
        words = f"{name} above {number(limit.objective or 0.0, unit)}"
    if limit.best is None:
        return ReachedLimit(limit=limit, words=words)
    rps = limit.best * what_if.asked.replicas
    fewest = None
    if limit.best:
        fewest = math.ceil(round(what_if.rps / limit.best, 9))
    return ReachedLimit(limit=limit, words=words, rps=rps, headroom=rps / what_if.rps - 1, fewest_replicas=fewest)


def headline(what_if: WhatIf, zone: str) -> str:
    size, load = _replicas(what_if.asked.replicas), number(what_if.rps, "per_second")
    text = f"{what_if.seen.context.name} with {size} at {load} ({number(what_if.asked.rps, 'per_second')} a replica)"
    text += f": {_name_promise(what_if)} {HOLDS[what_if.asked.kept]}"
    is_burning = what_if.burns.cover(what_if.asked.replicas, what_if.rps)
    if is_burning:
        first = what_if.burns.findings[0]
        since = format_local(first.started_at, zone, "%a %d %b %H:%M")
        text = f"{RULES[first.rule].title} is open at this size since {since} ({zone}): {text}"
    reached = None
    if what_if.first_limit:
        reached = reach_limit(what_if, what_if.first_limit)
    if reached is None or reached.rps is None or reached.headroom is None:
        return f"{text}; at which load something breaks is not known."
    at = number(reached.rps, "per_second")
    # A full KV cache breaks no objective by itself.
    met = f"{reached.words} is reached first" if reached.limit.name == KV else f"first breaks {reached.words}"
    if reached.headroom < 0:
        return f"{text}; {met}, at {at} already."
    # What is broken at this load does not break at a higher one.
    if is_burning:
        return f"{text}."
    return f"{text}; {met}, at {at} ({reached.headroom:+.0%})."


def _name_promise(what_if: WhatIf) -> str:
    plan = what_if.seen.context.plan
    if plan is not None and not any(getattr(plan.slo, name) for name in LIMITED):
        return "the benchmarked load (no objective is planned)"
    return "the SLO"


def whatif_text(what_if: WhatIf, zone: str) -> str:
    """Return the whole text. Times are in the time zone `zone`."""
    rows, notes = [], []
    for limit in what_if.limits:
        reached, cells = reach_limit(what_if, limit), ["", "", ""]
        if reached.rps is not None:
            cells = [f"{reached.rps:.3g}", f"{reached.headroom:+.0%}", f"{reached.fewest_replicas or ''}"]
        rows.append((reached.words, format_reading(limit.rps, ""), *cells, limit.source.value))
        if limit.best is None and limit.reason:
            notes.append((reached.words, limit.reason))
    head = ("what breaks first", "rps a replica", "rps of the tier", "headroom", "fewest replicas", "by")
    facts = text_grid(_describe(what_if, zone), indent=0)
    limits = (text_grid(rows, head, indent=0, words=1), text_grid(notes))
    return terminal_text(headline(what_if, zone), "", facts, "", *_curve_parts(what_if), "", *limits, "", ASSUMED)


def pools_text(pools_what_if: PoolsWhatIf) -> str:
    summary, facts = pools_what_if.summary, {}
    for pool in pools_what_if.pools:
        now = "none was seen"
        if pool.now:
            now = f"{pool.now:.3g} on average now"
        text = f"{_replicas(pool.replicas)}, {pool.utilization:.0%} used; {now}; {describe_count(pool.needed)} "
        facts[pool.pool] = f"{text}({pool.needed.capacity.reason}); {_describe_cost(pool.cost)}"
    most = max(pool.utilization for pool in pools_what_if.pools)
    have = "+".join(str(pool.replicas) for pool in pools_what_if.pools)
    fills = "is full"
    if most <= 1:
        fills = "fills first"
    claim = f"{pools_what_if.tier}: {have} replicas at {number(pools_what_if.rps, 'per_second')}: the "
    claim += f"{summary['first_pool']} pool {fills}, {most:.0%} used. The tier takes "
    claim += f"up to {summary['most_rps']:.3g} rps; the traffic wants P:D {summary['wanted_ratio']:.2g}."
    latencies = "Latencies are not predicted: no curve measured them."
    return terminal_text(claim, "", text_grid(facts.items(), indent=0), "", latencies)


def _describe(what_if: WhatIf, zone: str) -> Iterable[tuple[str, str]]:
    yield "Load", _describe_load(what_if, zone)
    requests, work = (number(rps, "per_second") for rps in (what_if.rps, what_if.work_rps))
    if requests != work:
        yield "Work", f"{requests} arrive, by their tokens the work of {work}, which use and need count"
    capacity = what_if.seen.context.capacity
    if capacity is not None and what_if.utilization is not None:
        each = number(what_if.work_rps / what_if.asked.replicas, "per_second")
        usable = f"{number(capacity.rps, 'per_second')} that one takes now ({capacity.reason})"
        yield "Use", f"{what_if.utilization:.0%} at that load: {each} a replica, of the {usable}"
    elif capacity is not None:
        yield "Use", f"not known: {capacity.reason}"
    if what_if.needed is not None:
        yield "Needed", f"{_replicas(what_if.needed.replicas)} for this load: {describe_count(what_if.needed)}"
    if what_if.fleet is not None:
        terms = f"{what_if.fleet.safety_factor:.4g} x this load for safety, at least {what_if.fleet.minimum} warm"
        yield "Step 11", f"{_replicas(what_if.fleet.replicas)}: {terms}"
    yield "One lost", _describe_loss(what_if)
    yield "Money", _describe_cost(what_if.cost, what_if.cost_now)


def _describe_load(what_if: WhatIf, zone: str) -> str:
    peak, text = what_if.peak, number(what_if.rps, "per_second")
    if what_if.asked_rps is not None:
        text += ", as asked"
    if peak is None:
        return f"{text}; no peak was seen"
    text += f"; the peak was {number(peak.rps, 'per_second')}"
    if peak.at is not None:
        text += f" on {format_local(peak.at, zone, '%a %d %b %H:%M')} ({zone})"
    return f"{text}, {peak.source}; {what_if.seen.observed_seconds / DAY_SECONDS:.1f} days seen"


def _describe_loss(what_if: WhatIf) -> str:
    if what_if.one_lost is None:
        return "nothing is left: the tier is down until another replica has started"
    left = f"{_replicas(what_if.one_lost.replicas)} left, {number(what_if.one_lost.rps, 'per_second')} each"
    text = f"{left}: {_name_promise(what_if)} {HOLDS[what_if.one_lost.kept]}"
    if what_if.one_lost_rps is None:
        return text
    return f"{text}; one may be lost at up to {number(what_if.one_lost_rps, 'per_second')}"


def _describe_cost(cost: FleetCost, now: FleetCost | None = None) -> str:
    if cost.money_per_hour is None or cost.money_per_month is None:
        return f"{cost.gpu_hours_per_hour:g} GPU-hours an hour; the plan has no price"
    text = f"{amount(cost.money_per_hour, cost.price.currency)} an hour, {figure(cost.money_per_month)} a month"
    if now is not None and now.money_per_month is not None:
        more = cost.money_per_month - now.money_per_month
        text += f" ({more:+,.0f} against the {_replicas(now.replicas)} on average now)"
    if cost.per_million_tokens is None:
        return text
    return f"{text}; {amount(cost.per_million_tokens, cost.price.currency)} per million output tokens"


def _replicas(count: float) -> str:
    return format_count(round(count, 1), "replica")


def _curve_parts(what_if: WhatIf) -> tuple[RenderableType, ...]:
    plan, columns, rows, notes = what_if.seen.context.plan, [what_if.asked], [], dict[str, None]()
    heads = ["at that load", f"benchmark, {_replicas(what_if.asked.replicas)}", "objective"]
    if what_if.now is not None:
        columns.insert(0, what_if.now)
        heads.insert(1, f"benchmark, {_replicas(what_if.now.replicas)} now")
    if max(what_if.curve_work, 1 / what_if.curve_work) > 1 + SAME:
        times = f"a request is {what_if.curve_work:.2g} times the work of a benchmarked one"
        notes[f"{times}: the curve is read at so much more load"] = None
    for key, value in what_if.asked.benchmark.items():
        name, unit = QUANTITIES[key]
        objective = None
        if plan:
            objective = getattr(plan.slo, key, None)
        cells = [format_reading(column.benchmark[key], unit) for column in columns]
        rows.append((name, *cells, "" if objective is None else number(objective, unit)))
        if isinstance(value, Missing):
            notes[f"{value.gap}: {value.text}"] = None
    return text_grid(rows, heads, indent=0, words=1), text_grid([(note,) for note in notes])


def whatif_json(what_if: WhatIf, zone: str, simulated: str = "") -> Any:
    """Return the whole result. The sentence has times in `zone`. `simulated` is the notice of a simulated history."""
    seen, fields = what_if.seen, ("rps", "asked_rps", "work_rps", "peak", "asked", "now", "one_lost", "one_lost_rps")
    document = {
        "schema": SCHEMA,
        "simulated": simulated,
        "tier": seen.context.name,
        "sentence": headline(what_if, zone),
        "slo": what_if.asked.kept,
        **copy_fields(what_if, *fields, "utilization", "curve_work"),
        "days_seen": seen.observed_seconds / DAY_SECONDS,
        "open_findings": [copy_fields(finding, "rule", "started_at") for finding in what_if.burns.findings],
        "usable": seen.context.capacity,
        "needed": json_fields(what_if.needed, *USE),
        "fleet": json_fields(what_if.fleet, *USE),
        "cost": json_fields(what_if.cost, *MONEY),
        "cost_now": json_fields(what_if.cost_now, *MONEY),
        "limits": [reach_limit(what_if, limit) for limit in what_if.limits],
        "assumed": ASSUMED,
    }
    return to_jsonable_python(document)


def pools_json(pools_what_if: PoolsWhatIf) -> dict[str, Any]:
    pools = []
    for pool in pools_what_if.pools:
        needed, cost = json_fields(pool.needed, *USE), json_fields(pool.cost, *MONEY)
        pools.append({**json_fields(pool), "needed": needed, "cost": cost})
    return {"schema": SCHEMA, **json_fields(pools_what_if), **pools_what_if.summary, "pools": pools}
