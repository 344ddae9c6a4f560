"""Time in the system beyond the benchmark's: one table of cases (fires, just within, too early, over, not measured)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, minute, seen, verdict
from length_samples import sized, usual
from rule_cases import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, WARNED, Case, check_case

from rules.plan.load_bins import TierContext, build_tier_context
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window

RULE = "BenchmarkNotRepresentative"
SPANS = (0.5, 1.0, 2.0, 5.0, float("inf"))
TIER, SLOWER_END = context(), context({"concurrency": 1})
BALD = context({"concurrency": None}, {"concurrency": None}, {"concurrency": None})
UNCOUNTED = context(*({"requests": None},) * 3)
SIZED = context(*({"prompt_tokens_mean": 80},) * 3)


def predicted(of: TierContext) -> TierContext:
    """The same curve as a planner's."""
    assert of.curve is not None
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
    gauges = {
        "requests_running": GaugeSum(integral=180.0, **level),
        "requests_waiting": GaugeSum(integral=0.0, **level),
    }
    whole = [seen({seconds if n in numbers else 1.0: 180.0}, SPANS) for n in range(15)]
    return each(15, lambda n: minute(n, in_system=3.0, histograms={"e2e_seconds": whole[n]}, gauges=gauges, **more))


def of_length(prompts: float, in_system: float = 3.0, count: int = 12) -> list[Window]:
    counters = {"prompt_tokens": 180 * prompts, "generation_tokens": 180 * 44.0}
    return staying(in_system, count, counters=counters)


def contradiction(seconds: float) -> str:
    by_law = f"{3 * seconds:.3g} by Little's law"
    return f"the telemetry contradicts itself: 3 requests in the system by the gauges, {by_law}"


def without_gauges() -> list[Window]:
    span = {"expected_seconds": 60.0, "covered_seconds": 60.0}
    return [Window(start=one.start, end=one.end, counters=one.counters, **span) for one in each(6, minute)]


SILENT = [*staying(6.5, 4), *(minute(n, rps=0.0, in_system=0.0) for n in (4, 5))]
TWICE = (
    "Requests stay 2.0x as long as in the benchmark; up to 2x is representative; 2 s in the system, benchmark 1 s at"
)
ESTIMATE = "2.4 s in the system, benchmark 1 s at this load (at most 1.15 s); 1,080 requests"
NO_TIMES = "the benchmark has no concurrencies, and no medians of TTFT, TPOT and output tokens"
LONGER = "Prompts are 3.9x as long as benchmarked: mean 314 tokens, 80 benchmarked"

CASES = [
    Case("twice", TIER, staying(6.0), FINE, TWICE),
    Case("more than twice", TIER, staying(6.2), WARNED),
    Case("a prediction", predicted(UNCOUNTED), staying(6.2), GUESSED, "the curve is predicted: no engine has run it"),
    # At 3 rps, between 1 / 2 and 4 / 4 rps: 0.71 s in the middle of the logarithms, 1 s at the slower end.
    Case("within the middle", SLOWER_END, staying(4.2), FINE),
    Case("beyond the middle", SLOWER_END, staying(4.3), GUESSED),
    Case("beyond the slower end", SLOWER_END, staying(6.1), WARNED),
    # 4.3 and 6.1 in the system by turns are 1.73 s over the hold, less than twice the slower end's.
    Case("beyond it for three minutes", SLOWER_END, jammed(range(3, 6), 6.1, 4.3), GUESSED),
    Case("beyond the benchmark", TIER, staying(20.0), Gap.OUTSIDE_BENCHMARK),
    Case("thin benchmark", context(requests=100), staying(6.5), GUESSED),
    Case("two minutes", TIER, jammed(range(4, 6), 7.9, 5.4), FINE),
    Case("three minutes", TIER, jammed(range(3, 6), 7.9, 5.4), WARNED),
    Case("over", TIER, jammed(range(6), 7.9, 3.0, 8), FINE),
    Case("too early", TIER, staying(6.5, 2), EARLY, "120 s seen, 180 s are needed"),
    Case("too few requests", TIER, staying(1.0, 4, rps=0.4), EARLY, "96 requests, 100 are needed"),
    Case("silent at the end", TIER, SILENT, EARLY, "0 requests in the last quarter of the time, 25 are needed"),
    Case("no plan", build_tier_context("t", None), each(6, minute), UNPLANNED),
    Case("no concurrencies", BALD, each(6, minute), UNPLANNED, NO_TIMES),
    Case("not measured", TIER, without_gauges(), HIDDEN),
    # The mean is at most (0.1 + 0.2) / 2 + 10 x (0.09 + 0.11) / 2 = 1.15 s.
    Case("beyond the estimate", estimated(0.11), staying(6.6), GUESSED),
    Case("beyond what P99s leave open", estimated(0.11), staying(7.2), WARNED, ESTIMATE),
    Case("no P99s", estimated(None), staying(7.2), GUESSED),
    *(Case(f"{seconds} s", TIER, timed(seconds), FINE) for seconds in (1.0, 1.24, 0.81)),
    *(Case(f"{seconds} s", TIER, timed(seconds), Gap.STALE, contradiction(seconds)) for seconds in (1.3, 0.75)),
    Case("few samples", TIER, timed(1.3, samples=1)[:6], FINE),
    Case("a contradiction that is over", TIER, timed(3.0, numbers=range(9)), FINE),
    Case("the number changes", TIER, timed(1.5, change=30.0), FINE),
    Case("other lengths", SIZED, of_length(314.0), WARNED, LONGER),
    Case("other lengths beyond the benchmark", SIZED, of_length(314.0, 40.0), WARNED, LONGER),
    Case("near lengths", SIZED, of_length(150.0), FINE, "in the benchmark"),
    Case("lengths that are not benchmarked", TIER, of_length(900.0), FINE, "in the benchmark"),
    Case("what time proves", SIZED, of_length(314.0, 6.2, 6), WARNED, "in the benchmark"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_time_in_the_system(case: Case) -> None:
    check_case(RULE, case)


def test_observed_time_and_its_actions() -> None:
    found = verdict(RULE, TIER, staying(6.2))
    time = pytest.approx(6.2 / 3)
    assert found.observed == Reading(value=time, low=time, high=time, n=1080)
    assert found.actions[0].startswith("Compare prompt and output lengths")
    assert verdict(RULE, SIZED, of_length(314.0)).unit == "tokens"


def test_shorter_benchmark_is_suspect() -> None:
    tier = context(workload={"generation_tokens": {"p50": 40, "p95": 80}})
    found = verdict(RULE, tier, each(6, lambda n: sized(n, usual(), usual(long=30), in_system=6.5)))
    assert [cause.cause for cause in found.causes] == ["output lengths"]
    assert found.causes[0].evidence[0].startswith("outputs are longer than planned: ")
