"""Text of a what-if: result, load, the benchmark's curve, money, first limit and assumptions.

The module serves `sizewatch whatif`. The JSON is in `exporters.documents.what_if_json`.
"""

from __future__ import annotations

from collections.abc import Iterable

from exporters.documents.what_if_json import ASSUMED, HOLDS, QUANTITIES, headline, limit_loads, limit_words, replicas
from exporters.render.text import format_local, text_table, wrap
from rules.plan.money import amount, figure
from rules.plan.replica_count import ReplicaCount
from rules.resize.fleet_cost import FleetCost
from rules.resize.workload import measure_workload
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.windows import DAY_SECONDS
from rules.telemetry.wording import number
from rules.telemetry.work import SAME as SAME_WORK
from rules.what_if.answer import CapacityLimit, WhatIf
from rules.what_if.pools import PoolsWhatIf

INDENT = 12

SAME = 0.01
"""Relative cost difference (0-1) below which bills count as equal. Restarts lower an average for minutes."""


def whatif_text(what_if: WhatIf, zone: str) -> str:
    """Return the whole text. Times are in the time zone `zone`."""
    lines = [*wrap(headline(what_if, zone)), ""]
    for name, text in _facts(what_if, zone):
        lines += wrap(text, f"{name:{INDENT - 2}}  ", " " * INDENT)
    lines += ["", *_curve(what_if), "", "What would break first"]
    lines += [f"  {line}" for line in _limits(what_if)]
    lines += ["", "Assumed"]
    for text in ASSUMED:
        lines += wrap(text, "  - ", "    ")
    return "\n".join(lines)


def pools_text(pools_what_if: PoolsWhatIf) -> str:
    """Return the answer for prefill and decode pools: use, need, cost and reasons."""
    claim, rows = _told_of_pools(pools_what_if)
    lines = [*wrap(f"{pools_what_if.tier}: {claim}."), ""]
    for name, text in rows:
        lines += wrap(text, f"{name:{INDENT - 2}}  ", " " * INDENT)
    return "\n".join([*lines, "", "Latencies are not predicted: no curve measured them."])


def _told_of_pools(pools_what_if: PoolsWhatIf) -> tuple[str, list[tuple[str, str]]]:
    first = max(pools_what_if.pools, key=lambda pool: pool.utilization)
    have, mapping = "+".join(str(pool.replicas) for pool in pools_what_if.pools), pools_what_if.summary
    claim = f"{have} replicas at {number(pools_what_if.rps, 'per_second')}: the {first.pool} pool "
    claim += (
        f"{'fills first' if first.utilization <= 1 else 'is full'}, {first.utilization:.0%} used. The tier takes up to "
    )
    claim += f"{mapping['most_rps']:.3g} rps; the traffic wants P:D {mapping['wanted_ratio']:.2g}"
    rows = []
    for pool_what_if in pools_what_if.pools:
        seen = f"{pool_what_if.now:.3g} on average now" if pool_what_if.now else "none was seen"
        text = f"{replicas(pool_what_if.replicas)}, {pool_what_if.utilization:.0%} used; {seen}; {_needed(pool_what_if.needed)} "
        rows.append(
            (
                pool_what_if.pool,
                f"{text}({pool_what_if.needed.capacity.reason}); {_money(pool_what_if.cost, None).partition(';')[0]}",
            )
        )
    return claim, rows


def _facts(what_if: WhatIf, zone: str) -> Iterable[tuple[str, str]]:
    yield "Load", _load(what_if, zone)
    requests, work = (number(rps, "per_second") for rps in (what_if.rps, what_if.work_rps))
    if requests != work:
        yield "Work", f"{requests} arrive, by their tokens the work of {work}, which use and need count"
    if what_if.now is not None:
        yield "Now", f"{replicas(what_if.now.replicas)}, at that load {number(what_if.now.rps, 'per_second')} each"
    capacity = what_if.seen.context.capacity
    if capacity is not None and what_if.utilization is not None:
        each = number(what_if.work_rps / what_if.asked.replicas, "per_second")
        usable = f"{number(capacity.rps, 'per_second')} that one takes now ({capacity.reason})"
        yield "Use", f"{what_if.utilization:.0%} at that load: {each} a replica, of the {usable}"
    elif capacity is not None:
        yield "Use", f"not known: {capacity.reason}"
    if what_if.needed is not None:
        yield "Needed", _needed(what_if.needed)
    if what_if.fleet is not None:
        given, warm = what_if.seen.context.plan, what_if.fleet.minimum
        factor = "the plan has no safety factor"
        if given and given.fleet and given.fleet.safety_factor:
            factor = f"{what_if.fleet.safety_factor:.4g} x this load, the plan's safety factor"
        factor += f", at least {warm:g} warm" if what_if.fleet.replicas == warm > 1 else ""
        yield "Step 11", f"{replicas(what_if.fleet.replicas)}: {factor}"
    yield "Lengths", _lengths(what_if)
    yield "One lost", _one_lost(what_if)
    yield "Money", _money(what_if.cost, what_if.cost_now)


def _needed(needed: ReplicaCount) -> str:
    """Return the count for the load, its margin and its range."""
    text = f"{replicas(needed.replicas)} for this load ({needed.arithmetic_text}), {needed.utilization:.0%} used at that load"
    if needed.utilization_one_lost is not None:
        text += f", {needed.utilization_one_lost:.0%} with one lost"
    return f"{text}; {needed.bounds_text} by the bounds of what one takes" if needed.bounds_text else text


def _load(what_if: WhatIf, zone: str) -> str:
    peak, text = what_if.peak, number(what_if.rps, "per_second")
    if peak is None:
        return f"{text}, as asked; no peak was seen"
    when = f" on {format_local(peak.at, zone, '%a %d %b %H:%M')} ({zone})" if peak.at is not None else ""
    highest = f"; the highest was {number(peak.highest, 'per_second')}" if peak.highest else ""
    if what_if.asked_rps is None:
        return (
            f"{text}: the peak{when}, {peak.source}{highest}; {_seen(what_if.seen.observed_seconds / DAY_SECONDS)} seen"
        )
    return f"{text}, as asked; the peak was {number(peak.rps, 'per_second')}{when} ({peak.source})"


def _seen(days: float) -> str:
    return f"{days:.1f} days" if days >= 1 else f"{days * 24:.0f} hours"


def _lengths(what_if: WhatIf) -> str:
    work = measure_workload(what_if.seen)
    if work.prompt_mean is None or work.generation_mean is None:
        return "not known: no latency here is of known prompts"
    text = f"prompts of {work.prompt_mean:,.0f} tokens on average, outputs of {work.generation_mean:,.0f}, lately"
    planned = [length for length in work.lengths if length.quantile == "p50" and length.planned]
    if planned:
        text += f"; the plan's medians: {', '.join(f'{length.what.lower()} {length.planned:g}' for length in planned)}"
    return text


def _one_lost(what_if: WhatIf) -> str:
    if what_if.one_lost is None:
        return "nothing is left: the tier is down until another replica has started"
    text = f"{replicas(what_if.one_lost.replicas)} left, {number(what_if.one_lost.rps, 'per_second')} each: the SLO "
    text += HOLDS[what_if.one_lost.kept]
    if what_if.one_lost_rps is None:
        return text
    return f"{text}; one may be lost at up to {number(what_if.one_lost_rps, 'per_second')}"


def _money(cost: FleetCost, now: FleetCost | None) -> str:
    if cost.money_per_hour is None or cost.money_per_month is None:
        return f"{cost.gpu_hours_per_hour:g} GPU-hours an hour; the plan has no price"
    currency = cost.price.currency
    text = f"{amount(cost.money_per_hour, currency)} an hour, {figure(cost.money_per_month)} a month"
    if now is not None and now.money_per_month is not None:
        more = cost.money_per_month - now.money_per_month
        against = f"{more:+,.0f} against" if abs(more) > SAME * now.money_per_month else "as much as"
        text += f" ({against} the {replicas(now.replicas)} on average now)"
    if cost.per_million_tokens is None:
        return f"{text}; no output tokens were counted"
    text += f"; {amount(cost.per_million_tokens, currency)} per million output tokens"
    return text if now is None or now.per_million_tokens is None else f"{text}, {figure(now.per_million_tokens)} now"


def _curve(what_if: WhatIf) -> list[str]:
    """Return the benchmark's readings at the asked load, beside those of the present replicas."""
    plan, columns = (
        what_if.seen.context.plan,
        [at_load for at_load in (what_if.now, what_if.asked) if at_load is not None],
    )
    rows = []
    for key in what_if.asked.benchmark:
        name, unit = QUANTITIES[key]
        objective = getattr(plan.slo, key, None) if plan else None
        cells = [_value(column.benchmark[key], unit) for column in columns]
        rows.append((name, *cells, "" if objective is None else number(objective, unit)))
    heads = [f"benchmark, {replicas(column.replicas)}{' now' if column is what_if.now else ''}" for column in columns]
    gaps = [f"{gap.gap.value}: {gap.text}" for gap in what_if.asked.benchmark.values() if isinstance(gap, Missing)]
    notes = list(dict.fromkeys(gaps))
    if max(what_if.curve_work, 1 / what_if.curve_work) > 1 + SAME_WORK:
        times = f"a request is {what_if.curve_work:.2g} times the work of a benchmarked one"
        notes.insert(0, f"{times}: the curve is read at so much more load")
    return [
        *text_table(("at that load", *heads, "objective"), rows),
        *(line for text in notes for line in wrap(text, "  ", "    ")),
    ]


def _value(value: SignalValue, unit: str) -> str:
    """Return the best estimate with its bounds, or the name of the gap."""
    if isinstance(value, Missing):
        return value.gap.value
    low, high = (None if part is None else number(part, unit) for part in (value.low, value.high))
    best = None if value.value is None else number(value.value, unit)
    if low is not None and low == high:
        return low
    shared = _unit(best, low if value.low else None, high)
    low, high, best = (None if text is None else text.removesuffix(shared) for text in (low, high, best))
    bounds = f"{low or '0'} to {high or '?'}" if value.low else f"up to {high or '?'}"
    return f"{bounds}{shared}" if best is None else f"{best} ({bounds}){shared}"


def _unit(*texts: str | None) -> str:
    """Return the common unit of the numbers, else ""."""
    units = {text.lstrip("0123456789.,") for text in texts if text is not None}
    return units.pop() if len(units) == 1 else ""


def _limits(what_if: WhatIf) -> list[str]:
    head = ("", "rps a replica", "rps of the tier", "headroom", "fewest replicas", "by")
    notes = [f"{limit_words(limit.name, limit.objective)}: {limit.reason}" for limit in what_if.limits if limit.reason]
    return [
        *text_table(head, [_limit(what_if, limit) for limit in what_if.limits]),
        *(line for text in notes for line in wrap(text, "- ", "  ", width=98)),
    ]


def _limit(what_if: WhatIf, limit: CapacityLimit) -> tuple[str, ...]:
    load = limit_loads(what_if, limit)
    known = ("", "", "")
    if load is not None:
        known = (f"{load.rps:.3g}", f"{load.headroom:+.0%}", "" if load.fewest is None else f"{load.fewest}")
    return (limit_words(limit.name, limit.objective), _rps(limit.rps), *known, limit.source.value)


def _rps(value: SignalValue) -> str:
    if isinstance(value, Missing):
        return value.gap.value
    low, high = (None if part is None else f"{part:.3g}" for part in (value.low, value.high))
    if value.value is None:
        return f"above {low}"
    best = f"{value.value:.3g}"
    if low == high == best or (low is None and high is None):
        return best
    return f"{best} ({low} to {high})" if low and high else f"{best} (above {low})" if low else best
