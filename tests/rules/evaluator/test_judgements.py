from dataclasses import replace

import pytest
from judging_samples import START, add_minute, answered, context, each, gauge, minute, seen, unknown

from rules.catalogue.registry import BY_NAME, RULES
from rules.evaluator import tier_minutes
from rules.evaluator.tier_rules import evaluate_rule
from rules.methods.bands import judge_event_ratio, judge_excess
from rules.methods.divergence import judge_mean, judge_tail
from rules.methods.load import judge_beyond
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Status, Subject

COMPARING = frozenset({judge_tail, judge_mean, judge_excess, judge_beyond, judge_event_ratio})
"""The ways of step 13; the others have tests of their own for what they need."""

JUDGED = [rule.name for rule in RULES if rule.method in COMPARING]
COMPARED = [name for name in JUDGED if name != "KvEviction"]
WHOLE = context(
    *({"gpu_utilization": 0.5, "prefix_hit_ratio": 0.5, "eviction_rate": 0.0} for _ in range(3)),
    curve={"gpu_utilization_kind": "nvml_gpu"},
)


def healthy(number: int, **more: object) -> Window:
    """A minute in which every rule finds what it judges, and all is well."""
    counters = {
        "gpu_busy_seconds": 30.0,
        "gpu_busy_covered_seconds": 60.0,
        "prefix_queried_tokens": 1800.0,
        "prefix_hit_tokens": 900.0,
        "preemptions": 0.0,
    }
    histograms = {"itl_seconds": seen({0.01: 1800})}
    return minute(number, counters=counters, histograms=histograms, **more)


@pytest.mark.parametrize("rule", JUDGED)
def test_every_rule_finds_health_fine(rule: str) -> None:
    found = answered(rule, WHOLE, each(5, healthy))
    assert (found.status, found.subject, found.actions) == (Status.OK, Subject(tier="t"), ())
    assert found.t == START + 300
    assert found.unit == BY_NAME[rule].unit


@pytest.mark.parametrize("rule", JUDGED)
def test_no_rule_judges_before_its_minimum(rule: str) -> None:
    needed = BY_NAME[rule].minimum_seconds
    early = each(int(needed // 60), lambda n: healthy(n, end=START + 60 * n + 59.9))
    found = unknown(rule, WHOLE, early)
    assert found.reason is Gap.TOO_FEW_REQUESTS
    assert found.text.endswith(f"s seen, {needed:.0f} s are needed")


@pytest.mark.parametrize("rule", JUDGED)
def test_unseen_tier_is_not_judged(rule: str) -> None:
    down = [gap_window(START + 60 * n, START + 60 * (n + 1), Gap.SCRAPE_FAILED) for n in range(5)]
    assert unknown(rule, WHOLE, down).reason is Gap.SCRAPE_FAILED
    empty = evaluate_rule(BY_NAME[rule], WHOLE, (), START)
    assert (empty.reason, empty.text) == (Gap.SCRAPE_FAILED, "no replica of the tier has been seen")


@pytest.mark.parametrize("rule", JUDGED)
def test_restart_is_the_named_gap(rule: str) -> None:
    restarts = [gap_window(START + 60 * n, START + 60 * (n + 1), Gap.RESTARTED) for n in range(5)]
    assert unknown(rule, WHOLE, restarts).reason is Gap.RESTARTED


@pytest.mark.parametrize("rule", COMPARED)
def test_without_a_benchmark_nothing_is_compared(rule: str) -> None:
    found = unknown(rule, bare("t", None), each(5, healthy))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")


@pytest.mark.parametrize("rule", JUDGED)
def test_idle_tier_judges_no_requests(rule: str) -> None:
    def idle(number: int) -> Window:
        counters = {"preemptions": 0.0, "prefix_queried_tokens": 0.0, "prefix_hit_tokens": 0.0}
        empty = {family: seen({}) for family in ("ttft_seconds", "tpot_seconds", "itl_seconds")}
        window = minute(number, rps=0.0, counters=counters, histograms=empty, gauges={"requests_running": gauge(0.0)})
        return replace(window, counters={**window.counters, "gpu_busy_seconds": 0.0, "gpu_busy_covered_seconds": 60.0})

    found = answered(rule, WHOLE, each(5, idle))
    if rule in ("LoadBeyondBenchmark", "GpuUtilizationShortfall"):
        assert found.status is Status.OK
    else:
        assert found.reason in (Gap.NO_TRAFFIC, Gap.TOO_FEW_REQUESTS)


def test_hold_is_the_rules_window() -> None:
    # KvEviction looks back 5 minutes, TtftDivergence 15: what lies before is forgotten.
    storm = each(30, lambda n: minute(n, slow=90 if n < 15 else 0, counters={"preemptions": 90.0 if n < 25 else 0.0}))
    for rule in ("KvEviction", "TtftDivergence"):
        found = answered(rule, WHOLE, storm)
        assert found.status is Status.OK
        assert "0.0%" in found.sentence
    kept = tier_minutes.TierMinutes()
    for window in each(70, minute):
        kept = add_minute(kept, window, "a", WHOLE)
    assert len(kept.binned) == tier_minutes.LONGEST / 60 + 1


def test_long_findings_need_three_hours() -> None:
    rule = BY_NAME["TtftDivergence"]

    def hours(slow: tuple[int, ...]) -> Status:
        made = [minute(60 * n, seconds=3600.0, slow=1000.0 if n in slow else 0.0) for n in range(8)]
        placed = tuple(
            one for window in made for one in add_minute(tier_minutes.TierMinutes(), window, "", WHOLE).binned
        )
        found = evaluate_rule(rule, WHOLE, placed, START + 8 * 3600, 3600.0)
        return found.status

    assert hours((6, 7)) is Status.OK
    assert hours((1, 6, 7)) is Status.WARNING
    assert hours((0, 1, 2, 3)) is Status.OK
