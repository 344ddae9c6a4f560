"""Past worth of pre-warming: strategies compared on a tier's last week, and the minimum warm count that follows.

`forecast.capacity.simulation` has the simulation. Rates are requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exporters.documents.prewarm_value import PrewarmValue, Strategy
from exporters.render.text import format_duration
from forecast.capacity.minimum_warm import excess, minimum_warm
from forecast.capacity.prewarm import late_to_warm
from forecast.capacity.simulation import (
    Choice,
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    SimulatedFleet,
    cheapest_reacting,
    compare_policies,
    outcome,
    simulate_requests,
)
from forecast.lead.features import fill_gaps
from forecast.lead.online import LeadRun, run_past
from forecast.series.binned import DAY_MINUTES, MINUTE_SECONDS, Array
from forecast.series.calendar import remove_event_effects
from rules.plan.replica_count import NO_MARGIN, Margin

WEEK_MINUTES = 7 * DAY_MINUTES
LEAST_MINUTES = DAY_MINUTES
"""Minimum minutes to compare: less than a day lacks the night."""

REACTING = "reacting"
OURS, PERFECT, STATIC = "pre-warming", "perfect foresight", "static peak"
WITH_MARGIN = "pre-warming with the margin"
BY_REQUESTS = "pre-warming by requests"
SHOWN_UTILISATIONS = (0.5, 0.6, 0.7, 0.8, 0.9)

TOO_SHORT = "it takes two days to learn from and one to try it on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInputs:
    """Demand per minute up to `end` (unix seconds) and the scaling of a tier, with a `lead` and a `hold` in minutes.

    `rates` are work and may contain NaN, but not only. `requests` are the same minutes as requests, None if work is
    requests. `factors` are those of known events in the rates. `margin` is that of the
    recommended counts. `run` is the lead forecast's run of the rates, computed anew without it.
    """

    rates: Array
    factors: Array
    end: float
    zone: str
    bin_minutes: int
    lead: int
    certainty: float
    usable_rps: float
    hold: int | None
    margin: Margin
    replica_hour: float | None
    currency: str
    requests: Array | None = None
    run: LeadRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """Past demand, and the demand quantile that was known in each minute (NaN: none)."""

    world: SimulatedDemand
    quantile: Array

    @property
    def coverage_ratio(self) -> float | None:
        """Return the share (0-1) of minutes with demand within their quantile, or None without quantiles."""
        quantile, demand = self.quantile[: -self.world.lead], self.world.demand[self.world.lead :]
        known = np.isfinite(quantile)
        return float((demand <= quantile)[known].mean()) if known.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWeekResult:
    """Last week with quantiles (`judged`), and all known time `before`, on which choices for that week are made.

    `requests` is that week as requests, None if work is requests.
    """

    judged: Stretch
    before: Stretch
    requests: Stretch | None = None


def simulate_last_week(past: ValueInputs) -> LastWeekResult | None:
    """Return the quantiles of the last week and of the time before, or None with less than a day."""
    if not np.isfinite(past.rates).any():
        return None
    quantile = _quantile_of(past, past.rates, past.run)
    known = np.flatnonzero(np.isfinite(quantile[:-1]))
    start = max(1, len(past.rates) - WEEK_MINUTES, int(known[0]) if len(known) else len(past.rates))
    if len(past.rates) - start < LEAST_MINUTES:
        return None

    def stretch(rates: Array, quantile: Array, first: int, end: int) -> Stretch:
        demand = fill_gaps(rates)
        world = SimulatedDemand(
            demand=demand[first:end], before=float(demand[first - 1]), capacity=past.usable_rps, lead=past.lead
        )
        return Stretch(world=world, quantile=quantile[first:end])

    judged = stretch(past.rates, quantile, start, len(past.rates))
    before = stretch(past.rates, quantile, 1, start)
    if past.requests is None:
        return LastWeekResult(judged=judged, before=before)
    requests = stretch(past.requests, _quantile_of(past, past.requests, None), start, len(past.rates))
    return LastWeekResult(judged=judged, before=before, requests=requests)


def _quantile_of(past: ValueInputs, rates: Array, run: LeadRun | None) -> Array:
    """Return the quantile at the lead that was known in each minute, with known events; NaN without a forecast."""
    usual = remove_event_effects(rates, past.factors)
    run = run or run_past(usual, past.bin_minutes, past.lead)
    ahead = np.concatenate([past.factors, np.full(past.lead + 1, past.factors[-1])])
    quantile: Array = run.quantile(past.certainty) * ahead[past.lead : past.lead + len(usual) + 1]
    return quantile


def worth_lately(past: ValueInputs, week: LastWeekResult, at_least: int, ratio: float | None = None) -> PrewarmValue:
    """Return the strategies side by side over the judged week.

    At least `at_least` replicas (the plan's) are warm, or the newsvendor's count at this critical ratio of the time before.
    Strategies are compared without a margin. Pre-warming with the margin stands apart, with the minimum that fits it.
    """

    def minimum(margin: Margin) -> int:
        return at_least if ratio is None else compute_minimum_warm(past, week.before, ratio, at_least, margin)

    def prewarmed(margin: Margin) -> SimulatedFleet:
        return simulate_requests(judged.world, judged.quantile, minimum=minimum(margin), hold=past.hold, margin=margin)

    price, judged, equal = late_to_warm(past.lead, past.certainty), week.judged, minimum(NO_MARGIN)
    found = compare_policies(
        judged.world,
        prewarmed(NO_MARGIN),
        with_margin=prewarmed(past.margin),
        chosen=cheapest_reacting(week.before.world, price, minimum=equal),
        late_to_warm=price,
        minimum=equal,
    )
    by_requests = None
    if week.requests is not None:
        one = week.requests
        fleet = simulate_requests(one.world, one.quantile, minimum=equal, hold=past.hold)
        by_requests = outcome(judged.world, fleet)
    return _prewarm_value(past, week, found, by_requests)


def compute_minimum_warm(past: ValueInputs, seen: Stretch, ratio: float, at_least: int, margin: Margin) -> int:
    """Return the newsvendor's minimum warm count at this critical ratio, or `at_least` with less than a day.

    The ready replicas have the `margin`, the needed replicas have none: a surge within the margin needs no warm replica.
    """
    world = seen.world
    known = np.isfinite(seen.quantile)
    if known.sum() < LEAST_MINUTES:
        return minimum_warm(np.empty(0), ratio, at_least=at_least)
    ready = simulate_requests(world, seen.quantile, minimum=0, hold=past.hold, margin=margin).ready
    found = excess(np.where(known, world.demand, np.nan), ready, past.usable_rps, world.lead)
    return minimum_warm(found, ratio, at_least=at_least)


def _prewarm_value(
    past: ValueInputs, week: LastWeekResult, found: PolicyComparison, by_requests: Outcome | None
) -> PrewarmValue:
    demand = (week.requests or week.judged).world.demand
    requests, minutes = float(demand.sum() * MINUTE_SECONDS), len(demand)
    reacting = {f"{REACTING} at {one:.0%}": result for one, result in found.reacting}
    chosen = f"{REACTING} at {found.chosen:.0%}"
    before = format_duration(len(week.before.world.demand) * MINUTE_SECONDS)
    shown = (f"{REACTING} at {one:.0%}" for one in SHOWN_UTILISATIONS)
    named = {
        STATIC: found.static,
        **{name: reacting[name] for name in (*shown, chosen)},
        OURS: found.prewarmed,
        **({BY_REQUESTS: by_requests} if by_requests is not None else {}),
        **({WITH_MARGIN: found.with_margin} if past.margin != NO_MARGIN else {}),
        PERFECT: found.foresight,
    }
    strategies = (
        Strategy(
            name=name,
            violation_minutes=one.violated * minutes,
            late_requests=one.late * requests,
            replica_hours=one.replica_hours,
            money=None if past.replica_hour is None else one.replica_hours * past.replica_hour,
        )
        for name, one in named.items()
    )
    return PrewarmValue(
        start=past.end - minutes * MINUTE_SECONDS,
        end=past.end,
        zone=past.zone,
        requests=requests,
        strategies=tuple(strategies),
        ours=OURS,
        with_margin=WITH_MARGIN if WITH_MARGIN in named else "",
        perfect=PERFECT,
        reacting=chosen,
        recommended=OURS if found.choice is Choice.PREWARM else chosen,
        short_reason=found.reason,
        reason=f"{found.sentence[0].upper()}{found.sentence[1:]}. The {found.chosen:.0%} was the cheapest of the {before} before.",
        covered_ratio=week.judged.coverage_ratio,
        weighing_sentence=_compare_with_requests(found, by_requests),
        currency=past.currency,
    )


def _compare_with_requests(found: PolicyComparison, by_requests: Outcome | None) -> str:
    """Return what counting work saved, late requests priced, or "" if work is requests."""
    cost = by_requests.priced(found.late_to_warm) if by_requests is not None else 0.0
    saved = 1.0 - found.prewarmed.priced(found.late_to_warm) / cost if cost > 0 else 0.0
    words = (
        f"By work it cost {abs(saved):.1%} {'less' if saved >= 0 else 'more'} than by requests, late requests priced."
    )
    return words if cost > 0 else ""
