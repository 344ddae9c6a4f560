"""Load beyond the benchmark, queues that grow, pegged GPUs, demand above capacity and forecasts: tables of cases."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, answered, context, each, gauge, minute, minutes, seen, tier, unseen
from outcomes import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, WARNED, Wanted
from rule_cases import Case, check_case, check_result, check_words, judge_cases, list_cases

from rules.confidence import Certainty
from rules.evaluator import rule_evaluation
from rules.plan.load_bins import build_tier_context
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.context import ForecastPoint, Projection
from rules.verdicts.verdict import RuleResult, Status, Verdict

RULE, LATENCY = "LoadBeyondBenchmark", "TtftDivergence"
TIER = context()


def beyond(numbers: Collection[int], count: int = 5, slow: float = 0.0) -> list[Window]:
    """Minutes at 3 rps, and the given ones at 7 rps, which is more than the benchmark's highest."""
    return each(count, lambda n: minute(n, rps=7.0 if n in numbers else 3.0, slow=slow))


def last(minutes: int) -> list[Window]:
    return beyond(range(5 - minutes, 5))


def crowded(in_system: float) -> list[Window]:
    return each(5, lambda n: minute(n, rps=1.0, in_system=in_system))


def queue(waiting: Callable[[int], float], change: float = 0.7, **more: object) -> list[Window]:
    """Nine minutes with such a queue; so many requests more arrive in each than finish."""
    return each(9, lambda n: minute(n, waiting=waiting(n), in_system=4.0 + waiting(n) / 100, change=change, **more))


def growing(number: int) -> float:
    return 0.3 + number / 3


def fleet(count: int, is_beyond: Callable[[int, int], bool], slow: float = 0.0) -> dict[str, list[Window]]:
    """Replicas for five minutes; which of them is beyond in which minute."""
    return {f"r{i}": beyond([n for n in range(5) if is_beyond(i, n)], slow=slow) for i in range(count)}


IDLE_FIRST = [minute(n, rps=0.0 if n < 7 else 7.0 if n < 10 else 3.0, slow=0 if n < 7 else 18) for n in range(12)]

CASES = [
    Case("inside", TIER, each(5, lambda n: minute(n, rps=5.9)), FINE),
    Case("three minutes", TIER, last(3), WARNED),
    Case("two minutes", TIER, last(2), GUESSED),
    Case("one minute", TIER, last(1), FINE),
    Case("9 in the system", TIER, crowded(9.0), WARNED),
    Case("8 in the system", TIER, crowded(7.9), FINE),
    Case("over", TIER, beyond(range(9), 12), FINE),
    # Sixteen minutes: fifteen are in the hold, of which the last three count; two of them are beyond, then one.
    Case("two of the last three", TIER, beyond((10, 13, 14), 16), WARNED),
    Case("one of the last three", TIER, beyond((9, 10, 13), 16), FINE),
    Case("one of eight", TIER, fleet(8, lambda i, n: i == 2), WARNED),
    Case("two of eight", TIER, fleet(8, lambda i, n: i < 2), WARNED),
    Case("scattered", TIER, fleet(5, lambda i, n: i == n), FINE),
    # Growth too small to show in any one minute: 0.7 more arrive than finish.
    Case("a growing queue", TIER, queue(growing), GUESSED),
    Case("it does not double", TIER, queue(lambda n: 2.0 + n / 10), FINE),
    Case("less than one waits", TIER, queue(lambda n: 0.05 * n), FINE),
    Case("no more arrive than finish", TIER, queue(growing, -0.1), FINE),
    Case("it shrinks", TIER, queue(lambda n: 3.0 - n / 4), FINE),
    Case("held back", TIER, queue(growing, gauges={"requests_waiting_capacity": gauge(0.0)}), FINE),
    Case("no plan", build_tier_context("t", None), each(5, minute), UNPLANNED),
    Case("not seen", TIER, each(5, unseen), Gap.SCRAPE_FAILED),
]
LATENCY_CASES = [
    Case("beyond", TIER, beyond((2, 3, 4), slow=30), Gap.OUTSIDE_BENCHMARK),
    Case("a growing queue", TIER, queue(growing), Gap.OUTSIDE_BENCHMARK),
    Case("the larger part inside", TIER, beyond(range(4), 9, slow=18), WARNED),
    Case("the smaller part inside", TIER, beyond(range(5), 9, slow=18), Gap.OUTSIDE_BENCHMARK),
    Case("idle minutes weigh nothing", TIER, IDLE_FIRST, Gap.OUTSIDE_BENCHMARK),
    Case("beyond at the end", TIER, beyond(range(9, 12), 12, slow=18), Gap.OUTSIDE_BENCHMARK),
    Case("calm replicas", TIER, fleet(3, lambda i, n: i == 0, slow=18), WARNED),
]


def test_a_queue_is_explained_by_the_load() -> None:
    """Nearly the usable rate finishes, and 40 a minute more than that arrive."""
    found = answered(QUEUE, PLANNED, queued(40.0, rps=USABLE_RPS * 0.95))
    assert [cause.cause for cause in found.causes] == ["more load"]
    assert found.causes[0].evidence[0].startswith("more load than planned: ")
    assert answered(GPU, PLANLESS, pegged()).actions[0].startswith("Chunked prefill")
    assert answered(RULE, TIER, queue(growing)).sentence.startswith("More requests arrive at a than finish; ")


QUEUE, GPU = "QueueGrowing", "GpuSaturated"
PLANLESS, PLANNED = build_tier_context("t", None), context()
USABLE_RPS = PLANNED.capacity.rps or 0.0


def queued(per_minute: float, count: int = 15, **more: Any) -> list[Window]:
    """Minutes whose queue is `per_minute` longer than the one before it, from 1 on."""

    def one(number: int) -> Window:
        waiting = 1 + per_minute * number
        return minute(number, waiting=waiting, in_system=waiting + 3, change=per_minute, **more)

    return each(count, one)


def waiting(level: Callable[[int], float], in_system: float, change: Callable[[int], float]) -> list[Window]:
    return each(15, lambda n: minute(n, waiting=level(n), in_system=in_system, change=change(n)))


FIVE_UP_AND_DOWN = waiting(lambda n: 5.0 * min(n, 15 - n), 40.0, lambda n: 5.0 if n < 8 else -5.0)
STEEP = queued(20.0)
LATE, LATER = (waiting(lambda n, b=b: 600.0 * max(0, n - b), 40.0, lambda n, b=b: 600.0 * (n > b) - 1) for b in (6, 11))

QUEUE_CASES = [
    Case("throughout", PLANLESS, STEEP, WARNED),
    # 60 more of 1,800 finished: arrivals and completions come apart by 3.1 x 60 once in a thousand times.
    Case("within chance", PLANLESS, queued(6.0, 10), GUESSED),
    Case("five minutes", PLANLESS, queued(100.0, 5), GUESSED),
    Case("six minutes", PLANLESS, queued(100.0, 6), WARNED),
    Case("too early", PLANLESS, queued(100.0, 2), EARLY),
    Case("just not too early", PLANLESS, queued(100.0, 3), GUESSED),
    Case("long and steady", PLANLESS, waiting(lambda n: 40.0, 43.0, lambda n: 0.0), FINE),
    Case("none", PLANLESS, each(15, minute), FINE),
    Case("worked off", PLANLESS, FIVE_UP_AND_DOWN, FINE),
    Case("hardly any", PLANLESS, waiting(lambda n: 0.02 * n, 3.0, lambda n: 0.1), FINE),
    Case("what a full batch does", PLANLESS, queued(1.0), FINE),
    Case("over", PLANLESS, waiting(lambda n: 8.0 * (n < 10), 9.0, lambda n: 0.0), FINE),
    Case("after a quiet third", PLANLESS, LATE, WARNED),
    Case("too short to double", PLANLESS, LATER, EARLY),
    Case("not counted", PLANNED, [replace(one, counters={"in_system_change": 20.0}) for one in STEEP], WARNED),
    Case("one of two", PLANNED, {"a": each(15, minute), "b": STEEP}, WARNED),
    Case("another length", context(limits={QUEUE: {"waiting": 500.0}}), STEEP, FINE),
    Case("another share", context(limits={QUEUE: {"share": 0.5}}), STEEP, FINE),
    Case("not measured", PLANLESS, [replace(one, gauges={}) for one in each(15, minute)], HIDDEN),
]


def rising(number: int) -> float:
    return 0.08 if number < 7 else 0.4


def pegged(
    seconds: Callable[[int], float] = rising,
    busy: Callable[[int], float] = lambda n: 0.99,
    count: int = 15,
    requests: float = 60.0,
    family: str = "",
    tail: Callable[[int], float] = lambda n: 0.0,
) -> list[Window]:
    """Minutes with a GPU utilisation and so many first tokens of each time; `tail` of them took 0.9 s."""

    def made(n: int) -> Window:
        late = tail(n)
        tokens = {"ttft_seconds": seen({seconds(n): requests - late, 0.9: late})}
        gpu: dict[str, Any] = {"counters": {"gpu_busy_seconds": 60 * busy(n), "gpu_busy_covered_seconds": 60.0}}
        if family:
            gpu = {"gauges": {family: gauge(busy(n))}, "sampled": frozenset({family})}
        return minute(n, rps=requests / 60, histograms=tokens, **gpu)

    return each(count, made)


TAIL = pegged(lambda n: 0.08, requests=600.0, tail=lambda n: 60.0 if n >= 10 else 0.0)
ONE_IDLE = {"a": pegged(lambda n: 0.08, lambda n: 0.2), "b": pegged()}
HALF, HIGH = context(limits={GPU: {"pegged": 0.5}}), context(limits={GPU: {"pegged": 0.96}})

GPU_CASES = [
    Case("rising", PLANLESS, pegged(), WARNED),
    Case("stable", PLANLESS, pegged(lambda n: 0.4), FINE),
    Case("falling", PLANLESS, pegged(lambda n: rising(14 - n)), FINE),
    Case("just below", PLANLESS, pegged(busy=lambda n: 0.94), FINE),
    Case("at the limit", PLANLESS, pegged(busy=lambda n: 0.95), WARNED),
    Case("over", HIGH, pegged(busy=lambda n: 1.0 if n < 12 else 0.9), FINE),
    Case("two minutes", HALF, pegged(busy=lambda n: 1.0 if n >= 13 else 0.49), FINE),
    Case("three minutes", HALF, pegged(busy=lambda n: 1.0 if n >= 12 else 0.49), WARNED),
    Case("a plain poll", PLANLESS, pegged(family="gpu_utilization_sampled"), GUESSED),
    Case("a profiling counter", PLANLESS, pegged(family="gpu_gr_engine_active"), WARNED),
    # From (0.05, 0.1] to (0.1, 0.15]: 1.3 x the upper edge is 0.13, inside the later bucket.
    Case("neighbouring buckets", PLANLESS, pegged(lambda n: 0.08 if n < 7 else 0.12), GUESSED),
    Case("the tail alone", PLANLESS, TAIL, WARNED),
    Case("one of two", PLANLESS, ONE_IDLE, WARNED),
    Case("not measured", PLANLESS, each(15, minute), HIDDEN),
    Case("too few", PLANLESS, pegged(requests=5.0), EARLY),
    Case("too early", PLANLESS, pegged(count=2), EARLY),
]

TABLES = {RULE: CASES, LATENCY: LATENCY_CASES, QUEUE: QUEUE_CASES, GPU: GPU_CASES}


@pytest.mark.parametrize(("rule", "case"), list_cases(TABLES), ids=str)
def test_load_and_trend_of_a_tier(rule: str, case: Case) -> None:
    check_case(rule, case)


DEMAND_RULE, DEGRADED = "DemandExceedsCapacity", "ForecastDegraded"
FLEET = {"instances": 3, "safety_factor": 1.0, "minimum_warm": 1}
PLAN = tier(slo={"ttft_p99_seconds": 0.2}, fleet=FLEET)
NO_END = tier(fleet=FLEET)
"""Its benchmark meets the objective at every load: 6 rps a replica are what was tried, no end."""

NO_FLEET = tier(slo={"ttft_p99_seconds": 0.2})

Rate = Callable[[int], float] | float


def arriving(rate: Rate, finished: float | None = None) -> Callable[[int], Window]:
    """Minutes of one replica at which so many requests a second arrive, and so many finish."""

    def made(number: int) -> Window:
        rps = rate(number) if callable(rate) else rate
        done = rps if finished is None else finished
        return minute(number, rps=done, change=60 * (rps - done))

    return made


def judged(
    rate: Rate,
    replicas: int = 2,
    count: int = 8,
    plan: Any = PLAN,
    rule: str = DEMAND_RULE,
    projection: Projection | None = None,
    finished: float | None = None,
    pools: dict[str, str] | None = None,
    **limits: float,
) -> RuleResult:
    """What a rule says when so many requests a second arrive at each of the replicas."""
    seen = build_tier_context("t", plan, limits={rule: limits}, pools=pools)
    names = [f"r{n}" for n in range(replicas)]
    booked = minutes(seen, {name: each(count, arriving(rate, finished)) for name in names})
    results = rule_evaluation.evaluate_tier_rules(booked, seen, START + 60.0 * count, projection=projection)
    return next(result for result in results if result.rule == rule)


NOW = START + 480.0


def forecast(q95: float = 13.0, lead: float = 240.0, **changes: Any) -> Projection:
    """Made a minute ago; demand is low until the third minute from now, then 10 rps at the median."""
    low, high = {"q50": 2.0, "q95": 3.0, "q99": 4.0}, {"q50": 10.0, "q95": q95, "q99": 20.0}
    points = tuple(ForecastPoint(t=NOW + 60.0 * n, **(low if n < 3 else high)) for n in range(7))
    quality = {"covered": 190, "forecasts": 200, "error_ratio": 0.7, "naive": "same as now", "compared": 200}
    made = {"tier": "t", "made_at": NOW - 60.0, "horizon_seconds": lead, "points": points, "method": "combined"}
    return Projection(**{**made, **quality, **changes})


CRITICAL = (Status.CRITICAL, Certainty.CERTAIN)
MIXED, APART = ({"r0": first, "r1": second} for first, second in (("mixed", "mixed"), ("prefill", "decode")))
MISSING = "10 rps arrive, 2 ready replicas take 8 rps; at least 1 more is needed; the 3 planned would be enough"

DEMAND: list[tuple[str, Rate, dict[str, Any], Wanted]] = [
    ("one missing", 5.0, {}, WARNED),
    ("arrivals of a saturated fleet", 5.0, {"finished": 4.0}, WARNED),
    ("as many as it takes", 4.0, {"finished": 4.0}, FINE),
    ("one replica", 5.0, {"replicas": 1}, WARNED),
    ("just within", 3.99, {}, FINE),
    # 8.2 a second over 480 s are 3936 where 3840 may come: 1.5 standard deviations.
    ("within chance", 4.1, {}, GUESSED),
    ("beyond chance", 4.3, {}, WARNED),
    ("a benchmark without an end", 7.0, {"plan": NO_END}, GUESSED),
    ("far beyond it", 9.5, {"plan": NO_END}, (Status.CRITICAL, Certainty.LIKELY)),
    ("more than planned", 7.0, {}, CRITICAL),
    ("an outgrown plan", 3.5, {"replicas": 4}, WARNED),
    ("no planned fleet", 3.5, {"replicas": 4, "plan": NO_FLEET}, FINE),
    ("likely more than planned", 6.1, {}, WARNED),
    ("too early", 6.0, {"count": 2}, EARLY),
    ("long enough", 6.0, {"count": 3}, WARNED),
    ("a burst", lambda n: 30.0 if n == 7 else 2.0, {}, FINE),
    ("over", lambda n: 9.0 if n < 6 else 1.0, {}, FINE),
    ("the last half", lambda n: 9.0 if n >= 4 else 1.0, {}, WARNED),
    ("the last quarter", lambda n: 5.0 if n >= 9 else 1.0, {"count": 12}, FINE),
    ("headroom", 3.6, {"share": 0.8}, WARNED),
    ("no plan", 5.0, {"plan": None}, UNPLANNED),
    ("few requests", 0.05, {}, EARLY),
    ("pools apart", 5.0, {"pools": APART}, UNPLANNED),
    ("pools alike", 5.0, {"pools": MIXED}, WARNED),
    ("a forecast", 1.0, {"projection": forecast()}, GUESSED),
    ("a forecast that fits", 1.0, {"projection": forecast(q95=12.0)}, FINE),
    ("behind the lead", 1.0, {"projection": forecast(lead=110.0)}, FINE),
    ("within the lead", 1.0, {"projection": forecast(lead=130.0)}, GUESSED),
    ("a forecast for no fleet", 1.0, {"projection": forecast(), "plan": NO_FLEET}, FINE),
    ("what arrives comes first", 5.0, {"projection": forecast()}, WARNED),
    ("a quiet tier", 0.05, {"projection": forecast()}, GUESSED),
    ("a useless forecast", 1.0, {"projection": forecast(error_ratio=1.2)}, FINE),
    ("a forecast that does not hold", 1.0, {"projection": forecast(covered=150)}, FINE),
    ("an outlived forecast", 1.0, {"projection": forecast(points=())}, FINE),
]
TOO_FEW = forecast(covered=0, forecasts=59, compared=59, error_ratio=3.0)
FORECASTS: list[tuple[str, Projection | None, dict[str, float], Wanted]] = [
    ("none", None, {}, EARLY),
    ("good", forecast(), {}, FINE),
    ("90 % exactly", forecast(covered=180), {}, FINE),
    ("at 95 %, surely 9.7 % missed", forecast(covered=173), {}, FINE),
    ("surely 10.1 %", forecast(covered=172), {}, GUESSED),
    ("at 99.9 %, surely 9.8 %", forecast(covered=166), {}, GUESSED),
    ("at 99.9 %, surely 10.1 %", forecast(covered=165), {}, WARNED),
    ("no better than the naive one", forecast(error_ratio=1.0), {}, GUESSED),
    ("just better", forecast(error_ratio=0.999), {}, FINE),
    ("59 forecasts", TOO_FEW, {}, EARLY),
    ("60 that are compared", replace(TOO_FEW, compared=60, error_ratio=0.7), {}, FINE),
    ("60 that are not", replace(TOO_FEW, forecasts=60, compared=0, error_ratio=None), {}, WARNED),
    ("old", forecast(made_at=NOW - 3600.0, points=()), {}, Gap.STALE),
    ("another limit of errors", forecast(), {"error_ratio": 0.6}, GUESSED),
    ("another coverage", forecast(covered=160), {"coverage": 0.7}, FINE),
]


@pytest.mark.parametrize(("name", "rate", "more", "wanted"), DEMAND)
def test_demand_against_capacity(name: str, rate: Rate, more: dict[str, Any], wanted: Wanted) -> None:
    result = judged(rate, **more)
    check_result(result, wanted)
    if isinstance(result, Verdict) and result.status is not Status.OK:
        assert result.is_forecast is ("projection" in more and rate != 5.0)


@pytest.mark.parametrize(("name", "projection", "limits", "wanted"), FORECASTS)
def test_forecast_that_degraded(
    name: str, projection: Projection | None, limits: dict[str, Any], wanted: Wanted
) -> None:
    check_result(judged(1.0, rule=DEGRADED, projection=projection, **limits), wanted)


def test_words_read_as_the_golden() -> None:
    demand = ((name, judged(rate, **more)) for name, rate, more, _ in DEMAND)
    made = ((name, judged(1.0, rule=DEGRADED, projection=one, **limits)) for name, one, limits, _ in FORECASTS)
    check_words(__file__, (*judge_cases(list_cases(TABLES)), *demand, *made))


def answer_of(windows: list[Window], plan: Any = PLAN, names: tuple[str, ...] = ("r0", "r1")) -> RuleResult:
    return answered(DEMAND_RULE, build_tier_context("t", plan), dict.fromkeys(names, windows))


def test_refused_requests_arrived_too() -> None:
    found = answer_of(each(8, lambda n: minute(n, counters={"admission_rejections": 120.0})))
    check_result(found, WARNED, MISSING)
    assert (found.observed.low, found.observed.n) == (pytest.approx(10.0), 4800.0)


@pytest.mark.parametrize(("longer", "status"), [(1.0, Status.OK), (0.5, Status.OK), (2.0, Status.WARNING)])
def test_longer_tokens_exceed_capacity(longer: float, status: Status) -> None:
    """3 rps a replica of the planned lengths are within 4. Of twice the tokens they are the work of 6."""
    lengths = {"prompt_tokens": {"mean": 1000}, "generation_tokens": {"mean": 100}}
    tokens = {"prompt_tokens": 180_000.0 * longer, "generation_tokens": 18_000.0 * longer}
    plan = tier(slo={"ttft_p99_seconds": 0.2}, fleet=FLEET, workload=lengths)
    found = answer_of(each(8, lambda n: minute(n, counters=tokens)), plan)
    assert found.status is status
    assert found.observed.value == pytest.approx(6.0 * longer)
    if longer != 1.0:
        assert found.sentence.startswith(f"{6 * longer:g} rps of work arrive")
        assert f"6 rps arrive (by their tokens the work of {6 * longer:g} rps)" in found.details


def test_unseen_tier_has_unknown_demand() -> None:
    for windows in (each(8, unseen), [*each(6, arriving(9.0)), unseen(6), unseen(7)]):
        assert answer_of(windows, names=("a",)).reason is Gap.SCRAPE_FAILED
