"""Demand against capacity, now and a cold start from now; and whether the forecast of it can be believed.

Owns the comparison of all arriving requests of a tier with what its ready and its planned replicas may take, and what a
projection adds to it. What arrives is read from windows, what a projection is stands in `rules.projections`. Two rules
look alike and differ: LoadBeyondBenchmark finds one replica that carries more than the benchmark measured, wherever it
comes from (a bad router is enough), and then nothing can be compared; this one finds that the tier as a whole is asked
for more than its replicas together may take within the objective, however well it is spread, and counts those missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rules import windows
from rules.bounds import CONFIDENCE, binomial_lower_bound
from rules.catalogue import BY_NAME
from rules.curve import operating_point
from rules.judging import LIKELY_CONFIDENCE, Case, persists
from rules.projections import Projection
from rules.readings import families_of, read
from rules.signals import BY_NAME as SIGNALS
from rules.signals import Gap, Missing, Reading
from rules.slices import Slice
from rules.verdicts import Answer, Certainty, Status
from rules.wording import number

APART = frozenset({"prefill", "decode"})
"""Pools whose replicas each do a part of a request: usable requests a second of a replica say nothing of them."""

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
        """Whether more than `capacity` (requests per second) arrived beyond chance: independent arrivals vary by their root."""
        count = self.least * self.seconds
        return count - Z * math.sqrt(count) > capacity * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica may take (usable requests per second x the rule's share), and how many are planned; `measured`
    says that the benchmark reached the objective's end, so that no replica may take more."""

    usable: float
    planned: int | None
    measured: bool

    @property
    def planned_rps(self) -> float:
        return math.inf if self.planned is None else self.planned * self.usable

    def needed(self, rps: float) -> int:
        """Replicas for so many requests per second."""
        return math.ceil(rps / self.usable - 1e-9)


def judge_demand(case: Case) -> Answer:
    """Arriving requests against what the ready and the planned replicas may take; else the forecast at the lead.

    More than the ready replicas may take is a warning; more than the planned ones could as well, critical. Certain when
    the arrivals' lower bound says so over the whole hold, its last quarter and three separate minutes, and the benchmark
    has an end. What is only forecast is likely, and not asked while the forecast itself is degraded.
    """
    capacity = _capacity(case)
    if capacity is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no curve to derive usable rps from")
    if APART & set(case.view.pools.values()):
        return case.unknown(Gap.NOT_IN_PLAN, "usable rps are those of whole replicas, not of a pool: see PdRatioOff")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    whole = _arrivals(case.slices)
    if isinstance(whole, Missing):
        return case.unknown(whole.gap, whole.text or "arriving requests are not known")
    if whole.n < case.limit("minimum_requests"):
        return _forecast(case, capacity, whole) or case.too_few(whole.n, case.limit("minimum_requests"))
    last = _arrivals(case.last_quarter(case.slices))
    if isinstance(last, Missing):
        return case.unknown(last.gap, last.text or "arriving requests are not known in the last quarter of the time")
    ready = _beyond(case, capacity, (whole, last), lambda part: part.ready * capacity.usable)
    planned = _beyond(case, capacity, (whole, last), lambda part: capacity.planned_rps)
    if ready or planned:
        return _exceeded(case, capacity, whole, ready, planned)
    return _forecast(case, capacity, whole) or _fine(case, capacity, whole)


def _capacity(case: Case) -> Capacity | None:
    plan, usable = case.view.plan, case.view.basis.usable_rps
    point = operating_point(plan) if plan else None
    if plan is None or point is None or not usable:
        return None
    return Capacity(
        usable=usable * case.limit("share"),
        planned=plan.fleet.instances if plan.fleet else None,
        measured=point.knee_reached,
    )


def _arrivals(slices: Sequence[Slice]) -> Arrivals | Missing:
    signal = SIGNALS["arrival_rps"]
    total = windows.add_of((one.window for one in slices), families_of(signal))
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
    case: Case, capacity: Capacity, ends: tuple[Arrivals, Arrivals], may_take: Callable[[Arrivals], float]
) -> Certainty | None:
    """How sure it is that more arrived than `may_take`, over the hold and at its end (`ends`); None where it did not."""
    whole, last = ends
    each = [part for group in case.periods(case.slices) if isinstance(part := _arrivals(group), Arrivals)]
    if whole.best <= may_take(whole) or not persists(last, each, lambda part: part.best > may_take(part)):
        return None
    return Certainty.CERTAIN if capacity.measured and whole.surely(may_take(whole)) else Certainty.LIKELY


def _exceeded(
    case: Case, capacity: Capacity, whole: Arrivals, ready: Certainty | None, planned: Certainty | None
) -> Answer:
    """Critical where not even the planned fleet could, unless only the ready one is sure to be too small."""
    sure = Certainty.CERTAIN
    both = ready is not None and planned is not None and (planned is sure or ready is not sure)
    certainty = (planned if both else ready) or planned or Certainty.LIKELY
    short = capacity.needed(whole.best) - math.floor(whole.ready + 0.5)
    parts = [f"{number(whole.best, 'per_second')} arrive, {_may_take(capacity, whole)}"]
    if ready is None:
        parts.append(f"the {capacity.planned} planned ones {number(capacity.planned_rps, 'per_second')}: outgrown plan")
    else:
        parts.append(f"{max(1, short)} more {'is' if short <= 1 else 'are'} needed")
        if capacity.planned is not None:
            enough = "would not be" if both else "would be" if planned is None else "may not be"
            parts.append(f"the {capacity.planned} planned {enough} enough")
    return _verdict(case, Status.CRITICAL if both else Status.WARNING, certainty, capacity, whole, "; ".join(parts))


def _forecast(case: Case, capacity: Capacity, whole: Arrivals) -> Answer | None:
    """What the forecast says of the time until new replicas could be ready; None where it says nothing bad."""
    projection = case.projection
    if projection is None or capacity.planned is None or _standing(case, projection)[0] is not Status.OK:
        return None
    point = next((one for one in projection.ahead(case.now) if one.q95 > capacity.planned_rps), None)
    if point is None:
        return None
    short = capacity.needed(point.q95) - capacity.planned
    sentence = (
        f"Up to {number(point.q95, 'per_second')} (95 % quantile, median {number(point.q50, 'per_second')}) are forecast in "
        f"{(point.t - case.now) / 60:.0f} min by {projection.method}; the {capacity.planned} planned replicas may take "
        f"{number(capacity.planned_rps, 'per_second')}: {short} short"
    )
    observed = Reading(value=point.q95, low=point.q50, high=point.q99, n=float(projection.forecasts))
    expected = Reading(value=None, low=0.0, high=capacity.planned_rps, n=whole.n)
    return case.verdict(Status.WARNING, Certainty.LIKELY, observed, expected, sentence)


def _fine(case: Case, capacity: Capacity, whole: Arrivals) -> Answer:
    sentence = f"{number(whole.best, 'per_second')} arrive, {_may_take(capacity, whole)}"
    return _verdict(case, Status.OK, Certainty.CERTAIN, capacity, whole, sentence)


def _may_take(capacity: Capacity, whole: Arrivals) -> str:
    plural = "replica" if f"{whole.ready:.3g}" == "1" else "replicas"
    return f"{whole.ready:.3g} ready {plural} may take {number(whole.ready * capacity.usable, 'per_second')}"


def _verdict(
    case: Case, status: Status, certainty: Certainty, capacity: Capacity, whole: Arrivals, sentence: str
) -> Answer:
    observed = Reading(value=whole.best, low=whole.least, high=None, n=whole.n)
    expected = Reading(value=None, low=0.0, high=whole.ready * capacity.usable, n=whole.n)
    return case.verdict(status, certainty, observed, expected, sentence)


def judge_forecast(case: Case) -> Answer:
    """Whether the forecast kept its 95 % quantile lately, and beat the naive method; unknown while none is made.

    Certain when the one-sided 99.9 % lower bound of the share of targets above the quantile exceeds what is allowed,
    likely when the 95 % one does or the naive method was as good.
    """
    projection = case.projection
    if projection is None:
        return case.unknown(Gap.TOO_FEW_REQUESTS, NO_FORECAST)
    if not projection.ahead(case.now):
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


def _standing(case: Case, projection: Projection) -> tuple[Status, Certainty, str]:
    """Whether a projection is degraded, how surely, and in words: of too few forecasts nothing bad is known."""
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


def _allowed(case: Case, name: str) -> float:
    """A threshold of ForecastDegraded: DemandExceedsCapacity asks whether a forecast stands by the same."""
    return BY_NAME["ForecastDegraded"].limit(name, case.view.limits)
