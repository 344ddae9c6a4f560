"""Demand against capacity, now and a cold start from now; and whether the forecast of it can be believed.

Owns the comparison of all arriving requests of a tier with what its ready and its planned replicas may take, and what a
projection adds to it. What arrives is read from windows, what a projection is stands in `rules.verdicts.projection`. Two rules
look alike and differ: LoadBeyondBenchmark finds one replica that carries more than the benchmark measured, wherever it
comes from (a bad router is enough), and then nothing can be compared; this one finds that the tier as a whole is asked
for more than its replicas together may take within the objective, however well it is spread, and counts those missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rules.confidence import CONFIDENCE, Certainty, binomial_lower_bound
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
from rules.verdicts.verdict import RuleResult, Status, Unknown

NO_FORECAST = "no forecast is made yet"

Z = NormalDist().inv_cdf(CONFIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests per second that arrived at the tier: at least, and the best estimate; the replicas that were ready for them
    (a mean), and how many requests this rests on."""

    least: float
    best: float
    ready: float
    n: float
    seconds: float

    def surely(self, capacity: float) -> bool:
        """Return whether more than `capacity` (requests per second) arrived beyond chance: independent arrivals vary
        by their root."""
        count = self.least * self.seconds
        return count - Z * math.sqrt(count) > capacity * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What the tier's replicas may take: the capacity of one (requests per second) x the rule's `share`, the margin of a count,
    and how many replicas are planned (None: not known)."""

    capacity: Capacity
    share: float
    margin: Margin
    planned: int | None

    @property
    def usable(self) -> float:
        return self.capacity.rps * self.share

    @property
    def upper_bound(self) -> float | None:
        """The same by the upper bound of the capacity; None where it is open."""
        return None if self.capacity.high is None else self.capacity.high * self.share

    @property
    def planned_rps(self) -> float:
        return math.inf if self.planned is None else self.planned * self.usable

    def needed(self, rps: float) -> int:
        """Replicas to run for so many requests per second."""
        return replica_count(rps, self.capacity, self.margin).replicas


def judge_demand(case: RuleContext) -> RuleResult:
    """Arriving requests against what the ready and the planned replicas may take; else the forecast at the lead.

    More than the ready replicas may take is a warning; more than the planned ones could as well, critical. Certain when
    the arrivals' lower bound says so over the whole hold, its last quarter and three separate minutes, and the benchmark
    has an end. What is only forecast is likely, and not asked while the forecast itself is degraded.
    """
    supply = _supply(case)
    if supply is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no curve to derive usable rps from")
    if not case.view.serves_whole_requests:
        return case.unknown(Gap.NOT_IN_PLAN, "usable rps are those of whole replicas, not of a pool: see PdRatioOff")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    whole = _arrivals(case.slices)
    if isinstance(whole, Missing):
        return case.unknown(whole.gap, whole.text or "arriving requests are not known")
    if whole.n < case.limit("minimum_requests"):
        return _forecast(case, supply, whole) or case.too_few_requests(whole.n, case.limit("minimum_requests"))
    last = _arrivals(case.last_quarter(case.slices))
    if isinstance(last, Missing):
        return case.unknown(last.gap, last.text or "arriving requests are not known in the last quarter of the time")
    ready = _beyond(case, supply, (whole, last), lambda part, each: part.ready * each)
    most = math.inf if supply.planned is None else supply.planned
    planned = _beyond(case, supply, (whole, last), lambda part, each: most * each)
    if ready or planned:
        return _exceeded(case, supply, whole, ready, planned)
    early = _too_early(case, supply, whole, last)
    if early is not None:
        return _forecast(case, supply, whole) or early
    return _forecast(case, supply, whole) or _fine(case, supply, whole)


def _too_early(case: RuleContext, supply: Supply, whole: Arrivals, last: Arrivals) -> Unknown | None:
    """More than the smaller of the two fleets may take, in too few minutes to say that it lasts."""

    def beyond(part: Arrivals) -> bool:
        return part.best > min(part.ready * supply.usable, supply.planned_rps)

    if not beyond(whole):
        return None
    each = [part if isinstance(part := _arrivals(group), Arrivals) else None for group in case.periods(case.slices)]
    return too_early(case, case.slices, last, each, beyond)


def _supply(case: RuleContext) -> Supply | None:
    plan, capacity = case.view.plan, case.view.capacity
    if plan is None or capacity is None or capacity.is_lower_bound:
        return None
    return Supply(
        capacity=capacity,
        share=case.limit("share"),
        margin=margin_from_rule(case.catalogue["NoHeadroom"], case.view.limits),
        planned=plan.fleet.instances if plan.fleet else None,
    )


def _arrivals(slices: Sequence[BinnedWindow]) -> Arrivals | Missing:
    signal = SIGNALS["arrival_rps"]
    total = windows.sum_families((one.window for one in slices), families_of(signal))
    found = read(signal, total)
    if isinstance(found, Missing):
        return found
    ready = total.covered_seconds / total.span if total.span > 0 else 0.0
    least = found.low or 0.0
    return Arrivals(
        least=least,
        best=least if found.value is None else found.value,
        ready=ready,
        n=found.n,
        seconds=total.span,
    )


def _beyond(
    case: RuleContext, supply: Supply, ends: tuple[Arrivals, Arrivals], may_take: Callable[[Arrivals, float], float]
) -> Certainty | None:
    """How sure it is that more arrived than `may_take` (of arrivals, and what each replica takes), over the hold and at its end
    (`ends`); None where it did not. Certain only above the upper bound of what a replica takes."""
    whole, last = ends
    each = [part for group in case.periods(case.slices) if isinstance(part := _arrivals(group), Arrivals)]
    usable, at_most = supply.usable, supply.upper_bound
    if whole.best <= may_take(whole, usable):
        return None
    if not is_persistent(last, each, lambda part: part.best > may_take(part, usable)):
        return None
    certain = at_most is not None and whole.surely(may_take(whole, at_most))
    return Certainty.CERTAIN if certain else Certainty.LIKELY


def _exceeded(
    case: RuleContext, supply: Supply, whole: Arrivals, ready: Certainty | None, planned: Certainty | None
) -> RuleResult:
    """Critical where not even the planned fleet could, unless only the ready one is sure to be too small."""
    sure = Certainty.CERTAIN
    both = ready is not None and planned is not None and (planned is sure or ready is not sure)
    certainty = (planned if both else ready) or planned or Certainty.LIKELY
    short = supply.needed(whole.best) - math.floor(whole.ready + 0.5)
    parts = [f"{number(whole.best, 'per_second')} arrive, {_may_take(supply, whole)}"]
    if ready is None:
        parts.append(f"the {supply.planned} planned ones {number(supply.planned_rps, 'per_second')}: outgrown plan")
    else:
        parts.append(f"{max(1, short)} more {'is' if short <= 1 else 'are'} needed")
        if supply.planned is not None:
            fits = supply.planned >= supply.needed(whole.best)
            enough = "would be enough" if fits else "would carry it without headroom"
            enough = "would not be enough" if both else enough if planned is None else "may not be enough"
            parts.append(f"the {supply.planned} planned {enough}")
    return _verdict(case, Status.CRITICAL if both else Status.WARNING, certainty, supply, whole, "; ".join(parts))


def _forecast(case: RuleContext, supply: Supply, whole: Arrivals) -> RuleResult | None:
    """What the forecast says of the time until new replicas could be ready; None where it says nothing bad."""
    projection = case.projection
    if projection is None or supply.planned is None or _standing(case, projection)[0] is not Status.OK:
        return None
    point = next((one for one in projection.points_until(case.now) if one.q95 > supply.planned_rps), None)
    if point is None:
        return None
    short = supply.needed(point.q95) - supply.planned
    sentence = (
        f"Up to {number(point.q95, 'per_second')} (95 % quantile, median {number(point.q50, 'per_second')}) are forecast in "
        f"{(point.t - case.now) / 60:.0f} min by {projection.method}; the {supply.planned} planned replicas may take "
        f"{number(supply.planned_rps, 'per_second')}: {short} short"
    )
    observed = Reading(value=point.q95, low=point.q50, high=point.q99, n=float(projection.forecasts))
    expected = Reading(value=None, low=0.0, high=supply.planned_rps, n=whole.n)
    return case.verdict(Status.WARNING, Certainty.LIKELY, observed, expected, sentence)


def _fine(case: RuleContext, supply: Supply, whole: Arrivals) -> RuleResult:
    sentence = f"{number(whole.best, 'per_second')} arrive, {_may_take(supply, whole)}"
    return _verdict(case, Status.OK, Certainty.CERTAIN, supply, whole, sentence)


def _may_take(supply: Supply, whole: Arrivals) -> str:
    plural = "replica" if f"{whole.ready:.3g}" == "1" else "replicas"
    return f"{whole.ready:.3g} ready {plural} may take {number(whole.ready * supply.usable, 'per_second')}"


def _verdict(
    case: RuleContext, status: Status, certainty: Certainty, supply: Supply, whole: Arrivals, sentence: str
) -> RuleResult:
    observed = Reading(value=whole.best, low=whole.least, high=None, n=whole.n)
    expected = Reading(value=None, low=0.0, high=whole.ready * supply.usable, n=whole.n)
    return case.verdict(status, certainty, observed, expected, sentence)


def judge_forecast(case: RuleContext) -> RuleResult:
    """Return whether the forecast kept its 95 % quantile lately, and beat the naive method; unknown while none is made.

    Certain when the one-sided 99.9 % lower bound of the share of targets above the quantile exceeds what is allowed,
    likely when the 95 % one does or the naive method was as good.
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
    status, certainty, sentence = _standing(case, projection)
    kept = projection.covered / projection.forecasts if projection.forecasts else None
    observed = Reading(value=kept, low=kept, high=kept, n=float(projection.forecasts))
    expected = Reading(value=None, low=_allowed(case, "coverage"), high=1.0, n=float(projection.forecasts))
    return case.verdict(status, certainty, observed, expected, sentence)


def _standing(case: RuleContext, projection: Projection) -> tuple[Status, Certainty, str]:
    """Return whether a projection is degraded, how surely, and in words: of too few forecasts nothing bad is known."""
    wrong: list[tuple[Certainty, str]] = []
    shown = (
        f"{projection.covered} of {projection.forecasts} targets were within the 95 % quantile of {projection.method}"
    )
    needed, missed = _allowed(case, "minimum_forecasts"), projection.forecasts - projection.covered
    if projection.forecasts >= needed:
        over = [
            certainty
            for certainty, confidence in ((Certainty.CERTAIN, CONFIDENCE), (Certainty.LIKELY, LIKELY_CONFIDENCE))
            if binomial_lower_bound(missed, projection.forecasts, confidence) > 1 - _allowed(case, "coverage")
        ]
        if over:
            wrong.append((over[0], f"only {shown}"))
    ratio = projection.error_ratio
    if ratio is not None and projection.compared >= needed and ratio >= _allowed(case, "error_ratio"):
        text = f"{projection.method} was off by {ratio:.2f} times as much as {projection.naive or 'the naive method'}"
        wrong.append((Certainty.LIKELY, f"{text} over {projection.compared} targets"))
    if not wrong:
        better = (
            "" if ratio is None else f"; its error is {ratio:.2f} of that of {projection.naive or 'the naive method'}"
        )
        return Status.OK, Certainty.CERTAIN, shown + better
    sentence = "; ".join(text for _, text in wrong)
    return Status.WARNING, wrong[0][0], sentence[0].upper() + sentence[1:]


def _allowed(case: RuleContext, name: str) -> float:
    """A threshold of ForecastDegraded: DemandExceedsCapacity asks whether a forecast stands by the same."""
    return case.catalogue["ForecastDegraded"].limit(name, case.view.limits)
