"""Load beyond the benchmark: one table of cases (fires, just within, over, not measured), and the rules that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from judging_samples import context, each, gauge, minute, verdict
from rule_cases import FINE, GUESSED, UNPLANNED, WARNED, Case, check_case

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
    Case(
        "inside",
        TIER,
        each(5, lambda n: minute(n, rps=5.9)),
        FINE,
        "At most 5.9 rps a replica; the benchmark goes to 6",
    ),
    Case("three minutes", TIER, last(3), WARNED, THREE_MINUTES),
    Case("two minutes", TIER, last(2), GUESSED),
    Case("one minute", TIER, last(1), FINE, SHORT),
    Case(
        "9 in the system",
        TIER,
        crowded(9.0),
        WARNED,
        "9 requests in the system are more than the benchmark's highest, 8",
    ),
    Case("8 in the system", TIER, crowded(7.9), FINE),
    Case("over", TIER, beyond(range(9), 12), FINE, ENDED),
    # Sixteen minutes: fifteen are in the hold, of which the last three count; two of them are beyond, then one.
    Case("two of the last three", TIER, beyond((10, 13, 14), 16), WARNED),
    Case("one of the last three", TIER, beyond((9, 10, 13), 16), FINE),
    Case(
        "one of eight",
        TIER,
        fleet(8, lambda i, n: i == 2),
        WARNED,
        "r2 (1 of 8 replicas) is beyond the benchmarked load; ",
    ),
    Case(
        "two of eight", TIER, fleet(8, lambda i, n: i < 2), WARNED, "2 of 8 replicas are beyond the benchmarked load; "
    ),
    Case("named in the details", TIER, fleet(8, lambda i, n: i < 2), WARNED, "r0, r1"),
    Case("scattered", TIER, fleet(5, lambda i, n: i == n), FINE),
    # Growth too small to show in any one minute: 0.7 more arrive than finish.
    Case(
        "a growing queue", TIER, queue(growing), GUESSED, "0.6, 1.6, then 2.6 were waiting; 3 rps finish, the benchmark"
    ),
    Case("it does not double", TIER, queue(lambda n: 2.0 + n / 10), FINE),
    Case("less than one waits", TIER, queue(lambda n: 0.05 * n), FINE),
    Case("no more arrive than finish", TIER, queue(growing, -0.1), FINE),
    Case("it shrinks", TIER, queue(lambda n: 3.0 - n / 4), FINE),
    Case("held back", TIER, HELD, FINE),
    Case(
        "no plan", build_tier_context("t", None), each(5, minute), UNPLANNED, "the plan has no benchmark curve for this"
    ),
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
