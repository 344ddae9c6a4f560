"""Time in the system against the benchmark at equal load, by Little's law (DESIGN 3.11 iii; guide 9.1, step 7).

A much longer time shows that the benchmark had another workload. The engine's own mean end-to-end time checks the
telemetry (DESIGN 3.11 ii): a steady disagreement leads to `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.drift import judge_benchmarked_lengths
from rules.methods.evidence import certain_if, exact_reading
from rules.plan.envelope import interpolate
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.plan.schema import Point
from rules.telemetry import histograms
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import NET_CHANGE
from rules.telemetry.wording import number
from rules.verdicts.context import BenchmarkComparison, RuleContext, is_persistent, select_comparable, too_early
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown, Verdict

SIGMA = 3.0
"""Standard deviations by which sampled gauges may be off by chance."""

STEADY = 0.1
"""Maximum change of requests in the system per finished request. Little's law needs a steady population."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTimes:
    """Mean seconds in the system: observed, of the benchmark, and the highest that the benchmark leaves open."""

    seen: float
    expected: float
    ceiling: float
    requests: float
    supported: bool


def judge_representative(case: RuleContext) -> RuleResult:
    """Find a time in the system above `factor` x the benchmark's: certain above the ceiling of the bins.

    Requests beyond `factor` of the benchmark's mean lengths are another workload too, and need no load at which both
    were measured (guide 9.1, step 7).
    """
    by_time = _judge_times(case)
    firing = by_time if isinstance(by_time, Verdict) and by_time.status in FIRING else None
    if firing is not None and firing.certainty is Certainty.CERTAIN:
        return firing
    by_lengths = judge_benchmarked_lengths(case)
    return by_lengths if isinstance(by_lengths, Verdict) else firing or by_lengths or by_time


def _judge_times(case: RuleContext) -> RuleResult:
    found = select_comparable(case, ("requests_finished",), promised=1.0)
    if isinstance(found, Unknown):
        return found
    if found.curve.concurrencies is None:
        text = "the benchmark has no concurrencies, and no medians of TTFT, TPOT and output tokens"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    contradiction = _find_contradiction(case)
    if contradiction:
        return case.unknown(Gap.STALE, contradiction)
    times = _compute_times(found, found.binned)
    if times is None:
        return case.unknown(Gap.NOT_EXPOSED, "running and waiting requests are not known")
    if times.requests < case.limit("minimum_requests"):
        return case.too_few_requests(times.requests, case.limit("minimum_requests"))
    factor = case.limit("factor")
    if times.seen <= factor * times.expected:
        return _build_verdict(case, times, Status.OK, Certainty.CERTAIN)
    last = _compute_times(found, found.last_quarter())
    each = [_compute_times(found, group) for group in case.periods(found.binned)]
    early = found.end_unknown(last.requests if last is not None else 0.0) or too_early(
        case, found.binned, last, each, lambda part: part.seen > factor * part.expected
    )
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.seen > factor * part.expected):
        return _build_verdict(case, times, Status.OK, Certainty.CERTAIN)
    certain = times.supported and times.seen > factor * times.ceiling
    certain = certain and is_persistent(last, each, lambda part: part.seen > factor * part.ceiling)
    return _build_verdict(case, times, Status.WARNING, certain_if(certain))


def _compute_times(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> SystemTimes | None:
    """Return the mean over bins, weighted by requests. Return None without requests in the system or finished ones."""
    requests = seen = expected = ceiling = supported = 0.0
    for bin, one in hold(binned).by_load_bin(of.curve).items():
        finished = one.counter("requests_finished")
        if one.in_system is None or finished <= 0 or one.rps <= 0:
            continue
        middle, most = _read_benchmark(of, bin, one)
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


def _read_benchmark(of: BenchmarkComparison, bin: int, one: LoadBin) -> tuple[float, float]:
    """Return the seconds in the system at this load, and the highest that the two points of the bin leave open."""
    places = (max(bin - 1, 0), bin)
    low, high = (of.curve.points[place] for place in places)
    before, after = ((of.curve.concurrencies or ())[place] / of.curve.points[place].completed_rps for place in places)
    width = high.completed_rps - low.completed_rps
    share = (one.rps - low.completed_rps) / width if width > 0 else 1.0
    middle = interpolate(before, after, min(max(share, 0.0), 1.0), log=True)
    if of.curve.concurrency_given:
        return middle, max(before, after)
    return middle, max(before, after, *(_bound_time(of.case, point) for point in (low, high)))


def _bound_time(case: RuleContext, point: Point) -> float:
    """Return the highest mean time in the system if concurrency was estimated by the medians.

    Half of the requests are at most the median, and all others but 1 % at most the P99. Without a P99 there is no bound.
    """
    tokens = _read_output_tokens(case, point)
    parts = (
        (point.ttft_p50_seconds, point.ttft_p99_seconds, 1.0),
        (point.tpot_p50_seconds, point.tpot_p99_seconds, tokens),
    )
    if any(p50 is None or p99 is None or times is None for p50, p99, times in parts):
        return math.inf
    return math.fsum(((p50 or 0.0) + (p99 or 0.0)) / 2 * (times or 0.0) for p50, p99, times in parts)


def _read_output_tokens(case: RuleContext, point: Point) -> float | None:
    """Return the tokens after the first of a request of the benchmark."""
    if point.output_tokens_per_second is not None:
        return max(point.output_tokens_per_second / point.completed_rps - 1, 0.0)
    workload = case.context.plan.workload if case.context.plan else None
    planned = workload.generation_tokens.p50 if workload and workload.generation_tokens else None
    return None if planned is None else max(planned - 1, 0.0)


def _find_contradiction(case: RuleContext) -> str:
    """Return how the telemetry contradicts itself by Little's law, "" if it does not or nothing is known.

    Requests in the system must equal finished requests per second x their mean end-to-end time. A contradiction lasts:
    in the last quarter and in three separate minutes it has the same sign.
    """
    total = _check_littles_law(case.binned)
    if total is None:
        return ""
    allowed = case.limit("disagreement")
    more = total.in_system > total.littles
    last, *each = (_check_littles_law(group) for group in (case.last_quarter(case.binned), *case.periods(case.binned)))
    off = total.is_off(allowed) and total.is_significant
    if not off or not is_persistent(
        last, each, lambda part: part.is_off(allowed) and (part.in_system > part.littles) == more
    ):
        return ""
    return (
        f"the telemetry contradicts itself: {total.in_system:.3g} requests in the system by the gauges, "
        f"{total.littles:.3g} by Little's law"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LittlesLawCheck:
    """Requests in the system by the gauges and by Little's law. `sightings` are the requests in all gauge samples."""

    in_system: float
    littles: float
    sightings: float

    def is_off(self, allowed: float) -> bool:
        """Return whether the larger exceeds the smaller by more than this share."""
        smaller, larger = sorted((self.in_system, self.littles))
        return larger > (1 + allowed) * smaller

    @property
    def is_significant(self) -> bool:
        """Return whether the difference is beyond chance: sightings scatter by their root (Poisson)."""
        met = self.littles / self.in_system * self.sightings if self.in_system > 0 else 0.0
        return abs(met - self.sightings) > SIGMA * math.sqrt(max(met, self.sightings, 1.0))


def _check_littles_law(binned: Sequence[BinnedWindow]) -> LittlesLawCheck | None:
    """Return None if a family is missing, nothing finished, or the requests in the system changed too much."""
    usable = [
        one.window
        for one in binned
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


def _build_verdict(case: RuleContext, times: SystemTimes, status: Status, certainty: Certainty) -> RuleResult:
    wanted = number(times.expected, "seconds")
    ceiling = f" (at most {number(times.ceiling, 'seconds')})" if times.expected < times.ceiling < math.inf else ""
    sentence = (
        f"Requests stay {times.seen / times.expected:.1f}x as long as in the benchmark; "
        f"up to {case.limit('factor'):g}x is representative"
    )
    details = (
        f"{number(times.seen, 'seconds')} in the system, benchmark {wanted} at this load{ceiling}",
        f"{times.requests:,.0f} requests",
    )
    high = times.ceiling if times.ceiling < math.inf else None
    expected = Reading(value=times.expected, low=0.0, high=high, n=times.requests)
    observed = exact_reading(times.seen, times.requests)
    return case.verdict(status, certainty, observed, expected, sentence, details=details)
