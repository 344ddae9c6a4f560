"""Summary of one tier's production: sums by hour and load bin, and arrivals.

It is built day by day: memory never holds more than a day of rows. To add a quantity: a field and a line of
`ProductionSummary.add`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow, TierContext, narrow_to_pool, sum_by_bin
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

    def add(
        self, binneds: Iterable[BinnedWindow], of_plan: Iterable[BinnedWindow], demand: Iterable[MinuteDemand]
    ) -> ProductionSummary:
        """Return the summary with the next hours by load bin, all and of the present plan, and the minutes of that time."""
        binned, present, demand = tuple(binneds), tuple(of_plan), tuple(demand)
        recent, pools = self.until - RECENT_SECONDS, dict(self.pools)
        for pool in POOL_TOKENS.keys() & {part.replica for part in binned}:
            before = pools.get(pool) or ProductionSummary(context=self.context, since=self.since, until=self.until)
            own, own_present = (
                [replace(part, replica=None) for part in parts if part.replica == pool] for parts in (binned, present)
            )
            after = before.add(own, own_present, demand)
            pools[pool] = replace(after, context=narrow_to_pool(self.context, pool, after.lately))
        hours = (*self.hours, *_sum_hours(binned))
        total = _add_windows(self.total, binned)
        if total is not None:
            # As if the hours were adjacent: rates are per observed second.
            total = replace(total, start=total.end - min(total.span, math.fsum(hour.span for hour in hours)))
        bins = sum_by_bin([*self.bins, *(part for part in present if part.window.middle >= recent)])
        known = [minute for minute in demand if minute.requests is not None]
        each = [_sum_demand([minute], minute.start) for minute in known]
        minutes, busiest = self.minutes + len(known), [self.busiest] if self.busiest else []
        if minutes <= FIRST_MINUTES:
            busiest += each
        lengths = self.context.capacity.lengths if self.context.capacity else UNTOLD
        return replace(
            self,
            total=total,
            lately=_add_windows(self.lately, [part for part in binned if part.window.middle >= recent]),
            hours=hours,
            plan_hours=(*self.plan_hours, *_sum_hours(present)),
            bins=tuple(sorted(bins, key=lambda part: (part.bin is None, part.bin or 0))),
            rates=(*self.rates, *_sum_stretches(known)),
            busiest=max(busiest, key=lambda rate: rate.work(lengths) or rate.rps, default=None),
            present=each[-1] if each else self.present,
            minutes=minutes,
            requests=sum((minute.requests or 0.0 for minute in known), self.requests),
            pools=pools,
        )


def _sum_stretches(known: Iterable[MinuteDemand]) -> Iterator[Rate]:
    """Yield the arrivals of each five minutes with enough known ones."""
    grouped = windows.group_by(known, lambda minute: minute.start // RATE_SECONDS * RATE_SECONDS)
    for start, minutes in sorted(grouped.items()):
        if len(minutes) >= WHOLE_MINUTES:
            yield _sum_demand(minutes, start)


def _sum_demand(minutes: Sequence[MinuteDemand], start: float) -> Rate:
    """Return the arrivals of minutes with known requests. Tokens that a minute lacks are unknown."""

    def per_second(amounts: Sequence[float | None]) -> float | None:
        known = [amount for amount in amounts if amount is not None]
        return sum(known) / (len(minutes) * MINUTE_SECONDS) if len(known) == len(minutes) else None

    prompts = per_second([minute.prompt_tokens for minute in minutes])
    computed = per_second(
        [None if minute.computed is None else minute.computed * (minute.prompt_tokens or 0.0) for minute in minutes]
    )
    return Rate(
        start=start,
        rps=per_second([minute.requests for minute in minutes]) or 0.0,
        prompt_tokens=prompts,
        generation_tokens=per_second([minute.generation_tokens for minute in minutes]),
        computed=computed / prompts if computed is not None and prompts else None,
    )


def _add_windows(known: Window | None, binned: Sequence[BinnedWindow]) -> Window | None:
    parts = [part.window for part in binned]
    return windows.sum_windows([*([known] if known is not None else []), *parts]) if parts else known


def _sum_hours(binned: Iterable[BinnedWindow]) -> Iterator[Window]:
    """Yield the sum of each hour, oldest first, without histograms: weeks of hours are held at once."""
    slim = (replace(part.window, histograms={}) for part in binned)
    grouped = windows.group_by(slim, lambda window: window.middle // HOUR_SECONDS)
    return (windows.sum_windows(group) for _, group in sorted(grouped.items()))
