"""Workload against plan and benchmark: lengths of requests, peak load, and time in the system.

An error in step 1 propagates through the whole sizing (guide 9.1), so both directions count. The time in the system at equal
load is compared by Little's law (DESIGN 3.11; guide 9.1, step 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty, poisson_lower_bound
from rules.methods.divergence import Divergence, judge_divergence
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    LimitSide,
    capitalize,
    exact_reading,
    exceeds_limit,
    is_significant_quantile,
    measure_parts,
    narrow_pool,
    sum_counters_beside,
)
from rules.plan.capacity import benchmarked_mean
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Point
from rules.telemetry import histograms
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.gauges import IN_SYSTEM, SIGMA
from rules.telemetry.outcomes import READ, count_gone
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import DAY_SECONDS, NET_CHANGE
from rules.telemetry.wording import number, quantity
from rules.telemetry.work import mean_length
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    SEPARATE,
    BenchmarkComparison,
    RuleContext,
    is_persistent,
    read_plan_value,
    select_comparable,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown, Verdict

Length = tuple[str, str, str]

LENGTHS: tuple[Length, ...] = (("prompts", PROMPTS, "prompt_tokens"), ("outputs", OUTPUTS, "generation_tokens"))
"""Compared lengths: word, family, key in the workload of the plan."""

QUANTILES = {"P95": 0.95, "P99": 0.99, "P50": 0.5}
"""Compared quantiles in the order of the sentence: memory is sized for P95 (guide 1.1, 9.1 step 4)."""

ALL_BEYOND = 10
"""Minutes that must all be beyond the factor: by chance 1 of 2 is, so all are in 0.5^10 = 0.1 % of cases (sign test)."""

WHOLE = 0.75
"""Share of a period that must be observed: else a burst would be the peak."""


class LengthDrift(NamedTuple):
    """Length away from plan or benchmark (`source`) by `factor`, with words for it and both lengths."""

    word: str
    source: str
    observed: Reading
    wanted: float
    factor: float
    certain: bool
    times: str
    text: str


def judge_drift(context: RuleContext) -> RuleResult:
    """Compare lengths and peak with the plan. A rule of one family finds longer P99 only."""
    plan, family, needed = context.tier.plan, context.rule.family, context.limit("minimum_requests")
    # Prefill replicas count a request too, and its prompt.
    context = narrow_pool(context, "decode")
    rows = [row for row in LENGTHS if family in ("", row[1])]
    planned = {row: _read_planned(context, row) for row in rows}
    means = {row: benchmarked_mean(plan, context.tier.curve, row[2]) for row in rows if not family and not planned[row]}
    if not any(planned.values()) and not any(means.values()):
        if plan is None or plan.workload is None:
            return context.unknown(Gap.NOT_IN_PLAN, "the plan has no workload, and its benchmark no lengths")
        if family or not read_plan_value(context.tier, "workload.requests_per_second.peak"):
            keys = " or ".join(key for *_, key in rows)
            return context.unknown(Gap.NOT_IN_PLAN, f"the plan's workload has no {keys}")
    peak = None if family else find_busiest_periods(context)
    results: list[LengthDrift | Unknown | None] = []
    requests = 0.0
    for row in rows:
        if mean := means.get(row):
            finished, result = _compare_mean(context, row, mean)
            drifts = [result]
        else:
            parts = hold(context.binned).sum_parts(row[1])
            finished = histograms.count_requests(parts)
            drifts = [_compare_quantile(context, row, parts, name, value) for name, value in planned[row].items()]
        results += drifts if finished >= needed else []
        requests = max(requests, finished)
    if reported := _report_drift(context, results, peak):
        return reported
    if not results and peak is None:
        return _explain_no_comparison(context, rows, requests)
    if peak is not None and peak.claim:
        expected = Reading(value=peak.planned, low=0.0, high=peak.planned, n=peak.observed.n)
        sentence = f"{peak.claim} above the plan; {peak.text}"
        verdict = context.verdict(Status.WARNING, Certainty.of(peak.certain), peak.observed, expected, sentence)
        return replace(verdict, unit="per_second")
    return _report_no_drift(context, planned, peak)


def _compare_mean(context: RuleContext, row: Length, benchmarked: float) -> tuple[float, LengthDrift | Unknown | None]:
    """Return the finished requests, and their mean length if it lasts beyond `factor` of the benchmark's on a side.

    Certain if all of ALL_BEYOND minutes or more are beyond it. Unknown at its begin.
    """
    word, family, key = row
    families, factor = ("requests_finished", key, family), context.limit("factor")

    def mean(held: HeldWindows) -> float | None:
        return mean_length(held.sum_families(families), key, family) if held else None

    held = hold(context.binned)
    finished, length = held.sum_families(families).counters.get("requests_finished", 0.0), mean(held)
    if length is None or finished < context.limit("minimum_requests"):
        return finished, None
    is_longer = length > benchmarked

    def is_beyond(value: float) -> bool:
        return value > benchmarked * factor if is_longer else value < benchmarked / factor

    last, each = measure_parts(context, mean)
    # Clients that left may have wanted as much as in the benchmark.
    if not is_longer and not is_beyond(length + benchmarked * _count_left(context) / finished):
        return finished, None
    is_whole = is_beyond(length)
    begins = held.is_scraped_by_the_minute and last is not None and is_beyond(last)
    if not is_whole and not begins:
        return finished, None
    if not is_whole or not is_persistent(last, each, is_beyond):
        return finished, too_early(context, context.binned, last, each, is_beyond)
    known, times = [is_beyond(value) for value in each if value is not None], length / benchmarked
    certain = len(known) >= ALL_BEYOND and all(known)
    text = f"mean {number(length, 'tokens')}, {number(benchmarked, 'count')} benchmarked"
    observed = exact_reading(length, finished)
    return finished, LengthDrift(word, "benchmarked", observed, benchmarked, times, certain, f"{times:.2g}x", text)


def _count_left(context: RuleContext) -> float:
    """Return the requests whose lengths are not known, or only up to then: their clients left."""
    whole = hold(context.binned).sum_families(READ | {"requests_aborted"})
    return count_gone(whole) + whole.counters.get("requests_aborted", 0.0)


def _read_planned(context: RuleContext, row: Length) -> dict[str, float]:
    """Return the planned quantiles that the rule compares by their names: of one family only P99."""
    lengths = read_plan_value(context.tier, f"workload.{row[2]}")
    names = ["P99"] if context.rule.family else QUANTILES
    return {name: value for name in names if (value := getattr(lengths, name.lower(), None)) is not None}


def _compare_quantile(
    context: RuleContext, row: Length, parts: tuple[histograms.Histogram, ...], name: str, planned: float
) -> LengthDrift | None:
    """Return a quantile proven to be persistently beyond `factor` on a side."""
    word, family, _ = row
    q, factor = QUANTILES[name], context.limit("factor")
    observed = histograms.quantile(parts, q)
    sides = ((LimitSide.LONGER, planned * factor), (LimitSide.SHORTER, planned / factor))
    for side, limit in sides[:1] if context.rule.family else sides:
        if observed is None or not is_significant_quantile(parts, q, limit, side, LIKELY_CONFIDENCE):
            continue
        longer = histograms.share_above(parts, limit).high + _count_left(context)
        if side is LimitSide.SHORTER and longer >= (1 - q) * histograms.count_requests(parts):
            continue
        last, each = measure_parts(context, lambda group: group.sum_parts(family))
        if not is_persistent(last, each, partial(exceeds_limit, q=q, limit=limit, side=side)):
            continue
        edge, words = (observed.low, "at least") if side is LimitSide.LONGER else (observed.high, "at most")
        times = (limit if edge is None else edge) / planned
        certain = is_significant_quantile(parts, q, limit, side, CONFIDENCE)
        text = f"{name} {quantity(observed, 'tokens')}, {number(planned, 'count')} planned"
        shown = f"{words} {times:{'.1f' if side is LimitSide.LONGER else '.2g'}}x"
        return LengthDrift(word, "planned", observed, planned, times, certain, shown, text)
    return None


def _explain_no_comparison(context: RuleContext, rows: Sequence[Length], requests: float) -> Unknown:
    if 0 < requests < context.limit("minimum_requests"):
        return context.too_few_requests(requests, context.limit("minimum_requests"))
    if requests > 0:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan's workload has no lengths for the observed requests")
    is_seen = any(family in binned.window.histograms for binned in context.binned for _, family, _ in rows)
    gap = Gap.NO_TRAFFIC if is_seen else worst_gap(context.binned, rows[0][1])
    return context.unknown(gap, f"no lengths of {' or '.join(word for word, _, _ in rows)} were seen")


def _report_drift(
    context: RuleContext, results: Sequence[LengthDrift | Unknown | None], peak: PeakComparison | None
) -> Verdict | Unknown | None:
    """Return the finding of the lengths that drifted, else unknown if it is too early for one, else None."""
    moved = [result for result in results if isinstance(result, LengthDrift)]
    if not moved:
        return next((result for result in results if isinstance(result, Unknown)), None)
    certain = [drift for drift in moved if drift.certain]
    worst = max(certain or moved, key=lambda drift: max(drift.factor, 1 / drift.factor if drift.factor > 0 else 1.0))
    first = {drift.word: drift for drift in reversed(certain or moved)}
    sentence = capitalize(f"{worst.word} are {worst.times} as long as {worst.source}: {worst.text}")
    details = [f"{word} {drift.times}: {drift.text}" for word, drift in first.items() if word != worst.word]
    details += [peak.text] if peak is not None and peak.claim else []
    cut, finished = sum_counters_beside(context.binned, "requests_ended_by_length", "requests_finished")
    if finished and context.rule.family:
        details.append(f"{cut / finished:.0%} of all answers ended at their token limit")
    expected, certainty = exact_reading(worst.wanted, worst.observed.n), Certainty.of(bool(certain))
    return context.verdict(Status.WARNING, certainty, worst.observed, expected, sentence, details=details)


def _report_no_drift(
    context: RuleContext, planned: Mapping[Length, Mapping[str, float]], peak: PeakComparison | None
) -> Verdict:
    """Return ok: likely if a bucket is too wide to prove that a length is as planned."""
    factor, is_close = context.limit("factor"), True
    rows: list[tuple[Reading, float, str]] = []
    for (word, family, _), quantiles in planned.items():
        name, value = next(iter(quantiles.items()), ("", 0.0))
        reading = histograms.quantile(hold(context.binned).sum_parts(family), QUANTILES[name]) if name else None
        if reading is None:
            continue
        rows.append((reading, value, f"{word} {name} {quantity(reading, 'tokens')}, {number(value, 'count')} planned"))
        is_close &= reading.high is not None and reading.high <= value * factor
        is_close &= bool(context.rule.family) or (reading.low or 0.0) >= value / factor
    if peak is not None:
        rows.append((peak.observed, peak.planned, peak.text))
    # Too few requests for any planned quantile: the rule ran, and found nothing beyond the factor.
    rows = rows or [(exact_reading(None, 0.0), 0.0, "no length is proven to have drifted")]
    observed, wanted, text = rows[0]
    expected = Reading(value=wanted, low=wanted / factor, high=wanted * factor, n=observed.n)
    details = [row[2] for row in rows[1:]]
    if left := _count_left(context):
        details.append(f"{left:,.0f} clients left before the end of their answers")
    return context.verdict(Status.OK, Certainty.of(is_close), observed, expected, capitalize(text), details=details)


class PeakComparison(NamedTuple):
    """Requests per second of the tier, at least the observed ones in three of its busiest periods, and the planned peak.

    `claim`: what is above the plan by more than the allowed factor, peak or ratio to the average, or "".
    """

    observed: Reading
    planned: float
    certain: bool
    claim: str
    text: str


def find_busiest_periods(context: RuleContext) -> PeakComparison | None:
    """Return the busiest periods of the tier, None without a planned peak or with fewer than three periods."""
    rates = read_plan_value(context.tier, "workload.requests_per_second")
    arrivals = hold(context.binned).once(_count_arrivals, context.period_seconds)
    if rates is None or rates.peak is None or len(arrivals) < SEPARATE:
        return None
    top, peak, factor = arrivals[:SEPARATE], rates.peak, context.limit("factor")
    requests, seconds = (math.fsum(pair[place] for pair in top) for place in (1, 2))
    total, whole = (math.fsum(arrival[place] for arrival in arrivals) for place in (1, 2))
    rps, claim, times = top[-1][0], "", ""
    if rps > peak * factor:
        claim, times = "The peak load is", f" ({rps / peak:.1f}x)"
    text = f"{number(rps, 'per_second')} or more arrived in three {context.periods_word}, "
    text += f"{number(peak, 'per_second')} planned{times}"
    # An hour is no measure of a day's average. Over a day or more the busiest hour is a lower bound of the peak.
    ratio = rps / (total / whole) if whole >= DAY_SECONDS and total else 0.0
    if rates.average and ratio > peak / rates.average * factor:
        text += f", peak to average {ratio:.1f}, {peak / rates.average:.1f} planned"
        claim = claim or "Peak to average is"
    certain = poisson_lower_bound(requests) / seconds > peak
    return PeakComparison(Reading(value=rps, low=rps, high=None, n=requests), peak, certain, claim, text)


def _count_arrivals(held: HeldWindows, period_seconds: float) -> list[tuple[float, float, float]]:
    """Return requests per second, requests and seconds of each period of the tier, the busiest period first."""
    arrivals = []
    for group in held.periods(period_seconds).values():
        known = [rows for rows in group.by_batch(_read_arrivals) if rows is not None]
        seconds = max((end for _, end, _ in known), default=0.0) - min((start for start, _, _ in known), default=0.0)
        if known and seconds >= WHOLE * period_seconds:
            requests = max(0.0, math.fsum(chain.from_iterable(counts for _, _, counts in known)))
            arrivals.append((requests / seconds, requests, seconds))
    return sorted(arrivals, reverse=True)


def _read_arrivals(batch: HeldWindows) -> tuple[float, float, list[float]] | None:
    """Return first start, last end (unix seconds) and the arrivals of each window, None if none counts them."""
    known = [binned.window for binned in batch if "requests_finished" in binned.window.counters]
    if not known:
        return None
    counts = [count_arrivals(window.counters, count_gone(window)) or 0.0 for window in known]
    return min(window.start for window in known), max(window.end for window in known), counts


def judge_representative(context: RuleContext) -> RuleResult:
    """Find a time in the system, or mean lengths, beyond `factor` of the benchmark's (guide 9.1, step 7)."""
    by_time = _compare_times(context)
    firing = by_time if isinstance(by_time, Verdict) and by_time.status in FIRING else None
    if firing is not None and firing.certainty is Certainty.CERTAIN:
        return firing
    context = narrow_pool(context, "decode")
    means = [
        (row, benchmarked_mean(context.tier.plan, context.tier.curve, row[2])) for row in LENGTHS if context.binned
    ]
    by_lengths = _report_drift(context, [_compare_mean(context, row, mean)[1] for row, mean in means if mean], None)
    return replace(by_lengths, unit="tokens") if isinstance(by_lengths, Verdict) else firing or by_lengths or by_time


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
    """Return the mean time over bins, weighted by requests, and the highest that the benchmark leaves open."""
    requests = seen = expected = ceiling = supported = 0.0
    for bin, load in hold(binned).by_load_bin(of.curve).items():
        finished = load.counter("requests_finished")
        if load.in_system is None or finished <= 0 or load.rps <= 0:
            continue
        benchmark = of.curve.expect_time(bin, load.rps)
        if benchmark is None:
            continue
        most = benchmark.high
        if not of.curve.concurrency_given:
            points = of.curve.points[max(bin - 1, 0) : bin + 1]
            most = max(most, *(_bound_time(of.context, point) for point in points))
        requests, seen = requests + finished, seen + finished * load.in_system / load.rps
        expected, ceiling = expected + finished * benchmark.value, ceiling + finished * most
        if benchmark.requests >= of.context.limit("supported_requests"):
            supported += finished
    if requests <= 0:
        return None
    context, factor = of.context, of.context.limit("factor")
    time, usual, most = seen / requests, expected / requests, ceiling / requests

    def report(status: Status, certainty: Certainty, reason: str) -> Verdict:
        is_open = most == math.inf
        bound = "" if is_open or most <= usual else f" (at most {number(most, 'seconds')})"
        sentence = f"Requests stay {time / usual:.1f}x as long as in the benchmark; up to {factor:g}x is representative"
        wanted = f"{number(usual, 'seconds')} at this load{bound}"
        compared = f"{number(time, 'seconds')} in the system, benchmark {wanted}"
        details = (compared, f"{requests:,.0f} requests", reason, of.curve.written.remark)
        planned = Reading(value=usual, low=0.0, high=None if is_open else most, n=requests)
        return context.verdict(status, certainty, exact_reading(time, requests), planned, sentence, details=details)

    exceeds, surely_exceeds = seen > factor * expected, seen > factor * ceiling
    return Divergence(requests, exceeds, exceeds, surely_exceeds, supported >= requests / 2 and surely_exceeds, report)


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

    Requests in the system must be those finished per second x their mean end-to-end time. A contradiction lasts.
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
    """Return the requests in the system by the gauges and by Little's law, and those in all gauge samples."""
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
    # Little's law needs a steady population.
    if finished <= 0 or seconds <= 0 or abs(total.counters.get(NET_CHANGE, 0.0)) > 0.1 * finished:
        return None
    levels = [total.gauges[name] for name in IN_SYSTEM]
    in_system = math.fsum(level.integral / level.seconds for level in levels)
    return in_system, finished / seconds * mean, in_system * levels[0].samples
