"""Mistakes of a valid plan: values from which a wrong size follows.

Each sentence names the numbers and what to write instead. A plan with mistakes is still evaluated: a daemon must not
stop for it. Limits of single values are in `rules.plan.plausible_ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Literal

from rules.engines.registry import ENGINES
from rules.light_dataclass import light_dataclass
from rules.plan.curve import LIMITED, Curve, OperatingPoint, operating_point
from rules.plan.envelope import by_littles_law, metric_value, sort_by_load
from rules.plan.plausible_ranges import implausible
from rules.plan.replica_count import NO_OVERRIDES, Margin, margin_from_rule
from rules.plan.schema import Point, TierPlan
from rules.problems import find_close_name
from rules.telemetry.contradictions import find_contradictions
from rules.thresholds import CatalogueRow

FEW_FOR_A_P99 = 100
"""With fewer requests the P99 of a run is its slowest request (nearest rank, ceil(0.99 n) = n)."""

IMPOSSIBLE_LOAD = 3.0
"""Completed rps x time in system above so many times the concurrency is no rounding of Little's law: medians of skewed
times stand below their means, so the law is rather missed on the other side."""

IDLE_LOAD = 0.2
"""Completed rps x time in system below this share of the concurrency: medians of skewed times do not stand so far below
their means."""

FAR_BEYOND = 1.5
"""Factor by which a typical request, of medians and the mean length, may exceed the P99 of whole requests."""

CORRECT = "correct them, or benchmark again"

OTHER_LENGTHS = 5.0
"""Output tokens of a point's requests further from the planned median than this are of other traffic or another unit: the
longest tail of the guide's lengths (P99 / P50 = 5) would have to be its mean."""

FAR_SHORT = 10.0
"""A fleet that carries less than a tenth of the planned peak was not sized for it: the two are in other units."""

FAR_ABOVE = 2.0
"""A replica that takes more than so many times the highest load of its benchmark is not the replica that was measured, or the
value is the whole fleet's: production's own capacity is taken up to loads that it has seen, and rises by 10 % a day."""

SAME_AS_FLEET = 0.25
"""A factor within this share of the number of replicas is that number."""

SHORTEST_ORDER = 4
"""Points from which on a falling latency is an order: three may be a warm-up and noise."""

FALLS = 2.0
"""A latency that falls by less may be flat."""

TIMES = ((60.0, "minute"), (3600.0, "hour"), (86_400.0, "day"))

NO_RULES: Mapping[str, CatalogueRow] = MappingProxyType({})
"""Catalogue of checks that need none of its thresholds."""

Severity = Literal["mistake", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("mistake", "warning", "info")
"""Severities in the order of the output. A `mistake` fails the check."""

Found = Iterator[tuple[str, Severity, str]]
"""Place in the tier, severity and sentence."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tier under check with its points as written, and the curve and operating point that follow from them.

    `rules` is the catalogue, whose thresholds the tier's configuration may override.
    """

    tier: TierPlan
    points: tuple[Point, ...]
    curve: Curve | None
    point: OperatingPoint | None
    rules: Mapping[str, CatalogueRow]
    overrides: Mapping[str, Mapping[str, float]]

    @property
    def margin(self) -> Margin:
        """Return the margin that counts of replicas keep."""
        return margin_from_rule(self.rules["NoHeadroom"], self.overrides)

    def limit(self, rule: str, name: str) -> float:
        """Return a threshold of the catalogue, or the tier's override."""
        return self.rules[rule].limit(name, self.overrides)


def case_of(
    tier: TierPlan,
    rules: Mapping[str, CatalogueRow] = NO_RULES,
    overrides: Mapping[str, Mapping[str, float]] = NO_OVERRIDES,
) -> Case:
    """Return the tier with its curve and its operating point."""
    points = tier.curve.points if tier.curve else ()
    return Case(
        tier=tier,
        points=points,
        curve=Curve.from_plan(tier),
        point=operating_point(tier),
        rules=rules,
        overrides=overrides,
    )


def _implausible(case: Case) -> Found:
    for path, text in implausible(case.tier):
        yield path, "mistake", text


def _unknown_engine(case: Case) -> Found:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    if case.tier.engine not in known:
        close = find_close_name(case.tier.engine.casefold(), known)
        instead = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
        yield "engine", "mistake", f"{case.tier.engine} is no engine whose pages can be read; {instead}"


def _slo_below_curve(case: Case) -> Found:
    """Yield objectives that no measured load keeps: the tier has no capacity."""
    if case.curve is None:
        return
    lowest = case.curve.points[0]
    for name in LIMITED:
        limit, value = getattr(case.tier.slo, name), metric_value(lowest, name)
        if limit is not None and value is not None and value > limit:
            text = f"{limit:.4g} s is below all that the curve measured: {value:.4g} s at its lowest load"
            where = f"{lowest.completed_rps:.4g} completed rps"
            instead = "correct the objective or the unit, or measure lower loads"
            yield f"slo.{name}", "mistake", f"{text}, {where}. No load keeps it, so no capacity follows; {instead}"


def _falling_latency(case: Case) -> Found:
    """Yield latencies that fall from point to point while the load rises: the column has a wrong order."""
    if case.tier.curve is None:
        return
    points = sort_by_load(case.tier.curve)
    for name in LIMITED:
        values = [value for point in points if (value := metric_value(point, name)) is not None]
        if len(values) < len(points) or len(points) < SHORTEST_ORDER or values[0] < FALLS * values[-1]:
            continue
        if all(after < before for before, after in pairwise(values)):
            text = f"{name} falls from {values[0]:.4g} to {values[-1]:.4g} s while the load rises"
            yield (
                "curve.points",
                "mistake",
                f"{text}: its values are in the wrong order; write each beside its own load",
            )


def _impossible_load(case: Case) -> Found:
    """Yield a benchmark that breaks Little's law: rps x time in system is the number of requests at once."""
    ratios = [ratio for point in case.points if (ratio := _at_once(case, point)) is not None]
    if not ratios or IDLE_LOAD <= (factor := median(ratios)) <= IMPOSSIBLE_LOAD:
        return
    text = f"completed_rps x time in system is {factor:.3g} times the concurrency (Little's law), which cannot be"
    yield "curve.points", "mistake", f"{text}; {_of_the_fleet(case, factor)}. Write latencies in seconds"


def _contradictory_times(case: Case) -> Found:
    """Yield points whose times exclude each other, or tell that answers were not streamed."""
    for place, point in enumerate(case.points):
        tokens = None if point.tpot_p50_seconds else point.generation_tokens_mean
        for entry in find_contradictions(
            ttft=point.ttft_p99_seconds, e2e=point.e2e_p99_seconds, tokens=tokens, of="P99"
        ):
            yield f"curve.points[{place}]", "mistake", f"{entry.text}, which cannot be; {CORRECT}"
        typical = (by_littles_law(point, None) or 0.0) / point.completed_rps
        if point.e2e_p99_seconds is not None and typical > FAR_BEYOND * point.e2e_p99_seconds:
            text = f"TTFT P50 + TPOT P50 x tokens is {typical:.4g} s, E2E P99 {point.e2e_p99_seconds:.4g} s"
            yield f"curve.points[{place}]", "mistake", f"{text}, which cannot be; {CORRECT}"


def _at_once(case: Case, point: Point) -> float | None:
    tokens = case.tier.workload.generation_tokens if case.tier.workload else None
    found = by_littles_law(point, tokens.p50 if tokens else None)
    return None if found is None or not point.concurrency else found / point.concurrency


def _other_lengths(case: Case) -> Found:
    """Yield output tokens per request that differ between curve and workload."""
    tokens = case.tier.workload.generation_tokens if case.tier.workload else None
    planned, which = (tokens.mean, "mean") if tokens and tokens.mean else (tokens.p50 if tokens else None, "P50")
    given = [p.output_tokens_per_second / p.completed_rps for p in case.points if p.output_tokens_per_second]
    if not given or planned is None or 1 / OTHER_LENGTHS <= median(given) / planned <= OTHER_LENGTHS:
        return
    found = median(given)
    text = f"output_tokens_per_second / completed_rps is {found:.3g} tokens a request, the workload's {which} is {planned:.4g}"
    instead = _of_the_fleet(case, max(found / planned, planned / found))
    yield "curve.points", "mistake", f"{text}; {instead}, or measure with the planned lengths"


def _of_the_fleet(case: Case, factor: float) -> str:
    replicas = case.tier.fleet.instances if case.tier.fleet else 0
    if replicas > 1 and abs(factor - replicas) <= SAME_AS_FLEET * replicas:
        return f"the plan has {replicas} replicas: write the rates of one replica, not of the fleet"
    return "write the rates of one replica in one second"


def _other_rate(case: Case) -> Found:
    """Yield a peak far above the planned fleet: probably requests of another span of time."""
    rates, fleet = case.tier.workload and case.tier.workload.requests_per_second, case.tier.fleet
    if not (rates and rates.peak and fleet and case.point):
        return
    carried = fleet.instances * case.point.usable_rps
    if rates.peak <= FAR_SHORT * carried:
        return
    text = (
        f"{rates.peak:.6g} rps are {rates.peak / carried:.3g} times what the planned {fleet.instances} replicas carry"
    )
    meant = [
        f"if they are requests a {span}, write {rates.peak / seconds:.4g}"
        for seconds, span in TIMES
        if carried / FAR_SHORT <= rates.peak / seconds <= carried
    ]
    instead = ", ".join(meant) or "correct the peak or fleet.instances"
    yield "workload.requests_per_second.peak", "mistake", f"{text} ({carried:.4g} rps); {instead}"


def _unmeasured_capacity(case: Case) -> Found:
    """Yield a given operating point far above every load of the benchmark."""
    given = case.point if case.point and case.point.given else None
    if given is None or case.curve is None or given.usable_rps <= FAR_ABOVE * case.curve.top_rps:
        return
    text = f"{given.usable_rps:.6g} rps are {given.usable_rps / case.curve.top_rps:.3g} times the highest load of the curve"
    instead = _of_the_fleet(case, given.usable_rps / case.curve.top_rps)
    yield (
        "operating_point.usable_rps",
        "mistake",
        f"{text} ({case.curve.top_rps:.4g} rps); {instead}, or benchmark again",
    )


def _untold_p99(case: Case) -> Found:
    """Yield a capacity from points with too few requests for a P99."""
    if case.curve is None:
        return
    around = [point for point in _around(case) if point.requests is not None]
    few = [point for point in around if (point.requests or 0) < FEW_FOR_A_P99]
    if not few:
        return
    requests = min(point.requests or 0 for point in few)
    text = f"the capacity rests on a load of {requests} requests, whose P99 is the slowest of them"
    missed = f"the true P99 is above it with a probability of {0.99**requests:.0%}, and nothing bounds it"
    yield "curve.points", "mistake", f"{text}; {missed}. Measure 300 requests or more at each load"


def _around(case: Case) -> tuple[Point, ...]:
    """Return the points around the operating point, the lowest point if no load keeps the SLO."""
    assert case.curve is not None
    derived = case.curve.usable(case.tier.slo)
    if derived is None:
        return case.curve.points[:1]
    above = [place for place, point in enumerate(case.curve.points) if point.completed_rps >= derived.usable_rps]
    place = above[0] if above else len(case.curve.points) - 1
    exact = math.isclose(case.curve.points[place].completed_rps, derived.usable_rps)
    return case.curve.points[place if exact else max(place - 1, 0) : place + 1]


MISTAKES: tuple[Callable[[Case], Found], ...] = (
    _implausible,
    _unknown_engine,
    _slo_below_curve,
    _falling_latency,
    _impossible_load,
    _contradictory_times,
    _other_lengths,
    _other_rate,
    _unmeasured_capacity,
    _untold_p99,
)
