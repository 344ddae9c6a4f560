from typing import Any

import pytest
from judging_samples import context, each, minute, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Status, Verdict

KV, EXCESS = "KvEviction", "EvictionDivergence"
PLANNED = ({"eviction_rate": 0.0}, {"eviction_rate": 0.02}, {"eviction_rate": 0.04})


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def evicting(number: int, preemptions: float, rps: float = 3.0, **more: Any) -> Window:
    return minute(number, rps=rps, counters={"preemptions": preemptions}, **more)


def test_below_five_per_cent_is_healthy() -> None:
    found = verdict(KV, context(), each(5, lambda n: evicting(n, 9)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Preemptions are 5.0% of finished requests; below 5% is healthy; 45 preemptions for 900 finished requests"
    )


def test_storm_has_two_levels() -> None:
    assert said(verdict(KV, context(), each(5, lambda n: evicting(n, 20)))) == (Status.WARNING, Certainty.CERTAIN)
    assert verdict(KV, context(), each(5, lambda n: evicting(n, 36))).status is Status.WARNING
    assert said(verdict(KV, context(), each(5, lambda n: evicting(n, 37)))) == (Status.CRITICAL, Certainty.CERTAIN)


def test_few_events_are_likely() -> None:
    # 50 for 900: the 99.9 % lower bound of a Poisson mean is 31, 3.4 %; of 75 it is 51, 5.6 %.
    assert verdict(KV, context(), each(5, lambda n: evicting(n, 10))).certainty is Certainty.LIKELY
    assert verdict(KV, context(), each(5, lambda n: evicting(n, 15))).certainty is Certainty.CERTAIN


def test_one_burst_of_evictions_is_only_likely() -> None:
    burst = each(5, lambda n: evicting(n, 200 if n >= 3 else 0))
    assert said(verdict(KV, context(), burst)) == (Status.CRITICAL, Certainty.LIKELY)
    assert verdict(KV, context(), each(5, lambda n: evicting(n, 200 if n >= 2 else 0))).certainty is Certainty.CERTAIN


def test_quiet_minute_ends_the_storm() -> None:
    found = verdict(KV, context(), each(5, lambda n: evicting(n, 60 if n < 4 else 0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Preemptions are 26.7% of finished requests; none in the last quarter of the time; "
        "240 preemptions for 900 finished requests"
    )


def test_abating_storm_is_likely() -> None:
    found = verdict(KV, context(), each(5, lambda n: evicting(n, 60 if n < 4 else 2)))
    assert said(found) == (Status.CRITICAL, Certainty.LIKELY)


def test_unseen_preemptions_are_no_recovery() -> None:
    made = each(5, lambda n: evicting(n, 60))
    lost = [*made[:4], gap_window(made[4].start, made[4].end, Gap.SCRAPE_FAILED)]
    found = unknown(KV, context(), lost)
    assert found.reason is Gap.SCRAPE_FAILED
    assert found.text == "preemptions were not seen in the last quarter of the time"


def test_twenty_requests_or_clear_events() -> None:
    slow = 3.8 / 60
    assert unknown(KV, context(), each(5, lambda n: evicting(n, 1, rps=slow))).text == "19 requests, 20 are needed"
    assert said(verdict(KV, context(), each(5, lambda n: evicting(n, 6, rps=slow)))) == (
        Status.CRITICAL,
        Certainty.CERTAIN,
    )
    assert verdict(KV, context(), each(5, lambda n: evicting(n, 1, rps=4 / 60))).status is Status.CRITICAL


def test_evicting_engine_is_degraded() -> None:
    found = verdict(KV, context(), each(5, lambda n: evicting(n, 6, rps=0.0)))
    assert said(found) == (Status.CRITICAL, Certainty.CERTAIN)
    assert isinstance(found.observed, Missing)
    assert explain(found) == (
        "30 preemptions while no request finished; above 20% is degraded; 30 preemptions for 0 finished requests"
    )
    idle = unknown(KV, context(), each(5, lambda n: evicting(n, 0, rps=0.0)))
    assert (idle.reason, idle.text) == (Gap.NO_TRAFFIC, "no eviction_rate")


def test_evictions_need_no_plan() -> None:
    from rules.plan.load_bins import build_tier_context as bare

    assert verdict(KV, bare("t", None), each(5, lambda n: evicting(n, 60))).status is Status.CRITICAL


def test_evictions_are_judged_at_any_load() -> None:
    beyond = each(5, lambda n: evicting(n, 200, rps=9.0))
    assert verdict(KV, context(), beyond).status is Status.CRITICAL
    assert unknown(EXCESS, context(*PLANNED), beyond).reason is Gap.OUTSIDE_BENCHMARK


def test_evictions_of_the_benchmark_are_expected() -> None:
    # 3 rps lies between 0 and 2 %: the upper point's is expected, 5 points more are allowed.
    found = verdict(EXCESS, context(*PLANNED), each(5, lambda n: evicting(n, 12.6)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Preemptions are 7.0% of finished requests; the benchmark has 2.0% at this load; "
        "63 preemptions for 900 finished requests; "
        "5 points more than the benchmark are allowed"
    )
    assert said(verdict(EXCESS, context(*PLANNED), each(5, lambda n: evicting(n, 22)))) == (
        Status.WARNING,
        Certainty.CERTAIN,
    )
    assert verdict(EXCESS, context(*PLANNED), each(5, lambda n: evicting(n, 14))).certainty is Certainty.LIKELY


def test_expected_evictions_follow_load() -> None:
    # 360 requests at 2 rps where none are expected, 900 at 5 rps where 4 % are: 36 of 1260.
    made = each(6, lambda n: evicting(n, 0, rps=2.0 if n % 2 else 5.0))
    expected = verdict(EXCESS, context(*PLANNED), made).expected
    assert isinstance(expected, Reading)
    assert expected.value == pytest.approx(36 / 1260)


def test_a_thin_benchmark_supports_no_certain_excess() -> None:
    found = verdict(EXCESS, context(*PLANNED, requests=100), each(5, lambda n: evicting(n, 60)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)


def test_an_excess_that_is_over_is_over() -> None:
    over = each(8, lambda n: evicting(n, 60 if n < 6 else 0))
    found = verdict(EXCESS, context(*PLANNED), over)
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Preemptions are 25.0% of finished requests; the benchmark has 2.0% at this load; none in the last quarter of the time; "
        "360 preemptions for 1,440 finished requests; "
        "5 points more than the benchmark are allowed"
    )


def test_excess_needs_requests_and_benchmark() -> None:
    few = unknown(EXCESS, context(*PLANNED), each(4, lambda n: evicting(n, 9, rps=0.4)))
    assert (few.reason, few.text) == (Gap.TOO_FEW_REQUESTS, "96 requests, 100 are needed")
    uncounted = unknown(EXCESS, context(), each(5, minute))
    assert (uncounted.reason, uncounted.text) == (Gap.NOT_IN_PLAN, "the benchmark has no eviction_rate")
    partly = context({}, {"eviction_rate": 0.0}, {"eviction_rate": 0.0})
    assert unknown(EXCESS, partly, each(5, minute)).text == "the benchmark has no eviction_rate at this load"
