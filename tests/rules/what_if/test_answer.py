"""What-if on a tier whose numbers are worked out by hand (see report_samples): verdict, money, limits, N-1, open findings."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import HOUR, POINTS, START, USABLE, WEEK, binned, finding, hour, hours, seen_of, tier_view

from exporters.documents.what_if import headline
from rules.confidence import Certainty
from rules.plan.load_bins import TierContext, build_tier_context, with_capacity
from rules.plan.replica_count import replica_count
from rules.resize.production_summary import BAD, FINE, ProductionSummary, SloStatus
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import Window
from rules.telemetry.work import Capacity, CapacitySource
from rules.verdicts.verdict import Finding, Status
from rules.what_if.answer import GIVEN, CapacityLimit, WhatIf, answer_question, check_capacity, explain_unanswerable

PLANNED = tier_view()
WEEK_SEEN = seen_of(PLANNED, hours())
"""Ten replicas served 30 rps by day (3 each) and 10 by night (1 each), all TTFT in (0.05, 0.1]."""

WORST_LAST = [SloStatus.KEPT, SloStatus.LIKELY_KEPT, SloStatus.NOT_KNOWN, SloStatus.LIKELY_BROKEN, SloStatus.BROKEN]


def result(
    instances: int, context: TierContext = PLANNED, several: Iterable[Window] | None = None, rps: float | None = None
) -> WhatIf:
    seen = WEEK_SEEN if context is PLANNED and several is None else seen_of(context, several or hours())
    return answer_question(seen, instances, rps)


def limit(found: WhatIf, name: str) -> CapacityLimit:
    return next(one for one in found.limits if one.name == name)


def capacity(rps: float, **parts: object) -> Capacity:
    whole = {"low": rps, "high": rps, "source": CapacitySource.PRODUCTION, "certainty": Certainty.LIKELY, "reason": ""}
    return Capacity(rps=rps, **{**whole, "planned_rps": rps, **parts})  # type: ignore[arg-type]


def burn(rule: str = "TtftSloBurn", certainty: Certainty = Certainty.CERTAIN, end: float | None = None) -> Finding:
    """A finding from the last hour of the week on."""
    found = finding(rule, 167.0, end)
    return replace(found, worst=replace(found.worst, certainty=certainty))


def demand(several: Iterable[tuple[float, float]], begin: float = START) -> ProductionSummary:
    """Minutes of so many rps and output tokens a request, and the hour that they fall into with its completions."""
    minutes = [
        MinuteDemand(
            start=begin + 60.0 * at,
            requests=rps * 60,
            prompt_tokens=rps * 60 * 800 * tokens / 80,
            generation_tokens=rps * 60 * tokens,
            covered_seconds=60.0,
            expected_seconds=60.0,
        )
        for at, (rps, tokens) in enumerate(several)
    ]
    seen = ProductionSummary(context=PLANNED, since=begin, until=begin + 60.0 * len(minutes))
    seconds = 60.0 * len(minutes)
    first = hour(0, 3.0, replicas=1)
    counters = {name: count * seconds / HOUR for name, count in first.counters.items()}
    part = replace(
        first, end=begin + seconds, expected_seconds=seconds, covered_seconds=seconds, counters=counters, histograms={}
    )
    return seen.add(binned(PLANNED, [part]), (), minutes)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    low, best, high = sorted(draw(st.lists(st.floats(0.01, 1e3), min_size=3, max_size=3)))
    return capacity(
        best,
        low=low,
        high=draw(st.sampled_from([high, None])),
        certainty=draw(st.sampled_from(list(Certainty))),
        planned_rps=draw(st.sampled_from([best, None])),
        knee_seen=draw(st.booleans()),
    )


LOADS = st.floats(0.01, 1e4)
COUNTS = st.integers(1, 1000)


@given(capacities(), LOADS, LOADS)
def test_less_load_never_breaks_what_more_held(usable: Capacity, one: float, other: float) -> None:
    less, more = (WORST_LAST.index(check_capacity(usable, load)) for load in sorted((one, other)))
    assert less <= more


@given(capacities(), st.tuples(COUNTS, LOADS), st.tuples(COUNTS, LOADS), st.booleans())
def test_more_replicas_never_serve_worse(
    usable: Capacity, first: tuple[int, float], second: tuple[int, float], is_open: bool
) -> None:
    """Of the whole answer, also while a finding is open at the ten replicas of the last hour."""
    seen = replace(WEEK_SEEN, context=with_capacity(PLANNED, usable))
    fewer, more = sorted((first[0], second[0]))
    less, heavier = sorted((first[1], second[1]))
    findings = [burn()] if is_open else []
    better, worse = (answer_question(seen, n, rps, findings).asked.kept for n, rps in ((more, less), (fewer, heavier)))
    assert WORST_LAST.index(better) <= WORST_LAST.index(worse)
    assert better not in BAD or worse in BAD
    assert worse not in FINE or better in FINE


@given(capacities(), LOADS)
def test_the_needed_replicas_never_break(usable: Capacity, rps: float) -> None:
    needed = replica_count(rps, usable, answer_question(WEEK_SEEN, 1).needed.margin)  # type: ignore[union-attr]
    assert check_capacity(usable, rps / needed.replicas) in FINE


def test_certainty_comes_from_production() -> None:
    usable = capacity(5.0, low=4.0, high=6.0, certainty=Certainty.CERTAIN, knee_seen=True)
    loads = (4.0, 5.0, 6.0, 6.1)
    expected = [SloStatus.KEPT, SloStatus.LIKELY_KEPT, SloStatus.LIKELY_BROKEN, SloStatus.BROKEN]
    assert [check_capacity(usable, load) for load in loads] == expected
    likely = replace(usable, certainty=Certainty.LIKELY)
    assert {check_capacity(likely, load) for load in loads} == {SloStatus.LIKELY_KEPT, SloStatus.LIKELY_BROKEN}
    assert check_capacity(replace(usable, knee_seen=False), 6.1) is SloStatus.LIKELY_BROKEN
    assert check_capacity(None, 1.0) is SloStatus.NOT_KNOWN
    assert check_capacity(capacity(5.0, planned_rps=None), 5.1) is SloStatus.NOT_KNOWN


def test_the_peak_is_shared_evenly() -> None:
    found = result(6)
    assert (found.rps, found.asked.rps, found.work_rps) == (
        pytest.approx(30.0),
        pytest.approx(5.0),
        pytest.approx(30.0),
    )
    assert (found.now.replicas, found.now.rps) == (pytest.approx(10.0), pytest.approx(3.0))
    assert found.utilization == pytest.approx(5 / USABLE)


def test_latency_lies_between_benchmark_points() -> None:
    value = result(6).asked.benchmark["ttft_p99_seconds"]
    # 5 rps, halfway between 0.2 s at 4 and 0.5 s at 6.
    assert (value.low, value.high, value.value) == (0.2, 0.5, pytest.approx(math.sqrt(0.2 * 0.5)))
    beyond = result(3).asked.benchmark["ttft_p99_seconds"]
    assert isinstance(beyond, Missing)
    assert beyond.gap is Gap.OUTSIDE_BENCHMARK


def test_overloaded_minutes_do_not_slow_the_curve() -> None:
    """30 s in an overload: `whatif` once read the benchmark "86 x as slow", and more replicas served worse."""
    calm, overload = hours(100), hours(68, rps=lambda n: 78.0, first=100, ttft={3.0: 1.0})
    found = {n: result(n, several=[*calm, *overload], rps=30.0) for n in (2, 5, 10, 20)}
    kept = [WORST_LAST.index(one.asked.kept) for one in found.values()]
    assert kept == sorted(kept, reverse=True)
    assert found[20].asked.kept in FINE


def test_longer_requests_read_curve_further() -> None:
    """All requests twice as long as planned: 3 rps of the peak are the work of 6."""
    found = answer_question(demand([(3.0, 160.0)] * 20), 1)
    assert (found.rps, found.work_rps) == (pytest.approx(3.0), pytest.approx(6.0))
    assert found.needed.demand_rps == pytest.approx(6.0)
    assert found.asked.kept is SloStatus.LIKELY_KEPT
    assert limit(found, "ttft_p99_seconds").best == pytest.approx(USABLE / 2)
    assert found.curve_work == pytest.approx(2.0)
    read = found.asked.benchmark["ttft_p99_seconds"]
    assert read.value == pytest.approx(0.5)
    assert answer_question(demand([(3.0, 80.0)] * 20), 1).curve_work == pytest.approx(1.0)


def test_busiest_minutes_are_the_first_peak() -> None:
    """Nine calm minutes, then 5 rps arrive where 3 are completed: the mean would be 2."""
    found = answer_question(demand([(1.0, 80.0)] * 9 + [(5.0, 80.0)] * 3), 1)
    assert (found.rps, found.peak and found.peak.source) == (
        pytest.approx(5.0),
        "the busiest minute: an hour was not seen yet",
    )
    # The overload stays the peak of the hour, also after it ended.
    assert answer_question(demand([(1.0, 80.0)] * 9 + [(5.0, 80.0)] * 4 + [(1.0, 80.0)] * 42), 1).rps == found.rps
    found = answer_question(demand([(5.0, 80.0)] * 5 + [(4.0, 80.0)] * 10 + [(1.0, 80.0)] * 45), 1)
    assert (found.rps, found.peak.highest) == (pytest.approx(4.0), pytest.approx(5.0))
    assert found.peak.source == "reached in three stretches of five minutes"


def test_full_cache_is_reached_not_broken() -> None:
    full = [{**point, "kv_utilization": kv} for point, kv in zip(POINTS, (0.4, 0.8, 1.0, 1.0), strict=True)]
    found = answer_question(seen_of(tier_view(curve={"points": full}), hours()), 5, 27.0)
    assert found.asked.kept in FINE
    assert "would likely hold; KV cache above 90.0% is reached first, at 25 rps already." in headline(found, "UTC")
    assert "; first breaks TTFT P99 above 2 s, at 73.3 rps (+144%)." in headline(answer_question(WEEK_SEEN, 10), "UTC")


def test_present_load_precedes_peaks() -> None:
    """An hour at 2 rps, then 5 rps for three minutes: no stretch of five minutes has them yet."""
    found = answer_question(demand([(2.0, 80.0)] * 60 + [(5.0, 80.0)] * 3), 1)
    assert (found.rps, found.peak and found.peak.source) == (
        pytest.approx(5.0),
        "what arrives now, more than any peak before",
    )
    over = answer_question(demand([(2.0, 80.0)] * 60 + [(5.0, 80.0)] * 3 + [(2.0, 80.0)] * 5), 1)
    assert over.rps == pytest.approx(2.0)


def test_peak_has_most_work() -> None:
    """8 short requests per second are less than 5 of four times their length."""
    found = answer_question(demand([(8.0, 80.0)] * 30 + [(5.0, 320.0)] * 30), 1)
    assert (found.rps, found.work_rps) == (pytest.approx(5.0), pytest.approx(20.0))


def test_open_finding_breaks_this_size() -> None:
    asked = {n: answer_question(WEEK_SEEN, n, None, [burn()]) for n in (9, 10, 11)}
    assert [asked[n].asked.kept for n in (9, 10)] == [SloStatus.BROKEN] * 2
    assert [asked[n].burns.cover(n, asked[n].rps) for n in (10, 11)] == [True, False]
    assert asked[11].asked.kept in FINE
    assert asked[11].one_lost is not None
    assert asked[11].one_lost.kept is SloStatus.BROKEN
    # 10 replicas carry 73 rps by the capacity, and they are broken at the present 30 or fewer.
    present = WEEK_SEEN.rates[-1].rps
    assert (asked[11].one_lost_rps, present <= 30) == (pytest.approx(present), True)
    assert answer_question(WEEK_SEEN, 12, None, [burn()]).one_lost_rps == pytest.approx(11 * USABLE)
    assert answer_question(WEEK_SEEN, 10, 5.0, [burn()]).asked.kept in FINE


@pytest.mark.parametrize(
    "episode",
    [burn(end=168.0), burn(certainty=Certainty.LIKELY), burn(rule="QueueGrowing"), burn(rule="KvCacheCascade")],
    ids=["ended", "likely", "another rule", "a cascade that nobody feels yet"],
)
def test_ended_or_likely_finding_breaks_nothing(episode: Finding) -> None:
    assert answer_question(WEEK_SEEN, 10, None, [episode]).asked.kept in FINE


def test_felt_cascade_breaks_unseen_does_not() -> None:
    felt = finding("KvCacheCascade", 167.0, None, status=Status.CRITICAL)
    assert answer_question(WEEK_SEEN, 10, None, [felt]).asked.kept is SloStatus.BROKEN
    old = replace(WEEK_SEEN, until=START + WEEK + 2 * HOUR)
    found = answer_question(old, 10, None, [burn()])
    assert (found.now, found.asked.kept in FINE) == (None, True)


def test_measured_tokens_are_divided_by_once() -> None:
    found = result(4)
    # 4 replicas of 2 GPUs at 2.50; 730 hours a month; 20 rps on average x 80 tokens x 3600 = 5.76 million an hour.
    assert (found.cost.money_per_hour, found.cost.money_per_month) == (pytest.approx(20.0), pytest.approx(14_600.0))
    assert found.cost.tokens_per_hour == pytest.approx(5.76e6)
    assert found.cost.per_million_tokens == pytest.approx(20 / 5.76)
    assert found.cost_now.per_million_tokens == pytest.approx(50 / 5.76)


def test_peak_factor_scales_traffic() -> None:
    found = result(4, rps=60.0)
    assert found.cost.tokens_per_hour == pytest.approx(2 * 5.76e6)


def test_first_limit_is_curves_objective() -> None:
    found = result(6)
    first = limit(found, "ttft_p99_seconds")
    assert found.first_limit is first
    assert (first.best, first.objective) == (pytest.approx(USABLE), 2.0)
    # The benchmark did not measure the KV cache.
    assert isinstance(limit(found, "kv_utilization").rps, Missing)


def test_lost_replica_loads_the_rest() -> None:
    found = result(5)
    # 30 rps on four are 7.5 each, beyond 7.333; on five 6.
    assert (found.asked.kept, found.one_lost.kept) == (SloStatus.LIKELY_KEPT, SloStatus.LIKELY_BROKEN)
    assert (found.one_lost.rps, found.one_lost_rps) == (pytest.approx(7.5), pytest.approx(4 * USABLE))
    last = result(1)
    assert (last.one_lost, last.one_lost_rps, last.asked.kept) == (None, 0.0, SloStatus.LIKELY_BROKEN)


def test_worse_production_decides() -> None:
    slow = [*hours(84, rps=lambda n: 20.0), *hours(84, rps=lambda n: 60.0, first=84, ttft={0.08: 0.9, 3.0: 0.1})]
    found = result(10, several=slow, rps=65.0)
    assert found.asked.kept is SloStatus.BROKEN


def test_tier_without_benchmark_uses_production() -> None:
    bare = tier_view(curve=None)
    # Without load bins the mean load is known to be kept: 2 rps a replica.
    held, beyond = result(15, bare), result(14, bare)
    assert (held.asked.kept, beyond.asked.kept) == (SloStatus.LIKELY_KEPT, SloStatus.NOT_KNOWN)
    assert (beyond.first_limit, beyond.one_lost_rps, held.utilization, held.needed) == (None, None, None, None)


def test_given_operating_point_is_named() -> None:
    found = result(5, tier_view(curve=None, operating_point={"usable_rps": 4.0}))
    assert (limit(found, GIVEN).source, limit(found, GIVEN).best) == (CapacitySource.OPERATOR, 4.0)
    assert found.first_limit is limit(found, GIVEN)


def test_unseen_tier_answers_from_plan() -> None:
    seen = ProductionSummary(context=PLANNED, since=START, until=START + WEEK)
    found = answer_question(seen, 10)
    assert (found.rps, found.asked.rps, found.asked.kept) == (50.0, 5.0, SloStatus.LIKELY_KEPT)
    assert (found.peak.at, found.peak.source) == (None, "the plan's peak: none was seen")
    assert (found.now, found.cost_now) == (None, None)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (tier_view(pools=["prefill", "decode"]), "serves prefill and decode apart"),
        (build_tier_context("t", None, pools={"a": "decode"}), "serves prefill and decode apart"),
        (build_tier_context("t", None), "it is in no plan"),
        (tier_view(workload=None), "no peak was seen and the plan has none: say with --rps"),
    ],
)
def test_an_unanswerable_question_has_its_reason(context: TierContext, words: str) -> None:
    seen = ProductionSummary(context=context, since=START, until=START + WEEK)
    assert words in explain_unanswerable(seen, None)
    with pytest.raises(ValueError, match=r"apart|peak|plan"):
        answer_question(seen, 3)
