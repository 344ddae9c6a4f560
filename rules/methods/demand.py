"""Demand of a tier against the capacity of its ready and planned replicas, now and by forecast; quality of the forecast.

LoadBeyondBenchmark finds a single replica beyond the benchmark, DemandExceedsCapacity a tier whose arrivals exceed all its
replicas together. Offline work has no arrivals to serve in time: it is judged by what it makes and when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty, binomial_lower_bound
from rules.methods.evidence import capitalize, exact_reading, judge_each_pool, measure_parts, range_reading
from rules.methods.load import FAMILIES, Z
from rules.methods.utilization import read_margin
from rules.plan.load_bins import BinnedWindow
from rules.plan.replica_count import replica_count
from rules.plan.schema import Batch
from rules.telemetry import windows
from rules.telemetry.reading_methods import mean_level, replica_rate, total_level, total_rate
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, Window
from rules.telemetry.wording import describe_period, format_count, number
from rules.telemetry.work import Capacity, arriving_words, work_per_request
from rules.verdicts.context import LIKELY_CONFIDENCE, Projection, RuleContext, is_persistent, read_plan_value, too_early
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status


class Arrivals(NamedTuple):
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


class Supply(NamedTuple):
    """Capacity of a replica, its usable rate, planned replicas and rate (None, infinite)."""

    capacity: Capacity
    usable: float
    planned: int | None
    planned_rps: float


@judge_each_pool
def judge_demand(context: RuleContext) -> RuleResult:
    """Compare arrivals with the capacity of the ready and the planned replicas, then the forecast at the lead time.

    Above the ready replicas is a warning, above the planned ones too is critical. A forecast is likely at most.
    """
    capacity, share = context.tier.capacity, context.limit("share")
    if context.tier.plan is None or capacity is None or capacity.is_lower_bound:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no curve to derive usable rps from")
    planned, usable = read_plan_value(context.tier, "fleet.instances"), capacity.rps * share
    supply = Supply(capacity, usable, planned, math.inf if planned is None else planned * usable)
    whole = _read_arrivals(context, context.binned)
    last, parts = measure_parts(context, partial(_read_arrivals, context))
    if isinstance(whole, Missing):
        return context.unknown(whole.gap, whole.text or "arriving requests are not known")
    expected = _judge_projection(context, supply, whole)
    if whole.n < context.limit("minimum_requests"):
        return expected or context.too_few_requests(whole.n, context.limit("minimum_requests"))
    if isinstance(last, Missing):
        return context.unknown(last.gap, last.text or "arriving requests are not known in the last quarter of the time")
    each = [part if isinstance(part, Arrivals) else None for part in parts]

    def find_excess(count: Callable[[Arrivals], float]) -> Certainty | None:
        """Return the certainty of arrivals that persistently exceed so many replicas, or None."""

        def exceeds(part: Arrivals) -> bool:
            return part.best > count(part) * usable

        if not exceeds(whole) or not is_persistent(last, each, exceeds):
            return None
        return Certainty.of(capacity.high is not None and whole.surely_exceed(count(whole) * capacity.high * share))

    too_few_ready = find_excess(lambda part: part.ready)
    too_few_planned = find_excess(lambda part: math.inf if planned is None else planned)
    if too_few_ready or too_few_planned:
        return _report_excess(context, supply, whole, too_few_ready, too_few_planned)

    def is_above(part: Arrivals) -> bool:
        return part.best > min(part.ready * usable, supply.planned_rps)

    early = too_early(context, context.binned, last, each, is_above) if is_above(whole) else None
    return expected or early or _build_verdict(context, Status.OK, Certainty.CERTAIN, supply, whole)


def _read_arrivals(context: RuleContext, binned: Sequence[BinnedWindow]) -> Arrivals | Missing:
    signal, capacity = BY_NAME["arrival_rps"], context.tier.capacity
    total = hold(binned).sum_families(families_of(signal) | FAMILIES)
    reading = read(signal, total)
    if isinstance(reading, Missing) or capacity is None:
        return reading if isinstance(reading, Missing) else Missing(gap=Gap.NOT_IN_PLAN)
    rps = reading.low or 0.0
    best = rps if reading.value is None else reading.value
    low, each = work_per_request(total, capacity.lengths)
    ready = total.covered_seconds / total.span if total.span > 0 else 0.0
    return Arrivals(rps * low, best * each, rps, best, ready, reading.n, total.span)


def _report_excess(
    context: RuleContext, supply: Supply, whole: Arrivals, ready: Certainty | None, planned: Certainty | None
) -> RuleResult:
    """Return critical if the planned fleet is too small too, unless only the ready one certainly is."""
    sure = Certainty.CERTAIN
    both = ready is not None and planned is not None and (planned is sure or ready is not sure)
    certainty = (planned if both else ready) or planned or Certainty.LIKELY
    needed = replica_count(whole.best, supply.capacity, read_margin(context)).replicas
    short = needed - math.floor(whole.ready + 0.5)
    if ready is None:
        takes = number(supply.planned_rps, "per_second")
        parts = [f"the {supply.planned} planned ones {takes}, the plan is outgrown"]
    else:
        parts = [f"at least {max(1, short)} more {'is' if short <= 1 else 'are'} needed"]
        if supply.planned is not None:
            is_enough = planned is None and supply.planned >= needed
            parts.append(f"the {supply.planned} planned would {'' if is_enough else 'not '}be enough")
    return _build_verdict(context, Status.CRITICAL if both else Status.WARNING, certainty, supply, whole, *parts)


def _judge_projection(context: RuleContext, supply: Supply, whole: Arrivals) -> RuleResult | None:
    """Return a warning if the forecast for the lead time exceeds the planned fleet, or None."""
    projection, planned = context.projection, supply.planned
    if projection is None or planned is None or _grade_projection(context, projection)[0] is not Status.OK:
        return None
    point = next((point for point in projection.points_until(context.now) if point.q95 > supply.planned_rps), None)
    if point is None:
        return None
    short = replica_count(point.q95, supply.capacity, read_margin(context)).replicas - planned
    takes = f"{'takes' if planned == 1 else 'take'} {number(supply.planned_rps, 'per_second')}"
    arrives = f"{number(point.q95, 'per_second')} expected {describe_period(point.t, point.t, context.now)} UTC"
    needed = f"{short} more {'is' if short == 1 else 'are'} needed"
    sentence = f"Up to {arrives}, {format_count(planned, 'planned replica')} {takes}; {needed}"
    details = (f"95% quantile, median {number(point.q50, 'per_second')}", f"by {projection.method}")
    observed = Reading(value=point.q95, low=point.q50, high=point.q99, n=float(projection.forecasts))
    expected, likely = range_reading(0.0, supply.planned_rps, whole.n), Certainty.LIKELY
    return context.verdict(Status.WARNING, likely, observed, expected, sentence, details=details, is_forecast=True)


def _build_verdict(
    context: RuleContext, status: Status, certainty: Certainty, supply: Supply, whole: Arrivals, *parts: str
) -> RuleResult:
    text, ready = arriving_words(whole.rps, whole.best), f"{whole.ready:.3g}"
    observed = Reading(value=whole.best, low=whole.least, high=None, n=whole.n)
    expected = range_reading(0.0, whole.ready * supply.usable, whole.n)
    is_weighed = "(" in text
    arrive = f"{number(whole.best, 'per_second')} {'of work ' if is_weighed else ''}arrive"
    take = f"{'replica takes' if ready == '1' else 'replicas take'} {number(whole.ready * supply.usable, 'per_second')}"
    sentence = "; ".join((f"{arrive}, {ready} ready {take}", *parts))
    return context.verdict(status, certainty, observed, expected, sentence, details=(text if is_weighed else "",))


def judge_forecast(context: RuleContext) -> RuleResult:
    """Compare recent targets with the 95 % quantile, and the error with that of the naive method."""
    projection = context.projection
    if projection is None:
        return context.unknown(Gap.TOO_FEW_REQUESTS, "no forecast is made yet")
    if not projection.points_until(context.now):
        age = (context.now - projection.made_at) / 60
        return context.unknown(Gap.STALE, f"the forecast was made {age:.0f} min ago and does not reach until now")
    needed = context.limit("minimum_forecasts")
    if max(projection.forecasts, projection.compared) < needed:
        text = f"{projection.forecasts} forecasts have met their time, {needed:.0f} are needed"
        return context.unknown(Gap.TOO_FEW_REQUESTS, text)
    status, certainty, sentence = _grade_projection(context, projection)
    kept, n = projection.covered / projection.forecasts if projection.forecasts else None, float(projection.forecasts)
    details = (f"by {projection.method}", f"{projection.compared} targets were compared with the naive method")
    observed, expected = exact_reading(kept, n), range_reading(context.limit("coverage"), 1.0, n)
    return context.verdict(status, certainty, observed, expected, sentence, details=details)


def _grade_projection(context: RuleContext, projection: Projection) -> tuple[Status, Certainty, str]:
    """Return the quality of a projection, by ForecastDegraded. Too few forecasts are ok."""
    rule, limits = context.catalogue["ForecastDegraded"], context.tier.limits
    needed, coverage, most = (rule.limit(name, limits) for name in ("minimum_forecasts", "coverage", "error_ratio"))
    shown = f"{projection.covered} of {projection.forecasts} targets were within the 95% quantile"
    certainty: Certainty | None = None
    wrong, missed = [], projection.forecasts - projection.covered
    for grade, confidence in ((Certainty.LIKELY, LIKELY_CONFIDENCE), (Certainty.CERTAIN, CONFIDENCE)):
        bound = binomial_lower_bound(missed, projection.forecasts, confidence) if projection.forecasts >= needed else 0
        if bound > 1 - coverage:
            certainty, wrong = grade, [f"only {shown}"]
    ratio = projection.error_ratio
    error = "" if ratio is None else f"the error is {ratio:.2f} times that of {projection.naive or 'the naive method'}"
    if ratio is not None and projection.compared >= needed and ratio >= most:
        certainty, wrong = certainty or Certainty.LIKELY, [*wrong, error]
    if certainty is None:
        return Status.OK, Certainty.CERTAIN, f"{shown}; {error}" if error else shown
    return Status.WARNING, certainty, capitalize("; ".join(wrong))


def judge_batch(context: RuleContext) -> RuleResult:
    """Judge offline work (guide 1.4): tokens a second against the curve while work waits, and the time that is left.

    Late: the queue ends after the deadline, or a job takes too long. Certain: also at the highest likely rate (Poisson).
    """
    plan = context.tier.plan
    if plan is None or not plan.is_batch:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan's workload is no batch work")
    whole = windows.sum_windows(binned.window for binned in context.binned)
    last = windows.sum_windows(binned.window for binned in context.last_quarter(context.binned))
    n = whole.counters.get("requests_finished", 0.0)
    waiting, running = (_total(last, name) for name in ("requests_waiting", "requests_running"))
    queued = None if waiting is None or running is None else waiting + running
    if queued is not None and queued < 1:
        return context.unknown(Gap.NO_TRAFFIC, "no work is in the queue")
    if n < context.limit("minimum_requests"):
        return context.too_few_requests(n, context.limit("minimum_requests"))
    claims = list(_claim_lateness(context, plan.batch or Batch(), whole, last, queued))
    if not claims:
        text = "the plan has no batch.deadline, no job's size with its hours, and no curve"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    need, at_least, text = max(claims, key=lambda claim: (claim[1] > 1, claim[0]))
    status = Status.WARNING if need > 1 else Status.OK
    certainty = Certainty.of(status is Status.OK or at_least > 1)
    details = [claim[2] for claim in claims if claim[2] != text]
    observed, expected = range_reading(at_least, need, n), range_reading(0.0, 1.0, n)
    return context.verdict(status, certainty, observed, expected, capitalize(text), details=details)


def _claim_lateness(
    context: RuleContext, batch: Batch, whole: Window, last: Window, queued: float | None
) -> Iterator[tuple[float, float, str]]:
    """Yield need by what there is (above 1 misses), the same at best, and words."""
    names = ("requests_finished", "generation_tokens")
    rate, tokens = (max(_total(part, name) or 0.0 for part in (whole, last)) for name in names)
    chance = 1 + Z / math.sqrt(whole.counters["requests_finished"])
    if batch.deadline is not None and queued is not None and rate > 0:
        hours, minutes = map(int, batch.deadline.split(":"))
        left = max(1.0, (hours * HOUR_SECONDS + minutes * 60.0 - context.now) % DAY_SECONDS)
        took, end = queued / rate, context.now + queued / rate
        text = f"the {queued:,.0f} requests in the system end {describe_period(end, end, context.now)} UTC"
        yield took / left, took / chance / left, f"{text}; they are due at {batch.deadline} UTC"
    size, pace, word = (batch.requests, rate, "requests") if batch.requests else (batch.tokens, tokens, "tokens")
    if batch.hours is not None and size and pace > 0:
        took = size / pace / HOUR_SECONDS
        text = f"a job of {size:,} {word} takes {took:.3g} h at this rate; {batch.hours:g} h are planned"
        # Lengths scatter too, so the number of requests gives a rate of tokens no bound.
        yield took / batch.hours, took / chance / batch.hours if batch.requests else 0.0, text
    points = context.tier.curve.points if context.tier.curve else ()
    best = max((point.output_tokens_per_second or 0.0 for point in points), default=0.0)
    made, waiting = replica_rate(whole, "generation_tokens"), mean_level(last, "requests_waiting")
    if best and made and isinstance(waiting, Reading) and (waiting.low or 0.0) >= 1:
        need = best * context.limit("share") / made
        yield need, need, f"{made:,.0f} tokens/s a replica while work waits; {best:,.0f} in the benchmark"


def _total(window: Window, family: str) -> float | None:
    """Return a rate or a level of the whole tier in a window, None if it is not known."""
    total = (total_rate if family in window.counters else total_level)(window, family)
    return None if isinstance(total, Missing) else total.value
