"""Demand of a tier against the capacity of its ready and planned replicas, now and by forecast; quality of the forecast.

LoadBeyondBenchmark finds a single replica beyond the benchmark, for example by a bad router. DemandExceedsCapacity finds
a tier whose arrivals exceed all its replicas together, and counts the missing ones. Offline work has no arrivals to serve in
time: it is judged by what it makes and when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rules.confidence import CONFIDENCE, Certainty, binomial_lower_bound
from rules.methods.evidence import capitalize, certain_if, exact_reading, judge_each_pool, range_reading
from rules.methods.load import FAMILIES
from rules.plan.load_bins import BinnedWindow
from rules.plan.replica_count import Margin, margin_from_rule, replica_count
from rules.plan.schema import Batch
from rules.telemetry import windows
from rules.telemetry.reading_methods import mean_level, replica_rate, total_level, total_rate
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, Window
from rules.telemetry.wording import describe_period, format_count, number
from rules.telemetry.work import Capacity, arriving_words, work_per_request
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, too_early
from rules.verdicts.held_windows import hold
from rules.verdicts.projection import Projection
from rules.verdicts.verdict import RuleResult, Status

NO_FORECAST = "no forecast is made yet"

Z = NormalDist().inv_cdf(CONFIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Work per second that arrived at the tier (lower bound, best estimate), mean ready replicas, requests.

    Work is in requests of the lengths that capacity counts. `least_rps` and `rps` are the requests themselves.
    """

    least: float
    best: float
    least_rps: float
    rps: float
    ready: float
    n: float
    seconds: float

    def surely_exceed(self, capacity: float) -> bool:
        """Return whether more than `capacity` (work per second) arrived beyond chance (Poisson)."""
        count = self.least_rps * self.seconds
        return count > 0 and (count - Z * math.sqrt(count)) * self.least / self.least_rps > capacity * self.seconds

    @property
    def weighed(self) -> str:
        """Return the requests beside their work in words, or "" if both are the same number."""
        text = arriving_words(self.rps, self.best)
        return text if "(" in text else ""

    def __str__(self) -> str:
        return f"{number(self.best, 'per_second')} {'of work ' if self.weighed else ''}arrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Capacity of a replica (requests per second), usable share, margin of a count, and planned replicas if known."""

    capacity: Capacity
    share: float
    margin: Margin
    planned: int | None

    @property
    def usable(self) -> float:
        return self.capacity.rps * self.share

    @property
    def planned_rps(self) -> float:
        return math.inf if self.planned is None else self.planned * self.usable

    def needed(self, rps: float) -> int:
        """Return the replicas for a rate (requests per second)."""
        return replica_count(rps, self.capacity, self.margin).replicas


@judge_each_pool
def judge_demand(case: RuleContext) -> RuleResult:
    """Compare arrivals with the capacity of the ready and the planned replicas, then the forecast at the lead time.

    Above the ready replicas is a warning, above the planned ones too is critical. Certain needs the lower bound of the
    arrivals, persistence, and a capacity with an upper bound. A forecast is likely, and ignored while it is degraded.
    """
    supply = _read_supply(case)
    if supply is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no curve to derive usable rps from")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    whole = _read_arrivals(case.binned, supply)
    if isinstance(whole, Missing):
        return case.unknown(whole.gap, whole.text or "arriving requests are not known")
    if whole.n < case.limit("minimum_requests"):
        return _judge_projection(case, supply, whole) or case.too_few_requests(whole.n, case.limit("minimum_requests"))
    last = _read_arrivals(case.last_quarter(case.binned), supply)
    if isinstance(last, Missing):
        return case.unknown(last.gap, last.text or "arriving requests are not known in the last quarter of the time")
    each = [
        part if isinstance(part := _read_arrivals(group, supply), Arrivals) else None
        for group in case.periods(case.binned)
    ]
    most = math.inf if supply.planned is None else supply.planned
    ready, planned = (
        _find_excess(supply, whole, last, each, fleet)
        for fleet in (lambda part, usable: part.ready * usable, lambda part, usable: most * usable)
    )
    if ready or planned:
        return _report_excess(case, supply, whole, ready, planned)

    def exceeds(part: Arrivals) -> bool:
        return part.best > min(part.ready * supply.usable, supply.planned_rps)

    early = too_early(case, case.binned, last, each, exceeds) if exceeds(whole) else None
    sentence = f"{whole}, {_describe_capacity(supply, whole)}"
    return (
        _judge_projection(case, supply, whole)
        or early
        or _build_verdict(case, Status.OK, Certainty.CERTAIN, supply, whole, sentence)
    )


def _read_supply(case: RuleContext) -> Supply | None:
    plan, capacity = case.context.plan, case.context.capacity
    if plan is None or capacity is None or capacity.is_lower_bound:
        return None
    return Supply(
        capacity=capacity,
        share=case.limit("share"),
        margin=margin_from_rule(case.catalogue["NoHeadroom"], case.context.limits),
        planned=plan.fleet.instances if plan.fleet else None,
    )


def _read_arrivals(binned: Sequence[BinnedWindow], supply: Supply) -> Arrivals | Missing:
    signal = SIGNALS["arrival_rps"]
    total = hold(binned).sum_families(families_of(signal) | FAMILIES)
    found = read(signal, total)
    if isinstance(found, Missing):
        return found
    ready = total.covered_seconds / total.span if total.span > 0 else 0.0
    least = found.low or 0.0
    best = least if found.value is None else found.value
    low, each = work_per_request(total, supply.capacity.lengths)
    return Arrivals(
        least=least * low, best=best * each, least_rps=least, rps=best, ready=ready, n=found.n, seconds=total.span
    )


def _find_excess(
    supply: Supply,
    whole: Arrivals,
    last: Arrivals,
    each: Sequence[Arrivals | None],
    fleet_rps: Callable[[Arrivals, float], float],
) -> Certainty | None:
    """Return the certainty that arrivals exceed a fleet over the window and persistently. Return None if they do not.

    `fleet_rps` takes arrivals and the usable rate of a replica. Certain needs the upper bound of that rate.
    """
    if whole.best <= fleet_rps(whole, supply.usable):
        return None
    if not is_persistent(last, each, lambda part: part.best > fleet_rps(part, supply.usable)):
        return None
    at_most = supply.capacity.high
    return certain_if(at_most is not None and whole.surely_exceed(fleet_rps(whole, at_most * supply.share)))


def _report_excess(
    case: RuleContext, supply: Supply, whole: Arrivals, ready: Certainty | None, planned: Certainty | None
) -> RuleResult:
    """Return critical if the planned fleet is too small too, unless only the ready one certainly is."""
    sure = Certainty.CERTAIN
    both = ready is not None and planned is not None and (planned is sure or ready is not sure)
    certainty = (planned if both else ready) or planned or Certainty.LIKELY
    short = supply.needed(whole.best) - math.floor(whole.ready + 0.5)
    parts = [f"{whole}, {_describe_capacity(supply, whole)}"]
    if ready is None:
        parts.append(
            f"the {supply.planned} planned ones {number(supply.planned_rps, 'per_second')}, the plan is outgrown"
        )
    else:
        parts.append(f"at least {max(1, short)} more {'is' if short <= 1 else 'are'} needed")
        if supply.planned is not None:
            fits = supply.planned >= supply.needed(whole.best)
            enough = "would be enough" if fits else "would carry it without headroom"
            enough = "would not be enough" if both else enough if planned is None else "may not be enough"
            parts.append(f"the {supply.planned} planned {enough}")
    status = Status.CRITICAL if both else Status.WARNING
    return _build_verdict(case, status, certainty, supply, whole, "; ".join(parts))


def _judge_projection(case: RuleContext, supply: Supply, whole: Arrivals) -> RuleResult | None:
    """Return a warning if the forecast until new replicas can be ready exceeds the planned fleet, else None."""
    projection = case.projection
    if projection is None or supply.planned is None or _grade_projection(case, projection)[0] is not Status.OK:
        return None
    point = next((one for one in projection.points_until(case.now) if one.q95 > supply.planned_rps), None)
    if point is None:
        return None
    short = supply.needed(point.q95) - supply.planned
    sentence = (
        f"Up to {number(point.q95, 'per_second')} expected {describe_period(point.t, point.t, case.now)}, "
        f"{format_count(supply.planned, 'planned replica')} {'takes' if supply.planned == 1 else 'take'} "
        f"{number(supply.planned_rps, 'per_second')}; {short} more {'is' if short == 1 else 'are'} needed"
    )
    details = (f"95% quantile, median {number(point.q50, 'per_second')}", f"by {projection.method}")
    observed = Reading(value=point.q95, low=point.q50, high=point.q99, n=float(projection.forecasts))
    expected = range_reading(0.0, supply.planned_rps, whole.n)
    return case.verdict(
        Status.WARNING, Certainty.LIKELY, observed, expected, sentence, details=details, is_forecast=True
    )


def _describe_capacity(supply: Supply, whole: Arrivals) -> str:
    they_take = "replica takes" if f"{whole.ready:.3g}" == "1" else "replicas take"
    return f"{whole.ready:.3g} ready {they_take} {number(whole.ready * supply.usable, 'per_second')}"


def _build_verdict(
    case: RuleContext, status: Status, certainty: Certainty, supply: Supply, whole: Arrivals, sentence: str
) -> RuleResult:
    observed = Reading(value=whole.best, low=whole.least, high=None, n=whole.n)
    expected = range_reading(0.0, whole.ready * supply.usable, whole.n)
    return case.verdict(status, certainty, observed, expected, sentence, details=(whole.weighed,))


def judge_forecast(case: RuleContext) -> RuleResult:
    """Compare recent targets of the forecast with its 95 % quantile, and its error with that of the naive method.

    Certain if the one-sided 99.9 % lower bound of the share above the quantile exceeds the allowed share. Likely if the
    95 % bound does, or if the naive method was as good.
    """
    projection = case.projection
    if projection is None:
        return case.unknown(Gap.TOO_FEW_REQUESTS, NO_FORECAST)
    if not projection.points_until(case.now):
        age = (case.now - projection.made_at) / 60
        return case.unknown(Gap.STALE, f"the forecast was made {age:.0f} min ago and does not reach until now")
    needed = case.limit("minimum_forecasts")
    if max(projection.forecasts, projection.compared) < needed:
        text = f"{projection.forecasts} forecasts have met their time, {needed:.0f} are needed"
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    status, certainty, sentence = _grade_projection(case, projection)
    kept = projection.covered / projection.forecasts if projection.forecasts else None
    n, least = float(projection.forecasts), _forecast_limit(case, "coverage")
    details = (f"by {projection.method}", f"{projection.compared} targets were compared with the naive method")
    observed, expected = exact_reading(kept, n), range_reading(least, 1.0, n)
    return case.verdict(status, certainty, observed, expected, sentence, details=details)


def _grade_projection(case: RuleContext, projection: Projection) -> tuple[Status, Certainty, str]:
    """Return status, certainty and words for the quality of a projection. Too few forecasts are ok."""
    wrong: list[tuple[Certainty, str]] = []
    shown = f"{projection.covered} of {projection.forecasts} targets were within the 95% quantile"
    needed, missed = _forecast_limit(case, "minimum_forecasts"), projection.forecasts - projection.covered
    if projection.forecasts >= needed:
        over = [
            certainty
            for certainty, confidence in ((Certainty.CERTAIN, CONFIDENCE), (Certainty.LIKELY, LIKELY_CONFIDENCE))
            if binomial_lower_bound(missed, projection.forecasts, confidence) > 1 - _forecast_limit(case, "coverage")
        ]
        if over:
            wrong.append((over[0], f"only {shown}"))
    ratio, naive = projection.error_ratio, projection.naive or "the naive method"
    if ratio is not None and projection.compared >= needed and ratio >= _forecast_limit(case, "error_ratio"):
        wrong.append((Certainty.LIKELY, f"the error is {ratio:.2f} times that of {naive}"))
    if not wrong:
        better = "" if ratio is None else f"; the error is {ratio:.2f} times that of {naive}"
        return Status.OK, Certainty.CERTAIN, shown + better
    return Status.WARNING, wrong[0][0], capitalize("; ".join(text for _, text in wrong))


def _forecast_limit(case: RuleContext, name: str) -> float:
    """Return a threshold of ForecastDegraded, which DemandExceedsCapacity uses too."""
    return case.catalogue["ForecastDegraded"].limit(name, case.context.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaim:
    """One comparison of offline work: the need by what there is (above 1 misses), the same at best, and words."""

    need: float
    at_least: float
    text: str


def judge_batch(case: RuleContext) -> RuleResult:
    """Judge offline work (guide 1.4): tokens a second against the curve while work waits, and the time that is left.

    The engines know their queue; the size of a job is the plan's. Late: at the present rate the queue ends after the
    deadline, or a job takes longer than it may. Certain: also at the highest rate that chance allows (Poisson).
    """
    plan = case.context.plan
    if plan is None or not plan.is_batch:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan's workload is no batch work")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    whole = windows.sum_windows(one.window for one in case.binned)
    last = windows.sum_windows(one.window for one in case.last_quarter(case.binned))
    n = whole.counters.get("requests_finished", 0.0)
    levels = [_total(last, name) for name in ("requests_waiting", "requests_running")]
    queued = None if None in levels else math.fsum(one or 0.0 for one in levels)
    if queued is not None and queued < 1:
        return case.unknown(Gap.NO_TRAFFIC, "no work is in the queue")
    if n < case.limit("minimum_requests"):
        return case.too_few_requests(n, case.limit("minimum_requests"))
    chance = 1 + Z / math.sqrt(n)
    claims = [
        *_judge_time(case, plan.batch or Batch(), (whole, last), queued, chance),
        *_judge_throughput(case, whole, last),
    ]
    if not claims:
        return case.unknown(
            Gap.NOT_IN_PLAN, "the plan has no batch.deadline, no job's size with its hours, and no curve"
        )
    worst = max(claims, key=lambda one: (one.at_least > 1, one.need))
    failed = read(SIGNALS["failed_share"], whole)
    share = f"{number(failed.value or 0.0, 'ratio')} of {failed.n:,.0f}" if isinstance(failed, Reading) else ""
    status = Status.WARNING if worst.need > 1 else Status.OK
    certainty = certain_if(status is Status.OK or worst.at_least > 1)
    details = (*(one.text for one in claims if one is not worst), f"{share} requests failed" if share else "")
    observed, expected = range_reading(worst.at_least, worst.need, n), range_reading(0.0, 1.0, n)
    return case.verdict(status, certainty, observed, expected, capitalize(worst.text), details=details)


def _judge_time(
    case: RuleContext, batch: Batch, parts: Sequence[Window], queued: float | None, chance: float
) -> Iterator[BatchClaim]:
    """Yield when the queue ends against the deadline, and how long a job takes against its hours."""
    rate, tokens = (
        max(_total(one, name) or 0.0 for one in parts) for name in ("requests_finished", "generation_tokens")
    )
    if batch.deadline is not None and queued is not None and rate > 0:
        hours, minutes = map(int, batch.deadline.split(":"))
        left = max(1.0, (hours * HOUR_SECONDS + minutes * 60.0 - case.now) % DAY_SECONDS)
        took, end = queued / rate, case.now + queued / rate
        text = f"the {queued:,.0f} requests in the system end {describe_period(end, end, case.now)}"
        text = f"{text}; they are due at {batch.deadline} UTC"
        yield BatchClaim(need=took / left, at_least=took / chance / left, text=text)
    size, pace, word = (batch.requests, rate, "requests") if batch.requests else (batch.tokens, tokens, "tokens")
    if batch.hours is not None and size and pace > 0:
        took = size / pace / HOUR_SECONDS
        text = f"a job of {size:,} {word} takes {took:.3g} h at this rate; {batch.hours:g} h are planned"
        # Lengths scatter too, so the number of requests gives a rate of tokens no bound.
        sure = took / chance / batch.hours if batch.requests else 0.0
        yield BatchClaim(need=took / batch.hours, at_least=sure, text=text)


def _judge_throughput(case: RuleContext, whole: Window, last: Window) -> Iterator[BatchClaim]:
    """Yield tokens a second of a replica against the highest of the curve, while at least one request a replica waits."""
    points = case.context.curve.points if case.context.curve else ()
    best = max((one.output_tokens_per_second or 0.0 for one in points), default=0.0)
    made, waiting = replica_rate(whole, "generation_tokens"), mean_level(last, "requests_waiting")
    if best and made and isinstance(waiting, Reading) and (waiting.low or 0.0) >= 1:
        text = f"{made:,.0f} tokens/s a replica while work waits; {best:,.0f} in the benchmark"
        need = best * case.limit("share") / made
        yield BatchClaim(need=need, at_least=need, text=text)


def _total(window: Window, family: str) -> float | None:
    """Return a rate or a level of the whole tier in a window, None if it is not known."""
    found = (total_rate if family in window.counters else total_level)(window, family)
    return None if isinstance(found, Missing) else found.value
