"""Findings through results and gaps, held windows and projections."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, minute, minutes

from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow, sum_load_bins
from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import gap_window, sum_families
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
    assert rule_state is not None
    return rule_state, ended


def test_episode_spans_warning_to_ok() -> None:
    rule_state, ended = through([result(1, OK), result(2, WARNING), result(3, WARNING), result(4, OK), result(5, OK)])
    assert rule_state.finding is None
    (finding,) = ended
    assert isinstance(finding, Finding)
    assert (finding.rule, finding.subject) == ("KvEviction", SUBJECT)
    assert (finding.started_at, finding.ended_at) == (2, 4)
    assert finding.transitions == (
        Transition(t=2, status=WARNING, stage=None, certainty=CERTAIN),
        Transition(t=4, status=OK, stage=None, certainty=CERTAIN),
    )


def test_only_changes_are_transitions() -> None:
    rule_state, _ = through(
        [
            result(1, WARNING, LIKELY, stage=1),
            result(2, WARNING, LIKELY, stage=1),
            result(3, WARNING, CERTAIN, stage=1),
            result(4, WARNING, CERTAIN, stage=2),
            result(5, CRITICAL, CERTAIN, stage=3),
            result(6, CRITICAL, CERTAIN, stage=3),
        ]
    )
    assert [t.t for t in rule_state.finding.transitions] == [1, 3, 4, 5]


def test_gap_ends_no_episode() -> None:
    rule_state, ended = through([result(1, WARNING), gap(2), gap(3), result(4, WARNING), result(5, OK)])
    spans = [e for e in ended if isinstance(e, UnknownSpan)]
    (finding,) = [e for e in ended if isinstance(e, Finding)]
    assert (finding.started_at, finding.ended_at) == (1, 5)
    assert [(s.started_at, s.ended_at) for s in spans] == [(2, 4)]
    assert (rule_state.finding, rule_state.unknown) == (None, None)


@pytest.mark.parametrize(
    ("reason", "seconds", "ends"),
    [
        (Gap.SCRAPE_FAILED, 7200.0, False),
        (Gap.NOT_SCRAPED, 7200.0, False),
        (Gap.RESTARTED, 7200.0, False),
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


def test_during_a_gap_both_stand() -> None:
    rule_state, _ = through([result(1, WARNING), gap(2, text="no page")])
    assert rule_state.finding is not None
    assert rule_state.unknown == UnknownSpan(
        rule="KvEviction", subject=SUBJECT, reason=Gap.SCRAPE_FAILED, text="no page", started_at=2, ended_at=None
    )
    assert rule_state.result == gap(2, text="no page")


def test_another_reason_is_another_span() -> None:
    _, ended = through([gap(1), gap(2), gap(3, Gap.RESTARTED), result(4, OK)])
    assert [(e.reason, e.started_at, e.ended_at) for e in ended if isinstance(e, UnknownSpan)] == [
        (Gap.SCRAPE_FAILED, 1, 3),
        (Gap.RESTARTED, 3, 4),
    ]


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


def test_a_second_outbreak_is_a_second_episode() -> None:
    _, ended = through([result(1, WARNING), result(2, OK), result(3, CRITICAL), result(4, OK)])
    assert [(e.started_at, e.ended_at) for e in ended] == [(1, 2), (3, 4)]


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
    assert one.sum_parts("ttft_seconds") == histograms.sum_histograms(
        part for window in several for part in window.histograms.get("ttft_seconds", ())
    )
    inside = [binned for binned in one if binned.bin in range(len(context().curve.points))]
    assert one.by_load_bin(context().curve) == sum_load_bins(inside) != {}


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


def test_held_windows_are_held_as_they_are() -> None:
    one = held()
    assert hold(one) is one
    assert hold(tuple(one)) == one


def test_inner_window_ends_nothing() -> None:
    spans = [(0.0, 100.0), (10.0, 20.0), (90.0, 120.0)]
    seen = [gap_window(begin, end, Gap.SCRAPE_FAILED) for begin, end in spans]
    held = HeldWindows(
        BinnedWindow(replica="a", window=replace(one, covered_seconds=one.span), rps=None, in_system=None)
        for one in seen
    )
    assert held.watched_seconds == 120.0


def at(t: float, q95: float = 2.0) -> ForecastPoint:
    return ForecastPoint(t=t, q50=1.0, q95=q95, q99=max(3.0, q95))


def projection(*points: ForecastPoint) -> Projection:
    return Projection(tier="t", made_at=1000.0, horizon_seconds=200.0, points=points, method="m")


def test_warmable_ends_behind_lead() -> None:
    made = projection(*(at(1000.0 + 60.0 * n) for n in range(20)))
    assert [point.t for point in made.points_until(1030.0)] == [1060.0, 1120.0, 1180.0, 1240.0]
    exactly = projection(at(1100.0), at(1200.0), at(1300.0))
    assert [point.t for point in exactly.points_until(1000.0)] == [1100.0, 1200.0]
    assert [point.t for point in exactly.points_until(1100.0)] == [1100.0, 1200.0, 1300.0]


def test_long_bins_tell_the_next() -> None:
    assert [point.t for point in projection(at(1600.0), at(2200.0)).points_until(1000.0)] == [1600.0]


def test_a_forecast_that_was_outlived_says_nothing() -> None:
    assert projection(at(1100.0), at(1200.0)).points_until(1201.0) == ()
    assert projection().points_until(1000.0) == ()
