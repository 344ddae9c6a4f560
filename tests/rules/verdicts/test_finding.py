"""Findings through results and gaps, held windows, projections, and histories that have just begun."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, context, each, gauge, minute, minutes, seen

from rules.catalogue.registry import BY_NAME, RULES
from rules.confidence import Certainty
from rules.evaluator import rule_evaluation
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window, sum_load_bins
from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import Window, gap_window, sum_families
from rules.verdicts.context import ForecastPoint, Projection
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import (
    MOST_TRANSITIONS,
    ClosedSpan,
    Finding,
    RuleResult,
    RuleState,
    Status,
    Subject,
    Transition,
    Unknown,
    UnknownSpan,
    Verdict,
    close_rule_state,
    step_rule_state,
)

SUBJECT = Subject(tier="t", replica="a")
OK, WARNING, CRITICAL = Status.OK, Status.WARNING, Status.CRITICAL
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def result(t: float, status: Status, certainty: Certainty = CERTAIN, **more: Any) -> Verdict:
    missing = Missing(gap=Gap.NOT_IN_PLAN)
    whole = {"observed": missing, "expected": missing, "unit": "ratio", "sentence": f"at {t:g}", **more}
    return Verdict(t=t, rule="KvEviction", subject=SUBJECT, status=status, certainty=certainty, **whole)


def gap(t: float, reason: Gap = Gap.SCRAPE_FAILED, text: str = "") -> Unknown:
    return Unknown(t=t, rule="KvEviction", subject=SUBJECT, reason=reason, text=text)


def through(results: Iterable[RuleResult]) -> tuple[RuleState, list[ClosedSpan]]:
    rule_state: RuleState | None = None
    ended: list[ClosedSpan] = []
    for one in results:
        rule_state, now = step_rule_state(rule_state, one)
        ended.extend(now)
    return rule_state, ended


def test_episode_spans_warning_to_ok() -> None:
    results = [result(1, OK), result(2, WARNING), result(3, WARNING), result(4, OK), result(5, OK)]
    rule_state, (finding, second) = through([*results, result(6, CRITICAL), result(7, OK)])
    assert rule_state.finding is None
    assert isinstance(finding, Finding)
    assert (finding.rule, finding.subject) == ("KvEviction", SUBJECT)
    assert (finding.started_at, finding.ended_at) == (2, 4)
    begin = Transition(t=2, status=WARNING, stage=None, certainty=CERTAIN)
    assert finding.transitions == (begin, replace(begin, t=4, status=OK))
    assert (second.started_at, second.ended_at) == (6, 7)


def test_only_changes_are_transitions() -> None:
    stages = [(WARNING, LIKELY, 1), (WARNING, LIKELY, 1), (WARNING, CERTAIN, 1), (WARNING, CERTAIN, 2)]
    stages += [(CRITICAL, CERTAIN, 3), (CRITICAL, CERTAIN, 3)]
    results = [result(t, status, certainty, stage=stage) for t, (status, certainty, stage) in enumerate(stages, 1)]
    rule_state, _ = through(results)
    assert [t.t for t in rule_state.finding.transitions] == [1, 3, 4, 5]


def test_gap_ends_no_episode() -> None:
    begun = [result(1, WARNING), gap(2, text="no page")]
    rule_state, _ = through(begun)
    assert rule_state.finding is not None
    reason = Gap.SCRAPE_FAILED
    span = UnknownSpan(rule="KvEviction", subject=SUBJECT, reason=reason, text="no page", started_at=2, ended_at=None)
    assert (rule_state.unknown, rule_state.result) == (span, begun[-1])
    rule_state, ended = through([*begun, gap(3, text="no page"), result(4, WARNING), result(5, OK)])
    spans = [e for e in ended if isinstance(e, UnknownSpan)]
    (finding,) = [e for e in ended if isinstance(e, Finding)]
    assert (finding.started_at, finding.ended_at) == (1, 5)
    assert [(s.started_at, s.ended_at) for s in spans] == [(2, 4)]
    assert (rule_state.finding, rule_state.unknown) == (None, None)
    _, ended = through([gap(1), gap(2), gap(3, Gap.RESTARTED), result(4, OK)])
    reasons = [(e.reason, e.started_at, e.ended_at) for e in ended if isinstance(e, UnknownSpan)]
    assert reasons == [(Gap.SCRAPE_FAILED, 1, 3), (Gap.RESTARTED, 3, 4)]


@pytest.mark.parametrize(
    ("reason", "seconds", "ends"),
    [
        *((reason, 7200.0, False) for reason in (Gap.SCRAPE_FAILED, Gap.NOT_SCRAPED, Gap.RESTARTED)),
        (Gap.TOO_FEW_REQUESTS, 7200.0, False),
        (Gap.NOT_EXPOSED, 900.0, False),
        (Gap.NOT_EXPOSED, 901.0, True),
        (Gap.NOT_IN_PLAN, 901.0, True),
    ],
)
def test_unasked_rule_ends_without_ok(reason: Gap, seconds: float, ends: bool) -> None:
    """Missing data is no recovery, however long it lasts."""
    rule_state, ended = through([result(1, WARNING), gap(2, reason), gap(2 + seconds, reason)])
    assert (rule_state.finding is None) is ends
    assert [one.ended_at for one in ended] == [2 + seconds] * ends


@pytest.mark.parametrize(
    ("results", "worst"),
    [
        ((result(1, CRITICAL, LIKELY), result(2, WARNING, CERTAIN)), 1),
        ((result(1, WARNING, CERTAIN), result(2, WARNING, LIKELY)), 1),
        ((result(1, CRITICAL, stage=4), result(2, CRITICAL, stage=3)), 1),
        ((result(1, WARNING, LIKELY), result(2, WARNING, CERTAIN), result(3, CRITICAL, LIKELY)), 3),
        ((result(1, WARNING), result(2, WARNING)), 2),
    ],
)
def test_worst_has_an_order(results: tuple[Verdict, ...], worst: float) -> None:
    rule_state, ended = through(results)
    assert (rule_state.finding.worst.t, rule_state.finding.ended_at, ended) == (worst, None, [])


def test_what_is_watched_no_more_ends() -> None:
    rule_state, _ = through([result(1, WARNING), gap(2)])
    finding, span = close_rule_state(rule_state, 9)
    assert (type(finding), type(span)) == (Finding, UnknownSpan)
    assert (finding.started_at, finding.ended_at, span.started_at, span.ended_at) == (1, 9, 2, 9)
    fine, _ = through([result(1, OK)])
    assert close_rule_state(fine, 9) == ()


def test_flapping_episode_keeps_its_ends() -> None:
    flapping = [result(60.0 * n, (Status.WARNING, Status.CRITICAL)[n % 2]) for n in range(10_080)]
    rule_state, ended = through(flapping)
    assert ended == []
    kept = [one.t for one in rule_state.finding.transitions]
    assert len(kept) == MOST_TRANSITIONS
    assert (kept[0], kept[-1]) == (0.0, 60.0 * 10_079)
    assert kept == sorted(set(kept))


FAMILIES = ("requests_finished", "requests_running", "ttft_seconds")


def held() -> HeldWindows:
    made = {name: each(6, lambda number: minute(number, rps=1.0 + number)) for name in ("a", "b")}
    return HeldWindows(minutes(context(), made).binned)


def test_sums_are_those_of_the_windows() -> None:
    one = held()
    several = [binned.window for binned in one]
    assert one.sum_families(FAMILIES) == sum_families(several, FAMILIES)
    parts = [part for window in several for part in window.histograms.get("ttft_seconds", ())]
    assert one.sum_parts("ttft_seconds") == histograms.sum_histograms(parts)
    inside = [binned for binned in one if binned.bin in range(len(context().curve.points))]
    assert one.by_load_bin(context().curve) == sum_load_bins(inside) != {}
    assert hold(one) is one
    assert hold(tuple(one)) == one


def test_minute_has_all_windows_in_order() -> None:
    periods = held().periods(60.0)
    assert list(periods) == sorted(periods)
    assert [sorted(binned.replica or "" for binned in group) for group in periods.values()] == [["a", "b"]] * 6
    assert held().on_curve == tuple(binned for binned in held() if binned.bin is not None)


def test_answers_cache_by_argument() -> None:
    asked: list[float] = []

    def count(windows: HeldWindows, factor: float) -> float:
        asked.append(factor)
        return len(windows) * factor

    one = held()
    assert [one.once(count, 1.0), one.once(count, 2.0), one.once(count, 1.0)] == [12.0, 24.0, 12.0]
    assert asked == [1.0, 2.0]
    assert one.once(lambda windows, factor: len(windows) / factor, 2.0) == 6.0
    assert one.sum_families(FAMILIES) is one.sum_families(reversed(FAMILIES))


def test_inner_window_ends_nothing() -> None:
    spans = [gap_window(*span, Gap.SCRAPE_FAILED) for span in ((0.0, 100.0), (10.0, 20.0), (90.0, 120.0))]
    seen = [replace(one, covered_seconds=one.span) for one in spans]
    binned = [BinnedWindow(replica="a", window=one, rps=None, in_system=None) for one in seen]
    assert HeldWindows(binned).watched_seconds == 120.0


@pytest.mark.parametrize(
    ("points", "now", "wanted"),
    [
        ([1000.0 + 60.0 * n for n in range(20)], 1030.0, [1060.0, 1120.0, 1180.0, 1240.0]),
        ([1100.0, 1200.0, 1300.0], 1000.0, [1100.0, 1200.0]),
        ([1100.0, 1200.0, 1300.0], 1100.0, [1100.0, 1200.0, 1300.0]),
        # Bins that are longer than the lead: the next.
        ([1600.0, 2200.0], 1000.0, [1600.0]),
        # Outlived, or nothing.
        ([1100.0, 1200.0], 1201.0, []),
        ([], 1000.0, []),
    ],
)
def test_warmable_ends_behind_lead(points: list[float], now: float, wanted: list[float]) -> None:
    made = tuple(ForecastPoint(t=t, q50=1.0, q95=2.0, q99=3.0) for t in points)
    projection = Projection(tier="t", made_at=1000.0, horizon_seconds=200.0, points=made, method="m")
    assert [point.t for point in projection.points_until(now)] == wanted


JUDGED = tuple(rule for rule in RULES if not rule.per_scrape)

SECONDS = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
SECONDS["week"] = 7 * SECONDS["day"]

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

LENGTHS = {"prompt_tokens": 180_000.0, "generation_tokens": 18_000.0}
PREFIXES = {"prefix_queried_tokens": 180_000.0, "prefix_hit_tokens": 90_000.0}
DRAFTS = {"spec_drafts": 5000.0, "spec_draft_tokens": 20_000.0, "spec_accepted_tokens": 12_000.0}
FAULTS = dict.fromkeys(("gpu_fault_events", "gpu_ecc_uncorrectable_errors", "requests_ended_by_length"), 0.0)
LEVELS = {"kv_utilization": 0.8, "gpu_gr_engine_active": 0.7, "gpu_temperature_celsius": 55.0}
MEMORY = {"gpu_memory_used_bytes": 68e9, "gpu_memory_total_bytes": 80e9}
HEALTHY: Mapping[str, Any] = {
    "counters": {**LENGTHS, **PREFIXES, **DRAFTS, **FAULTS},
    "gauges": {name: gauge(level) for name, level in {**LEVELS, **MEMORY}.items()},
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


UNEXPOSED = Window(start=START, end=START + 120.0, expected_seconds=120.0, covered_seconds=120.0)
HISTORIES: dict[str, list[Window]] = {
    "empty": [],
    "two minutes, healthy": each(2, healthy),
    "five minutes, healthy": each(5, healthy),
    "two minutes, 24 times usable": each(2, overloaded),
    "two minutes, nothing exposed": [UNEXPOSED],
    "two minutes with an hour between them": [healthy(0), healthy(59)],
    "two overloaded minutes with an hour between them": [overloaded(0), overloaded(59)],
}


def named(sentence: str) -> float:
    """The longest time (seconds) that a sentence says something of; 0 where it names none."""
    times = [0.0]
    for count, unit in SPAN.findall(sentence):
        times.append(float(count.replace(",", "")) * SECONDS[unit.removesuffix("s") or "s"])
    return max(times)


def slices_of(tier: TierContext, history: list[Window]) -> tuple[BinnedWindow, ...]:
    return tuple(bin_window(one, tier.curve, "a") for one in history)


def results(history: list[Window]) -> list[RuleResult]:
    """Of every rule: live, over days, by Step 13 in minutes and in hours, and straight from its way of judging."""
    tier = context(**PLAN)
    found = slices_of(tier, history)
    now = max((one.end for one in history), default=START)
    fleet = {"t": (tier, HeldWindows(found))}
    told: list[RuleResult] = list(rule_evaluation.evaluate_tier_rules(minutes(tier, {"a": history}), tier, now, fleet))
    told += rule_evaluation.evaluate_long_rules(tier, found, now)
    for period in (60.0, 3600.0):
        told += check_benchmark(tier, found, now, period).results
        told += [evaluate_rule(rule, tier, found, now, period) for rule in JUDGED]
    return told


@pytest.mark.parametrize("name", HISTORIES)
def test_rules_wait_for_their_minimum(name: str) -> None:
    """And their sentences name watched times alone."""
    history = HISTORIES[name]
    watched = hold(slices_of(context(**PLAN), history)).watched_seconds
    for result in results(history):
        if isinstance(result, Verdict) and result.status is Status.OK:
            assert watched >= 0.9 * BY_NAME[result.rule].minimum_seconds, (result.rule, result.sentence)
            if result.certainty is Certainty.CERTAIN:
                assert named(result.sentence) <= watched + 1.0, (result.rule, result.sentence)


@pytest.mark.parametrize("name", [name for name in HISTORIES if "24 times" in name or "overloaded" in name])
def test_young_trouble_is_not_ok(name: str) -> None:
    """Of those that answer from a minute on, only what so much load says nothing of."""
    fine = {a.rule for a in results(HISTORIES[name]) if isinstance(a, Verdict) and a.status is Status.OK}
    assert fine <= PROVEN


@pytest.mark.parametrize(
    ("sentence", "seconds"),
    [
        ("0.1% of 900 requests in 1 h missed the 2 s TTFT objective", 3600.0),
        ("GPU faults: 0 in 15 min", 900.0),
        ("Beyond the benchmark for 2 of 12 minutes seen, over by now", 720.0),
        ("fleet utilisation 33.0% over 7.0 days", 604_800.0),
        ("A request spends 1.2 s in the system", 0.0),
    ],
)
def test_the_spans_of_sentences_are_found(sentence: str, seconds: float) -> None:
    assert named(sentence) == seconds
