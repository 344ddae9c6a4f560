"""Trends within the window of a rule: a growing queue, and a rising TTFT on busy GPUs (guide 9.3).

Each replica is compared with itself, so that idle replicas do not hide a busy one. No plan is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from statistics import NormalDist

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.evidence import certain_if, exact_reading, is_significant_share, range_reading
from rules.methods.load import LOAD_WORDS, compare_offered_load
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram, count_requests
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.wording import format_count, number, split_claim, spread
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    SEPARATE,
    RuleContext,
    is_persistent,
    part_seen,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status, Unknown

Z = NormalDist().inv_cdf(CONFIDENCE)

MEASURED = frozenset({"gpu_busy_seconds", "gpu_gr_engine_active", "gpu_gfx_active"})
"""Families of utilisation over time. A plain poll does not cover the time between two polls (METRICS trap 15)."""

QUANTILES = (0.5, 0.99)
"""Quantiles of TTFT that may rise. The median comes first because fewer requests prove it."""


def judge_trend(context: RuleContext) -> RuleResult:
    """Evaluate GPU saturation if the rule has a `pegged` threshold, else the queue."""
    return _judge_saturated(context) if "pegged" in context.rule.thresholds else _judge_queue(context)


def _judge_queue(context: RuleContext) -> RuleResult:
    """Find replicas whose queue grew over the whole window while more requests arrived than finished.

    From waiting, arrived and finished requests. Certain beyond chance, and in twice three separate minutes.
    """
    replicas, held = hold(context.binned).by_replica, hold(context.binned)
    late = context.last_quarter(context.binned).by_replica
    last = {name: load_bins.mean_waiting(late.get(name, ())) for name in replicas}
    if all(value is None for value in last.values()):
        return context.unknown(worst_gap(context.binned, "requests_waiting"), "how many requests wait is not known")
    expected = range_reading(0.0, context.limit("waiting"), float(len(replicas)))
    growing = held.find_growing_queues(context.now)
    grown = [grows for name in growing if (grows := _measure_growth(context, name, replicas[name])) is not None]
    if not grown:
        waiting = [name for name in replicas if (last[name] or 0.0) >= context.limit("waiting")]
        unseen = next(
            (name for name in waiting if load_bins.describe_growth(replicas[name], context.now) is None), None
        )
        if unseen is not None:
            seen = part_seen(replicas[unseen], replicas[unseen])
            text = f"{last[unseen]:.1f} requests wait at {unseen or context.tier.name}; {seen}: too early to say if they grow"
            return context.unknown(Gap.TOO_FEW_REQUESTS, text)
        most = max((value for value in last.values() if value is not None), default=0.0)
        sentence = f"No queue grows: at most {most:.1f} requests were waiting at a replica at the end of this time"
        observed = Reading(value=most, low=0.0, high=most, n=float(len(replicas)))
        return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    is_significant, level, finished, more, name = max(grown, key=itemgetter(0, 1))
    lasting = len(context.periods(replicas[name])) >= 2 * SEPARATE
    load, pattern = compare_offered_load(context)
    who = (name or context.tier.name) + (f" ({len(grown)} of {len(replicas)} replicas)" if len(replicas) > 1 else "")
    sentence = f"The queue of {who} grows; {split_claim(growing[name])[1]}; {LOAD_WORDS[pattern]}"
    details = (f"{finished:,.0f} finished in this time, {finished + more:,.0f} arrived", load)
    observed, certainty = exact_reading(level, finished), certain_if(is_significant and lasting)
    return context.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details, pattern=pattern)


def _measure_growth(
    context: RuleContext, name: str | None, binned: HeldWindows
) -> tuple[bool, float, float, float, str | None] | None:
    """Return whether a queue's growth is beyond chance, its requests, those finished, arrived minus finished, and the name.

    Chance: the variance of the excess is the sum of arrivals and completions. None if it hardly grew.
    """
    waiting = load_bins.mean_waiting(_select_third(context, binned, last=True))
    counters = binned.sum_families(("requests_finished", windows.NET_CHANGE)).counters
    finished, more = counters.get("requests_finished", 0.0), counters.get(windows.NET_CHANGE, 0.0)
    if waiting is None or waiting < context.limit("waiting") or more < context.limit("share") * finished:
        return None
    return more > Z * math.sqrt(2 * finished + more), waiting, finished, more, name


def _judge_saturated(context: RuleContext) -> RuleResult:
    """Find replicas with pegged GPUs and a rising TTFT. Pegged GPUs with a stable TTFT are healthy.

    From GPU utilisation and the histogram of TTFT. Certain beyond chance by bucket edges, if no plain poll measured the GPUs.
    """
    replicas, limit = hold(context.binned).by_replica, context.limit("pegged")
    readings = {name: _read_utilization(group) for name, group in replicas.items()}
    known = {name: reading for name, reading in readings.items() if isinstance(reading, Reading)}
    if not known:
        missing = next(reading for reading in readings.values() if isinstance(reading, Missing))
        return context.unknown(missing.gap, missing.text or "GPU utilisation is not known")
    busiest = max(known.values(), key=lambda reading: reading.value or 0.0)
    busy, expected = number(busiest.value or 0.0, "ratio"), range_reading(0.0, limit, busiest.n)
    rises: dict[str | None, tuple[str, bool]] = {}
    unknown: Unknown | None = None
    is_any_pegged = False
    for name in known:
        is_pegged, early = _check_pegged(context, known[name], replicas[name])
        is_any_pegged |= is_pegged
        rise = _find_rise(context, replicas[name]) if is_pegged else early
        if isinstance(rise, Unknown):
            unknown = unknown or rise
        elif rise is not None and rise[0]:
            rises[name] = rise
    if not rises:
        sentence = f"GPUs are busy {busy} of the time on the busiest replica: not pegged"
        if is_any_pegged:
            sentence = f"GPUs pegged at {busy} with stable TTFT: prefill-bound and healthy"
        return unknown or context.verdict(Status.OK, Certainty.CERTAIN, busiest, expected, sentence)
    worst = max(rises, key=lambda name: rises[name][1])
    text, is_proven = rises[worst]
    busy = number(known[worst].value or 0.0, "ratio")
    sentence = f"GPUs of {worst or context.tier.name} are pegged at {busy} while TTFT rises; {text}"
    details = (f"{len(rises)} of {format_count(len(replicas), 'replica')}",)
    is_measured = any(MEASURED & {*replica.window.counters, *replica.window.gauges} for replica in replicas[worst])
    certainty = certain_if(is_proven and is_measured)
    return context.verdict(Status.WARNING, certainty, known[worst], expected, sentence, details=details)


def _read_utilization(binned: Sequence[BinnedWindow]) -> Reading | Missing | None:
    signal = BY_NAME["gpu_utilization"]
    return read(signal, hold(binned).sum_families(families_of(signal))) if binned else None


def _check_pegged(context: RuleContext, whole: Reading, binned: Sequence[BinnedWindow]) -> tuple[bool, Unknown | None]:
    """Return whether GPUs are pegged over the window, in its last quarter and in separate minutes; or too early to say."""
    limit = context.limit("pegged")
    if (whole.value or 0.0) < limit:
        return False, None
    groups = (context.last_quarter(binned), *context.periods(binned))
    readings = [_read_utilization(group) for group in groups]
    last, *each = (reading.value or 0.0 if isinstance(reading, Reading) else None for reading in readings)
    is_pegged = is_persistent(last, each, lambda value: value >= limit)
    return is_pegged, None if is_pegged else too_early(context, binned, last, each, lambda value: value >= limit)


def _find_rise(context: RuleContext, binned: Sequence[BinnedWindow]) -> tuple[str, bool] | Unknown:
    """Return the rise of TTFT from the first third to the last in words ("" without a rise), and whether it is proven."""
    thirds = (hold(_select_third(context, binned, last=end)) for end in (False, True))
    first, last = (third.sum_parts(context.rule.family) for third in thirds)
    needed = context.limit("minimum_requests")
    for parts, word in ((first, "first"), (last, "last")):
        if (n := count_requests(parts)) < needed:
            return context.too_few_requests(n, needed, f" in the {word} third at pegged GPUs")
    rises = (_compare_quantile(context, first, last, q) for q in QUANTILES)
    return max(rises, key=lambda rise: (bool(rise[0]), rise[1]))


def _compare_quantile(
    context: RuleContext, first: tuple[Histogram, ...], last: tuple[Histogram, ...], q: float
) -> tuple[str, bool]:
    """Return the rise of a TTFT quantile in words, "" without a rise, and whether it is proven.

    Likely: the best estimate rose by the factor, and more requests than the quantile allows are above it. Proven: the
    later requests also exceed the factor times the upper edge of the earlier bucket, beyond chance.
    """
    before, after = histograms.quantile(first, q), histograms.quantile(last, q)
    factor = context.limit("rise")
    if before is None or after is None or before.high is None or before.value is None:
        return "", False
    over = histograms.share_above(last, factor * before.value)
    if not is_significant_share(over.best, over.n, over.n, 1 - q, LIKELY_CONFIDENCE):
        return "", False
    sure = histograms.share_above(last, factor * before.high)
    is_proven = is_significant_share(sure.low, sure.n, sure.n, 1 - q, CONFIDENCE)
    was, now = (spread(reading.low or 0.0, reading.high, "seconds") for reading in (before, after))
    return f"P{q * 100:g} was {was}, is {now}", is_proven


def _select_third(context: RuleContext, binned: Sequence[BinnedWindow], *, last: bool) -> tuple[BinnedWindow, ...]:
    """Return the binned windows whose middle is in the first or the last third of the rule's window."""
    start = min((sample.window.start for sample in binned), default=context.now)
    third = (context.now - start) / 3
    middles = ((sample, sample.window.middle) for sample in binned)
    return tuple(sample for sample, at in middles if (at >= context.now - third if last else at <= start + third))
