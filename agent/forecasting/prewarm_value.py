"""What pre-warming was worth on a tier's own last week, and how many replicas must stay warm by what happened in it.

Owns which strategies are shown, over which time, and what is said while there is too little. The simulation itself is
`forecast.capacity.simulation`'s, the recommendation `forecast.capacity.simulation`'s.

Demand one lead ahead for a tier, minute by minute as they come: the live prediction with the outlook it needs.

Owns the minutes that are kept, and the outlook for the day to come: the time-of-week profile, as in the simulations that say
what pre-warming is worth (docs/cold-start.md). Rates are requests per second without what known events add.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exporters.documents.prewarm_value import PrewarmValue as Shown
from exporters.documents.prewarm_value import Strategy
from exporters.render.text import format_duration
from forecast.capacity.minimum_warm import MinimumWarm, excess, minimum_warm
from forecast.capacity.prewarm import late_to_warm, simulate_requests
from forecast.capacity.simulation import (
    Choice,
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    SimulatedFleet,
    cheapest_reacting,
    compare_policies,
)
from forecast.capacity.simulation_history import MINUTE_SECONDS, rates
from forecast.lead.features import SeasonalPrior, fill_gaps
from forecast.lead.online import (
    DAY_MINUTES,
    FIRST_PROFILE_DAYS,
    OnlineLeadForecaster,
    profile_outlook,
    run_lead_forecast,
)
from forecast.series.binned import Array, Series
from rules.plan.replica_count import NO_MARGIN, Margin

KEPT_DAYS = 34
"""Four weeks of profile, and what the beginning of a day loses of them."""

AHEAD_MINUTES = 3 * DAY_MINUTES
"""The outlook reaches so far: refits are daily, and one may come late."""


class LiveLeadForecast:
    """The prediction `lead` whole minutes ahead; `usual` begins at a whole bin of `bin_minutes` and has one known minute."""

    def __init__(self, usual: Array, bin_minutes: int, lead: int) -> None:
        self._minutes = usual[-KEPT_DAYS * DAY_MINUTES :].tolist()
        self._bin_minutes, self._lead = bin_minutes, lead
        whole = self._outlook()
        rows = len(self._minutes) + 1
        self._live = OnlineLeadForecaster(
            np.array(self._minutes), SeasonalPrior(now=whole.now[:rows], then=whole.then[:rows]), lead
        )
        self._ahead, self._next = whole, rows

    def step(self, rate: float) -> None:
        """One minute more; NaN where it is not known."""
        self._minutes.append(rate)
        if self._next >= len(self._ahead.now):
            self._look_ahead()
        self._live.step(rate, float(self._ahead.now[self._next]), float(self._ahead.then[self._next]))
        self._next += 1

    def refit(self) -> None:
        """Everything anew from what is kept, to be done daily."""
        del self._minutes[: max(0, len(self._minutes) // DAY_MINUTES - KEPT_DAYS) * DAY_MINUTES]
        self._look_ahead()
        self._live.refit()

    def quantile(self, level: float) -> float | None:
        """Requests per second that are not passed with this certainty (0-1) one lead after the last minute; None while too
        little is known."""
        return self._live.quantile(level)

    @property
    def expected(self) -> float | None:
        """Requests per second that are expected then, without a margin; None while too little is known."""
        return self._live.expected

    def _look_ahead(self) -> None:
        self._ahead, self._next = self._outlook(), len(self._minutes)

    def _outlook(self) -> SeasonalPrior:
        return outlook(np.array(self._minutes), self._bin_minutes, self._lead, len(self._minutes) + AHEAD_MINUTES)


def outlook(usual: Array, bin_minutes: int, lead: int, rows: int) -> SeasonalPrior:
    """The profile's outlook over `rows` minutes from the first of `usual`, which may reach beyond its last; silent for the
    first two days, and all of it while there are no more."""
    count = len(usual) // bin_minutes
    if count * bin_minutes < FIRST_PROFILE_DAYS * DAY_MINUTES or not np.isfinite(usual[: count * bin_minutes]).any():
        return SeasonalPrior.silent(rows)
    parts = usual[: count * bin_minutes].reshape(count, bin_minutes)
    known = np.isfinite(parts)
    seen = known.any(axis=1)
    sums = np.where(known, parts, 0.0).sum(axis=1)
    bins = np.where(seen, sums / np.maximum(known.sum(axis=1), 1), np.nan)
    series = Series(start=0.0, bin_seconds=bin_minutes * MINUTE_SECONDS, values=bins * bin_minutes * MINUTE_SECONDS)
    return profile_outlook(rates(series), bin_minutes, lead, rows)


WEEK_MINUTES = 7 * DAY_MINUTES
LEAST_MINUTES = DAY_MINUTES
"""Less than a day says nothing of the night."""

REACTING = "reacting"
OURS, PERFECT, STATIC = "pre-warming", "perfect foresight", "static peak"
WITH_MARGIN = "pre-warming with the margin"
SHOWN_UTILISATIONS = (0.5, 0.6, 0.7, 0.8, 0.9)

TOO_SHORT = "it takes two days to learn from and one to try it on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInputs:
    """A tier's minutes (requests per second; `factors` are by how much known events multiplied them) up to `end`, unix
    seconds, and how it is scaled, a `lead` of minutes ahead. `margin` is that of the recommended counts. Rates may be NaN,
    at least one is known."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """Some time of the past, and the demand that would have been made ready for in each minute, by what was known then; NaN
    where nothing was."""

    world: SimulatedDemand
    quantile: Array

    @property
    def coverage_ratio(self) -> float | None:
        """The share (0-1) of the minutes whose demand stayed at or below what was said of them; None where nothing was."""
        said, came = self.quantile[: -self.world.lead], self.world.demand[self.world.lead :]
        known = np.isfinite(said)
        return float((came <= said)[known].mean()) if known.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWeekResult:
    """The last week, or as much of it as could have been pre-warmed for (`judged`), and all that is known of the time `before`:
    whatever is chosen for the judged week is chosen on that."""

    judged: Stretch
    before: Stretch


def simulate_last_week(past: ValueInputs) -> LastWeekResult | None:
    """What would have been said in the last week and before; None where that week is less than a day."""
    lead = past.lead
    usual = remove_event_factors(past.rates, past.factors)
    if not np.isfinite(usual).any():
        return None
    said = run_lead_forecast(usual, outlook(usual, past.bin_minutes, lead, len(usual) + 1), lead)
    ahead = np.concatenate([past.factors, np.full(lead + 1, past.factors[-1])])[lead : lead + len(usual) + 1]
    quantile = said.quantile(past.certainty) * ahead
    known = np.flatnonzero(np.isfinite(quantile[:-1]))
    start = max(1, len(usual) - WEEK_MINUTES, int(known[0]) if len(known) else len(usual))
    if len(usual) - start < LEAST_MINUTES:
        return None
    demand = fill_gaps(past.rates)

    def stretch(first: int, end: int) -> Stretch:
        world = SimulatedDemand(
            demand=demand[first:end], before=float(demand[first - 1]), capacity=past.usable_rps, lead=lead
        )
        return Stretch(world=world, quantile=quantile[first:end])

    return LastWeekResult(judged=stretch(start, len(usual)), before=stretch(1, start))


def worth_lately(past: ValueInputs, week: LastWeekResult, at_least: int, ratio: float | None = None) -> Shown:
    """Return the strategies side by side over the judged week.

    At least `at_least` replicas (the plan's) are warm, or the newsvendor's count at this critical ratio of the time before.
    Strategies are compared without a margin. Pre-warming with the margin stands apart, with the minimum that fits it.
    """

    def minimum(margin: Margin) -> int:
        return at_least if ratio is None else compute_minimum_warm(past, week.before, ratio, at_least, margin).replicas

    def ours(margin: Margin) -> SimulatedFleet:
        return simulate_requests(judged.world, judged.quantile, minimum=minimum(margin), hold=past.hold, margin=margin)

    price, judged, equal = late_to_warm(past.lead, past.certainty), week.judged, minimum(NO_MARGIN)
    found = compare_policies(
        judged.world,
        ours(NO_MARGIN),
        with_margin=ours(past.margin),
        chosen=cheapest_reacting(week.before.world, price, minimum=equal),
        late_to_warm=price,
        minimum=equal,
    )
    return _shown(past, week, found)


def compute_minimum_warm(past: ValueInputs, seen: Stretch, ratio: float, at_least: int, margin: Margin) -> MinimumWarm:
    """The newsvendor's minimum warm count at this critical ratio, from how far demand went beyond what was ready then; the
    plan's (`at_least`) where that was known for less than a day.

    What was ready has the `margin`, what was needed has none: a surge that the margin carries needs no warm replica besides.
    """
    world = seen.world
    known = np.isfinite(seen.quantile)
    if known.sum() < LEAST_MINUTES:
        return minimum_warm(np.empty(0), ratio, at_least=at_least)
    ready = simulate_requests(world, seen.quantile, minimum=0, hold=past.hold, margin=margin).ready
    found = excess(np.where(known, world.demand, np.nan), ready, past.usable_rps, world.lead)
    return minimum_warm(found, ratio, at_least=at_least)


def remove_event_factors(rates: Array, factors: Array) -> Array:
    """What would have come without known events; NaN where an event left too little to tell."""
    usual: Array = np.where(factors > 0.01, rates / np.maximum(factors, 0.01), np.nan)
    return usual


def _shown(past: ValueInputs, week: LastWeekResult, found: PolicyComparison) -> Shown:
    demand = week.judged.world.demand
    requests = float(demand.sum() * MINUTE_SECONDS)
    minutes = len(demand)
    reacting = {_reacting(one): outcome for one, outcome in found.reacting}
    chosen = _reacting(found.chosen)
    before = format_duration(len(week.before.world.demand) * MINUTE_SECONDS)
    named = {
        STATIC: found.static,
        **{_reacting(one): reacting[_reacting(one)] for one in SHOWN_UTILISATIONS},
        chosen: reacting[chosen],
        OURS: found.prewarmed,
        **({WITH_MARGIN: found.with_margin} if past.margin != NO_MARGIN else {}),
        PERFECT: found.foresight,
    }
    return Shown(
        start=past.end - minutes * MINUTE_SECONDS,
        end=past.end,
        zone=past.zone,
        requests=requests,
        strategies=tuple(_strategy(name, one, requests, minutes, past.replica_hour) for name, one in named.items()),
        ours=OURS,
        with_margin=WITH_MARGIN if past.margin != NO_MARGIN else "",
        perfect=PERFECT,
        reacting=chosen,
        recommended=OURS if found.choice is Choice.PREWARM else chosen,
        short_reason=found.reason,
        reason=f"{found.sentence[0].upper()}{found.sentence[1:]}. The {found.chosen:.0%} was the cheapest of the {before} before.",
        covered_ratio=week.judged.coverage_ratio,
        currency=past.currency,
    )


def _reacting(utilisation: float) -> str:
    return f"{REACTING} at {utilisation:.0%}"


def _strategy(name: str, one: Outcome, requests: float, minutes: int, replica_hour: float | None) -> Strategy:
    return Strategy(
        name=name,
        violation_minutes=one.violated * minutes,
        late_requests=one.late * requests,
        replica_hours=one.replica_hours,
        money=None if replica_hour is None else one.cost(replica_hour),
    )
