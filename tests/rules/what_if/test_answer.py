"""What-if on a tier whose numbers are worked out by hand (see report_samples): money, limits, N-1, and what cannot be told."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from report_samples import HOUR, START, USABLE, WEEK, binned, hours, seen_of, tier_view

from rules.plan.load_bins import TierContext, build_tier_context
from rules.resize.production_curve import SloStatus
from rules.resize.production_summary import ProductionSummaryBuilder
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.what_if.answer import LimitHeadroom, WhatIf, WhatIfQuestion, answer_question, explain_unanswerable
from rules.what_if.limits import BENCHMARK_END, GIVEN, PRODUCTION_END
from rules.what_if.prediction import PredictionSource

PLANNED = tier_view()


def result(
    instances: int, context: TierContext = PLANNED, several: Iterable[Window] | None = None, rps: float | None = None
) -> WhatIf:
    """Ten replicas served 30 rps by day (3 each) and 10 by night (1 each), all TTFT in (0.05, 0.1] unless told."""
    windows = list(hours() if several is None else several)
    seen = seen_of(context, windows)
    return answer_question(seen, binned(context, windows), WhatIfQuestion(instances=instances, rps=rps))


def limit(found: WhatIf, name: str) -> LimitHeadroom:
    return next(one for one in found.met if one.limit.name == name)


def test_the_load_a_replica_gets_is_the_peak_shared_evenly() -> None:
    found = result(6)
    assert (found.rps, found.asked.rps) == (pytest.approx(30.0), pytest.approx(5.0))
    assert found.now is not None
    assert (found.now.replicas, found.now.rps) == (pytest.approx(10.0), pytest.approx(3.0))
    assert found.utilization == pytest.approx(5 / USABLE)


def test_what_production_served_is_bounded_by_its_buckets() -> None:
    value = result(10).asked.get_prediction("ttft_p99_seconds").production
    assert isinstance(value, Reading)
    assert (value.low, value.high) == (0.05, 0.1)


def test_beyond_it_the_benchmark_says_by_the_logarithms_of_its_two_points() -> None:
    told = result(6).asked.get_prediction("ttft_p99_seconds")
    assert isinstance(told.production, Missing)
    assert told.production.gap is Gap.LOAD_NOT_REACHED
    assert "3 rps a replica at most" in told.production.text
    assert isinstance(told.benchmark, Reading)
    # 5 rps, halfway between 0.2 s at 4 and 0.5 s at 6.
    assert (told.benchmark.low, told.benchmark.high) == (0.2, 0.5)
    assert told.benchmark.value == pytest.approx(math.sqrt(0.2 * 0.5))


def test_the_money_is_that_of_the_replicas_and_measured_tokens_are_divided_by_once() -> None:
    found = result(4)
    assert found.bill is not None
    assert found.bill_now is not None
    # 4 replicas of 2 GPUs at 2.50; 730 hours a month; 20 rps on average x 80 tokens x 3600 = 5.76 million an hour.
    assert found.bill.per_hour == pytest.approx(20.0)
    assert found.bill.per_month == pytest.approx(14_600.0)
    assert found.bill.tokens_per_hour == pytest.approx(5.76e6)
    assert found.bill.per_million_tokens == pytest.approx(20 / 5.76)
    assert found.bill_now.per_million_tokens == pytest.approx(50 / 5.76)


def test_another_peak_is_the_same_traffic_so_many_times_as_large() -> None:
    found = result(4, rps=60.0)
    assert found.bill is not None
    assert found.bill.tokens_per_hour == pytest.approx(2 * 5.76e6)
    assert found.bill_now is not None
    assert found.bill_now.tokens_per_hour == pytest.approx(5.76e6)
    assert any("grows as the peak does" in text for text in found.assumed)


def test_what_breaks_first_with_its_load_headroom_and_fewest_replicas() -> None:
    found = result(6)
    assert found.first_limit is limit(found, "ttft_p99_seconds")
    first = found.first_limit
    assert first is not None
    # The benchmark crosses 2 s at 7.333 rps: 44 rps of six replicas, 46.7 % more than 30; 30 / 7.333 = 4.09, so five.
    assert first.limit.earliest == pytest.approx(USABLE)
    assert first.tier_rps == pytest.approx(6 * USABLE)
    assert first.headroom == pytest.approx(6 * USABLE / 30 - 1)
    assert first.fewest == 5
    assert first.limit.source is PredictionSource.BENCHMARK
    # TPOT is 30 ms at every point, 80 are allowed: nobody measured where it breaks.
    tpot = limit(found, "tpot_p99_seconds")
    assert (tpot.tier_rps, tpot.fewest) == (None, None)
    assert limit(found, BENCHMARK_END).tier_rps == pytest.approx(48.0)
    assert limit(found, PRODUCTION_END).headroom == pytest.approx(6 * 3 / 30 - 1)
    assert isinstance(limit(found, "kv_utilization").limit.rps, Reading)


def test_one_replica_lost_at_the_peak_is_judged_at_the_load_of_those_that_are_left() -> None:
    found = result(5)
    assert found.one_lost is not None
    # 30 rps on four are 7.5 each, beyond 7.333; on five 6, which the benchmark has at 0.5 s.
    assert found.asked.kept is SloStatus.LIKELY_KEPT
    assert found.one_lost.rps == pytest.approx(7.5)
    assert found.one_lost.kept is SloStatus.LIKELY_BROKEN
    assert found.one_lost_rps == pytest.approx(4 * USABLE)


def test_of_one_replica_nothing_is_left() -> None:
    found = result(1)
    assert found.one_lost is None
    assert found.one_lost_rps == 0
    assert found.asked.kept is SloStatus.LIKELY_BROKEN


def test_production_that_broke_the_objective_says_so_against_the_benchmark() -> None:
    # 60 rps by day are 6 on each of ten: the benchmark has 0.5 s there, production 3 s.
    slow = [
        *hours(84, rps=lambda n: 20.0),
        *hours(84, rps=lambda n: 60.0, first=84, ttft={0.08: 0.9, 3.0: 0.1}),
    ]
    found = result(10, several=slow, rps=60.0)
    (ttft, _) = found.asked.held
    assert (ttft.kept, ttft.source) == (SloStatus.BROKEN, PredictionSource.PRODUCTION)
    first = limit(found, "ttft_p99_seconds").limit
    assert isinstance(first.rps, Reading)
    assert (first.rps.low, first.rps.high) == (pytest.approx(2.0), pytest.approx(6.0))
    assert first.source is PredictionSource.PRODUCTION
    more = result(8, several=slow, rps=60.0)
    assert more.asked.held[0].kept is SloStatus.BROKEN
    assert more.asked.held[0].reason == "production broke it at a lower load"


def test_production_slower_than_the_benchmark_at_equal_load_makes_its_curve_slower() -> None:
    # At 3 rps the benchmark has 0.141 s; production's requests lie in (0.2, 0.5].
    found = result(5, several=hours(ttft={0.3: 1.0}))
    assert found.slower["ttft"] > 1.4
    (ttft, tpot) = found.asked.held
    assert (ttft.source, tpot.source) == (PredictionSource.SLOWED, PredictionSource.BENCHMARK)
    first = limit(found, "ttft_p99_seconds").limit
    assert first.source is PredictionSource.SLOWED
    assert first.earliest is not None
    # 2 s / that factor, by logarithms between 0.5 s at 6 rps and 4 s at 8 rps.
    factor = found.slower["ttft"]
    assert first.earliest == pytest.approx(6 + 2 * math.log(2 / factor / 0.5) / math.log(8))


def test_a_tier_without_a_price_costs_gpu_hours() -> None:
    found = result(4, tier_view(cost=None))
    assert found.bill is not None
    assert found.bill.gpu_hours_per_hour == 8
    assert (found.bill.per_hour, found.bill.per_month, found.bill.per_million_tokens) == (None, None, None)


def test_a_tier_without_a_benchmark_is_judged_by_production_as_far_as_it_went() -> None:
    bare = tier_view(curve=None)
    held, beyond = result(10, bare), result(5, bare)
    assert held.asked.kept is SloStatus.KEPT
    assert beyond.asked.kept is SloStatus.NOT_KNOWN
    told = beyond.asked.get_prediction("ttft_p99_seconds").benchmark
    assert isinstance(told, Missing)
    assert told.gap is Gap.NOT_IN_PLAN
    assert beyond.first_limit is None
    assert beyond.one_lost_rps is None
    assert held.usable is not None
    assert held.usable.is_lower_bound
    assert (held.utilization, held.needed) == (None, None)


def test_an_operating_point_given_by_hand_is_a_limit_and_named_the_plan_s() -> None:
    found = result(5, tier_view(curve=None, operating_point={"usable_rps": 4.0}))
    given = limit(found, GIVEN)
    assert (given.limit.source, given.tier_rps, given.fewest) == (PredictionSource.PLAN, pytest.approx(20.0), 8)
    assert found.first_limit is given


def test_a_tier_without_a_plan_shows_its_own_curve_and_judges_no_slo() -> None:
    found = result(10, build_tier_context("t", None))
    assert found.asked.held == ()
    assert found.asked.kept is SloStatus.NOT_KNOWN
    assert (found.bill, found.bill_now) == (None, None)
    assert isinstance(found.asked.get_prediction("ttft_p99_seconds").production, Reading)


def test_a_tier_that_nobody_saw_yet_is_answered_from_its_plan_which_is_said() -> None:
    seen = ProductionSummaryBuilder(context=PLANNED, since=START, until=START + WEEK).build(())
    found = answer_question(seen, (), WhatIfQuestion(instances=10))
    # The planned peak of 50 rps on ten.
    assert (found.rps, found.asked.rps) == (50.0, 5.0)
    assert found.peak is not None
    assert (found.peak.at, found.peak.source) == (None, "the plan's peak: none was seen")
    assert (found.now, found.bill_now) == (None, None)
    assert found.asked.kept is SloStatus.LIKELY_KEPT
    told = found.asked.get_prediction("ttft_p99_seconds").production
    assert isinstance(told, Missing)
    assert told.text == "production served 0 requests; 300 are needed"
    assert found.bill is not None
    assert found.bill.per_million_tokens is None


def test_without_arrivals_the_peak_is_a_busy_hour_and_said_to_be_too_low() -> None:
    windows = hours()
    collected = ProductionSummaryBuilder(context=PLANNED, since=START, until=START + WEEK)
    collected.add(binned(PLANNED, windows), binned(PLANNED, windows), ())
    found = answer_question(collected.build(("v1",)), binned(PLANNED, windows), WhatIfQuestion(instances=10))
    assert found.peak is not None
    assert found.peak.rps == pytest.approx(30.0)
    assert found.peak.source == "mean of a busy hour: its busiest minutes were higher"
    assert found.peak.at is not None
    assert 8 * HOUR <= (found.peak.at - START) % 86_400 < 20 * HOUR


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (tier_view(pools=["prefill", "decode"]), "serves prefill and decode apart"),
        (build_tier_context("t", None), "no peak was seen and the plan has none: say with --rps"),
        (tier_view(workload=None), "no peak was seen and the plan has none: say with --rps"),
    ],
)
def test_what_cannot_be_answered_says_why(context: TierContext, words: str) -> None:
    seen = ProductionSummaryBuilder(context=context, since=START, until=START + WEEK).build(())
    assert words in explain_unanswerable(seen, WhatIfQuestion(instances=3))
    with pytest.raises(ValueError, match=r"apart|peak"):
        answer_question(seen, (), WhatIfQuestion(instances=3))


def test_pools_of_targets_count_as_those_of_the_plan() -> None:
    seen = ProductionSummaryBuilder(
        context=build_tier_context("t", None, pools={"a": "decode"}), since=START, until=START + WEEK
    ).build(())
    assert "apart" in explain_unanswerable(seen, WhatIfQuestion(instances=3, rps=5.0))


def test_one_busy_hour_is_no_peak_where_three_were_seen() -> None:
    windows = [*hours(23), *hours(1, rps=lambda n: 60.0, first=23)]
    collected = ProductionSummaryBuilder(context=PLANNED, since=START, until=START + WEEK)
    collected.add(binned(PLANNED, windows), binned(PLANNED, windows), ())
    found = answer_question(collected.build(("v1",)), binned(PLANNED, windows), WhatIfQuestion(instances=10))
    assert found.peak is not None
    assert (found.rps, found.peak.highest) == (pytest.approx(30.0), pytest.approx(60.0))
