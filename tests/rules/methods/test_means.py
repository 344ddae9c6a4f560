from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

GPU, HITS = "GpuUtilizationShortfall", "PrefixHitDivergence"
BUSY = ({"gpu_utilization": 0.4}, {"gpu_utilization": 0.6}, {"gpu_utilization": 0.8})
HIT = ({"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6}, {"prefix_hit_ratio": 0.6})


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def gpu_view(kind: str | None = "nvml_gpu", gpus: int = 1, **parts: Any) -> TierContext:
    curve = {"gpu_utilization_kind": kind} if kind else {}
    return context(*BUSY, curve=curve, gpu={"product": "A", "per_replica": gpus}, **parts)


def busy(number: int, share: float, seconds: float = 60.0, rps: float = 3.0, **more: Any) -> Window:
    """A minute whose GPUs were busy for a share of so many GPU-seconds, by the driver's sums."""
    counters = {"gpu_busy_seconds": share * seconds, "gpu_busy_covered_seconds": seconds}
    return minute(number, rps=rps, counters=counters, **more)


def hits(number: int, share: float, rps: float = 3.0, tokens: float = 1000.0) -> Window:
    finished = rps * 60
    queried = finished * tokens
    return minute(number, rps=rps, counters={"prefix_queried_tokens": queried, "prefix_hit_tokens": queried * share})


def test_twenty_points_below_the_benchmark_is_allowed() -> None:
    # 3 rps lies half way between 0.4 and 0.6.
    found = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.31)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "GPU utilisation is 19 points below the plan; 31.0% where 50.0% is planned at this load; "
        "20 points below are allowed"
    )
    assert said(verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.29)))) == (Status.WARNING, Certainty.LIKELY)


def test_shortfall_is_certain_against_lower_point() -> None:
    assert verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.21))).certainty is Certainty.LIKELY
    found = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.19)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.expected == Reading(value=0.5, low=0.4, high=pytest.approx(0.6), n=300)


def test_more_than_the_benchmark_is_no_shortfall() -> None:
    found = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.9)))
    assert found.status is Status.OK
    assert explain(found) == (
        "GPU utilisation is not below the plan; 90.0% where 50.0% is planned at this load; 20 points below are allowed"
    )


def test_idle_gpu_is_no_shortfall() -> None:
    # The first point is 2 rps at 40 %; at 0.2 rps a GPU is busy a tenth of that, and nothing below is certain.
    idle = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.02, rps=0.2)))
    assert idle.status is Status.OK
    assert explain(idle) == (
        "GPU utilisation is 2 points below the plan; 2.0% where 4.0% is planned at this load; 20 points below are allowed"
    )
    low = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.1, rps=1.9)))
    assert said(low) == (Status.WARNING, Certainty.LIKELY)


def test_plain_polls_are_never_certain() -> None:
    def polled(number: int) -> Window:
        return minute(number, gauges={"gpu_utilization_sampled": gauge(0.1)})

    assert said(verdict(GPU, gpu_view(), each(5, polled))) == (Status.WARNING, Certainty.LIKELY)
    sampled = frozenset({"gpu_busy_seconds", "gpu_busy_covered_seconds"})
    found = verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.1, sampled=sampled)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)


def test_polled_power_leaves_utilization_certain() -> None:
    made = each(5, lambda n: busy(n, 0.1, sampled=frozenset({"gpu_power_watts"})))
    assert verdict(GPU, gpu_view(), made).certainty is Certainty.CERTAIN


def test_utilisation_of_another_kind_is_not_compared() -> None:
    found = unknown(GPU, gpu_view("sm_active"), each(5, lambda n: busy(n, 0.1)))
    assert found.reason is Gap.NOT_EXPOSED
    assert found.text == "no utilisation of the benchmark's kind, sm_active"
    made = each(5, lambda n: minute(n, gauges={"gpu_sm_active": gauge(0.1)}))
    assert verdict(GPU, gpu_view("sm_active"), made).certainty is Certainty.CERTAIN


def test_unnamed_kind_is_not_compared() -> None:
    found = unknown(GPU, gpu_view(None), each(5, lambda n: busy(n, 0.1)))
    assert (found.reason, found.text) == (
        Gap.NOT_IN_PLAN,
        "the benchmark does not say which kind of gpu_utilization it measured",
    )


def test_gpu_coverage_limits_certainty() -> None:
    assert verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.1, seconds=55))).certainty is Certainty.CERTAIN
    assert verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.1, seconds=50))).certainty is Certainty.LIKELY
    found = unknown(GPU, gpu_view(), each(5, lambda n: busy(n, 0.1, seconds=29)))
    assert found.text == "GPUs were seen for less than half of the time"


def test_all_gpus_must_be_seen() -> None:
    # Two GPUs: 120 GPU-seconds a minute. One of them alone is half.
    assert verdict(GPU, gpu_view(gpus=2), each(5, lambda n: busy(n, 0.1, 120))).certainty is Certainty.CERTAIN
    assert verdict(GPU, gpu_view(gpus=2), each(5, lambda n: busy(n, 0.1, 60))).certainty is Certainty.LIKELY
    assert unknown(GPU, gpu_view(gpus=4), each(5, lambda n: busy(n, 0.1, 60))).reason is Gap.SCRAPE_FAILED


def test_missing_gpu_minutes_weigh_nothing() -> None:
    made = each(8, lambda n: busy(n, 0.1) if n >= 3 else minute(n))
    assert said(verdict(GPU, gpu_view(), made)) == (Status.WARNING, Certainty.LIKELY)
    mostly = each(8, lambda n: busy(n, 0.1) if n >= 5 else minute(n))
    assert unknown(GPU, gpu_view(), mostly).reason is Gap.SCRAPE_FAILED


def test_shortfall_must_last_to_the_end() -> None:
    brief = each(5, lambda n: busy(n, 0.0 if n >= 3 else 0.5))
    assert verdict(GPU, gpu_view(), brief).status is Status.OK
    assert verdict(GPU, gpu_view(), each(5, lambda n: busy(n, 0.0 if n >= 2 else 0.5))).status is Status.WARNING
    over = each(8, lambda n: busy(n, 0.0 if n < 6 else 0.5))
    assert verdict(GPU, gpu_view(), over).status is Status.OK


def test_a_shortfall_that_shrinks_stays_likely() -> None:
    # By the lower point (0.2) for six minutes, in the last quarter only by the interpolated one (0.3).
    made = each(8, lambda n: busy(n, 0.1 if n < 6 else 0.25))
    assert said(verdict(GPU, gpu_view(), made)) == (Status.WARNING, Certainty.LIKELY)


def test_unseen_gpu_is_no_recovery() -> None:
    made = each(12, lambda n: busy(n, 0.1) if n < 9 else minute(n))
    found = unknown(GPU, gpu_view(), made)
    assert (found.reason, found.text) == (Gap.NO_TRAFFIC, "nothing to compare was seen in the last quarter of the time")


def test_a_thin_benchmark_supports_no_certain_shortfall() -> None:
    assert verdict(GPU, gpu_view(requests=100), each(5, lambda n: busy(n, 0.1))).certainty is Certainty.LIKELY


def test_lost_hits_become_certain() -> None:
    found = verdict(HITS, context(*HIT), each(5, lambda n: hits(n, 0.3)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Prefix cache hit rate is 30 points below the plan; 30.0% where 60.0% is planned at this load; "
        "20 points below are allowed"
    )
    assert said(verdict(HITS, context(*HIT), each(5, lambda n: hits(n, 0.41)))) == (Status.OK, Certainty.CERTAIN)


def test_few_requests_cannot_prove_lost_hits() -> None:
    # 36 % of 300 requests: the 99.9 % bound of the misses (64 %) is 55 %, below the 60 % that would be too many.
    few = verdict(HITS, context(*HIT), each(5, lambda n: hits(n, 0.36, rps=1.0)))
    assert said(few) == (Status.WARNING, Certainty.LIKELY)
    many = verdict(HITS, context(*HIT), each(12, lambda n: hits(n, 0.36, rps=3.9)))
    assert said(many) == (Status.WARNING, Certainty.CERTAIN)
    assert unknown(HITS, context(*HIT), each(4, lambda n: hits(n, 0.0, rps=0.4))).text == "96 requests, 100 are needed"


def test_hits_weigh_by_requests() -> None:
    # Ten quiet minutes without a hit hold 60 requests, five busy ones with all the hits 900.
    made = each(15, lambda n: hits(n, 0.0, rps=0.1) if n < 10 else hits(n, 0.6))
    assert verdict(HITS, context(*HIT), made).status is Status.OK


def test_planned_hits_replace_missing_ones() -> None:
    planned = context(workload={"prefix_hit_ratio": 0.6}, requests=100)
    assert said(verdict(HITS, planned, each(5, lambda n: hits(n, 0.3)))) == (Status.WARNING, Certainty.CERTAIN)
    measured = context(*HIT, workload={"prefix_hit_ratio": 0.2})
    assert verdict(HITS, measured, each(5, lambda n: hits(n, 0.3))).status is Status.WARNING


def test_no_lookups_is_cache_off() -> None:
    found = verdict(HITS, context(*HIT), each(5, lambda n: hits(n, 0.0, tokens=0.0)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "Prefix cache hit rate is 60 points below the plan; 0.0% where 60.0% is planned at this load; "
        "20 points below are allowed; "
        "no prompt was looked up in the prefix cache: is prefix caching on?"
    )


def test_more_hits_than_lookups_rate_nothing() -> None:
    found = unknown(HITS, context(*HIT), each(5, lambda n: hits(n, 11.7)))
    assert (found.reason, found.text.partition(":")[0]) == (
        Gap.CONTRADICTORY,
        "the engine counts more prefix cache hits than lookups",
    )


def test_repeated_lookups_rate_nothing() -> None:
    def repeated(number: int, factor: float) -> Window:
        once = hits(number, 0.1)
        prompts = once.counters["prefix_queried_tokens"] / factor
        return replace(once, counters={**once.counters, "prompt_tokens": prompts})

    found = unknown(HITS, context(*HIT), each(5, lambda n: repeated(n, 4.0)))
    assert (found.reason, found.text.partition(":")[0]) == (
        Gap.CONTRADICTORY,
        "the engine counts more prefix cache lookups than prompt tokens",
    )
    assert verdict(HITS, context(*HIT), each(5, lambda n: repeated(n, 1.02))).status is Status.WARNING


def test_missing_prefix_cache_says_so() -> None:
    found = unknown(HITS, context(*HIT), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "the engine shows no prefix cache lookups")


@pytest.mark.parametrize(("rule", "text"), [(GPU, "gpu_utilization"), (HITS, "prefix_hit_ratio")])
def test_a_benchmark_without_the_mean_says_so(rule: str, text: str) -> None:
    found = unknown(rule, context(), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, f"the benchmark has no {text}")
