"""Demand of a tier against the capacity of its ready and planned replicas, now and by forecast; quality of the forecast.

LoadBeyondBenchmark finds a single replica beyond the benchmark, for example by a bad router. DemandExceedsCapacity finds
a tier whose arrivals exceed all its replicas together, and counts the missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rules.confidence import CONFIDENCE, Certainty, binomial_lower_bound
from rules.methods.evidence import capitalize, certain_if, exact_reading, judge_each_pool, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.plan.replica_count import Margin, margin_from_rule, replica_count
from rules.telemetry import windows
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.wording import number
from rules.telemetry.work import Capacity
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, too_early
from rules.verdicts.projection import Projection
from rules.verdicts.verdict import RuleResult, Status

NO_FORECAST = "no forecast is made yet"

Z = NormalDist().inv_cdf(CONFIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests per second that arrived at the tier (lower bound, best estimate), mean ready replicas, requests."""

    least: float
    best: float
    ready: float
    n: float
    seconds: float

    def surely_exceed(self, capacity: float) -> bool:
        """Return whether more than `capacity` (requests per second) arrived beyond chance (Poisson)."""
        count = self.least * self.seconds
        return count - Z * math.sqrt(count) > capacity * self.seconds


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
    def upper_bound(self) -> float | None:
        """Return the usable rate by the upper bound of the capacity. Return None if there is none."""
        return None if self.capacity.high is None else self.capacity.high * self.share

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
    whole = _read_arrivals(case.binned)
    if isinstance(whole, Missing):
        return case.unknown(whole.gap, whole.text or "arriving requests are not known")
    if whole.n < case.limit("minimum_requests"):
        return _judge_projection(case, supply, whole) or case.too_few_requests(whole.n, case.limit("minimum_requests"))
    last = _read_arrivals(case.last_quarter(case.binned))
    if isinstance(last, Missing):
        return case.unknown(last.gap, last.text or "arriving requests are not known in the last quarter of the time")
    each = [
        part if isinstance(part := _read_arrivals(group), Arrivals) else None for group in case.periods(case.binned)
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
    sentence = f"{number(whole.best, 'per_second')} arrive, {_describe_capacity(supply, whole)}"
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


def _read_arrivals(binned: Sequence[BinnedWindow]) -> Arrivals | Missing:
    signal = SIGNALS["arrival_rps"]
    total = windows.sum_families((one.window for one in binned), families_of(signal))
    found = read(signal, total)
    if isinstance(found, Missing):
        return found
    ready = total.covered_seconds / total.span if total.span > 0 else 0.0
    least = found.low or 0.0
    best = least if found.value is None else found.value
    return Arrivals(least=least, best=best, ready=ready, n=found.n, seconds=total.span)


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
    at_most = supply.upper_bound
    return certain_if(at_most is not None and whole.surely_exceed(fleet_rps(whole, at_most)))


def _report_excess(
    case: RuleContext, supply: Supply, whole: Arrivals, ready: Certainty | None, planned: Certainty | None
) -> RuleResult:
    """Return critical if the planned fleet is too small too, unless only the ready one certainly is."""
    sure = Certainty.CERTAIN
    both = ready is not None and planned is not None and (planned is sure or ready is not sure)
    certainty = (planned if both else ready) or planned or Certainty.LIKELY
    short = supply.needed(whole.best) - math.floor(whole.ready + 0.5)
    parts = [f"{number(whole.best, 'per_second')} arrive, {_describe_capacity(supply, whole)}"]
    if ready is None:
        parts.append(
            f"the {supply.planned} planned ones {number(supply.planned_rps, 'per_second')}, the plan is outgrown"
        )
    else:
        parts.append(f"{max(1, short)} more {'is' if short <= 1 else 'are'} needed")
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
        f"Up to {number(point.q95, 'per_second')} are forecast in {(point.t - case.now) / 60:.0f} min; "
        f"the {supply.planned} planned replicas take {number(supply.planned_rps, 'per_second')}, {short} short"
    )
    details = (f"95% quantile, median {number(point.q50, 'per_second')}", f"by {projection.method}")
    observed = Reading(value=point.q95, low=point.q50, high=point.q99, n=float(projection.forecasts))
    expected = range_reading(0.0, supply.planned_rps, whole.n)
    return case.verdict(Status.WARNING, Certainty.LIKELY, observed, expected, sentence, details=details)


def _describe_capacity(supply: Supply, whole: Arrivals) -> str:
    plural = "replica" if f"{whole.ready:.3g}" == "1" else "replicas"
    return f"{whole.ready:.3g} ready {plural} take {number(whole.ready * supply.usable, 'per_second')}"


def _build_verdict(
    case: RuleContext, status: Status, certainty: Certainty, supply: Supply, whole: Arrivals, sentence: str
) -> RuleResult:
    observed = Reading(value=whole.best, low=whole.least, high=None, n=whole.n)
    expected = range_reading(0.0, whole.ready * supply.usable, whole.n)
    return case.verdict(status, certainty, observed, expected, sentence)


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
