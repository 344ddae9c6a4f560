import math
from dataclasses import replace

import pytest
from judging_samples import FAST, SLOW, context, each, minute, seen, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.verdict import Status, Verdict

RULE = "TtftDivergence"


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_many_slow_requests_are_certain() -> None:
    found = verdict(RULE, context(), each(5, lambda n: minute(n, slow=18)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    p99 = "P99 260 to 520 ms, benchmark 100 to 200 ms at equal load"
    assert found.sentence == f"10.0% of requests exceed 1.3 x the benchmark's TTFT P99; {p99}"
    assert found.details == ("900 requests, at least 10.0% exceed 1.3 x the upper end", "1% is allowed", p99)
    assert len(found.actions) == 3


def test_allowed_share_and_chance_pass() -> None:
    found = verdict(RULE, context(), each(5, lambda n: minute(n, slow=1.8)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence == "1.0% of requests exceed 1.3 x the benchmark's TTFT P99; 1% is allowed"
    assert found.actions == ()
    # 12 of 900: 1.3 %, but 12 or more come up in one of five such holds whose true share is 1 %.
    found = verdict(RULE, context(), each(5, lambda n: minute(n, slow=2.4)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence.endswith("; this may be chance")
    # 15 of 900 come up in one of twenty-five.
    assert said(verdict(RULE, context(), each(5, lambda n: minute(n, slow=3)))) == (Status.WARNING, Certainty.LIKELY)


def test_certainty_needs_the_strict_bound() -> None:
    # Against 1 % of 900: P(X >= 19) = 0.0023, P(X >= 20) = 0.0010, P(X >= 21) = 0.0004.
    assert verdict(RULE, context(), each(5, lambda n: minute(n, slow=19 / 5))).certainty is Certainty.LIKELY
    assert verdict(RULE, context(), each(5, lambda n: minute(n, slow=21 / 5))).certainty is Certainty.CERTAIN


def test_surely_slow_requests_make_certain() -> None:
    # All between 0.15 and 0.26 s: likely slower than 0.184 s, surely above 0.26 s none.
    between = {"ttft_seconds": seen({0.2: 90, FAST: 90})}
    found = verdict(RULE, context(), each(5, lambda n: minute(n, histograms=between)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert "between the edges of the bucket" in explain(found)


def test_limit_bucket_is_not_surely_slow() -> None:
    # 1.5 x 0.2 = 0.3 s lies within the bucket of 0.26 to 0.52 s, in which 0.4 s is counted.
    wider = context(limits={RULE: {"factor": 1.5}})
    assert said(verdict(RULE, wider, each(5, lambda n: minute(n, slow=60)))) == (Status.WARNING, Certainty.LIKELY)


def test_within_factor_is_fine() -> None:
    # 0.15 s is the edge below 0.184 s: nobody above it.
    within = {"ttft_seconds": seen({0.15: 180})}
    assert said(verdict(RULE, context(), each(5, lambda n: minute(n, histograms=within)))) == (
        Status.OK,
        Certainty.CERTAIN,
    )


def test_thin_points_support_likely() -> None:
    assert verdict(RULE, context(requests=299), each(5, lambda n: minute(n, slow=18))).certainty is Certainty.LIKELY
    assert verdict(RULE, context(requests=300), each(5, lambda n: minute(n, slow=18))).certainty is Certainty.CERTAIN


def test_the_thinner_of_the_two_points_counts() -> None:
    thin = context({"requests": 100})
    assert verdict(RULE, thin, each(5, lambda n: minute(n, slow=18))).certainty is Certainty.LIKELY
    # At 5 rps both points are well measured (0.26 s is between them: 1.3 x 0.4 is above the slow 0.4 s, so slower ones).
    slower = {"ttft_seconds": seen({0.9: 30, FAST: 270})}
    assert verdict(RULE, thin, each(5, lambda n: minute(n, rps=5, histograms=slower))).certainty is Certainty.CERTAIN


def test_measured_bins_must_dominate() -> None:
    # Of twelve minutes five well measured ones hold 1500 of 2760 requests, four 1200 of 2640.
    thin = context({"requests": 100})
    slower = {"ttft_seconds": seen({0.9: 30, FAST: 270})}

    def mixed(*good: int) -> Certainty:
        made = each(12, lambda n: minute(n, rps=5, histograms=slower) if n in good else minute(n, slow=18))
        return verdict(RULE, thin, made).certainty

    assert mixed(2, 5, 6, 9, 11) is Certainty.CERTAIN
    assert mixed(2, 6, 9, 11) is Certainty.LIKELY


def test_two_minute_burst_is_nothing() -> None:
    found = verdict(RULE, context(), each(5, lambda n: minute(n, slow=90 if n >= 3 else 0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence.endswith("; in fewer than 3 minutes")
    assert verdict(RULE, context(), each(5, lambda n: minute(n, slow=90 if n >= 2 else 0))).status is Status.WARNING


def test_recovered_tail_is_over() -> None:
    # Twelve minutes: the last quarter are three. One slow one in it is enough, none ends the finding.
    slow_until = [
        verdict(RULE, context(), each(12, lambda n, last=last: minute(n, slow=40 if n <= last else 0)))
        for last in (8, 9)
    ]
    assert said(slow_until[0]) == (Status.OK, Certainty.CERTAIN)
    assert slow_until[0].sentence.endswith("; no longer in the last quarter of the time")
    assert said(slow_until[1]) == (Status.WARNING, Certainty.CERTAIN)


def test_certain_persists_by_the_upper_point_too() -> None:
    # Surely slow for five minutes, then only slower than the interpolated point: still likely, not certain any more.
    between = {"ttft_seconds": seen({0.2: 90, FAST: 90})}
    made = each(8, lambda n: minute(n, slow=40) if n < 6 else minute(n, histograms=between))
    assert said(verdict(RULE, context(), made)) == (Status.WARNING, Certainty.LIKELY)


def test_silent_quarter_is_no_recovery() -> None:
    idle = {"ttft_seconds": seen({FAST: 24})}
    made = each(12, lambda n: minute(n, slow=40) if n < 9 else minute(n, rps=8 / 60, histograms=idle))
    assert verdict(RULE, context(), made).status is Status.OK
    few = {"ttft_seconds": seen({FAST: 8})}
    made = each(12, lambda n: minute(n, slow=40) if n < 9 else minute(n, rps=8 / 60, histograms=few))
    found = unknown(RULE, context(), made)
    assert found.reason is Gap.TOO_FEW_REQUESTS
    assert found.text == "24 requests in the last quarter of the time, 25 are needed"


def test_a_hundred_requests_are_needed() -> None:
    def at(rps: float) -> list:
        return each(4, lambda n: minute(n, rps=rps, slow=rps * 30))

    found = unknown(RULE, context(), at(24.75 / 60))
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "99 requests, 100 are needed")
    assert verdict(RULE, context(), at(25 / 60)).status is Status.WARNING


def test_three_minutes_are_needed() -> None:
    found = unknown(RULE, context(), each(2, lambda n: minute(n, slow=18)))
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "120 s seen, 180 s are needed")
    assert verdict(RULE, context(), each(3, lambda n: minute(n, slow=18))).status is Status.WARNING


def test_minute_compares_at_its_load() -> None:
    # 0.4 s is slow at 3 rps and allowed at 5 rps (1.3 x 0.4 = 0.52 s): only the share of the low load counts.
    made = each(6, lambda n: minute(n, rps=3.0 if n % 2 else 5.0, slow=0 if n % 2 else 300))
    assert said(verdict(RULE, context(), made)) == (Status.OK, Certainty.CERTAIN)
    made = each(6, lambda n: minute(n, rps=3.0 if n % 2 else 5.0, slow=90 if n % 2 else 0))
    assert said(verdict(RULE, context(), made)) == (Status.WARNING, Certainty.CERTAIN)


def test_first_point_covers_below() -> None:
    # 1.3 x 0.1 = 0.13 s: 0.2 s is above the edge 0.15.
    low = {"ttft_seconds": seen({0.2: 6, FAST: 54})}
    found = verdict(RULE, context(), each(5, lambda n: minute(n, rps=1.0, histograms=low)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert isinstance(found.expected, Reading)
    assert (found.expected.low, found.expected.high) == (0.1, 0.1)


def test_replicas_of_a_tier_are_judged_together() -> None:
    replicas = {
        name: each(5, lambda n, name=name: minute(n, slow=20 if name == "b" else 0)) for name in ("a", "b", "c", "d")
    }
    found = verdict(RULE, context(), replicas)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert "3,600 requests" in explain(found)
    replicas = {
        name: each(5, lambda n, name=name: minute(n, slow=6 if name == "b" else 0)) for name in ("a", "b", "c", "d")
    }
    assert verdict(RULE, context(), replicas).status is Status.OK


def test_tpot_is_judged_by_its_own_family() -> None:
    slow = {"tpot_seconds": seen({SLOW: 18, FAST: 162})}
    made = each(5, lambda n: minute(n, histograms=slow))
    assert verdict("TpotDivergence", context(), made).status is Status.WARNING
    assert verdict(RULE, context(), made).status is Status.OK


def test_request_events_count_once() -> None:
    # 450 requests with 100 events each; 2 % of the events are slow: as requests 9 of 450, too few to be certain.
    events = {"itl_seconds": seen({SLOW: 180, FAST: 8820})}
    made = each(5, lambda n: minute(n, rps=1.5, histograms=events))
    rule = "ItlDivergence"
    assert said(verdict(rule, context({"itl_p99_seconds": 0.2}), made)) == (Status.WARNING, Certainty.LIKELY)
    many = {"itl_seconds": seen({SLOW: 450, FAST: 8550})}
    found = verdict(rule, context({"itl_p99_seconds": 0.2}), each(5, lambda n: minute(n, rps=1.5, histograms=many)))
    assert found.certainty is Certainty.CERTAIN
    assert "45,000 output events" in explain(found)
    few = each(5, lambda n: minute(n, rps=0.3, histograms=events))
    assert unknown(rule, context(), few).text == "90 requests, 100 are needed"


def test_different_itl_is_not_compared() -> None:
    other = view_of("t", context().plan, itl_comparable=False)
    found = unknown("ItlDivergence", other, each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "benchmark and engine do not mean the same by ITL")


def test_a_benchmark_without_the_metric_says_so() -> None:
    without = {"tpot_p99_seconds": None}
    found = unknown("TpotDivergence", context(without, without, without), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the benchmark has no tpot_p99_seconds")


def test_unmeasured_bin_is_left_out() -> None:
    half = context({"tpot_p99_seconds": None})
    found = unknown("TpotDivergence", half, each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the benchmark has no tpot_p99_seconds at this load")
    assert verdict("TpotDivergence", half, each(5, lambda n: minute(n, rps=5.0))).status is Status.OK


def test_an_engine_without_the_histogram_says_so() -> None:
    bare = each(5, lambda n: replace(minute(n), histograms={}))
    found = unknown(RULE, context(), bare)
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "ttft_seconds was not measured")


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_the_configuration_can_allow_more(share: float) -> None:
    allowed = context(limits={RULE: {"allowed_share": share}})
    found = verdict(RULE, allowed, each(5, lambda n: minute(n, slow=6.3)))
    assert found.status is (Status.WARNING if share == 0.02 else Status.OK)
    assert f"{share * 100:g}% is allowed" in explain(found)


def test_expectation_weighs_by_requests() -> None:
    # One minute at 2 rps (120 requests, 0.1 s) and three at 4 rps (720 requests, 0.2 s at the upper end of its bin).
    made = each(4, lambda n: minute(n, rps=2.0 if n == 0 else 4.0))
    expected = verdict(RULE, context(), made).expected
    assert isinstance(expected, Reading)
    assert expected.high == pytest.approx((120 * 0.1 + 720 * 0.2) / 840)
    assert expected.low == pytest.approx(0.1)
    assert expected.value == pytest.approx((120 * 0.1 + 720 * 0.2) / 840)
    assert math.isclose(expected.n, 600)
