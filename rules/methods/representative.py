"""Time in the system against the benchmark at equal load, by Little's law (DESIGN 3.11 iii; guide 9.1, step 7).

A much longer time shows that the benchmark had another workload. The engine's own mean end-to-end time checks the telemetry
(DESIGN 3.11 ii): a steady disagreement leads to `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rules.confidence import Certainty
from rules.methods.divergence import Divergence, judge_divergence
from rules.methods.drift import judge_benchmarked_lengths
from rules.methods.evidence import exact_reading, measure_parts
from rules.plan.curve import interpolate
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.plan.schema import Point
from rules.telemetry import histograms
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import NET_CHANGE
from rules.telemetry.wording import number
from rules.verdicts.context import BenchmarkComparison, RuleContext, is_persistent, read_plan_value, select_comparable
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown, Verdict

SIGMA = 3.0
"""Standard deviations by which sampled gauges may be off by chance."""

STEADY = 0.1
"""Maximum change of requests in the system per finished request. Little's law needs a steady population."""


def judge_representative(context: RuleContext) -> RuleResult:
    """Find a time in the system above `factor` x the benchmark's: certain above the ceiling of the bins.

    From running, waiting and finished requests. Requests beyond `factor` of the benchmark's mean lengths are another
    workload too, and need no load at which both were measured (guide 9.1, step 7).
    """
    by_time = _compare_times(context)
    firing = by_time if isinstance(by_time, Verdict) and by_time.status in FIRING else None
    if firing is not None and firing.certainty is Certainty.CERTAIN:
        return firing
    by_lengths = judge_benchmarked_lengths(context)
    return by_lengths if isinstance(by_lengths, Verdict) else firing or by_lengths or by_time


def _compare_times(context: RuleContext) -> RuleResult:
    of = select_comparable(context, ("requests_finished",), promised=1.0)
    if isinstance(of, Unknown):
        return of
    if of.curve.concurrencies is None:
        text = "the benchmark has no concurrencies, and no medians of TTFT, TPOT and output tokens"
        return context.unknown(Gap.NOT_IN_PLAN, text)
    if contradiction := _find_contradiction(context):
        return context.unknown(Gap.STALE, contradiction)
    text = "running and waiting requests are not known"
    return judge_divergence(of, _measure_time, lambda of: context.unknown(Gap.NOT_EXPOSED, text))


def _measure_time(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Divergence | None:
    """Return the mean time over bins, weighted by requests, and the highest that the benchmark leaves open.

    Return None without requests in the system or finished ones.
    """
    requests = seen = expected = ceiling = supported = 0.0
    for bin, load in hold(binned).by_load_bin(of.curve).items():
        finished = load.counter("requests_finished")
        if load.in_system is None or finished <= 0 or load.rps <= 0:
            continue
        middle, most = _read_benchmark(of, bin, load)
        requests, seen = requests + finished, seen + finished * load.in_system / load.rps
        expected, ceiling = expected + finished * middle, ceiling + finished * most
        points = of.curve.points[max(bin - 1, 0) : bin + 1]
        enough = min(point.requests or 0 for point in points) >= of.context.limit("supported_requests")
        supported += finished if enough else 0.0
    if requests <= 0:
        return None
    context, factor = of.context, of.context.limit("factor")
    time, usual, most = seen / requests, expected / requests, ceiling / requests

    def report(status: Status, certainty: Certainty, reason: str) -> Verdict:
        is_open = most == math.inf
        bound = "" if is_open or most <= usual else f" (at most {number(most, 'seconds')})"
        sentence = f"Requests stay {time / usual:.1f}x as long as in the benchmark; up to {factor:g}x is representative"
        wanted = f"{number(usual, 'seconds')} at this load{bound}"
        details = (f"{number(time, 'seconds')} in the system, benchmark {wanted}", f"{requests:,.0f} requests", reason)
        planned = Reading(value=usual, low=0.0, high=None if is_open else most, n=requests)
        return context.verdict(status, certainty, exact_reading(time, requests), planned, sentence, details=details)

    exceeds, surely_exceeds = seen > factor * expected, seen > factor * ceiling
    return Divergence(requests, exceeds, exceeds, surely_exceeds, supported >= requests / 2 and surely_exceeds, report)


def _read_benchmark(of: BenchmarkComparison, bin: int, load: LoadBin) -> tuple[float, float]:
    """Return the seconds in the system at this load, and the highest that the two points of the bin leave open."""
    places = (max(bin - 1, 0), bin)
    low, high = (of.curve.points[place] for place in places)
    before, after = ((of.curve.concurrencies or ())[place] / of.curve.points[place].completed_rps for place in places)
    width = high.completed_rps - low.completed_rps
    share = (load.rps - low.completed_rps) / width if width > 0 else 1.0
    middle = interpolate(before, after, min(max(share, 0.0), 1.0), log=True)
    if of.curve.concurrency_given:
        return middle, max(before, after)
    return middle, max(before, after, *(_bound_time(of.context, point) for point in (low, high)))


def _bound_time(context: RuleContext, point: Point) -> float:
    """Return the highest mean time in the system if concurrency was estimated by the medians.

    Half of the requests are at most the median, and all others but 1 % at most the P99. Without a P99 there is no bound.
    """
    tokens: float | None = read_plan_value(context.tier, "workload.generation_tokens.p50")
    if point.output_tokens_per_second is not None:
        tokens = point.output_tokens_per_second / point.completed_rps
    first = (point.ttft_p50_seconds, point.ttft_p99_seconds)
    token = (point.tpot_p50_seconds, point.tpot_p99_seconds)
    if tokens is None or None in (*first, *token):
        return math.inf
    return sum(value or 0.0 for value in first) / 2 + max(tokens - 1, 0.0) * sum(value or 0.0 for value in token) / 2


def _find_contradiction(context: RuleContext) -> str:
    """Return how the telemetry contradicts itself by Little's law, "" if it does not or nothing is known.

    Requests in the system must equal finished requests per second x their mean end-to-end time. A contradiction lasts:
    in the last quarter and in three separate minutes it has the same sign.
    """
    whole = _count_by_littles_law(context.binned)
    if whole is None:
        return ""
    seen, due, sightings = whole
    # Sightings scatter by their root (Poisson).
    met = due / seen * sightings if seen > 0 else 0.0
    is_chance = abs(met - sightings) <= SIGMA * math.sqrt(max(met, sightings, 1.0))
    allowed, is_more = 1 + context.limit("disagreement"), seen > due

    def is_off(part: tuple[float, float, float]) -> bool:
        return part[0] > allowed * part[1] if is_more else part[1] > allowed * part[0]

    last, each = measure_parts(context, _count_by_littles_law)
    if is_chance or not is_off(whole) or not is_persistent(last, each, is_off):
        return ""
    gauges = f"{seen:.3g} requests in the system by the gauges"
    return f"the telemetry contradicts itself: {gauges}, {due:.3g} by Little's law"


def _count_by_littles_law(binned: Sequence[BinnedWindow]) -> tuple[float, float, float] | None:
    """Return the requests in the system by the gauges and by Little's law, and those in all gauge samples.

    None if a family is missing, nothing finished, or the requests in the system changed too much.
    """
    families = ("e2e_seconds", "requests_finished", NET_CHANGE, *IN_SYSTEM)
    usable = [
        sample
        for sample in binned
        if "e2e_seconds" in sample.window.histograms
        and "requests_finished" in sample.window.counters
        and all(gauge is not None and gauge.seconds > 0 for gauge in map(sample.window.gauge, IN_SYSTEM))
    ]
    total = hold(usable).sum_families(families) if usable else None
    mean = histograms.mean(total.histograms["e2e_seconds"]) if total is not None else None
    if total is None or mean is None:
        return None
    finished, seconds = total.counters["requests_finished"], total.seconds_of("requests_finished")
    if finished <= 0 or seconds <= 0 or abs(total.counters.get(NET_CHANGE, 0.0)) > STEADY * finished:
        return None
    levels = [total.gauges[name] for name in IN_SYSTEM]
    in_system = math.fsum(level.integral / level.seconds for level in levels)
    return in_system, finished / seconds * mean, in_system * levels[0].samples
