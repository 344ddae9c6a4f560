"""Production of one tier: sums by hour and load bin, arrivals, and its latency-throughput curve (guide 8.1, 8.3).

It is built day by day: memory holds a day of rows. To add a quantity: a field and a line of `ProductionSummary.add`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rules.confidence import binomial_lower_bound
from rules.plan.capacity import POOL_TOKENS
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED
from rules.plan.load_bins import BinnedWindow, TierContext, narrow_to_pool, sum_by_bin
from rules.plan.schema import Slo
from rules.telemetry import histograms, windows
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading, SignalKind, SignalValue
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.work import SAME, UNTOLD, CapacityLengths, weigh
from rules.verdicts.context import SEPARATE

RATE_SECONDS = 300.0
"""Arrivals are added up over a start (guide 9.2: 2 to 5 minutes). No scaling answers shorter peaks."""

FIRST_MINUTES = 120
"""Known minutes up to which the busiest is kept: later three stretches of five minutes show the peak."""

RECENT_SECONDS = 7 * 86_400.0
"""A replica's capacity and lengths are of the last week: over a month a drift hides in its own past."""

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

    def work(self, lengths: CapacityLengths) -> float:
        """Return the arrivals as work: in requests of these lengths per second. Without any token they are their own."""
        tokens = self.prompt_tokens, self.generation_tokens
        return weigh(self.rps, *tokens, self.computed, lengths, n=self.rps).total.value or self.rps


def pick_peak(rates: Sequence[Rate], lengths: CapacityLengths) -> tuple[Rate, float]:
    """Return the stretch with the third most work (of fewer: the least), by requests if both agree, and its work in rps."""
    by_rps = sorted(rates, key=lambda rate: rate.rps)[-SEPARATE:][0]
    by_work = sorted(rates, key=lambda rate: rate.work(lengths))[-SEPARATE:][0]
    work = by_work.work(lengths)
    return (by_rps, by_rps.rps) if abs(work / by_rps.rps - 1) <= SAME else (by_work, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionSummary:
    """One tier in [since, until), unix seconds.

    `total` is the sum of all observed hours, `lately` that of the last RECENT_SECONDS. `hours` are windows of an hour
    without histograms, under any plan. `plan_hours` and `bins` (recent, one per load bin, one beyond the benchmark) are
    under the present plan. `rates` are the arrivals by five minutes in `minutes` known minutes. `busiest` are those of
    the busiest minute of a young history (by work), and `present` those of the last minute. `versions` of the plan have
    the newest last. `pools` has the same of each pool, with the arrivals of the tier.
    """

    context: TierContext
    since: float
    until: float
    total: Window | None = None
    lately: Window | None = None
    hours: tuple[Window, ...] = ()
    plan_hours: tuple[Window, ...] = ()
    bins: tuple[BinnedWindow, ...] = ()
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
    def average_rps(self) -> float | None:
        """Return the mean arrivals (rps) of the known minutes."""
        return self.requests / (self.minutes * MINUTE_SECONDS) if self.minutes else None

    @property
    def observed_replicas(self) -> float:
        """Return the mean replicas while the tier was observed. Time without sizewatch is no time without replicas."""
        seconds = self.observed_seconds
        return math.fsum(hour.covered_seconds for hour in self.hours) / seconds if seconds > 0 else 0.0

    def add(
        self, slices: Iterable[BinnedWindow], of_plan: Iterable[BinnedWindow], demand: Iterable[MinuteDemand]
    ) -> ProductionSummary:
        """Return the summary with the next hours by load bin, all and of the present plan, and their minutes."""
        binned, present, demand = tuple(slices), tuple(of_plan), tuple(demand)
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
            busiest=max(busiest, key=lambda rate: rate.work(lengths), default=None),
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


ALLOWED = 0.01
"""An objective on P99 lets one request of a hundred be slower."""


class SloStatus(StrEnum):
    """Result of a load against the SLO: certain, likely or unknown. The worst is first."""

    BROKEN = "broken"
    LIKELY_BROKEN = "likely_broken"
    TOO_FEW = "too_few_requests"
    NOT_KNOWN = "not_known"
    LIKELY_KEPT = "likely_kept"
    KEPT = "kept"


FINE, BAD = frozenset({SloStatus.KEPT, SloStatus.LIKELY_KEPT}), frozenset({SloStatus.BROKEN, SloStatus.LIKELY_BROKEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionPoint:
    """A load bin of a replica in production: its mean load and what was seen there.

    `bin` is None beyond the benchmark, `outside` then says why. `output_tokens_per_second` is a replica's. `planned` is what
    the benchmark measured of TTFT P99 at this load.
    """

    bin: int | None
    outside: str
    rps: float
    in_system: float | None
    requests: float
    ttft_p50: SignalValue
    ttft_p99: SignalValue
    tpot_p99: SignalValue
    output_tokens_per_second: float | None
    planned_ttft_p99: float | None
    planned_tpot_p99: float | None
    kept: SloStatus


def production_points(context: TierContext, bins: Iterable[BinnedWindow]) -> tuple[ProductionPoint, ...]:
    """Return the points with requests, by rising load, from one sum per load bin; beyond the benchmark last."""
    rows = [_point(context, binned) for binned in bins if binned.rps]
    return tuple(sorted(rows, key=lambda point: (point.bin is None, point.rps)))


def _point(context: TierContext, binned: BinnedWindow) -> ProductionPoint:
    window, basis = binned.window, context.basis

    def reading(name: str) -> SignalValue:
        return read(BY_NAME[name], window, basis)

    return ProductionPoint(
        bin=binned.bin,
        outside=binned.beyond,
        rps=binned.rps or 0.0,
        in_system=binned.in_system,
        requests=window.counters.get("requests_finished", 0.0),
        ttft_p50=reading("ttft_p50_seconds"),
        ttft_p99=reading("ttft_p99_seconds"),
        tpot_p99=reading("tpot_p99_seconds"),
        output_tokens_per_second=replica_rate(window, "generation_tokens"),
        planned_ttft_p99=_planned(context, binned, "ttft_p99_seconds"),
        planned_tpot_p99=_planned(context, binned, "tpot_p99_seconds"),
        kept=check_slo(window, context.plan.slo, context.itl_comparable) if context.plan else SloStatus.NOT_KNOWN,
    )


def merge_bins(seen: ProductionSummary, name: str, window: Window) -> SignalValue:
    """Return a signal over all load bins.

    A quantile's best estimate stays between those of the bins if they hold all requests.
    """
    reading = read(BY_NAME[name], window, seen.context.basis)
    if not isinstance(reading, Reading) or reading.value is None or BY_NAME[name].how is not SignalKind.QUANTILE:
        return reading
    each = [read(BY_NAME[name], binned.window, seen.context.basis) for binned in seen.bins]
    readings = [candidate for candidate in each if isinstance(candidate, Reading)]
    if math.fsum(candidate.n for candidate in readings) != reading.n:
        return reading
    least = min(candidate.value if candidate.value is not None else candidate.low or 0.0 for candidate in readings)
    most = max(candidate.value if candidate.value is not None else math.inf for candidate in readings)
    return replace(reading, value=min(max(reading.value, least), most))


def _planned(context: TierContext, binned: BinnedWindow, metric: str) -> float | None:
    curve = context.curve
    if curve is None or binned.bin is None or binned.rps is None or binned.bin >= len(curve.points):
        return None
    expectation = curve.expectation(binned.bin, metric, binned.rps, binned.in_system)
    return expectation.value if expectation else None


def check_slo(window: Window, slo: Slo, itl: bool = True) -> SloStatus:
    """Return whether a window's requests kept every objective that the engine's histograms show.

    Broken: more than 1 % are slower for any distribution inside the buckets, beyond chance (99.9 %, one-sided). Fewer
    than 300 requests give no result: their P99 is the third worst (DESIGN 3.3).
    """
    status = [
        _keeps(window, metric.replace("_p99", ""), limit)
        for metric in LIMITED
        if (limit := getattr(slo, metric)) is not None and (itl or metric != "itl_p99_seconds")
    ]
    # An engine that shows one of two latencies says nothing of the other; what it shows still counts.
    known = [value for value in status if value is not SloStatus.NOT_KNOWN]
    return min(known, key=list(SloStatus).index, default=SloStatus.NOT_KNOWN)


def _keeps(window: Window, family: str, limit: float) -> SloStatus:
    parts = window.histograms.get(family, ())
    share = histograms.share_above(parts, limit)
    if share.n <= 0:
        return SloStatus.NOT_KNOWN
    if share.n < CERTAIN_REQUESTS:
        return SloStatus.TOO_FEW
    if binomial_lower_bound(math.floor(share.low), math.floor(share.n)) > ALLOWED:
        return SloStatus.BROKEN
    if share.high <= ALLOWED * share.n:
        return SloStatus.KEPT
    return SloStatus.LIKELY_BROKEN if share.best > ALLOWED * share.n else SloStatus.LIKELY_KEPT
