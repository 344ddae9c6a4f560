"""No rule says that all is well of a time that it did not watch: the whole catalogue on histories that have just begun."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from judging_samples import START, context, each, gauge, minute, minutes, seen

from rules.catalogue.registry import RULES
from rules.confidence import Certainty
from rules.evaluator import long_rules, tier_rules
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window
from rules.telemetry.windows import Window
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status, Verdict

JUDGED = tuple(rule for rule in RULES if not rule.per_scrape)

SECONDS = {
    "s": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86_400,
    "day": 86_400,
    "week": 604_800,
}

SPAN = re.compile(
    r"(?:in|over|for|last|of) (?:the )?(?:last )?([\d.,]+) (s|seconds?|min|minutes?|h|hours?|d|days?|weeks?)\b"
)
"""A time that a sentence is about, as they all are written; a latency ("above 2 s") is none."""

PLAN: dict[str, Any] = {
    "workload": {
        "prompt_tokens": {"p50": 900, "p95": 1900, "p99": 1990},
        "generation_tokens": {"p50": 90, "p95": 190, "p99": 199},
        "requests_per_second": {"average": 2, "peak": 4},
        "prefix_hit_ratio": 0.5,
    },
    "slo": {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.2},
    "fleet": {"instances": 2, "safety_factor": 1.2, "minimum_warm": 1},
    "cost": {"gpu_hour_price": 2.5, "currency": "USD"},
    "cold_start_seconds": 120,
    "precision": {"weights": "fp8", "kv": "fp8"},
    "guardrails": {"max_prompt_tokens": 4000, "max_generation_tokens": 400, "queue_breaker": 6},
    "speculation": {"draft_tokens": 4, "acceptance": 0.7, "draft_step_seconds": 0.002, "verify_step_seconds": 0.02},
}

HEALTHY: Mapping[str, Any] = {
    "counters": {
        "prompt_tokens": 180_000.0,
        "generation_tokens": 18_000.0,
        "prefix_queried_tokens": 180_000.0,
        "prefix_hit_tokens": 90_000.0,
        "gpu_fault_events": 0.0,
        "gpu_ecc_uncorrectable_errors": 0.0,
        "requests_ended_by_length": 0.0,
        "spec_drafts": 5000.0,
        "spec_draft_tokens": 20_000.0,
        "spec_accepted_tokens": 12_000.0,
    },
    "gauges": {
        "kv_utilization": gauge(0.8),
        "gpu_gr_engine_active": gauge(0.7),
        "gpu_memory_used_bytes": gauge(68e9),
        "gpu_memory_total_bytes": gauge(80e9),
        "gpu_temperature_celsius": gauge(55.0),
    },
    "histograms": {
        "prompt_tokens_per_request": seen({1000.0: 180.0}, (500.0, 1000.0, 2000.0, float("inf"))),
        "generation_tokens_per_request": seen({100.0: 180.0}, (50.0, 100.0, 200.0, float("inf"))),
        "e2e_seconds": seen({1.0: 180.0}),
        "itl_seconds": seen({0.08: 18_000.0}),
    },
}


PROVEN = frozenset({"GpuXid", "GpuEccErrors", "KvEviction", "ReplicaFlapping"})
"""What a minute proves: of events that are counted one by one, and of ratios of many requests or rounds."""


def healthy(number: float, **more: Any) -> Window:
    return minute(number, **{**{kind: dict(parts) for kind, parts in HEALTHY.items()}, **more})


def overloaded(number: float) -> Window:
    """24 times what a replica can take, and everything late."""
    return healthy(number, rps=144.0, slow=144.0 * 60, waiting=200.0, in_system=400.0)


HISTORIES: dict[str, list[Window]] = {
    "empty": [],
    "two minutes, healthy": each(2, healthy),
    "five minutes, healthy": each(5, healthy),
    "two minutes, 24 times usable": each(2, overloaded),
    "two minutes, nothing exposed": [
        Window(start=START, end=START + 120.0, expected_seconds=120.0, covered_seconds=120.0)
    ],
    "two minutes with an hour between them": [healthy(0), healthy(59)],
    "two overloaded minutes with an hour between them": [overloaded(0), overloaded(59)],
}


def named(sentence: str) -> float:
    """The longest time (seconds) that a sentence says something of; 0 where it names none."""
    return max(
        (
            float(count.replace(",", "")) * SECONDS[unit.removesuffix("s") or "s"]
            for count, unit in SPAN.findall(sentence)
        ),
        default=0.0,
    )


def slices_of(tier: TierContext, history: list[Window]) -> tuple[BinnedWindow, ...]:
    return tuple(bin_window(one, tier.curve, "a") for one in history)


def results(history: list[Window]) -> list[RuleResult]:
    """Of every rule: live, over days, by Step 13 in minutes and in hours, and straight from its way of judging."""
    tier = context(**PLAN)
    found = slices_of(tier, history)
    now = max((one.end for one in history), default=START)
    booked = minutes(tier, {"a": history})
    fleet = {"t": (tier, HeldWindows(found))}
    told: list[RuleResult] = list(tier_rules.evaluate_tier_rules(booked, tier, now, fleet))
    told += long_rules.evaluate_long_rules(tier, found, now)
    for period in (60.0, 3600.0):
        told += check_benchmark(tier, found, now, period).results
        told += [evaluate_rule(rule, tier, found, now, period) for rule in JUDGED]
    return told


@pytest.mark.parametrize("name", HISTORIES)
def test_sentences_name_watched_times(name: str) -> None:
    history = HISTORIES[name]
    watched = hold(slices_of(context(**PLAN), history)).watched_seconds
    for result in results(history):
        if isinstance(result, Verdict) and result.status is Status.OK and result.certainty is Certainty.CERTAIN:
            assert named(result.sentence) <= watched + 1.0, (result.rule, result.sentence)


@pytest.mark.parametrize("name", HISTORIES)
def test_rules_wait_for_their_minimum(name: str) -> None:
    history = HISTORIES[name]
    watched = hold(slices_of(context(**PLAN), history)).watched_seconds
    needed = {rule.name: rule.minimum_seconds for rule in RULES}
    for result in results(history):
        if isinstance(result, Verdict) and result.status is Status.OK:
            assert watched >= 0.9 * needed[result.rule], (result.rule, result.sentence)


@pytest.mark.parametrize("name", [name for name in HISTORIES if "24 times" in name or "overloaded" in name])
def test_young_trouble_is_not_ok(name: str) -> None:
    """Of those that answer from a minute on, only what so much load says nothing of."""
    fine = {a.rule for a in results(HISTORIES[name]) if isinstance(a, Verdict) and a.status is Status.OK}
    assert fine <= PROVEN


def test_the_spans_of_sentences_are_found() -> None:
    assert named("0.1% of 900 requests in 1 h missed the 2 s TTFT objective") == 3600.0
    assert named("GPU faults: 0 in 15 min") == 900.0
    assert named("Beyond the benchmark for 2 of 12 minutes seen, over by now") == 720.0
    assert named("fleet utilisation 33.0% over 7.0 days") == 604_800.0
    assert named("A request spends 1.2 s in the system") == 0.0
