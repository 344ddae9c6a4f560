"""Summary of one tier's production: sums by hour and load bin, and arrivals.

It is built day by day: memory never holds more than a day of rows. To add a quantity: a field and a line of
`ProductionSummaryBuilder.add`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rules.plan.load_bins import APART, BinnedWindow, TierContext, narrow_to_pool, sum_by_bin
from rules.telemetry import windows
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.work import UNTOLD, CapacityLengths, weigh

RATE_SECONDS = 300.0
"""Arrivals are looked at over five minutes: about what a replica takes to start (guide 9.2: 2 to 5 minutes), so what is
shorter no scaling could have answered."""

FIRST_MINUTES = 120
"""Known minutes up to which the busiest one is kept: later three stretches of five minutes show the peak."""

RECENT_SECONDS = 7 * 86_400.0
"""What a replica can take, and how long requests are, is told by the last week: over a month a drift hides in its own past."""

WHOLE_MINUTES = 4
"""Of five: with fewer known one burst would be the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Arrivals of the tier (rps) in the stretch from `start` (unix seconds), and their tokens per second (None: unknown).

    `computed` is the share (0-1) of prompt tokens that no prefix cache had.
    """

    start: float
    rps: float
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    computed: float | None = None

    def work(self, lengths: CapacityLengths) -> float | None:
        """Return the arrivals as work: in requests of these lengths per second. Without any token it is unknown."""
        tokens = self.prompt_tokens, self.generation_tokens
        if tokens == (None, None):
            return None
        return weigh(self.rps, *tokens, self.computed, lengths, n=self.rps).total.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionSummary:
    """One tier in [since, until), unix seconds.

    `total` is the sum of all observed hours, `lately` that of the last RECENT_SECONDS. `hours` are windows of an hour
    without histograms, under any plan. `plan_hours` and `bins` (recent, one per load bin, one beyond the benchmark) are
    under the present plan. `rates` are the arrivals by five minutes in `minutes` known minutes. `busiest` are those of
    the busiest minute of a young history (by work), and `present` those of the last minute. `versions` are the plan
    versions, newest last. `pools` has the same of each pool, where prefill and decode are served apart: the arrivals are
    the tier's. `capacity_bins` are the load bins that the capacity rests on, empty where there are none.
    """

    context: TierContext
    since: float
    until: float
    total: Window | None = None
    lately: Window | None = None
    hours: tuple[Window, ...] = ()
    plan_hours: tuple[Window, ...] = ()
    bins: tuple[BinnedWindow, ...] = ()
    capacity_bins: tuple[BinnedWindow, ...] = ()
    rates: tuple[Rate, ...] = ()
    busiest: Rate | None = None
    present: Rate | None = None
    minutes: int = 0
    requests: float = 0.0
    versions: tuple[str, ...] = ()
    pools: Mapping[str, ProductionSummary] = field(default_factory=dict)

    @property
    def observed_seconds(self) -> float:
        """Return the seconds in which the tier was observed."""
        return sum(min(hour.span, HOUR_SECONDS) * hour.coverage for hour in self.hours)

    @property
    def curve_bins(self) -> tuple[BinnedWindow, ...]:
        """Return the load bins of the curve: those of the capacity, so that both tell of the same requests."""
        return self.capacity_bins or self.bins

    @property
    def average_rps(self) -> float | None:
        """Return the mean arrivals (rps) of the known minutes."""
        return self.requests / (self.minutes * MINUTE_SECONDS) if self.minutes else None

    @property
    def observed_replicas(self) -> float:
        """Return the mean replicas while the tier was observed. Time without sizewatch is no time without replicas."""
        seconds = self.observed_seconds
        return math.fsum(hour.covered_seconds for hour in self.hours) / seconds if seconds > 0 else 0.0


@dataclass(slots=True, kw_only=True)
class ProductionSummaryBuilder:
    """Builder of a `ProductionSummary`, day by day."""

    context: TierContext
    since: float
    until: float
    total: Window | None = None
    lately: Window | None = None
    hours: dict[float, Window] = field(default_factory=dict)
    plan_hours: dict[float, Window] = field(default_factory=dict)
    bins: dict[int | None, BinnedWindow] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)
    busiest: tuple[MinuteDemand, ...] = ()
    last: list[MinuteDemand] = field(default_factory=list)
    minutes: int = 0
    requests: float = 0.0
    pools: dict[str, ProductionSummaryBuilder] = field(default_factory=dict)

    def add(
        self, every: Iterable[BinnedWindow], of_plan: Iterable[BinnedWindow], demand: Iterable[MinuteDemand]
    ) -> None:
        """Add hours by load bin (all, and those under the present plan), and the minutes of the same time."""
        binned, present, demand = tuple(every), tuple(of_plan), tuple(demand)
        for pool in sorted(APART & {one.replica for one in binned}):
            builder = ProductionSummaryBuilder(context=self.context, since=self.since, until=self.until)
            told, later = (
                [replace(one, replica=None) for one in part if one.replica == pool] for part in (binned, present)
            )
            self.pools.setdefault(pool, builder).add(told, later, demand)
        self.total = _added(self.total, binned)
        _into_hours(self.hours, binned)
        _into_hours(self.plan_hours, present)
        self._add_demand(demand)
        recent = self.until - RECENT_SECONDS
        self.lately = _added(self.lately, [one for one in binned if one.window.middle >= recent])
        of_bins = [one for one in present if one.window.middle >= recent]
        self.bins = {one.bin: one for one in sum_by_bin([*self.bins.values(), *of_bins])}

    def _weigh(self, minute: MinuteDemand) -> float:
        lengths = self.context.capacity.lengths if self.context.capacity else UNTOLD
        return minute.work(lengths) or minute.requests or 0.0

    def _add_demand(self, demand: tuple[MinuteDemand, ...]) -> None:
        known = [one for one in demand if one.requests is not None]
        self.minutes += len(known)
        self.requests = sum((one.requests or 0.0 for one in known), self.requests)
        if known and self.minutes <= FIRST_MINUTES:
            self.busiest = (max((*self.busiest, *known), key=self._weigh),)
        self.last = (known or self.last)[-1:]
        for start, several in sorted(
            windows.group_by(known, lambda one: one.start // RATE_SECONDS * RATE_SECONDS).items()
        ):
            if len(several) >= WHOLE_MINUTES:
                self.rates += filter(None, [_sum_demand(several, start)])

    def build(self, versions: tuple[str, ...]) -> ProductionSummary:
        """Return the summary of the collected days."""
        hours = tuple(self.hours[start] for start in sorted(self.hours))
        ordered = sorted(self.bins.values(), key=lambda one: (one.bin is None, one.bin or 0))
        return ProductionSummary(
            context=self.context,
            since=self.since,
            until=self.until,
            total=_without_holes(self.total, hours),
            lately=self.lately,
            hours=hours,
            plan_hours=tuple(self.plan_hours[start] for start in sorted(self.plan_hours)),
            bins=tuple(ordered),
            rates=tuple(self.rates),
            busiest=_sum_demand(self.busiest),
            present=_sum_demand(self.last),
            minutes=self.minutes,
            requests=self.requests,
            versions=versions,
            pools={
                pool: replace(one.build(versions), context=narrow_to_pool(self.context, pool, one.lately))
                for pool, one in self.pools.items()
            },
        )


def _sum_demand(minutes: Sequence[MinuteDemand], start: float | None = None) -> Rate | None:
    """Return the arrivals of adjacent minutes with known requests, None without any.

    Tokens that a minute lacks are unknown. The begin is that of the first minute, or `start`.
    """
    if not minutes:
        return None

    def per_second(amounts: Sequence[float | None]) -> float | None:
        known = [amount for amount in amounts if amount is not None]
        return sum(known) / (len(minutes) * MINUTE_SECONDS) if len(known) == len(minutes) else None

    prompts = per_second([one.prompt_tokens for one in minutes])
    shares = [None if one.computed is None else one.computed * (one.prompt_tokens or 0.0) for one in minutes]
    computed = per_second(shares)
    return Rate(
        start=minutes[0].start if start is None else start,
        rps=per_second([one.requests for one in minutes]) or 0.0,
        prompt_tokens=prompts,
        generation_tokens=per_second([one.generation_tokens for one in minutes]),
        computed=computed / prompts if computed is not None and prompts else None,
    )


def _added(known: Window | None, binned: Sequence[BinnedWindow]) -> Window | None:
    several = [one.window for one in binned]
    return windows.sum_windows([*([known] if known is not None else []), *several]) if several else known


def _without_holes(total: Window | None, hours: tuple[Window, ...]) -> Window | None:
    """Return the sum as if its hours were adjacent: rates are per observed second."""
    if total is None:
        return None
    seconds = math.fsum(hour.span for hour in hours)
    return replace(total, start=total.end - min(total.span, seconds))


def _into_hours(hours: dict[float, Window], binned: tuple[BinnedWindow, ...]) -> None:
    for one in binned:
        start = one.window.middle // HOUR_SECONDS * HOUR_SECONDS
        # Weeks of hours are held at once, and of a window its histograms are most.
        slim = replace(one.window, histograms={})
        hours[start] = windows.sum_windows((hours[start], slim)) if start in hours else slim
