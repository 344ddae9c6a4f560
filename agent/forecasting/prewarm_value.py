"""Past worth of pre-warming: strategies compared on a tier's last week. Rates are requests per second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.forecasting.messages import ForecastRequest
from exporters.documents.forecast import PrewarmValue, Strategy
from forecast.capacity.minimum_warm import excess, minimum_warm
from forecast.capacity.prewarm import late_to_warm
from forecast.capacity.simulation import (
    Choice,
    PolicyComparison,
    SimulatedDemand,
    SimulatedFleet,
    cheapest_reacting,
    compare_policies,
    simulate_requests,
)
from forecast.lead.features import fill_gaps
from forecast.lead.online import LeadRun
from forecast.series.binned import DAY_MINUTES, MINUTE_SECONDS, Array
from rules.plan.replica_count import NO_MARGIN, Margin
from rules.telemetry.wording import format_duration

WEEK_MINUTES = 7 * DAY_MINUTES
LEAST_MINUTES = DAY_MINUTES
"""Minimum minutes to compare: less than a day lacks the night."""

REACTING = "reacting"
OURS, PERFECT, STATIC = "pre-warming", "perfect foresight", "static peak"
WITH_MARGIN = "pre-warming with the margin"
SHOWN_UTILISATIONS = (0.5, 0.6, 0.7, 0.8, 0.9)

TOO_SHORT = "it takes two days to learn from and one to try it on"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """Past demand, the demand quantile that was known in each minute (NaN: none), and the hold in minutes (None: usual)."""

    world: SimulatedDemand
    quantile: Array
    hold: int | None

    @property
    def coverage_ratio(self) -> float | None:
        """Return the share (0-1) of minutes with demand within their quantile, or None without quantiles."""
        quantile, demand = self.quantile[: -self.world.lead], self.world.demand[self.world.lead :]
        known = np.isfinite(quantile)
        if known.any():
            return float((demand <= quantile)[known].mean())
        return None

    def prewarmed(self, minimum: int, margin: Margin) -> SimulatedFleet:
        """Return the fleet of our policy with at least `minimum` replicas."""
        return simulate_requests(self.world, self.quantile, minimum=minimum, hold=self.hold, margin=margin)

    def minimum_warm(self, ratio: float, at_least: int, margin: Margin) -> int:
        """Return the newsvendor's minimum warm count at this critical ratio, or `at_least` with less than a day.

        The ready replicas have the `margin`, the needed ones have none: a surge within it needs no warm replica.
        """
        known = np.isfinite(self.quantile)
        if known.sum() < LEAST_MINUTES:
            return minimum_warm(np.empty(0), ratio, at_least=at_least)
        demand = np.where(known, self.world.demand, np.nan)
        missing = excess(demand, self.prewarmed(0, margin).ready, self.world.capacity, self.world.lead)
        return minimum_warm(missing, ratio, at_least=at_least)


def split_last_week(
    rates: Array, factors: Array, run: LeadRun, certainty: float, usable_rps: float, hold: int | None
) -> tuple[Stretch, Stretch] | None:
    """Return the last week with quantiles, and all time before, on which choices for that week are made.

    `rates` may contain NaN, but not only. `factors` are those of known events in them, `run` is the lead forecast's run
    of the rates without these events. None with less than a day.
    """
    ahead = np.concatenate([factors, np.full(run.lead + 1, factors[-1])])
    quantile = run.quantile(certainty) * ahead[run.lead : run.lead + len(rates) + 1]
    known = np.flatnonzero(np.isfinite(quantile[:-1]))
    start = max(1, len(rates) - WEEK_MINUTES, int(known[0]) if len(known) else len(rates))
    if len(rates) - start < LEAST_MINUTES:
        return None
    demand = fill_gaps(rates)

    def stretch(first: int, end: int) -> Stretch:
        world = SimulatedDemand(
            demand=demand[first:end], before=float(demand[first - 1]), capacity=usable_rps, lead=run.lead
        )
        return Stretch(world=world, quantile=quantile[first:end], hold=hold)

    return stretch(start, len(rates)), stretch(1, start)


def compare_strategies(
    request: ForecastRequest,
    judged: Stretch,
    before: Stretch,
    *,
    certainty: float,
    at_least: int,
    ratio: float | None,
    requests: Array,
    end: float,
) -> PrewarmValue:
    """Return the strategies side by side over the `judged` week up to `end` (unix seconds).

    At least `at_least` replicas (the plan's) are warm, or the newsvendor's count at this critical ratio of the time before.
    Strategies are compared without a margin. Pre-warming with the margin stands apart, with the minimum that fits it.
    `requests` are the rates of the arriving requests up to the same end.
    """

    def minimum(margin: Margin) -> int:
        if ratio is None:
            return at_least
        return before.minimum_warm(ratio, at_least, margin)

    price, equal = late_to_warm(judged.world.lead, certainty), minimum(NO_MARGIN)
    comparison = compare_policies(
        judged.world,
        judged.prewarmed(equal, NO_MARGIN),
        with_margin=judged.prewarmed(minimum(request.margin), request.margin),
        chosen=cheapest_reacting(before.world, price, minimum=equal),
        late_to_warm=price,
        minimum=equal,
    )
    minutes = len(judged.world.demand)
    total = float(fill_gaps(requests)[-minutes:].sum() * MINUTE_SECONDS)
    chosen = f"{REACTING} at {comparison.chosen:.0%}"
    length = format_duration(len(before.world.demand) * MINUTE_SECONDS)
    text = comparison.sentence
    reason = f"{text[0].upper()}{text[1:]}. The {comparison.chosen:.0%} was the cheapest of the {length} before."
    strategies = _strategies(request, comparison, minutes, total)
    return PrewarmValue(
        start=end - minutes * MINUTE_SECONDS,
        end=end,
        zone=request.zone,
        requests=total,
        strategies=strategies,
        ours=OURS,
        with_margin=WITH_MARGIN if request.margin != NO_MARGIN else "",
        perfect=PERFECT,
        reacting=chosen,
        recommended=OURS if comparison.choice is Choice.PREWARM else chosen,
        short_reason=comparison.reason,
        reason=reason,
        covered_ratio=judged.coverage_ratio,
        currency=request.currency,
    )


def _strategies(request: ForecastRequest, costs: PolicyComparison, minutes: int, total: float) -> tuple[Strategy, ...]:
    shown = dict.fromkeys((*SHOWN_UTILISATIONS, costs.chosen))
    reacting = dict(costs.reacting)
    named = {
        STATIC: costs.static,
        **{f"{REACTING} at {utilisation:.0%}": reacting[utilisation] for utilisation in shown},
        OURS: costs.prewarmed,
        **({WITH_MARGIN: costs.with_margin} if request.margin != NO_MARGIN else {}),
        PERFECT: costs.foresight,
    }
    return tuple(
        Strategy(
            name=name,
            violation_minutes=outcome.violated * minutes,
            late_requests=outcome.late * total,
            replica_hours=outcome.replica_hours,
            money=None if request.replica_hour is None else outcome.replica_hours * request.replica_hour,
        )
        for name, outcome in named.items()
    )
