"""Trends over 15 minutes, by thirds: queues that grow, and pegged GPUs with a rising or a stable TTFT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict
from rule_cases import EARLY, FINE, GUESSED, HIDDEN, WARNED, Case, check_case

from rules.plan.load_bins import build_tier_context
from rules.telemetry.windows import Window

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
    Case(
        "over", PLANLESS, waiting(lambda n: 8.0 * (n < 10), 9.0, lambda n: 0.0), FINE, f"{NONE_GROWS}0.0 requests were"
    ),
    Case(
        "one of two", PLANNED, {"a": each(15, minute), "b": STEEP}, WARNED, "The queue of b (1 of 2 replicas) grows; "
    ),
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
    Case(
        "stable", PLANLESS, pegged(lambda n: 0.4), FINE, "pegged at 99.0% with stable TTFT: prefill-bound and healthy"
    ),
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
