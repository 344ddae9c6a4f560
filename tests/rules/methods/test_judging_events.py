"""Evictions by themselves and beside the benchmark: one table of cases (fires, just within, too early, over)."""

from __future__ import annotations

from typing import Any

import pytest
from judging_samples import context, each, minute, verdict
from rule_cases import EARLY, FINE, GUESSED, UNPLANNED, UNSEEN, WARNED, Case, check_case

from rules.confidence import Certainty
from rules.plan.load_bins import build_tier_context
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Status

KV, EXCESS = "KvEviction", "EvictionDivergence"
TIER = context()
BENCHMARKED = ({"eviction_rate": 0.0}, {"eviction_rate": 0.02}, {"eviction_rate": 0.04})
PLANNED = context(*BENCHMARKED)
PARTLY = context({}, {"eviction_rate": 0.0}, {"eviction_rate": 0.0})
CRITICAL, LIKELY_CRITICAL = (Status.CRITICAL, Certainty.CERTAIN), (Status.CRITICAL, Certainty.LIKELY)


def evicting(*preemptions: float, rps: float = 3.0) -> list[Window]:
    return each(len(preemptions), lambda n: minute(n, rps=rps, counters={"preemptions": preemptions[n]}))


def always(preemptions: float, rps: float = 3.0, count: int = 5) -> list[Window]:
    return evicting(*[preemptions] * count, rps=rps)


def unseen_at_the_end() -> list[Window]:
    *first, last = always(60)
    return [*first, gap_window(last.start, last.end, Gap.SCRAPE_FAILED)]


SHARE = "of finished requests"
HALF_ENDED = "240 preemptions for 900 finished requests"
ALLOWED = "5 points more than the benchmark are allowed"

KV_CASES: list[tuple[Any, ...]] = [
    ("five per cent", TIER, always(9), FINE, f"5.0% {SHARE}; below 5% is healthy; 45 preemptions for 900"),
    ("above five", TIER, always(20), WARNED),
    ("just within twenty", TIER, always(36), WARNED),
    ("above twenty", TIER, always(37), CRITICAL),
    # 50 for 900: the 99.9 % lower bound of a Poisson mean is 31, 3.4 %; of 75 it is 51, 5.6 %.
    ("few events", TIER, always(10), GUESSED),
    ("enough events", TIER, always(15), WARNED),
    ("one burst", TIER, evicting(0, 0, 0, 200, 200), LIKELY_CRITICAL),
    ("three minutes", TIER, evicting(0, 0, 200, 200, 200), CRITICAL),
    (
        "over",
        TIER,
        evicting(60, 60, 60, 60, 0),
        FINE,
        f"26.7% {SHARE}; none in the last quarter of the time; {HALF_ENDED}",
    ),
    ("milder at the end", TIER, evicting(60, 60, 60, 60, 2), LIKELY_CRITICAL),
    (
        "unseen at the end",
        TIER,
        unseen_at_the_end(),
        Gap.SCRAPE_FAILED,
        "preemptions were not seen in the last quarter",
    ),
    ("19 requests", TIER, always(1, rps=3.8 / 60), EARLY, "19 requests, 20 are needed"),
    ("19 requests, many events", TIER, always(6, rps=3.8 / 60), CRITICAL),
    ("20 requests", TIER, always(1, rps=4 / 60), LIKELY_CRITICAL),
    ("nothing finishes", TIER, always(6, rps=0.0), CRITICAL, "30 preemptions while no request finished; above 20%"),
    ("idle", TIER, always(0, rps=0.0), UNSEEN, "no eviction_rate"),
    ("no plan", build_tier_context("t", None), always(60), CRITICAL),
    ("beyond the benchmark", TIER, always(200, rps=9.0), CRITICAL),
]
EXCESS_CASES: list[tuple[Any, ...]] = [
    # 3 rps lies between 0 and 2 %: the upper point's is expected, 5 points more are allowed.
    ("the benchmark's", PLANNED, always(12.6), FINE, f"7.0% {SHARE}; the benchmark has 2.0% at this load; 63 pre"),
    ("just above", PLANNED, always(14), GUESSED, ALLOWED),
    ("above", PLANNED, always(22), WARNED),
    ("thin benchmark", context(*BENCHMARKED, requests=100), always(60), GUESSED),
    (
        "over",
        PLANNED,
        evicting(*[60] * 6, 0, 0),
        FINE,
        "2.0% at this load; none in the last quarter of the time; 360 pre",
    ),
    ("too few requests", PLANNED, always(9, rps=0.4, count=4), EARLY, "96 requests, 100 are needed"),
    ("not measured", TIER, always(0), UNPLANNED, "the benchmark has no eviction_rate"),
    ("not at this load", PARTLY, always(0), UNPLANNED, "the benchmark has no eviction_rate at this load"),
    ("beyond the benchmark", PLANNED, always(200, rps=9.0), Gap.OUTSIDE_BENCHMARK),
]
CASES = [*((KV, Case(*row)) for row in KV_CASES), *((EXCESS, Case(*row)) for row in EXCESS_CASES)]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=str)
def test_evictions_of_a_tier(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_expected_evictions_follow_load() -> None:
    """360 requests at 2 rps where none are expected, 900 at 5 rps where 4 % are: 36 of 1260."""
    expected = verdict(EXCESS, PLANNED, each(6, lambda n: minute(n, rps=2.0 if n % 2 else 5.0))).expected
    assert expected.value == pytest.approx(36 / 1260)
    assert isinstance(verdict(KV, TIER, always(6, rps=0.0)).observed, Missing)
