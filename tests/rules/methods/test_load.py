"""Load beyond the benchmark, queues that grow and pegged GPUs: tables of cases (fires, just within, over, not measured)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict
from rule_cases import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, WARNED, Case, check_case

from rules.plan.load_bins import build_tier_context
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window

RULE, LATENCY = "LoadBeyondBenchmark", "TtftDivergence"
TIER = context()
ENDED = "Beyond the benchmark for 9 of 12 minutes seen; over by now"


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
DOWN = [gap_window(one.start, one.end, Gap.SCRAPE_FAILED) for one in each(5, minute)]
HELD = queue(growing, gauges={"requests_waiting_capacity": gauge(0.0)})
THREE_MINUTES = (
    "a is beyond the benchmarked load; more load than replicas take; "
    "in 3 minutes: 7 completed rps is above 6, the highest load the benchmark vouches for; "
    "7 rps arrive at a replica, 6 rps are usable"
)
SHORT = "Beyond the benchmark for 1 of 5 minutes seen; too short for a finding; 7 completed rps"

CASES = [
    Case("inside", TIER, each(5, lambda n: minute(n, rps=5.9)), FINE, "5.9 rps a replica; the benchmark goes to 6"),
    Case("three minutes", TIER, last(3), WARNED, THREE_MINUTES),
    Case("two minutes", TIER, last(2), GUESSED),
    Case("one minute", TIER, last(1), FINE, SHORT),
    Case("9 in the system", TIER, crowded(9.0), WARNED, "9 requests in the system are more"),
    Case("8 in the system", TIER, crowded(7.9), FINE),
    Case("over", TIER, beyond(range(9), 12), FINE, ENDED),
    # Sixteen minutes: fifteen are in the hold, of which the last three count; two of them are beyond, then one.
    Case("two of the last three", TIER, beyond((10, 13, 14), 16), WARNED),
    Case("one of the last three", TIER, beyond((9, 10, 13), 16), FINE),
    Case("one of eight", TIER, fleet(8, lambda i, n: i == 2), WARNED, "r2 (1 of 8 replicas) is beyond the benchmarked"),
    Case("two of eight", TIER, fleet(8, lambda i, n: i < 2), WARNED, "2 of 8 replicas are beyond the benchmarked load"),
    Case("named in the details", TIER, fleet(8, lambda i, n: i < 2), WARNED, "r0, r1"),
    Case("scattered", TIER, fleet(5, lambda i, n: i == n), FINE),
    # Growth too small to show in any one minute: 0.7 more arrive than finish.
    Case("a growing queue", TIER, queue(growing), GUESSED, "0.6, 1.6, then 2.6 were waiting; 3 rps finish"),
    Case("it does not double", TIER, queue(lambda n: 2.0 + n / 10), FINE),
    Case("less than one waits", TIER, queue(lambda n: 0.05 * n), FINE),
    Case("no more arrive than finish", TIER, queue(growing, -0.1), FINE),
    Case("it shrinks", TIER, queue(lambda n: 3.0 - n / 4), FINE),
    Case("held back", TIER, HELD, FINE),
    Case("no plan", build_tier_context("t", None), each(5, minute), UNPLANNED, "the plan has no benchmark curve"),
    Case("not seen", TIER, DOWN, Gap.SCRAPE_FAILED),
]
LATENCY_CASES = [
    Case("beyond", TIER, beyond((2, 3, 4), slow=30), Gap.OUTSIDE_BENCHMARK, "7 completed rps is above 6"),
    Case("a growing queue", TIER, queue(growing), Gap.OUTSIDE_BENCHMARK, "more requests arrive than finish"),
    Case("the larger part inside", TIER, beyond(range(4), 9, slow=18), WARNED),
    Case("the smaller part inside", TIER, beyond(range(5), 9, slow=18), Gap.OUTSIDE_BENCHMARK),
    Case("idle minutes weigh nothing", TIER, IDLE_FIRST, Gap.OUTSIDE_BENCHMARK),
    Case("beyond at the end", TIER, beyond(range(9, 12), 12, slow=18), Gap.OUTSIDE_BENCHMARK),
    Case("calm replicas", TIER, fleet(3, lambda i, n: i == 0, slow=18), WARNED, "1,800 requests"),
]


@pytest.mark.parametrize(
    ("rule", "case"), [*((RULE, case) for case in CASES), *((LATENCY, case) for case in LATENCY_CASES)], ids=str
)
def test_load_beyond_the_benchmark(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_growing_queue_says_so_first() -> None:
    assert verdict(RULE, TIER, queue(growing)).sentence.startswith("More requests arrive at a than finish; ")


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
NONE_GROWS = "No queue grows: at most "
UNPLANNED_GROWTH = (
    "The queue of a grows; 41.0, 141.0, then 241.0 were waiting; what replicas take is not known; "
    "2,700 finished in this time, 3,000 arrived"
)

QUEUE_CASES = [
    Case("throughout", PLANLESS, STEEP, WARNED, UNPLANNED_GROWTH),
    # 60 more of 1,800 finished: arrivals and completions come apart by 3.1 x 60 once in a thousand times.
    Case("within chance", PLANLESS, queued(6.0, 10), GUESSED),
    Case("five minutes", PLANLESS, queued(100.0, 5), GUESSED),
    Case("six minutes", PLANLESS, queued(100.0, 6), WARNED),
    Case("too early", PLANLESS, queued(100.0, 2), EARLY),
    Case("just not too early", PLANLESS, queued(100.0, 3), GUESSED),
    Case("long and steady", PLANLESS, waiting(lambda n: 40.0, 43.0, lambda n: 0.0), FINE, NONE_GROWS),
    Case("none", PLANLESS, each(15, minute), FINE, NONE_GROWS),
    Case("worked off", PLANLESS, FIVE_UP_AND_DOWN, FINE, NONE_GROWS),
    Case("hardly any", PLANLESS, waiting(lambda n: 0.02 * n, 3.0, lambda n: 0.1), FINE, NONE_GROWS),
    Case("what a full batch does", PLANLESS, queued(1.0), FINE, NONE_GROWS),
    Case("over", PLANLESS, waiting(lambda n: 8.0 * (n < 10), 9.0, lambda n: 0.0), FINE, f"{NONE_GROWS}0.0 requests"),
    Case("one of two", PLANNED, {"a": each(15, minute), "b": STEEP}, WARNED, "The queue of b (1 of 2 replicas) grows"),
    Case("another length", context(limits={QUEUE: {"waiting": 500.0}}), STEEP, FINE),
    Case("another share", context(limits={QUEUE: {"share": 0.5}}), STEEP, FINE),
    Case("not measured", PLANLESS, [replace(one, gauges={}) for one in each(15, minute)], HIDDEN),
]


def pegged_minute(
    number: int, tokens: dict[float, float], busy: float = 0.99, family: str = "gpu_busy_seconds"
) -> Window:
    """A minute with this GPU utilisation and so many first tokens of each time."""
    made = minute(number, rps=sum(tokens.values()) / 60)
    gpu: dict[str, Any] = {
        "counters": {**made.counters, "gpu_busy_seconds": 60 * busy, "gpu_busy_covered_seconds": 60.0}
    }
    if family != "gpu_busy_seconds":
        gpu = {"gauges": {**made.gauges, family: gauge(busy)}, "sampled": frozenset({family})}
    return replace(made, histograms={"ttft_seconds": seen(tokens)}, **gpu)


def rising(number: int) -> float:
    return 0.08 if number < 7 else 0.4


def pegged(
    seconds: Callable[[int], float] = rising,
    busy: Callable[[int], float] = lambda n: 0.99,
    count: int = 15,
    requests: float = 60.0,
    **more: str,
) -> list[Window]:
    return each(count, lambda n: pegged_minute(n, {seconds(n): requests}, busy(n), **more))


TAIL = each(15, lambda n: pegged_minute(n, {0.08: 540.0, 0.9: 60.0} if n >= 10 else {0.08: 600.0}))
SATURATED = "GPUs of a are pegged at 99.0% while TTFT rises; P50 was 50 to 100 ms, is 260 to 520 ms"
NOT_PEGGED = "GPUs are busy 94.0% of the time on the busiest replica: not pegged"
ONE_IDLE = {"a": pegged(lambda n: 0.08, lambda n: 0.2), "b": pegged()}
HALF, HIGH = context(limits={GPU: {"pegged": 0.5}}), context(limits={GPU: {"pegged": 0.96}})
FEW = "25 requests in the first third at pegged GPUs, 30 are needed"

GPU_CASES = [
    Case("rising", PLANLESS, pegged(), WARNED, SATURATED),
    Case("stable", PLANLESS, pegged(lambda n: 0.4), FINE, "pegged at 99.0% with stable TTFT: prefill-bound"),
    Case("falling", PLANLESS, pegged(lambda n: rising(14 - n)), FINE),
    Case("just below", PLANLESS, pegged(busy=lambda n: 0.94), FINE, NOT_PEGGED),
    Case("at the limit", PLANLESS, pegged(busy=lambda n: 0.95), WARNED),
    Case("over", HIGH, pegged(busy=lambda n: 1.0 if n < 12 else 0.9), FINE),
    Case("two minutes", HALF, pegged(busy=lambda n: 1.0 if n >= 13 else 0.49), FINE),
    Case("three minutes", HALF, pegged(busy=lambda n: 1.0 if n >= 12 else 0.49), WARNED),
    Case("a plain poll", PLANLESS, pegged(family="gpu_utilization_sampled"), GUESSED),
    Case("a profiling counter", PLANLESS, pegged(family="gpu_gr_engine_active"), WARNED),
    # From (0.05, 0.1] to (0.1, 0.15]: 1.3 x the upper edge is 0.13, inside the later bucket.
    Case("neighbouring buckets", PLANLESS, pegged(lambda n: 0.08 if n < 7 else 0.12), GUESSED),
    Case("the tail alone", PLANLESS, TAIL, WARNED, "TTFT rises; P99 was"),
    Case("one of two", PLANLESS, ONE_IDLE, WARNED, "GPUs of b are pegged"),
    Case("told as one of two", PLANLESS, ONE_IDLE, WARNED, "; 1 of 2 replicas"),
    Case("not measured", PLANLESS, each(15, minute), HIDDEN),
    Case("too few", PLANLESS, pegged(requests=5.0), EARLY, FEW),
    Case("too early", PLANLESS, pegged(count=2), EARLY),
]


@pytest.mark.parametrize(
    ("rule", "case"), [*((QUEUE, case) for case in QUEUE_CASES), *((GPU, case) for case in GPU_CASES)], ids=str
)
def test_trend_of_a_tier(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_a_queue_is_explained_by_the_load() -> None:
    """Nearly the usable rate finishes, and 40 a minute more than that arrive."""
    found = verdict(QUEUE, PLANNED, queued(40.0, rps=USABLE_RPS * 0.95))
    assert [cause.cause for cause in found.causes] == ["more load"]
    assert found.causes[0].evidence[0].startswith("more load than planned: ")
    assert verdict(GPU, PLANLESS, pegged()).actions[0].startswith("Chunked prefill")
