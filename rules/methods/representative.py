"""Representative or not: the time a request spends in the system against the benchmark's at equal load (DESIGN 3.11 iii).

Owns Little's law in both its uses. Requests in the system / completed requests per second is the mean time in the system;
twice the benchmark's at the same load says that the benchmark was another workload (guide 9.1, step 7). The same quotient
against the engine's own mean end-to-end time is a check of the telemetry (DESIGN 3.11 ii): a steady disagreement leads to
`unknown`, for then no time in the system can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.plan.curve import Curve
from rules.plan.envelope import interpolate
from rules.plan.load_bins import BinnedWindow, LoadBin, group_by_load_bin
from rules.plan.schema import Point
from rules.telemetry import histograms
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import NET_CHANGE
from rules.telemetry.wording import number
from rules.verdicts.context import BenchmarkComparison, RuleContext, is_persistent, select_comparable, too_early
from rules.verdicts.verdict import RuleResult, Status, Unknown

SIGMA = 3.0
"""Standard deviations that sampled gauges may be off by chance: requests are seen in the system one by one."""

STEADY = 0.1
"""Little's law holds of a system whose population does not change: by less than this share of what finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTimes:
    """Mean seconds in the system of `requests`: seen, by the benchmark, and the most that the benchmark leaves open."""

    seen: float
    expected: float
    ceiling: float
    requests: float
    supported: bool


def judge_representative(case: RuleContext) -> RuleResult:
    """Time in the system above `factor` times the benchmark's at equal load: certain above the ceiling of the bin."""
    found = select_comparable(case, ("requests_finished",), promised=1.0)
    if isinstance(found, Unknown):
        return found
    if found.curve.concurrencies is None:
        text = (
            "the benchmark has neither concurrencies nor the medians from which they follow (TTFT, TPOT, output tokens)"
        )
        return case.unknown(Gap.NOT_IN_PLAN, text)
    contradiction = _contradiction(case)
    if contradiction:
        return case.unknown(Gap.STALE, contradiction)
    times = _times(found, found.slices)
    if times is None:
        return case.unknown(Gap.NOT_EXPOSED, "running and waiting requests are not known")
    if times.requests < case.limit("minimum_requests"):
        return case.too_few_requests(times.requests, case.limit("minimum_requests"))
    factor = case.limit("factor")
    if times.seen <= factor * times.expected:
        return _verdict(case, times, Status.OK, Certainty.CERTAIN)
    last = _times(found, found.last_quarter())
    silent = found.end_unknown(last.requests if last is not None else 0.0)
    if silent is not None:
        return silent
    each = [_times(found, group) for group in case.periods(found.slices)]
    early = too_early(case, found.slices, last, each, lambda part: part.seen > factor * part.expected)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.seen > factor * part.expected):
        return _verdict(case, times, Status.OK, Certainty.CERTAIN)
    certain = times.supported and times.seen > factor * times.ceiling
    certain = certain and is_persistent(last, each, lambda part: part.seen > factor * part.ceiling)
    return _verdict(case, times, Status.WARNING, Certainty.CERTAIN if certain else Certainty.LIKELY)


def _times(of: BenchmarkComparison, slices: Iterable[BinnedWindow]) -> SystemTimes | None:
    """Bin by bin, weighted by requests; None where requests in the system were nowhere seen or nothing finished."""
    requests = seen = expected = ceiling = supported = 0.0
    for bin, one in group_by_load_bin(slices, of.curve).items():
        finished = one.counter("requests_finished")
        if one.in_system is None or finished <= 0 or one.rps <= 0:
            continue
        middle, most = _benchmark(of, bin, one)
        requests, seen = requests + finished, seen + finished * one.in_system / one.rps
        expected, ceiling = expected + finished * middle, ceiling + finished * most
        points = of.curve.points[max(bin - 1, 0) : bin + 1]
        enough = min(point.requests or 0 for point in points) >= of.case.limit("supported_requests")
        supported += finished if enough else 0.0
    if requests <= 0:
        return None
    return SystemTimes(
        seen=seen / requests,
        expected=expected / requests,
        ceiling=ceiling / requests,
        requests=requests,
        supported=supported >= requests / 2,
    )


def _benchmark(of: BenchmarkComparison, bin: int, one: LoadBin) -> tuple[float, float]:
    """Seconds in the system at this load, and the most that the two points of the bin leave open."""
    low, high = of.curve.points[max(bin - 1, 0)], of.curve.points[bin]
    before, after = _seconds(of.curve, max(bin - 1, 0)), _seconds(of.curve, bin)
    width = high.completed_rps - low.completed_rps
    share = (one.rps - low.completed_rps) / width if width > 0 else 1.0
    middle = interpolate(before, after, min(max(share, 0.0), 1.0), log=True)
    if of.curve.concurrency_given:
        return middle, max(before, after)
    return middle, max(before, after, *(_slowest(of.case, point) for point in (low, high)))


def _seconds(curve: Curve, place: int) -> float:
    """Little's law at a point of the curve: concurrency / completed requests per second."""
    return (curve.concurrencies or ())[place] / curve.points[place].completed_rps


def _slowest(case: RuleContext, point: Point) -> float:
    """The most a mean time in the system can be where concurrency was only estimated, by the medians.

    Half of the requests are at most the median and the others, but for one in a hundred, at most the P99. Without a P99
    nothing bounds it.
    """
    tokens = _output_tokens(case, point)
    parts = (
        (point.ttft_p50_seconds, point.ttft_p99_seconds, 1.0),
        (point.tpot_p50_seconds, point.tpot_p99_seconds, tokens),
    )
    if any(p50 is None or p99 is None or times is None for p50, p99, times in parts):
        return math.inf
    return math.fsum(((p50 or 0.0) + (p99 or 0.0)) / 2 * (times or 0.0) for p50, p99, times in parts)


def _output_tokens(case: RuleContext, point: Point) -> float | None:
    """Tokens after the first, of one request of the benchmark."""
    if point.output_tokens_per_second is not None:
        return max(point.output_tokens_per_second / point.completed_rps - 1, 0.0)
    workload = case.view.plan.workload if case.view.plan else None
    planned = workload.generation_tokens.p50 if workload and workload.generation_tokens else None
    return None if planned is None else max(planned - 1, 0.0)


def _contradiction(case: RuleContext) -> str:
    """Why the telemetry contradicts itself by Little's law, "" where it does not, or nothing can be said.

    Requests in the system against finished requests per second x their mean end-to-end time, over the hold, and
    steadily: in the last quarter and in three separate minutes, the same way.
    """
    total = _both(case.slices)
    if total is None:
        return ""
    allowed = case.limit("disagreement")
    more = total.in_system > total.littles
    each = [_both(group) for group in case.periods(case.slices)]
    last = _both(case.last_quarter(case.slices))
    off = total.is_off(allowed) and total.is_significant
    if not off or not is_persistent(
        last, each, lambda part: part.is_off(allowed) and (part.in_system > part.littles) == more
    ):
        return ""
    return (
        f"the telemetry contradicts itself: {total.in_system:.3g} requests in the system by the gauges, "
        f"{total.littles:.3g} by finished requests x their mean time (Little's law)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LittlesLawCheck:
    """Requests in the system of a replica by its gauges, and by Little's law from what finished. `sightings` are how
    many requests the samples of the gauges met."""

    in_system: float
    littles: float
    sightings: float

    def is_off(self, allowed: float) -> bool:
        """Apart by more than this share of the larger's smaller partner."""
        smaller, larger = sorted((self.in_system, self.littles))
        return larger > (1 + allowed) * smaller

    @property
    def is_significant(self) -> bool:
        """Sightings scatter by their root (Poisson)."""
        met = self.littles / self.in_system * self.sightings if self.in_system > 0 else 0.0
        return abs(met - self.sightings) > SIGMA * math.sqrt(max(met, self.sightings, 1.0))


def _both(slices: Sequence[BinnedWindow]) -> LittlesLawCheck | None:
    """None where the engine lacks a part, nothing finished, or the number of requests in the system changed too much."""
    usable = [
        one.window
        for one in slices
        if "e2e_seconds" in one.window.histograms
        and "requests_finished" in one.window.counters
        and all(name in one.window.gauges and one.window.gauges[name].seconds > 0 for name in IN_SYSTEM)
    ]
    finished = math.fsum(w.counters["requests_finished"] for w in usable)
    seconds = math.fsum(w.seconds_of("requests_finished") for w in usable)
    mean = histograms.mean(histograms.sum_histograms(part for w in usable for part in w.histograms["e2e_seconds"]))
    change = math.fsum(w.counters.get(NET_CHANGE, 0.0) for w in usable)
    if mean is None or finished <= 0 or seconds <= 0 or abs(change) > STEADY * finished:
        return None
    levels = [
        (math.fsum(w.gauges[name].integral for w in usable), math.fsum(w.gauges[name].seconds for w in usable))
        for name in IN_SYSTEM
    ]
    in_system = math.fsum(integral / covered for integral, covered in levels)
    samples = math.fsum(w.gauges[IN_SYSTEM[0]].samples for w in usable)
    return LittlesLawCheck(in_system=in_system, littles=finished / seconds * mean, sightings=in_system * samples)


def _verdict(case: RuleContext, times: SystemTimes, status: Status, certainty: Certainty) -> RuleResult:
    wanted = number(times.expected, "seconds")
    ceiling = f" (at most {number(times.ceiling, 'seconds')})" if times.expected < times.ceiling < math.inf else ""
    sentence = (
        f"A request spends {number(times.seen, 'seconds')} in the system where the benchmark has {wanted} at this load"
        f"{ceiling}: {times.seen / times.expected:.1f}x, up to {case.limit('factor'):g}x is representative"
    )
    high = times.ceiling if times.ceiling < math.inf else None
    expected = Reading(value=times.expected, low=0.0, high=high, n=times.requests)
    observed = Reading(value=times.seen, low=times.seen, high=times.seen, n=times.requests)
    return case.verdict(status, certainty, observed, expected, sentence)
