"""A replica's way through good and failed scrapes: nothing is lost for good, nothing is counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import START, snapshot

from rules.replicas.state import BRIDGE_SECONDS, ScrapeTrack, record_failure, record_success
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import EVERYTHING, Window


def page(seconds: float, **overrides: object) -> Snapshot:
    """A page `seconds` after START of a replica that finishes two requests a second."""
    counters = {"requests_finished": 100.0 + 2 * seconds, "engine_steps": 3000.0 + 10 * seconds}
    return snapshot(START + seconds, **{"counters": counters, **overrides})


def walk(*outcomes: float | Snapshot, track: ScrapeTrack | None = None) -> tuple[ScrapeTrack, list[Window]]:
    """Through good pages and failed scrapes (negative seconds after START)."""
    track, found = track or ScrapeTrack(), []
    for outcome in outcomes:
        if isinstance(outcome, Snapshot):
            track, window = record_success(track, outcome)
        else:
            track, window = record_failure(track, START - outcome)
        found += [window] if window is not None else []
    return track, found


def test_failure_is_gap_at_once() -> None:
    track, found = walk(page(0), page(15), -30.0)
    assert (found[1], track.misses) == (windows.gap_window(START + 15, START + 30, Gap.SCRAPE_FAILED), 1)
    later, found = walk(-45.0, track=track)
    assert (found, later.misses) == ([windows.gap_window(START + 30, START + 45, Gap.SCRAPE_FAILED)], 2)
    _, window = record_failure(track, START + 45, Gap.STALE)
    assert window.explain_missing("requests_finished") is Gap.STALE


@pytest.mark.parametrize(
    ("times", "counters"),
    [
        # A new replica: its target is known before its process answers.
        ({"started_at": START + 12, "ready_at": START + 40}, {"cold_starts": 1.0, "cold_start_seconds": 28.0}),
        # After a restart of the agent, or of the network between: the process is old.
        ({"started_at": START - 900, "ready_at": START - 800}, {}),
        ({}, {}),
    ],
)
def test_awaited_ready_replica_is_timed(times: dict[str, float], counters: dict[str, float]) -> None:
    _, found = walk(-15.0, -30.0, page(45, **times))
    assert (found[-1].counters, found[-1].gaps[EVERYTHING]) == (counters, Gap.SCRAPE_FAILED)


def test_silent_counters_book_once() -> None:
    track, found = walk(page(0), page(15), -30.0, -45.0, page(60), page(75))
    late, whole = found[3], windows.sum_windows(found)
    assert (late.start, late.end, late.counters["requests_finished"]) == (START + 15, START + 60, 90)
    assert (late.expected_seconds, late.covered_seconds) == (15, 45)
    assert (whole.counters["requests_finished"], whole.coverage, track.misses) == (150, 1.0, 0)
    assert read_all(whole)["completed_rps"] == Reading(value=2.0, low=2.0, high=2.0, n=150)


def test_late_counters_bound_the_total() -> None:
    """Both finish two a second; the sum reaches back over time in which one of them is not in it."""
    _, late = walk(page(0), -15.0, -30.0, page(45))
    _, seen = walk(page(30), page(45))
    found = read_all(windows.sum_windows([late[-1], *seen]))["completed_rps"]
    assert found == Reading(value=None, low=120 / 45, high=None, n=120)
    # Gauges of a silence stay a gap.
    assert (late[-1].gauges, EVERYTHING in late[-1].gaps) == ({}, True)
    assert read_all(late[-1])["kv_utilization"] == Missing(gap=Gap.SCRAPE_FAILED)
    assert late[-1].explain_missing("spec_drafts") is Gap.NOT_EXPOSED


def test_long_silence_drops_counters() -> None:
    failed = [-15.0 * i for i in range(1, 21)]
    assert BRIDGE_SECONDS == 300
    _, found = walk(page(0), *failed, page(301), page(316))
    assert found[-2] == windows.gap_window(START + 300, START + 301, Gap.SCRAPE_FAILED)
    assert windows.sum_windows(found).counters["requests_finished"] == 30
    _, found = walk(page(0), *failed[:-1], page(300))
    assert windows.sum_windows(found).counters["requests_finished"] == 600


def test_late_page_is_an_answer() -> None:
    """Only a silence between two good pages is one in which nobody asked: the agent itself slept."""
    track, found = walk(page(0), page(301))
    assert track.unscraped_seconds == 301
    assert found == [windows.gap_window(START, START + 301, Gap.NOT_SCRAPED)]
    assert walk(page(0), page(300))[1][0].counters["requests_finished"] == 600
    assert walk(page(0), -15.0, page(400))[0].unscraped_seconds == 0
    track, found = walk(page(0), page(301), page(316))
    assert (track.unscraped_seconds, found[1].counters["requests_finished"]) == (0, 30)


def test_silent_restart_expects_own_time() -> None:
    again = page(60, started_at=START + 20, ready_at=START + 50, counters={"requests_finished": 5.0})
    _, found = walk(page(0), page(15), -30.0, -45.0, again)
    last, whole = found[-1], windows.sum_windows(found)
    assert (last.start, last.end, last.expected_seconds, last.covered_seconds) == (START + 45, START + 60, 15, 0)
    assert last.counters == {"restarts": 1, "cold_starts": 1, "cold_start_seconds": 30}
    assert (whole.counters["requests_finished"], whole.coverage) == (30, 0.25)
    late = page(500, started_at=START + 20, ready_at=START + 50)
    assert walk(page(0), -15.0, late)[1][-1].counters["restarts"] == 1


def test_silent_target_needs_second_page() -> None:
    track, found = walk(-0.0, -15.0)
    assert [(w.start, w.end, w.covered_seconds) for w in found] == [(START, START + 15, 0)]
    _, found = walk(page(30), page(45), track=track)
    assert [(w.expected_seconds, w.covered_seconds) for w in found] == [(15, 0), (15, 15)]
    assert found[0].explain_missing("requests_finished") is Gap.SCRAPE_FAILED


@pytest.mark.parametrize("back", [0.0, 20.0])
def test_stopped_clock_starts_anew(back: float) -> None:
    """A page between the two times would otherwise lie before the last one."""
    _, found = walk(page(0), page(30), page(30 - back), page(45))
    assert [(w.start, w.end) for w in found] == [(START, START + 30), (START + 30 - back, START + 45)]
    track, found = walk(page(0), page(30), -(30 - back))
    assert (len(found), track.last, track.misses) == (1, None, 1)
    _, found = walk(page(35 - back), page(50 - back), track=track)
    assert [(w.span, w.covered_seconds) for w in found] == [(5, 0), (15, 15)]


@given(st.lists(st.booleans(), min_size=1, max_size=15))
def test_requests_count_once_through_failures(outcomes: list[bool]) -> None:
    steps: list[float | Snapshot] = [page(0)]
    steps += [page(15 * i) if good else -15.0 * i for i, good in enumerate(outcomes, 1)]
    end = 15.0 * (len(outcomes) + 1)
    _, found = walk(*steps, page(end))
    whole = windows.sum_windows(found)
    assert whole.counters["requests_finished"] == 2 * end
    assert (whole.expected_seconds, whole.covered_seconds) == (end, end)
    assert read_all(whole)["completed_rps"] == Reading(value=2.0, low=2.0, high=2.0, n=2 * end)
