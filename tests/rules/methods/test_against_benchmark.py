"""Latencies, means and evictions against the benchmark: tables of cases (fires, just within, too early, over)."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import FAST, SLOW, answered, context, each, gauge, minute, seen, unseen
from outcomes import EARLY, FAIRLY, FINE, GUESSED, HIDDEN, PAGE_GUESSED, PAGED, UNPLANNED, UNSEEN, WARNED
from rule_cases import Case, check_case, check_words, judge_cases, list_cases

from rules.plan.load_bins import TierContext, build_tier_context
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window

TTFT, TPOT, ITL = "TtftDivergence", "TpotDivergence", "ItlDivergence"
TIER = context()
THIN = context({"requests": 100})
EVENTS = context({"itl_p99_seconds": 0.2})
NO_TPOT = {"tpot_p99_seconds": None}

Shape = Mapping[str, tuple[Histogram, ...]]


def first_tokens(values: Mapping[float, float]) -> Shape:
    return {"ttft_seconds": seen(values)}


def shaped(shape: Shape, rps: float = 3.0, count: int = 5) -> list[Window]:
    return each(count, lambda n: minute(n, rps=rps, histograms=shape))


def slow(requests: float, count: int = 5, rps: float = 3.0) -> list[Window]:
    return each(count, lambda n: minute(n, rps=rps, slow=requests))


def slow_in(numbers: Collection[int], count: int, requests: float = 90) -> list[Window]:
    return mixed({"slow": requests}, {}, numbers, count)


def then(since: int, last: Window, count: int = 12) -> list[Window]:
    """Slow minutes, and from the minute `since` on such ones."""
    later = each(count, lambda n: replace(last, start=minute(n).start, end=minute(n).end))
    return [*slow(40, since), *later[since:]]


def mixed(first: Mapping[str, Any], other: Mapping[str, Any], numbers: Collection[int], count: int) -> list[Window]:
    """Minutes of two kinds, of which the first are the given ones."""
    return each(count, lambda n: minute(n, **(first if n in numbers else other)))


BETWEEN = first_tokens({0.2: 90, FAST: 90})
"""All between 0.15 and 0.26 s: likely slower than 0.184 s, surely above 0.26 s none."""
SLOWER = first_tokens({0.9: 30, FAST: 270})
P99 = "P99 260 to 520 ms, benchmark 100 to 200 ms at equal load"
TPOT_SLOW = {"tpot_seconds": seen({SLOW: 18, FAST: 162})}
LATE_EVENTS = {"itl_seconds": seen({SLOW: 180, FAST: 8820})}
MORE_EVENTS = {"itl_seconds": seen({SLOW: 450, FAST: 8550})}
QUIET, FEW = (minute(0, rps=8 / 60, histograms=first_tokens({FAST: count})) for count in (24, 8))
# 5 and 3 rps by turns, and the minutes of five that are at the well measured load.
SLOW_AT_5, SLOW_AT_3 = (
    mixed({"rps": 5.0, "slow": 300}, {}, (0, 2, 4), 6),
    mixed({"rps": 5.0}, {"slow": 90}, (0, 2, 4), 6),
)
GOOD, POOR = {"rps": 5, "histograms": SLOWER}, {"slow": 18}
CALM = {name: slow(0) for name in "acd"}

OTHER_ITL = build_tier_context("t", TIER.plan, itl_comparable=False)

TTFT_CASES = [
    Case("many slow", TIER, slow(18), WARNED),
    Case("as many as a P99 allows", TIER, slow(1.8), FINE),
    # 12 or more of 900 come up in one of five such holds whose true share is 1 %, 15 in one of twenty-five.
    Case("12 of 900", TIER, slow(2.4), FINE),
    Case("15 of 900", TIER, slow(3), GUESSED),
    # Against 1 % of 900: P(X >= 19) = 0.0023, P(X >= 20) = 0.0010, P(X >= 21) = 0.0004.
    Case("19 of 900", TIER, slow(19 / 5), GUESSED),
    Case("21 of 900", TIER, slow(21 / 5), WARNED),
    Case("surely slow none", TIER, shaped(BETWEEN), GUESSED),
    # 1.5 x 0.2 = 0.3 s lies within the bucket of 0.26 to 0.52 s, in which 0.4 s is counted.
    Case("the limit within a bucket", context(limits={TTFT: {"factor": 1.5}}), slow(60), GUESSED),
    # 0.15 s is the edge below 0.184 s: nobody above it.
    Case("within the factor", TIER, shaped(first_tokens({0.15: 180})), FINE),
    Case("points of 299 requests", context(requests=299), slow(18), GUESSED),
    Case("points of 300 requests", context(requests=300), slow(18), WARNED),
    Case("the thinner of two points", THIN, slow(18), GUESSED),
    # At 5 rps both points are well measured: 1.3 x 0.4 is above the slow 0.4 s, so slower ones.
    Case("two good points", THIN, shaped(SLOWER, rps=5), WARNED),
    # Of twelve minutes five well measured ones hold 1500 of 2760 requests, four 1200 of 2640.
    Case("mostly well measured", THIN, mixed(GOOD, POOR, (2, 5, 6, 9, 11), 12), WARNED),
    Case("mostly at the thin point", THIN, mixed(GOOD, POOR, (2, 6, 9, 11), 12), GUESSED),
    Case("two minutes", TIER, slow_in((3, 4), 5), FINE),
    Case("three minutes", TIER, slow_in((2, 3, 4), 5), WARNED),
    # Twelve minutes: the last quarter are three. One slow one in it is enough, none ends the finding.
    Case("over", TIER, slow_in(range(9), 12, 40), FINE),
    Case("not yet over", TIER, slow_in(range(10), 12, 40), WARNED),
    # Surely slow for some minutes, then only slower than the interpolated point.
    Case("milder at the end", TIER, then(6, minute(0, histograms=BETWEEN), 8), GUESSED),
    Case("a quiet last quarter", TIER, then(9, QUIET), FINE),
    Case("silence", TIER, then(9, FEW), EARLY),
    Case("99 requests", TIER, slow(24.75 / 2, 4, 24.75 / 60), EARLY),
    Case("100 requests", TIER, slow(12.5, 4, 25 / 60), WARNED),
    Case("too early", TIER, slow(18, 2), EARLY),
    Case("long enough", TIER, slow(18, 3), WARNED),
    # 0.4 s is slow at 3 rps and allowed at 5 rps (1.3 x 0.4 = 0.52 s): only the share of the low load counts.
    Case("one wide bucket", TIER, shaped(first_tokens({0.2: 8, FAST: 172})), FAIRLY),
    Case("far above what is allowed", TIER, shaped(first_tokens({0.2: 90, FAST: 90})), GUESSED),
    Case("a bucket above the P99", TIER, shaped(first_tokens({0.2: 20, FAST: 160})), GUESSED),
    Case("slow at the load that allows it", TIER, SLOW_AT_5, HIDDEN),
    Case("slow at the load that does not", TIER, SLOW_AT_3, WARNED),
    # 1.3 x 0.1 = 0.13 s: 0.2 s is above the edge 0.15.
    Case("below the first point", TIER, shaped(first_tokens({0.2: 6, FAST: 54}), rps=1.0), WARNED),
    Case("one replica of four", TIER, {**CALM, "b": slow(20)}, WARNED),
    Case("a little of it", TIER, {**CALM, "b": slow(6)}, FINE),
    Case("b leaves the benchmark", TIER, {**CALM, "b": [*slow(20, 4), minute(4, rps=9.0)]}, Gap.OUTSIDE_BENCHMARK),
    Case("no histogram", TIER, [replace(one, histograms={}) for one in slow(0)], HIDDEN),
    Case("b's last minute lasts", TIER, {**CALM, "b": slow(20, 4)}, Gap.OUTSIDE_BENCHMARK),
    Case("5 % allowed", context(limits={TTFT: {"allowed_share": 0.05}}), slow(6.3), FINE),
]
TPOT_CASES = [
    Case("slow", TIER, shaped(TPOT_SLOW), WARNED),
    Case("not measured", context(NO_TPOT, NO_TPOT, NO_TPOT), slow(0), UNPLANNED),
    Case("not at this load", context(NO_TPOT), slow(0), UNPLANNED),
    Case("measured at another", context(NO_TPOT), slow(0, rps=5.0), FINE),
]
ITL_CASES = [
    # 450 requests with 100 events each; 2 % of the events are slow: as requests 9 of 450, too few to be certain.
    Case("events of few requests", EVENTS, shaped(LATE_EVENTS, rps=1.5), GUESSED),
    Case("enough events", EVENTS, shaped(MORE_EVENTS, rps=1.5), WARNED),
    Case("too few requests", EVENTS, shaped(LATE_EVENTS, rps=0.3), EARLY),
    Case("another meaning", OTHER_ITL, slow(0), HIDDEN),
]


def test_expectation_weighs_by_requests() -> None:
    """One minute at 2 rps (120 requests, 0.1 s), three at 4 rps (720 requests, 0.2 s at the upper end of their bin)."""
    mean = pytest.approx((120 * 0.1 + 720 * 0.2) / 840)
    expected = answered(TTFT, TIER, each(4, lambda n: minute(n, rps=2.0 if n == 0 else 4.0))).expected
    assert expected == Reading(value=mean, low=pytest.approx(0.1), high=mean, n=pytest.approx(600))
    first_point = answered(TTFT, TIER, shaped(first_tokens({0.2: 6, FAST: 54}), rps=1.0)).expected
    assert (first_point.low, first_point.high) == (0.1, 0.1)
    between = answered(GPU, VIEW, busy(0.19)).expected
    assert between == Reading(value=0.5, low=0.4, high=pytest.approx(0.6), n=300)
    # 360 requests at 2 rps where none are expected, 900 at 5 rps where 4 % are: 36 of 1260.
    evictions = answered(EXCESS, PLANNED, each(6, lambda n: minute(n, rps=2.0 if n % 2 else 5.0))).expected
    assert evictions.value == pytest.approx(36 / 1260)
    assert isinstance(answered(KV, TIER, always(6, rps=0.0)).observed, Missing)


GPU, HITS = "GpuUtilizationShortfall", "PrefixHitDivergence"
BUSY = ({"gpu_utilization": 0.4}, {"gpu_utilization": 0.6}, {"gpu_utilization": 0.8})
HIT = ({"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6})


def gpu_view(kind: str | None = "nvml_gpu", gpus: int = 1, **parts: Any) -> TierContext:
    curve = {"gpu_utilization_kind": kind} if kind else {}
    return context(*BUSY, curve=curve, gpu={"product": "A", "per_replica": gpus}, **parts)


def busy_minute(number: int, share: float, seconds: float = 60.0, rps: float = 3.0, **more: Any) -> Window:
    """A minute whose GPUs were busy for a share of so many GPU-seconds, by the driver's sums."""
    counters = {"gpu_busy_seconds": share * seconds, "gpu_busy_covered_seconds": seconds}
    return minute(number, rps=rps, counters=counters, **more)


def busy(share: float, **more: Any) -> list[Window]:
    return each(5, lambda n: busy_minute(n, share, **more))


def busy_in(first: int, last: int, count: int, share: float, other: float | None) -> list[Window]:
    """Minutes of a share from the first to the last one; the others have another, or no GPU was seen."""
    rest = minute if other is None else lambda n: busy_minute(n, other)
    return each(count, lambda n: busy_minute(n, share) if first <= n <= last else rest(n))


def levels(family: str) -> list[Window]:
    return each(5, lambda n: minute(n, gauges={family: gauge(0.1)}))


def hits(share: float, count: int = 5, rps: float = 3.0, tokens: float = 1000.0, **more: float) -> list[Window]:
    queried = rps * 60 * tokens
    counters = {"prefix_queried_tokens": queried, "prefix_hit_tokens": queried * share, **more}
    return each(count, lambda n: minute(n, rps=rps, counters=counters))


VIEW, HITTING = gpu_view(), context(*HIT)
POLLED = frozenset({"gpu_busy_seconds", "gpu_busy_covered_seconds"})

GPU_CASES = [
    # 3 rps lies half way between 0.4 and 0.6.
    Case("19 points below", VIEW, busy(0.31), FINE),
    Case("21 points below", VIEW, busy(0.29), GUESSED),
    Case("19 below the lower point", VIEW, busy(0.21), GUESSED),
    Case("21 below the lower point", VIEW, busy(0.19), WARNED),
    Case("more than planned", VIEW, busy(0.9), FINE),
    # The first point is 2 rps at 40 %; at 0.2 rps a GPU is busy a tenth of that, and nothing below is certain.
    Case("idle", VIEW, busy(0.02, rps=0.2), FINE),
    Case("just below the first point", VIEW, busy(0.1, rps=1.9), GUESSED),
    Case("a plain poll", VIEW, levels("gpu_utilization_sampled"), GUESSED),
    Case("sums of polls", VIEW, busy(0.1, sampled=POLLED), GUESSED),
    Case("power that is polled", VIEW, busy(0.1, sampled=frozenset({"gpu_power_watts"})), WARNED),
    Case("another kind", gpu_view("sm_active"), busy(0.1), HIDDEN),
    Case("the same kind", gpu_view("sm_active"), levels("gpu_sm_active"), WARNED),
    Case("no kind", gpu_view(None), busy(0.1), UNPLANNED),
    Case("seen for nine tenths", VIEW, busy(0.1, seconds=55), WARNED),
    Case("seen for less", VIEW, busy(0.1, seconds=50), GUESSED),
    Case("hardly seen", VIEW, busy(0.1, seconds=29), Gap.SCRAPE_FAILED),
    # Two GPUs: 120 GPU-seconds a minute. One of them alone is half.
    Case("both GPUs", gpu_view(gpus=2), busy(0.1, seconds=120), WARNED),
    Case("one of two GPUs", gpu_view(gpus=2), busy(0.1, seconds=60), GUESSED),
    Case("one of four GPUs", gpu_view(gpus=4), busy(0.1, seconds=60), Gap.SCRAPE_FAILED),
    Case("three minutes unseen", VIEW, busy_in(3, 7, 8, 0.1, None), GUESSED),
    Case("mostly unseen", VIEW, busy_in(5, 7, 8, 0.1, None), Gap.SCRAPE_FAILED),
    Case("two minutes", VIEW, busy_in(3, 4, 5, 0.0, 0.5), FINE),
    Case("three minutes", VIEW, busy_in(2, 4, 5, 0.0, 0.5), GUESSED),
    Case("over", VIEW, busy_in(0, 5, 8, 0.0, 0.5), FINE),
    # By the lower point (0.2) for six minutes, in the last quarter only by the interpolated one (0.3).
    Case("smaller at the end", VIEW, busy_in(0, 5, 8, 0.1, 0.25), GUESSED),
    Case("unseen at the end", VIEW, busy_in(0, 8, 12, 0.1, None), UNSEEN),
    Case("thin benchmark", gpu_view(requests=100), busy(0.1), GUESSED),
    Case("not measured", context(), each(5, minute), UNPLANNED),
]
POOLS = {"p": "prefill", "d": "decode"}
HITS_CASES = [
    Case("half lost", HITTING, hits(0.3), WARNED),
    Case("19 points lost", HITTING, hits(0.41), FINE),
    Case("lost in decode", replace(HITTING, pools=POOLS), {"p": hits(0.6), "d": hits(0.0)}, FINE),
    Case("lost in prefill", replace(HITTING, pools=POOLS), {"p": hits(0.0), "d": hits(0.6)}, WARNED),
    # 36 % of 300 requests: the 99.9 % bound of the misses (64 %) is 55 %, below the 60 % that would be too many.
    Case("few requests", HITTING, hits(0.36, rps=1.0), GUESSED),
    Case("many requests", HITTING, hits(0.36, 12, rps=3.9), WARNED),
    Case("too few requests", HITTING, hits(0.0, 4, rps=0.4), EARLY),
    # Ten quiet minutes without a hit hold 60 requests, five busy ones with all the hits 900.
    Case("by requests", HITTING, [*hits(0.0, 15, rps=0.1)[:10], *hits(0.6, 15)[10:]], FINE),
    Case("planned hits", context(workload={"prefix_hit_ratio": 0.6}, requests=100), hits(0.3), WARNED),
    Case("measured before planned", context(*HIT, workload={"prefix_hit_ratio": 0.2}), hits(0.3), WARNED),
    Case("no lookups", HITTING, hits(0.0, tokens=0.0), GUESSED),
    Case("more hits than lookups", HITTING, hits(11.7), Gap.CONTRADICTORY),
    Case("lookups again", HITTING, hits(0.1, prompt_tokens=45e3), Gap.CONTRADICTORY),
    Case("a few lookups again", HITTING, hits(0.1, prompt_tokens=180_000 / 1.02), WARNED),
    Case("no cache", HITTING, each(5, minute), HIDDEN),
    Case("not measured", context(), each(5, minute), UNPLANNED),
]

KV, EXCESS = "KvEviction", "EvictionDivergence"
BENCHMARKED = ({"eviction_rate": 0.0}, {"eviction_rate": 0.02}, {"eviction_rate": 0.04})
PLANNED = context(*BENCHMARKED)
PARTLY = context({}, {"eviction_rate": 0.0}, {"eviction_rate": 0.0})


def evicting(*preemptions: float, rps: float = 3.0) -> list[Window]:
    return each(len(preemptions), lambda n: minute(n, rps=rps, counters={"preemptions": preemptions[n]}))


def always(preemptions: float, rps: float = 3.0, count: int = 5) -> list[Window]:
    return evicting(*[preemptions] * count, rps=rps)


KV_CASES = [
    Case("five per cent", TIER, always(9), FINE),
    Case("above five", TIER, always(20), WARNED),
    Case("just within twenty", TIER, always(36), WARNED),
    Case("above twenty", TIER, always(37), PAGED),
    # 50 for 900: the 99.9 % lower bound of a Poisson mean is 31, 3.4 %; of 75 it is 51, 5.6 %.
    Case("few events", TIER, always(10), GUESSED),
    Case("enough events", TIER, always(15), WARNED),
    Case("one burst", TIER, evicting(0, 0, 0, 200, 200), PAGE_GUESSED),
    Case("three minutes", TIER, evicting(0, 0, 200, 200, 200), PAGED),
    Case("over", TIER, evicting(60, 60, 60, 60, 0), FINE),
    Case("milder at the end", TIER, evicting(60, 60, 60, 60, 2), PAGE_GUESSED),
    Case("unseen at the end", TIER, [*always(60)[:4], unseen(4)], Gap.SCRAPE_FAILED),
    Case("19 requests", TIER, always(1, rps=3.8 / 60), EARLY),
    Case("19 requests, many events", TIER, always(6, rps=3.8 / 60), PAGED),
    Case("20 requests", TIER, always(1, rps=4 / 60), PAGE_GUESSED),
    Case("nothing finishes", TIER, always(6, rps=0.0), PAGED),
    Case("idle", TIER, always(0, rps=0.0), UNSEEN),
    Case("no plan", build_tier_context("t", None), always(60), PAGED),
    Case("beyond the benchmark", TIER, always(200, rps=9.0), PAGED),
]
EXCESS_CASES = [
    # 3 rps lies between 0 and 2 %: the upper point's is expected, 5 points more are allowed.
    Case("the benchmark's", PLANNED, always(12.6), FINE),
    Case("just above", PLANNED, always(14), GUESSED),
    Case("above", PLANNED, always(22), WARNED),
    Case("thin benchmark", context(*BENCHMARKED, requests=100), always(60), GUESSED),
    Case("over", PLANNED, evicting(*[60] * 6, 0, 0), FINE),
    Case("too few requests", PLANNED, always(9, rps=0.4, count=4), EARLY),
    Case("not measured", TIER, always(0), UNPLANNED),
    Case("not at this load", PARTLY, always(0), UNPLANNED),
    Case("beyond the benchmark", PLANNED, always(200, rps=9.0), Gap.OUTSIDE_BENCHMARK),
]
LATENCIES = {TTFT: TTFT_CASES, TPOT: TPOT_CASES, ITL: ITL_CASES}
TABLES = {**LATENCIES, GPU: GPU_CASES, HITS: HITS_CASES, KV: KV_CASES, EXCESS: EXCESS_CASES}


@pytest.mark.parametrize(("rule", "case"), list_cases(TABLES), ids=str)
def test_readings_against_the_benchmark(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_words_read_as_the_golden() -> None:
    check_words(__file__, judge_cases(list_cases(TABLES)))
