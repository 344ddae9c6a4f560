"""Mistakes of a valid plan: values from which a wrong size follows.

Each sentence names the numbers and what to write instead. A plan with mistakes is still evaluated: a daemon must not
stop for it. To add a plausible range: a row of RANGES with its source. It must hold for every tier that exists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from rules.engines.registry import ENGINES
from rules.plan.curve import LIMITED, Curve, OperatingPoint, by_littles_law, operating_point
from rules.plan.schema import Point, TierPlan
from rules.problems import find_close_name
from rules.telemetry.contradictions import find_contradictions
from rules.telemetry.wording import probability
from rules.thresholds import CatalogueRow

FEW_FOR_A_P99 = 100
"""With fewer requests the P99 of a run is its slowest request (nearest rank, ceil(0.99 n) = n)."""

IDLE_LOAD, IMPOSSIBLE_LOAD = 0.2, 3.0
"""Completed rps x time in system by the concurrency: outside it is no rounding of medians of skewed times."""

CALIBRATION_GAP = 2.0
"""Factor of Little's ceiling above the usable rps, beyond which the test's traffic was another (guide 8.3)."""

FAR_BEYOND = 1.5
"""Factor by which a typical request, of medians and the mean length, may exceed the P99 of whole requests."""

Severity = Literal["mistake", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("mistake", "warning", "info")
"""Severities in the order of the output. A `mistake` fails the check."""

Found = Iterator[tuple[str, Severity, str]]
"""Place in the tier, severity and sentence."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tier under check, with the curve and the operating point that follow from it.

    `rules` is the catalogue, whose thresholds the tier's configuration may override.
    """

    tier: TierPlan
    rules: Mapping[str, CatalogueRow]
    overrides: Mapping[str, Mapping[str, float]]

    @property
    def points(self) -> tuple[Point, ...]:
        """Return the points of the curve as written."""
        return self.tier.curve.points if self.tier.curve else ()

    @cached_property
    def curve(self) -> Curve | None:
        return Curve.from_plan(self.tier)

    @cached_property
    def point(self) -> OperatingPoint | None:
        return operating_point(self.tier)

    def limit(self, rule: str, name: str) -> float:
        """Return a threshold of the catalogue, or the tier's override."""
        return self.rules[rule].limit(name, self.overrides)


TOKEN = "engines make a token in 15 to 25 ms, and people read one in 90 ms (sizing guide, 1)"
WHOLE = "a request has at least one token"
START = "loading a 70B model takes 30 to 60 s, a whole cold start 2 to 10 minutes (sizing guide, 1 and 9.2)"
PRICE = "an hour of an H100 costs 2.50 in the sizing guide, and this is one GPU, not a server"
DEGRADED = "above 0.2 evictions a request a replica is already degraded (sizing guide, 9.3)"

RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("slo.ttft_p99_seconds", 0.005, 60.0, "the sizing guide's objective is 2 s (8.3)"),
    ("slo.tpot_p99_seconds", 0.0005, 2.0, TOKEN),
    ("slo.itl_p99_seconds", 0.0005, 2.0, TOKEN),
    ("slo.e2e_p99_seconds", 0.01, math.inf, "a request has a first token and others after it"),
    ("workload.prompt_tokens.p50", 1.0, math.inf, WHOLE),
    ("workload.generation_tokens.p50", 1.0, math.inf, WHOLE),
    ("cold_start_seconds", 5.0, 3600.0, START),
    ("speculation.draft_step_seconds", 0.0, 1.0, "a draft step is shorter than the step that it saves"),
    ("speculation.verify_step_seconds", 0.0, 2.0, TOKEN),
    ("cost.gpu_hour_price", 0.01, 25.0, PRICE),
)
"""Path in the tier, lowest and highest plausible value, and why. The highest price is ten times the guide's."""

UNLIKE_PRODUCTION = "the test's inputs are not production's (guide 8.4): check its lengths, arrivals and concurrency"

DOLLAR_SIZED = frozenset({"USD", "EUR", "GBP", "CHF", "CAD", "AUD", "NZD", "SGD"})
"""Currencies worth between half a US dollar and two: the range of prices holds for these alone."""


def _implausible(context: Case) -> Found:
    tier = context.tier
    for path, low, high, why in RANGES:
        # Nobody waits for the first token of a batch (guide 1): its objective may be as long as anybody likes.
        is_other_money = path.startswith("cost.") and tier.cost is not None and tier.cost.currency not in DOLLAR_SIZED
        if not is_other_money and not (tier.is_batch and path.startswith("slo.")):
            yield from _outside(path, tier.value_at(path), low, high, why)
    for place, point in enumerate(context.points):
        yield from _outside(f"curve.points[{place}].eviction_rate", point.eviction_rate, 0.0, 2.0, DEGRADED)


def _outside(path: str, value: float | None, low: float, high: float, why: str) -> Found:
    """Yield a value outside its range, with what to write if it is in milliseconds."""
    if value is None or low <= value <= high:
        return
    bound = f"below {low:g}" if value < low else f"above {high:g}"
    text = f"{value:.6g}{' s' if path.endswith('_seconds') else ''} is {bound}, the limit of what is plausible: {why}"
    if path.endswith("_seconds") and low <= value / 1000 <= high:
        text += f"; if it is milliseconds, write {value / 1000:.4g}"
    yield path, "mistake", text


def _unknown_engine(context: Case) -> Found:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    if context.tier.engine not in known:
        close = find_close_name(context.tier.engine.casefold(), known)
        instead = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
        yield "engine", "mistake", f"{context.tier.engine} is no engine whose pages can be read; {instead}"


def _slo_below_curve(context: Case) -> Found:
    """Yield objectives that no measured load keeps: the tier has no capacity."""
    if context.curve is None:
        return
    lowest = context.curve.points[0]
    for name in LIMITED:
        limit, value = getattr(context.tier.slo, name), getattr(lowest, name)
        if limit is not None and value is not None and value > limit:
            text = f"{limit:.4g} s is below all that the curve measured: {value:.4g} s at its lowest load"
            where = f"{lowest.completed_rps:.4g} completed rps"
            instead = "correct the objective or the unit, or measure lower loads"
            yield f"slo.{name}", "mistake", f"{text}, {where}. No load keeps it, so no capacity follows; {instead}"


def _impossible_load(context: Case) -> Found:
    """Yield a benchmark that breaks Little's law: rps x time in system is the number of requests at once (guide 8.4).

    A gap of CALIBRATION_GAP is no mistake yet. An imported concurrency follows from the law, so it shows no such gap.
    """
    lengths = "workload.generation_tokens"
    tokens = context.tier.value_at(f"{lengths}.mean") or context.tier.value_at(f"{lengths}.p50")
    sums = [(by_littles_law(point, tokens), point.concurrency) for point in context.points if point.concurrency]
    ratios = [in_system / given for in_system, given in sums if in_system is not None]
    factor = round(median(ratios), 6) if ratios else 1.0
    text = f"completed_rps x time in system is {factor:.3g} times the concurrency (Little's law)"
    if not IDLE_LOAD <= factor <= IMPOSSIBLE_LOAD:
        text += ", which cannot be; write latencies in seconds, and the rates of one replica in one second"
        yield "curve.points", "mistake", text
    elif not 1 / CALIBRATION_GAP <= factor <= CALIBRATION_GAP and context.curve and not context.curve.is_littles_law:
        yield "curve.points", "info", f"{text}, more than 2 x apart: {UNLIKE_PRODUCTION}"


def _contradictory_times(context: Case) -> Found:
    """Yield points whose times exclude each other, or tell that answers were not streamed."""
    for place, point in enumerate(context.points):
        tokens = None if point.tpot_p50_seconds else point.generation_tokens_mean
        first, whole = point.ttft_p99_seconds, point.e2e_p99_seconds
        texts = [entry.text for entry in find_contradictions(ttft=first, e2e=whole, tokens=tokens, of="P99")]
        typical = (by_littles_law(point, None) or 0.0) / point.completed_rps
        if whole is not None and typical > FAR_BEYOND * whole:
            texts.append(f"TTFT P50 + TPOT P50 x tokens is {typical:.4g} s, E2E P99 {whole:.4g} s")
        for text in texts:
            yield f"curve.points[{place}]", "mistake", f"{text}, which cannot be; correct them, or benchmark again"


def _untold_p99(context: Case) -> Found:
    """Yield a capacity from points around it, or a lowest point, with too few requests for a P99."""
    if context.curve is None:
        return
    points, derived = context.curve.points, context.curve.usable(context.tier.slo)
    around = points[:1]
    if derived is not None:
        above = bisect_left(points, derived.usable_rps * (1 - 1e-9), key=lambda point: point.completed_rps)
        place = min(above, len(points) - 1)
        is_measured = math.isclose(points[place].completed_rps, derived.usable_rps)
        around = points[place if is_measured else max(place - 1, 0) : place + 1]
    requests = min((point.requests for point in around if point.requests is not None), default=FEW_FOR_A_P99)
    if requests < FEW_FOR_A_P99:
        text = f"the capacity rests on a load of {requests} requests, whose P99 is the slowest of them"
        missed = f"the true P99 is above it with {probability(0.99**requests)}, and nothing bounds it"
        yield "curve.points", "mistake", f"{text}; {missed}. Measure 300 requests or more at each load"


MISTAKES: tuple[Callable[[Case], Found], ...] = (
    _implausible,
    _unknown_engine,
    _slo_below_curve,
    _impossible_load,
    _contradictory_times,
    _untold_p99,
)
