"""What-if by hand (see report_samples) and against the simulator: verdict, peak, money, limits, N-1, open findings."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import HOUR, POINTS, START, USABLE, WEEK, binned, finding, hour, hours, measured, seen_of, tier_view

import agent.demo
from agent.config.files import load_plan
from agent.demo.simulation.engine import Z99, Conditions, SimulatedEngine, load_at
from agent.demo.simulation.weeks import build_window
from exporters.documents.what_if import headline
from rules.confidence import Certainty
from rules.plan import load_bins
from rules.plan.curve import IN_SYSTEM, Curve
from rules.plan.load_bins import TierContext, build_tier_context, with_capacity
from rules.plan.replica_count import replica_count
from rules.plan.schema import TierPlan
from rules.resize.production_summary import BAD, FINE, ProductionSummary, SloStatus
from rules.resize.proposal import propose_size
from rules.telemetry import arrivals, windows
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
    minutes = []
    for at, (rps, tokens) in enumerate(several):
        lengths = {"prompt_tokens": rps * 60 * 10 * tokens, "generation_tokens": rps * 60 * tokens}
        span = {"start": begin + 60.0 * at, "covered_seconds": 60.0, "expected_seconds": 60.0}
        minutes.append(MinuteDemand(requests=rps * 60, **span, **lengths))
    seconds = 60.0 * len(minutes)
    seen = ProductionSummary(context=PLANNED, since=begin, until=begin + seconds)
    first = hour(0, 3.0, replicas=1)
    counters = {name: count * seconds / HOUR for name, count in first.counters.items()}
    span = {"end": begin + seconds, "expected_seconds": seconds, "covered_seconds": seconds}
    part = replace(first, counters=counters, histograms={}, **span)
    return seen.add(binned(PLANNED, [part]), (), minutes)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    low, best, high = sorted(draw(st.lists(st.floats(0.01, 1e3), min_size=3, max_size=3)))
    bounds = {"low": low, "high": draw(st.sampled_from([high, None]))}
    planned, certainty = draw(st.sampled_from([best, None])), draw(st.sampled_from(list(Certainty)))
    return capacity(best, **bounds, certainty=certainty, planned_rps=planned, knee_seen=draw(st.booleans()))


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
    # No measured load broke the SLO: nothing is known above the last one.
    assert check_capacity(replace(usable, high=None, knee_seen=False), 5.1) is SloStatus.NOT_KNOWN
    assert result(7, tier_view(curve={"points": POINTS[:2]})).first_limit is None
    assert check_capacity(capacity(5.0, planned_rps=None), 5.1) is SloStatus.NOT_KNOWN


def test_the_peak_is_shared_evenly() -> None:
    found = result(6)
    rates = (found.rps, found.asked.rps, found.work_rps, found.now.replicas, found.now.rps)
    assert rates == pytest.approx((30.0, 5.0, 30.0, 10.0, 3.0))
    assert found.utilization == pytest.approx(5 / USABLE)
    first = limit(found, "ttft_p99_seconds")
    assert found.first_limit is first
    assert (first.best, first.objective) == (pytest.approx(USABLE), 2.0)
    assert isinstance(limit(found, "kv_utilization").rps, Missing), "the benchmark did not measure the KV cache"


def test_measured_tokens_are_divided_by_once() -> None:
    found = result(4)
    # 4 replicas of 2 GPUs at 2.50; 730 hours a month; 20 rps on average x 80 tokens x 3600 = 5.76 million an hour.
    assert (found.cost.money_per_hour, found.cost.money_per_month) == (pytest.approx(20.0), pytest.approx(14_600.0))
    assert found.cost.tokens_per_hour == pytest.approx(5.76e6)
    assert found.cost.per_million_tokens == pytest.approx(20 / 5.76)
    assert found.cost_now.per_million_tokens == pytest.approx(50 / 5.76)
    assert result(10, rps=60.0).cost.tokens_per_hour == pytest.approx(2 * 5.76e6)
    assert result(2).cost.tokens_per_hour == pytest.approx(2 * USABLE * 80 * 3600), "20 rps are more than two serve"


def test_latency_lies_between_benchmark_points() -> None:
    value = result(6).asked.benchmark["ttft_p99_seconds"]
    # 5 rps, halfway between 0.2 s at 4 and 0.5 s at 6.
    assert (value.low, value.high, value.value) == (0.2, 0.5, pytest.approx(math.sqrt(0.2 * 0.5)))
    beyond = result(3).asked.benchmark["ttft_p99_seconds"]
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


BUSIEST, NOW = "the busiest minute: an hour was not seen yet", "what arrives now, more than any peak before"
STRETCHES = "reached in three stretches of five minutes"


@pytest.mark.parametrize(
    ("minutes", "rps", "work", "source"),
    [
        # Nine calm minutes, then 5 rps arrive where 3 are completed: the mean would be 2.
        ([(1.0, 80.0)] * 9 + [(5.0, 80.0)] * 3, 5.0, 5.0, BUSIEST),
        # The overload stays the peak of the hour, also after it ended.
        ([(1.0, 80.0)] * 9 + [(5.0, 80.0)] * 4 + [(1.0, 80.0)] * 42, 5.0, 5.0, BUSIEST),
        ([(5.0, 80.0)] * 5 + [(4.0, 80.0)] * 10 + [(1.0, 80.0)] * 45, 4.0, 4.0, STRETCHES),
        # An hour at 2 rps, then 5 rps for three minutes: no stretch of five minutes has them yet.
        ([(2.0, 80.0)] * 60 + [(5.0, 80.0)] * 3, 5.0, 5.0, NOW),
        ([(2.0, 80.0)] * 60 + [(5.0, 80.0)] * 3 + [(2.0, 80.0)] * 5, 2.0, 2.0, STRETCHES),
        # 8 short requests per second are less than 5 of four times their length.
        ([(8.0, 80.0)] * 30 + [(5.0, 320.0)] * 30, 5.0, 20.0, STRETCHES),
    ],
)
def test_peak_is_the_most_work(minutes: list[tuple[float, float]], rps: float, work: float, source: str) -> None:
    seen = demand(minutes)
    found = answer_question(seen, 1)
    assert (found.rps, found.work_rps) == pytest.approx((rps, work))
    assert found.peak.source == source
    assert source != STRETCHES or propose_size(seen, ()).sized == found.fleet
    assert source != STRETCHES or minutes[0][0] != 5.0 or found.peak.highest == pytest.approx(5.0)


def test_full_cache_is_reached_not_broken() -> None:
    full = [{**point, "kv_utilization": kv} for point, kv in zip(POINTS, (0.4, 0.8, 1.0, 1.0), strict=True)]
    found = answer_question(seen_of(tier_view(curve={"points": full}), hours()), 5, 27.0)
    assert found.asked.kept in FINE
    assert "the SLO would likely hold; KV cache above 90.0% is reached first, at 25 rps already." in headline(
        found, "UTC"
    )
    batch = tier_view(slo={}, workload={"archetype": "batch"}, cost=None)
    assert "the benchmarked load (no objective is planned) would likely hold" in headline(result(10, batch), "UTC")
    assert "; first breaks TTFT P99 above 2 s, at 73.3 rps (+144%)." in headline(answer_question(WEEK_SEEN, 10), "UTC")


def test_open_finding_breaks_this_size() -> None:
    asked = {n: answer_question(WEEK_SEEN, n, None, [burn()]) for n in (9, 10, 11)}
    assert [asked[n].asked.kept for n in (9, 10)] == [SloStatus.BROKEN] * 2
    assert [asked[n].burns.cover(n, asked[n].rps) for n in (10, 11)] == [True, False]
    assert asked[11].asked.kept in FINE
    assert asked[11].one_lost.kept is SloStatus.BROKEN
    # 10 replicas carry 73 rps by the capacity, and they are broken at the present 30 or fewer.
    present = WEEK_SEEN.rates[-1].rps
    assert (asked[11].one_lost_rps, present <= 30) == (pytest.approx(present), True)
    assert answer_question(WEEK_SEEN, 12, None, [burn()]).one_lost_rps == pytest.approx(11 * USABLE)
    assert answer_question(WEEK_SEEN, 10, 5.0, [burn()]).asked.kept in FINE


OTHER_FINDINGS = {
    "ended": burn(end=168.0),
    "likely": burn(certainty=Certainty.LIKELY),
    "another rule": burn(rule="QueueGrowing"),
    "a cascade that nobody feels yet": burn(rule="KvCacheCascade"),
}


@pytest.mark.parametrize("name", OTHER_FINDINGS)
def test_ended_or_likely_finding_breaks_nothing(name: str) -> None:
    assert answer_question(WEEK_SEEN, 10, None, [OTHER_FINDINGS[name]]).asked.kept in FINE


def test_felt_cascade_breaks_unseen_does_not() -> None:
    felt = finding("KvCacheCascade", 167.0, None, status=Status.CRITICAL)
    assert answer_question(WEEK_SEEN, 10, None, [felt]).asked.kept is SloStatus.BROKEN
    old = replace(WEEK_SEEN, until=START + WEEK + 2 * HOUR)
    found = answer_question(old, 10, None, [burn()])
    assert (found.now, found.asked.kept in FINE) == (None, True)


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
    found = result(5, tier_view(curve=None, operating_point={"usable_rps": 4.0}))
    given = limit(found, GIVEN)
    assert (given.source, given.best) == (CapacitySource.OPERATOR, 4.0)
    assert found.first_limit is given


def test_unseen_tier_answers_from_plan() -> None:
    seen = ProductionSummary(context=PLANNED, since=START, until=START + WEEK)
    found = answer_question(seen, 10)
    assert (found.rps, found.asked.rps, found.asked.kept) == (50.0, 5.0, SloStatus.LIKELY_KEPT)
    assert (found.peak.at, found.peak.source) == (None, "the plan's peak: none was seen")
    assert (found.now, found.cost_now) == (None, None)
    tokens = {"prompt_tokens": {"mean": 800}, "generation_tokens": {"mean": 160}, "requests_per_second": {"peak": 50}}
    longer = replace(seen, context=tier_view(workload=tokens))
    assert answer_question(longer, 10).work_rps == pytest.approx(75.0)


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


DAY, QUARTER = 86_400.0, 900.0
SIMULATED_START = 1_793_577_600.0
"""Monday 2 November 2026, 0:00 UTC."""

PLANS = load_plan(Path(agent.demo.__file__).parent / "simulation" / "plan.yaml").tiers


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Days of one tier, and how many replicas served them."""

    plan: TierPlan
    seen: ProductionSummary

    def result(self, instances: int, rps: float | None = None) -> WhatIf:
        return answer_question(self.seen, instances, rps)

    def truth(self, name: str, rps: float) -> float:
        """What an engine of the simulator does at a load of one replica."""
        load = load_at(Curve.from_plan(self.plan), rps)
        if name == "kv_utilization":
            return load.kv
        times = load.first if name.startswith("ttft") else load.each
        return times.median * math.exp(times.sigma * (Z99 if "p99" in name else 0.0))


def simulated(
    tier: str, busiest: float, days: int = 2, replicas: int = 3, longer: Callable[[float], float] = lambda t: 1.0
) -> Simulated:
    """Days with a peak of `busiest` rps of a replica in the afternoon; `longer` says how many times as long prompts are, by the
    seconds since the begin."""
    plan, rng = PLANS[tier], random.Random(tier)
    context = load_bins.build_tier_context(tier, plan)
    engines = [SimulatedEngine(plan, context.curve, rng, SIMULATED_START) for _ in range(replicas)]
    pages = [engine.snapshot() for engine in engines]
    hourly: dict[tuple[float, int | None], list[Window]] = defaultdict(list)
    grouped: dict[float, list[arrivals.MinuteSums]] = defaultdict(list)
    for step in range(1, round(days * DAY / QUARTER) + 1):
        t = SIMULATED_START + step * QUARTER
        mean = busiest * (0.55 - 0.45 * math.cos(2 * math.pi * (step % 96) / 96)) * QUARTER
        for n, engine in enumerate(engines):
            arrived = max(0, round(mean + rng.gauss(0.0, 1.0) * math.sqrt(mean)))
            engine.advance(t, arrived, Conditions(prompt_scale=longer(t - SIMULATED_START)))
            after = engine.snapshot()
            window = build_window(pages[n], after)
            placed = load_bins.bin_window(window, context.curve, f"r{n}")
            hourly[(window.start + window.end) / 2 // HOUR, placed.bin].append(window)
            for part in arrivals.split_by_minute(window):
                grouped[part.start].append(part)
            pages[n] = after
    hours = []
    for (_, bin), group in hourly.items():
        hours.append(load_bins.bin_window(windows.sum_windows(group), None, None, bin))
    until = SIMULATED_START + days * DAY
    seen = ProductionSummary(context=context, since=SIMULATED_START, until=until, versions=("v1",))
    demand = arrivals.list_demand([arrivals.add(grouped[start]) for start in sorted(grouped)])
    return Simulated(plan=plan, seen=measured(seen.add(hours, hours, demand)))


@pytest.fixture(scope="module")
def rag() -> Simulated:
    """Up to about 4 rps a replica of a benchmark that goes to 6.65; prompts as planned."""
    return simulated("rag-l40s", 4.0)


@pytest.fixture(scope="module")
def drifting() -> Simulated:
    """Prompts grow to twice the planned ones over four days."""
    return simulated("chat-h100", 3.3, days=4, longer=lambda t: 1 + t / (4 * DAY))


def test_peak_matches_simulated_afternoon(rag: Simulated) -> None:
    found = rag.result(3)
    assert found.peak.source == "reached in three stretches of five minutes"
    assert (found.peak.at - rag.seen.since) % DAY == pytest.approx(DAY / 2, abs=3 * 3600)
    assert found.rps == pytest.approx(12.0, rel=0.05)


@pytest.mark.parametrize("name", ["ttft_p50_seconds", "ttft_p99_seconds", "tpot_p99_seconds", "kv_utilization"])
def test_curve_holds_simulated_latency(rag: Simulated, name: str) -> None:
    """The simulator takes a load in steps of half a per cent of its range."""
    found = rag.result(2, rps=11.0)
    value = found.asked.benchmark[name]
    truth = rag.truth(name, 5.5)
    assert (value.low or 0.0) * 0.99 <= truth <= (value.high or 0.0) * 1.01
    assert found.asked.kept in FINE


def test_beyond_the_benchmark_nothing_is_invented(rag: Simulated) -> None:
    found = rag.result(1, rps=9.0)
    gaps = {value.gap for value in found.asked.benchmark.values() if isinstance(value, Missing)}
    assert gaps <= {Gap.OUTSIDE_BENCHMARK, Gap.NOT_IN_PLAN}
    assert isinstance(found.asked.benchmark[IN_SYSTEM], Missing)
    assert found.asked.kept in BAD


def test_breaking_load_matches_simulator(rag: Simulated) -> None:
    limits = {one.name: one for one in rag.result(3).limits}
    assert rag.truth("ttft_p99_seconds", limits["ttft_p99_seconds"].best) == pytest.approx(2.0, rel=0.05)


def test_the_fewest_replicas_that_hold_are_needed(rag: Simulated) -> None:
    needed = rag.result(3).needed
    assert rag.result(needed.replicas).asked.kept in FINE
    assert rag.truth("ttft_p99_seconds", 12.0 / needed.replicas) < 2.0


def test_longer_prompts_change_the_verdict(drifting: Simulated) -> None:
    """4.5 rps keep the SLO with planned prompts, not with twice as long ones."""
    assert drifting.truth("ttft_p99_seconds", 4.5) < 1.5
    found = drifting.result(2, rps=9.0)
    assert found.asked.kept in BAD
    assert found.curve_work > 1.2
