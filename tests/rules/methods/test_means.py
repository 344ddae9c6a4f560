"""GPU utilisation and prefix hits below the plan: one table of cases (fires, just within, too early, over, not measured)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, verdict
from rule_cases import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Case, check_case

from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window

GPU, HITS = "GpuUtilizationShortfall", "PrefixHitDivergence"
BUSY = ({"gpu_utilization": 0.4}, {"gpu_utilization": 0.6}, {"gpu_utilization": 0.8})
HIT = ({"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6})
ALLOWED = "20 points below are allowed"


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


def hits_minute(number: int, share: float, rps: float = 3.0, tokens: float = 1000.0) -> Window:
    queried = rps * 60 * tokens
    return minute(number, rps=rps, counters={"prefix_queried_tokens": queried, "prefix_hit_tokens": queried * share})


def hits(share: float, count: int = 5, **more: float) -> list[Window]:
    return each(count, lambda n: hits_minute(n, share, **more))


def repeated(factor: float) -> list[Window]:
    """Prompts of which each token was looked up so many times."""
    prompts = 180_000.0 / factor
    return [replace(one, counters={**one.counters, "prompt_tokens": prompts}) for one in hits(0.1)]


def points_below(what: str, points: str, seen: str, planned: str) -> str:
    return f"{what} is {points} the plan; {seen} where {planned} is planned at this load; {ALLOWED}"


VIEW, TIER = gpu_view(), context(*HIT)
POLLED = frozenset({"gpu_busy_seconds", "gpu_busy_covered_seconds"})
USE, RATE = "GPU utilisation", "Prefix cache hit rate"

GPU_CASES = [
    # 3 rps lies half way between 0.4 and 0.6.
    Case("19 points below", VIEW, busy(0.31), FINE, points_below(USE, "19 points below", "31.0%", "50.0%")),
    Case("21 points below", VIEW, busy(0.29), GUESSED),
    Case("19 below the lower point", VIEW, busy(0.21), GUESSED),
    Case("21 below the lower point", VIEW, busy(0.19), WARNED),
    Case("more than planned", VIEW, busy(0.9), FINE, points_below(USE, "not below", "90.0%", "50.0%")),
    # The first point is 2 rps at 40 %; at 0.2 rps a GPU is busy a tenth of that, and nothing below is certain.
    Case("idle", VIEW, busy(0.02, rps=0.2), FINE, points_below(USE, "2 points below", "2.0%", "4.0%")),
    Case("just below the first point", VIEW, busy(0.1, rps=1.9), GUESSED),
    Case("a plain poll", VIEW, levels("gpu_utilization_sampled"), GUESSED),
    Case("sums of polls", VIEW, busy(0.1, sampled=POLLED), GUESSED),
    Case("power that is polled", VIEW, busy(0.1, sampled=frozenset({"gpu_power_watts"})), WARNED),
    Case("another kind", gpu_view("sm_active"), busy(0.1), HIDDEN, "no utilisation of the benchmark's kind, sm_active"),
    Case("the same kind", gpu_view("sm_active"), levels("gpu_sm_active"), WARNED),
    Case("no kind", gpu_view(None), busy(0.1), UNPLANNED, "does not say which kind of gpu_utilization it measured"),
    Case("seen for nine tenths", VIEW, busy(0.1, seconds=55), WARNED),
    Case("seen for less", VIEW, busy(0.1, seconds=50), GUESSED),
    Case("hardly seen", VIEW, busy(0.1, seconds=29), Gap.SCRAPE_FAILED, "seen for less than half of the time"),
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
    Case(
        "unseen at the end",
        VIEW,
        busy_in(0, 8, 12, 0.1, None),
        UNSEEN,
        "nothing to compare was seen in the last quarter",
    ),
    Case("thin benchmark", gpu_view(requests=100), busy(0.1), GUESSED),
    Case("not measured", context(), each(5, minute), UNPLANNED, "the benchmark has no gpu_utilization"),
]
HITS_CASES = [
    Case("half lost", TIER, hits(0.3), WARNED, points_below(RATE, "30 points below", "30.0%", "60.0%")),
    Case("19 points lost", TIER, hits(0.41), FINE),
    # 36 % of 300 requests: the 99.9 % bound of the misses (64 %) is 55 %, below the 60 % that would be too many.
    Case("few requests", TIER, hits(0.36, rps=1.0), GUESSED),
    Case("many requests", TIER, hits(0.36, 12, rps=3.9), WARNED),
    Case("too few requests", TIER, hits(0.0, 4, rps=0.4), EARLY, "96 requests, 100 are needed"),
    # Ten quiet minutes without a hit hold 60 requests, five busy ones with all the hits 900.
    Case("by requests", TIER, each(15, lambda n: hits_minute(n, *((0.0, 0.1) if n < 10 else (0.6, 3.0)))), FINE),
    Case("planned hits", context(workload={"prefix_hit_ratio": 0.6}, requests=100), hits(0.3), WARNED),
    Case("measured before planned", context(*HIT, workload={"prefix_hit_ratio": 0.2}), hits(0.3), WARNED),
    Case(
        "no lookups",
        TIER,
        hits(0.0, tokens=0.0),
        GUESSED,
        f"{points_below(RATE, '60 points below', '0.0%', '60.0%')}; "
        "no prompt was looked up in the prefix cache: is prefix caching on?",
    ),
    Case("more hits than lookups", TIER, hits(11.7), Gap.CONTRADICTORY, "more prefix cache hits than lookups"),
    Case("lookups again", TIER, repeated(4.0), Gap.CONTRADICTORY, "more prefix cache lookups than prompt tokens"),
    Case("a few lookups again", TIER, repeated(1.02), WARNED),
    Case("no cache", TIER, each(5, minute), HIDDEN, "the engine shows no prefix cache lookups"),
    Case("not measured", context(), each(5, minute), UNPLANNED, "the benchmark has no prefix_hit_ratio"),
]
CASES = [*((GPU, case) for case in GPU_CASES), *((HITS, case) for case in HITS_CASES)]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=str)
def test_means_against_the_plan(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_expectation_lies_between_two_points() -> None:
    found = verdict(GPU, VIEW, busy(0.19))
    assert found.expected == Reading(value=0.5, low=0.4, high=pytest.approx(0.6), n=300)
