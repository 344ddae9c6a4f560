"""Lengths, load and time in the system against plan and benchmark: tables of cases (fires, just within, over)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import TOKEN_EDGES, answered, context, each, gauge, minute, seen, sized, usual
from outcomes import EARLY, FAIRLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED
from rule_cases import Case, check_case, check_words, explain, judge_cases, list_cases

from rules.catalogue.registry import ACTIONS, BY_NAME
from rules.confidence import Certainty
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.methods import evidence
from rules.methods.evidence import OUTPUTS, PROMPTS, LimitSide
from rules.methods.load import offered_load
from rules.plan import load_bins
from rules.plan.load_bins import TierContext, bin_window, build_tier_context
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.telemetry.work import UNTOLD, Capacity, CapacityLengths, CapacitySource, MeanTokens
from rules.verdicts.rule import LatencyPattern
from rules.verdicts.verdict import Status, Verdict

DRIFT, OUTPUT = "WorkloadDrift", "OutputLengthDrift"
QUANTILES = {"p50": 90, "p95": 160, "p99": 190}
AS_PLANNED = {"prompt_tokens": QUANTILES, "generation_tokens": QUANTILES}
MEASURED = [{"prompt_tokens_mean": 80, "output_tokens_per_second": 44 * rps} for rps in (2, 4, 6)]


def planned(**changes: Any) -> TierContext:
    return context(workload={**AS_PLANNED, **changes})


def prompts(**quantiles: float) -> TierContext:
    return context(workload={"prompt_tokens": quantiles})


def load(**rates: float) -> TierContext:
    return context(workload={"requests_per_second": rates})


def day(prompts: Mapping[float, float], outputs: Mapping[float, float], count: int = 6) -> list[Window]:
    return each(count, lambda n: sized(n, prompts, outputs))


def long_in(numbers: range, count: int = 6, outputs: bool = False) -> list[Window]:
    """Minutes, in the given ones of which a third of the prompts (or outputs) is long."""
    lengths = [usual(long=60 if n in numbers else 0) for n in range(count)]
    return each(count, lambda n: sized(n, usual(), lengths[n]) if outputs else sized(n, lengths[n], usual()))


def at_rate(*rates: float) -> list[Window]:
    return each(len(rates), lambda n: minute(n, rps=rates[n]))


def of_length(prompt: float, output: float, count: int = 12) -> list[Window]:
    counters = {"prompt_tokens": prompt * 180, "generation_tokens": output * 180}
    return each(count, lambda n: minute(n, counters=counters))


def cut_off(minutes: list[Window], clients: float) -> list[Window]:
    """The minutes, in each of which so many clients left and are counted as finished."""
    return [replace(one, counters={**one.counters, "requests_aborted": clients}) for one in minutes]


TIER, CHAT = planned(), planned(archetype="chat")
PEAK_PLANNED = context(*MEASURED, workload={"requests_per_second": {"peak": 100}})
BENCHMARKED = context(*MEASURED)
USUAL, LONG, SHORT = usual(), usual(long=20), {15.0: 180.0}
NARROW_PLAN = {"p50": None, "p95": 180, "p99": None}
NARROW = dict.fromkeys((PROMPTS, OUTPUTS), seen({180.0: 180.0}, (160.0, 200.0, float("inf"))))
NARROW_BUCKETS = [replace(one, histograms=NARROW) for one in each(6, minute)]
QUEUED = each(6, lambda n: minute(n, rps=2.0, change=60.0 if n < 3 else 0.0))
LIMITED = each(
    6, lambda n: sized(n, usual(), usual(long=10, length=900), counters={"requests_ended_by_length": 45.0}, rps=3.0)
)
P95 = "P95 200 to 500 tokens, 160 planned"

DRIFT_CASES = [
    # The buckets hold the planned lengths; they are too wide to say that nothing moved.
    Case("as planned", TIER, day(USUAL, USUAL), FAIRLY),
    Case("narrow buckets", planned(**dict.fromkeys(AS_PLANNED, NARROW_PLAN)), NARROW_BUCKETS, FINE),
    Case("longer prompts", CHAT, day(LONG, USUAL), WARNED),
    Case("longer outputs", CHAT, day(USUAL, LONG), WARNED),
    Case("both", CHAT, day(LONG, LONG), WARNED),
    Case("shorter", TIER, day(USUAL, SHORT), WARNED),
    Case("shorter, half of the clients left", TIER, cut_off(day(USUAL, SHORT), 90.0), FAIRLY),
    Case("shorter, few clients left", TIER, cut_off(day(USUAL, SHORT), 5.0), WARNED),
    # P95 is in (200, 500]: surely 1.2x of 166 tokens, not surely of 167.
    Case("1.2x by the low edge", prompts(p95=166), day(LONG, USUAL), WARNED),
    Case("not by the low edge", prompts(p95=167), day(LONG, USUAL), FAIRLY),
    # P50 is in (50, 100]: surely below 121 / 1.2, not below 119 / 1.2.
    Case("shorter by the high edge", prompts(p50=121), day({80.0: 180.0}, USUAL), WARNED),
    Case("not by the high edge", prompts(p50=119), day({80.0: 180.0}, USUAL), FAIRLY),
    # 1080 requests, 54 expected above a P95: 72 are 2.5 standard deviations more, 84 are 4.2.
    Case("as many as the quantile leaves", prompts(p95=160), day(usual(long=9), USUAL), FAIRLY),
    Case("chance", planned(prompt_tokens={"p95": 160}), day(usual(long=10), USUAL), FAIRLY),
    Case("hardly chance", planned(prompt_tokens={"p95": 160}), day(usual(long=12), USUAL), GUESSED),
    Case("no chance", planned(prompt_tokens={"p95": 160}), day(usual(long=14), USUAL), WARNED),
    Case("two minutes", TIER, long_in(range(4, 6)), FAIRLY),
    Case("three minutes", TIER, long_in(range(3, 6)), WARNED),
    Case("over", TIER, long_in(range(6), 8), FAIRLY),
    Case("too early", TIER, day(usual(long=60), USUAL, 2), EARLY),
    Case("too few", TIER, day(usual(long=16, n=33), usual(n=33), 3), EARLY),
    Case("enough", TIER, day(usual(long=30, n=64), USUAL, 3), WARNED),
    Case("no plan", build_tier_context("t", None), day(USUAL, USUAL), UNPLANNED),
    Case("no workload", context(), day(USUAL, USUAL), UNPLANNED),
    Case("no lengths", context(workload={"archetype": "chat"}), day(USUAL, USUAL), UNPLANNED),
    Case("not measured", TIER, each(6, minute), HIDDEN),
    Case("idle", TIER, each(6, lambda n: sized(n, {}, {}, rps=0.0)), UNSEEN),
    Case("another factor", context(workload=AS_PLANNED, limits={DRIFT: {"factor": 2.0}}), day(LONG, USUAL), FAIRLY),
    Case("above the peak", load(average=1.0, peak=2.4), at_rate(*[3.0] * 6), WARNED),
    Case("near the peak", load(peak=2.5), at_rate(*[3.0] * 6), FINE),
    Case("two minutes above the peak", load(peak=2.4), at_rate(1.0, 1.0, 6.0, 6.0, 1.0, 1.0), FINE),
    Case("arrivals above the peak", load(peak=2.4), QUEUED, WARNED),
    Case("two replicas", load(peak=2.4), dict.fromkeys("ab", at_rate(*[1.5] * 6)), WARNED),
    Case("longer than benchmarked", BENCHMARKED, of_length(314.0, 160.0), WARNED),
    Case("a peak alone is planned", PEAK_PLANNED, of_length(314.0, 160.0), WARNED),
    Case("shorter than benchmarked", BENCHMARKED, of_length(20.0, 44.0), WARNED),
    Case("shorter, most clients left", BENCHMARKED, cut_off(of_length(80.0, 20.0), 150.0), FINE),
    Case("shorter, hardly a client left", BENCHMARKED, cut_off(of_length(80.0, 20.0), 5.0), WARNED),
    Case("hardly longer", BENCHMARKED, of_length(90.0, 44.0), FINE),
    Case("a mean that is over", BENCHMARKED, [*of_length(314.0, 44.0)[:3], *of_length(80.0, 44.0)[3:]], FINE),
    # Five minutes may all be long by chance.
    Case("five minutes", BENCHMARKED, of_length(314.0, 44.0, 5), GUESSED),
    Case("planned before benchmarked", context(*MEASURED, workload=AS_PLANNED), day(USUAL, USUAL), FAIRLY),
]
OUTPUT_CASES = [
    Case("longer", TIER, day(USUAL, usual(long=10, length=900)), WARNED),
    Case("longer prompts", TIER, day(usual(long=60, length=900), USUAL), FINE),
    Case("shorter", TIER, day(USUAL, SHORT), FINE),
    Case("ended at the limit", TIER, LIMITED, WARNED),
    Case("at the factor", planned(generation_tokens={"p99": 166}), day(USUAL, usual(long=10)), WARNED),
    Case("below the factor", planned(generation_tokens={"p99": 167}), day(USUAL, usual(long=10)), FAIRLY),
    Case("two minutes", planned(generation_tokens={"p99": 160}), long_in(range(4, 6), outputs=True), FAIRLY),
    Case("too few", TIER, day(USUAL, usual(long=10, n=33), 3), EARLY),
    Case("too early", TIER, day(USUAL, usual(long=10), 2), EARLY),
    Case("no P99", planned(generation_tokens={"p50": 90}), day(USUAL, USUAL), UNPLANNED),
    Case("no outputs", prompts(p95=100), day(USUAL, USUAL), UNPLANNED),
]


@pytest.mark.parametrize(("night", "status"), [(0.5, Status.WARNING), (2.0, Status.OK)])
def test_day_compares_average_too(night: float, status: Status) -> None:
    """Six busy hours of 3 rps in 24; the planned ratio is 1.5."""
    tier = load(average=2.0, peak=3.0)
    hours = [minute(60 * n, rps=3.0 if n >= 18 else night, seconds=3600.0) for n in range(24)]
    binned = tuple(bin_window(hour, tier.curve, None) for hour in hours)
    found = evaluate_rule(BY_NAME[DRIFT], tier, binned, now=hours[-1].end, period_seconds=3600.0)
    assert found.status is status
    assert ("peak to average" in found.sentence) is (status is Status.WARNING)


RULE = "BenchmarkNotRepresentative"
SPANS = (0.5, 1.0, 2.0, 5.0, float("inf"))
BENCHED, SLOWER_END = context(), context({"concurrency": 1})
BALD = context({"concurrency": None}, {"concurrency": None}, {"concurrency": None})
UNCOUNTED = context(*({"requests": None},) * 3)
SIZED = context(*({"prompt_tokens_mean": 80},) * 3)


def predicted(of: TierContext) -> TierContext:
    """The same curve as a planner's."""
    written = of.curve.written.model_copy(update={"origin": "predicted"})
    return replace(of, curve=replace(of.curve, written=written))


def staying(in_system: float, count: int = 6, rps: float = 3.0, **more: Any) -> list[Window]:
    """At 3 rps the benchmark's points have 1 s in the system on both sides (2 / 2 rps and 4 / 4 rps)."""
    return each(count, lambda n: minute(n, rps=rps, in_system=in_system, **more))


def jammed(numbers: range, level: float, other: float, count: int = 6) -> list[Window]:
    return each(count, lambda n: minute(n, in_system=level if n in numbers else other))


def estimated(p99: float | None) -> TierContext:
    """Points without concurrency: 0.1 s to the first of 11 tokens, 0.09 s for each other: 1 s; the P99 as given."""
    medians = {"concurrency": None, "ttft_p50_seconds": 0.1, "tpot_p50_seconds": 0.09, "tpot_p99_seconds": p99}
    tokens = ({"output_tokens_per_second": 11 * rps} for rps in (2.0, 4.0, 6.0))
    return context(*({**medians, **one, "ttft_p99_seconds": 0.2} for one in tokens))


def timed(seconds: float, samples: int = 12, numbers: range = range(15), **more: Any) -> list[Window]:
    """3 requests in the system at 3 rps are 1 s each; whole requests took so long in some of the 15 minutes."""
    level = {"seconds": 60.0, "minimum": 0.0, "maximum": 3.0, "samples": samples}
    gauges = {f"requests_{name}": GaugeSum(integral=n, **level) for name, n in (("running", 180.0), ("waiting", 0.0))}
    whole = [{"e2e_seconds": seen({seconds if n in numbers else 1.0: 180.0}, SPANS)} for n in range(15)]
    return each(15, lambda n: minute(n, in_system=3.0, histograms=whole[n], gauges=gauges, **more))


def with_prompts(prompts: float, in_system: float = 3.0, count: int = 12) -> list[Window]:
    counters = {"prompt_tokens": 180 * prompts, "generation_tokens": 180 * 44.0}
    return staying(in_system, count, counters=counters)


def contradiction(seconds: float) -> str:
    by_law = f"{3 * seconds:.3g} by Little's law"
    return f"the telemetry contradicts itself: 3 requests in the system by the gauges, {by_law}"


SILENT = [*staying(6.5, 4), *(minute(n, rps=0.0, in_system=0.0) for n in (4, 5))]
WITHOUT_GAUGES = [replace(one, gauges={}, histograms={}) for one in each(6, minute)]

POOLED = replace(SIZED, pools={"p": "prefill", "d": "decode"})
LONGER = "Prompts are 3.9x as long as benchmarked: mean 314 tokens, 80 benchmarked"

CASES = [
    Case("twice", BENCHED, staying(6.0), FINE),
    Case("more than twice", BENCHED, staying(6.2), WARNED),
    Case("a prediction", predicted(UNCOUNTED), staying(6.2), GUESSED),
    # At 3 rps, between 1 / 2 and 4 / 4 rps: 0.71 s in the middle of the logarithms, 1 s at the slower end.
    Case("within the middle", SLOWER_END, staying(4.2), FINE),
    Case("beyond the middle", SLOWER_END, staying(4.3), GUESSED),
    Case("beyond the slower end", SLOWER_END, staying(6.1), WARNED),
    # 4.3 and 6.1 in the system by turns are 1.73 s over the hold, less than twice the slower end's.
    Case("beyond it for three minutes", SLOWER_END, jammed(range(3, 6), 6.1, 4.3), GUESSED),
    Case("beyond the benchmark", BENCHED, staying(20.0), Gap.OUTSIDE_BENCHMARK),
    Case("thin benchmark", context(requests=100), staying(6.5), GUESSED),
    Case("two minutes", BENCHED, jammed(range(4, 6), 7.9, 5.4), FINE),
    Case("three minutes", BENCHED, jammed(range(3, 6), 7.9, 5.4), WARNED),
    Case("over", BENCHED, jammed(range(6), 7.9, 3.0, 8), FINE),
    Case("too early", BENCHED, staying(6.5, 2), EARLY),
    Case("too few requests", BENCHED, staying(1.0, 4, rps=0.4), EARLY),
    Case("silent at the end", BENCHED, SILENT, EARLY),
    Case("no plan", build_tier_context("t", None), each(6, minute), UNPLANNED),
    Case("no concurrencies", BALD, each(6, minute), UNPLANNED),
    Case("not measured", BENCHED, WITHOUT_GAUGES, HIDDEN),
    # The mean is at most (0.1 + 0.2) / 2 + 10 x (0.09 + 0.11) / 2 = 1.15 s.
    Case("beyond the estimate", estimated(0.11), staying(6.6), GUESSED),
    Case("beyond what P99s leave open", estimated(0.11), staying(7.2), WARNED),
    Case("no P99s", estimated(None), staying(7.2), GUESSED),
    *(Case(f"{seconds} s", BENCHED, timed(seconds), FINE) for seconds in (1.0, 1.24, 0.81)),
    *(Case(f"{seconds} s", BENCHED, timed(seconds), Gap.STALE) for seconds in (1.3, 0.75)),
    Case("few samples", BENCHED, timed(1.3, samples=1)[:6], FINE),
    Case("a contradiction that is over", BENCHED, timed(3.0, numbers=range(9)), FINE),
    Case("the number changes", BENCHED, timed(1.5, change=30.0), FINE),
    Case("other lengths", SIZED, with_prompts(314.0), WARNED),
    Case("other lengths beyond the benchmark", SIZED, with_prompts(314.0, 40.0), WARNED),
    Case("near lengths", SIZED, with_prompts(150.0), FINE),
    Case("other lengths in prefill", POOLED, {"p": with_prompts(314.0), "d": with_prompts(80.0)}, FINE),
    Case("lengths that are not benchmarked", BENCHED, with_prompts(900.0), FINE),
    Case("what time proves", SIZED, with_prompts(314.0, 6.2, 6), WARNED),
]

TABLES = {DRIFT: DRIFT_CASES, OUTPUT: OUTPUT_CASES, RULE: CASES}


@pytest.mark.parametrize(("rule", "case"), list_cases(TABLES), ids=str)
def test_workload_and_time_against_plan(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_shorter_benchmark_is_suspect() -> None:
    tier = context(workload={"generation_tokens": {"p50": 40, "p95": 80}})
    found = answered(RULE, tier, each(6, lambda n: sized(n, usual(), usual(long=30), in_system=6.5)))
    assert [cause.cause for cause in found.causes] == ["output lengths"]
    assert found.causes[0].evidence[0].startswith("outputs are longer than planned: ")


CERTAIN, LIKELY = 0.999, 0.95


def requests(short: float, long: float) -> tuple[Histogram, ...]:
    """So many of 150 tokens, which are in (100, 200], and so many of 400, in (200, 500]."""
    return seen({150.0: short, 400.0: long}, TOKEN_EDGES)


def test_results_have_readings_actions_unit() -> None:
    longer = answered(DRIFT, CHAT, day(LONG, USUAL))
    assert (longer.observed.low, longer.expected.value) == (200.0, 160)
    assert longer.actions[0].startswith("Size the tier again")
    assert answered(DRIFT, load(peak=2.4), at_rate(*[3.0] * 6)).unit == "per_second"
    found, time = answered(RULE, BENCHED, staying(6.2)), pytest.approx(6.2 / 3)
    assert found.observed == Reading(value=time, low=time, high=time, n=1080)
    assert found.actions[0].startswith("Compare prompt and output lengths")
    assert answered(RULE, SIZED, with_prompts(314.0)).unit == "tokens"


@pytest.mark.parametrize(
    ("long", "limit", "side", "exceeds"),
    [
        (6, 200.0, LimitSide.LONGER, True),
        (6, 201.0, LimitSide.LONGER, False),
        (5, 200.0, LimitSide.LONGER, False),
        (4, 200.0, LimitSide.SHORTER, True),
        (4, 199.0, LimitSide.SHORTER, False),
        (5, 200.0, LimitSide.SHORTER, False),
    ],
)
def test_longer_and_shorter_count_whole_buckets(long: int, limit: float, side: LimitSide, exceeds: bool) -> None:
    assert evidence.exceeds_limit(requests(100 - long, long), 0.95, limit, side) is exceeds
    assert not evidence.exceeds_limit((), 0.95, limit, side)
    assert not evidence.is_significant_quantile((), 0.95, limit, side, LIKELY)


@pytest.mark.parametrize(("long", "likely", "certain"), [(61, False, False), (63, True, False), (76, True, True)])
def test_longer_beyond_chance_is_the_binomial_tail(long: int, likely: bool, certain: bool) -> None:
    """Of 1000 requests 50 are expected above their P95, with a standard deviation of 6.9: 63 are 1.9 of them, 76 are 3.8."""
    parts = requests(1000 - long, long)
    for confidence, wanted in ((LIKELY, likely), (CERTAIN, certain)):
        assert evidence.is_significant_quantile(parts, 0.95, 200.0, LimitSide.LONGER, confidence) is wanted


@pytest.mark.parametrize(("n", "confidence"), [(299, LIKELY), (688, CERTAIN)])
def test_clean_p99_needs_enough_requests(n: int, confidence: float) -> None:
    """0.99^n below 5 % from 299 requests on, below 0.1 % from 688 on."""
    assert evidence.is_significant_quantile(requests(n, 0), 0.99, 200.0, LimitSide.SHORTER, confidence)
    assert not evidence.is_significant_quantile(requests(n - 1, 0), 0.99, 200.0, LimitSide.SHORTER, confidence)


ADD_REPLICAS, KEEP_REPLICAS = ACTIONS["add_replicas"], ACTIONS["keep_replicas"]

BEYOND = "LoadBeyondBenchmark"
RULES = (BEYOND, "QueueGrowing")
EDGES = (0.05, 0.1, 0.15, 0.26, 0.52, 1.0, float("inf"))
LENGTHS = {"prompt_tokens": {"mean": 1000, "p50": 1000}, "generation_tokens": {"mean": 100, "p50": 100}}


def tailed(number: int, rps: float, in_system: float = 4.0, change: float = 0.0, **more: Any) -> Window:
    """A minute of which 4 % of the requests took 0.9 s and the others 0.03 s."""
    n = rps * 60
    made = minute(number, rps=rps, in_system=in_system, change=change, **more)
    return replace(made, histograms={"ttft_seconds": seen({0.03: 0.96 * n, 0.9: 0.04 * n}, EDGES)})


def long(rps: float) -> Callable[[int], Window]:
    """Requests of twice the benchmarked tokens."""
    tokens = {"prompt_tokens": rps * 60 * 2000, "generation_tokens": rps * 60 * 200}
    return lambda n: tailed(n, rps, in_system=9.0, counters=tokens)


def grows(rps: float) -> Callable[[int], Window]:
    """12 more arrive each minute than finish, 0.2 a second."""
    return lambda n: tailed(n, rps, in_system=30.0, waiting=4.0 + 12 * n, change=12.0)


def creeps(rps: float) -> Callable[[int], Window]:
    """Growth too small to show in any one minute."""
    return lambda n: tailed(n, rps, change=0.7, gauges={"requests_waiting_capacity": gauge(0.3 + n / 3)})


def calm(number: int) -> Window:
    return tailed(number, 0.5)


OFFERED_SIZED, UNUSABLE = context(workload=LENGTHS), context(slo={"ttft_p99_seconds": 0.05})
OFFERED_MEASURED = {"source": CapacitySource.PRODUCTION, "certainty": Certainty.CERTAIN, "reason": "measured"}
ROOM = load_bins.with_capacity(BENCHED, Capacity(rps=9.0, low=8.0, high=10.0, **OFFERED_MEASURED))
SMALL = ACTIONS["find_the_hold"]
ARRIVING, BOTH_CAN = "arrive at a replica, 6 rps are usable", "the replicas together can take this load"
UNEVEN = [lambda n: tailed(n, 7.0), lambda n: tailed(n, 2.0)]
STANDING = each(9, lambda n: tailed(n, 3.0, in_system=60.0, waiting=30.0))

ROWS = [
    ("completed", BEYOND, BENCHED, [lambda n: tailed(n, 7.0)], ADD_REPLICAS),
    ("in the system too", BEYOND, BENCHED, [lambda n: tailed(n, 7.0, in_system=12.0)], ADD_REPLICAS),
    # Completed requests saturate: 6.5 arrive.
    ("arriving", BEYOND, BENCHED, [lambda n: tailed(n, 5.5, in_system=12.0, change=60.0)], ADD_REPLICAS),
    # Most of the hold is calm.
    ("in the last quarter", BEYOND, BENCHED, [lambda n: tailed(n, 3.0 if n < 7 else 7.0)], ADD_REPLICAS),
    ("hot", BEYOND, BENCHED, UNEVEN, KEEP_REPLICAS),
    # 3.5 rps, each of twice the tokens, are the work of 7: above 6. At half the load they are not.
    ("long requests", BEYOND, OFFERED_SIZED, [long(3.5)], ADD_REPLICAS),
    ("half as many", BEYOND, OFFERED_SIZED, [long(1.75)], KEEP_REPLICAS),
    ("no capacity", BEYOND, UNUSABLE, [lambda n: tailed(n, 7.0)], ""),
    ("measured capacity", BEYOND, ROOM, [lambda n: tailed(n, 7.0)], KEEP_REPLICAS),
    # 2.2 and 6.1 rps of 6 arrive.
    *((f"{rule} of a slow one", rule, BENCHED, [grows(2.0)], SMALL) for rule in RULES),
    *((f"{rule} of a full one", rule, BENCHED, [grows(5.9)], ADD_REPLICAS) for rule in RULES),
    *((f"{rule} beside a calm one", rule, BENCHED, [grows(2.0), calm], KEEP_REPLICAS) for rule in RULES),
    ("creeping", BEYOND, BENCHED, [creeps(3.0)], SMALL),
    ("creeping at the end", BEYOND, BENCHED, [creeps(5.995)], ADD_REPLICAS),
    ("short queues", BEYOND, BENCHED, [lambda n: tailed(n, 3.0, in_system=60.0, waiting=0.2)], KEEP_REPLICAS),
]


def loaded(rule: str, known: TierContext, makers: list[Callable[[int], Window]]) -> Verdict:
    """What the rule says of nine minutes of each replica."""
    return answered(rule, known, {name: each(9, make) for name, make in zip("ab", makers, strict=False)})


def test_words_read_as_the_golden() -> None:
    loads = ((name, loaded(rule, known, makers)) for name, rule, known, makers, _ in ROWS)
    check_words(__file__, (*judge_cases(list_cases(TABLES)), *loads))


@pytest.mark.parametrize(("name", "rule", "known", "makers", "first"), ROWS)
def test_load_decides_the_action(
    name: str, rule: str, known: TierContext, makers: list[Callable[[int], Window]], first: str
) -> None:
    found = loaded(rule, known, makers)
    assert found.status is Status.WARNING
    assert {ADD_REPLICAS, KEEP_REPLICAS}.intersection(found.actions) == {first} - {"", SMALL}
    assert not first or found.actions[0] == first


def test_held_requests_are_not_too_many() -> None:
    """0.9 rps of 6 with 9 requests in the system, where the benchmark's highest had 8."""
    found = answered(BEYOND, BENCHED, each(10, lambda n: tailed(n, 0.9, in_system=9.0)))
    assert found.actions[0] == KEEP_REPLICAS
    assert not any(text.startswith("Add replicas") or "exceeded" in text for text in found.actions)
    assert f"0.9 rps {ARRIVING}" in explain(found)
    assert found.sentence.startswith("a holds more requests than benchmarked; ")
    assert BOTH_CAN in found.sentence
    assert any("a slow machine" in one for one in found.actions)
    held_up = (text for rule in BY_NAME.values() for text in rule.levers.get(LatencyPattern.HELD_UP, ()))
    assert not any("hed load" in text for text in held_up)


def test_kept_replicas_have_other_levers() -> None:
    uneven = {"a": each(10, lambda n: tailed(n, 7.0)), "b": each(10, calm)}
    for known, replicas, text in ((BENCHED, uneven, "spread evenly"), (ROOM, {"a": uneven["a"]}, "benchmark up to it")):
        assert text in " ".join(answered(BEYOND, known, replicas).actions)
    # 30 wait in each of nine minutes, as many arrive as finish: no neighbour takes one of them.
    assert KEEP_REPLICAS not in answered(BEYOND, BENCHED, {"a": STANDING, "b": STANDING}).actions


def test_levers_are_actions_of_rules() -> None:
    for rule in BY_NAME.values():
        assert {text for texts in rule.levers.values() for text in texts} <= set(rule.actions)
    assert [rule.name for rule in BY_NAME.values() if rule.levers] == ["LoadBeyondBenchmark", "QueueGrowing"]
    actions = BY_NAME[BEYOND].actions
    assert actions[0].startswith("Check first whether it is the load")
    assert {ADD_REPLICAS, KEEP_REPLICAS} < set(actions)


def test_stuck_engine_still_has_arrivals() -> None:
    lengths = CapacityLengths(prompt_tokens=MeanTokens(low=1000, high=1000))
    capacity = Capacity(rps=6.0, low=6.0, high=6.0, lengths=lengths, **OFFERED_MEASURED)
    jammed = minute(0, rps=0.0, in_system=30.0, change=30.0)
    found = offered_load(jammed, capacity)
    assert (found.arriving_rps, found.work_rps) == (0.5, 0.5)
    assert offered_load(replace(jammed, counters={}), replace(capacity, lengths=UNTOLD)) is None
