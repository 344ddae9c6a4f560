"""A start is timed from what was seen of it, with bounds; what was a stop, or only met, is no measured outage."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import recorded
from daemon_runs import configuration, running, write
from engine_server import born, engines, pages
from evaluation_steps import EvaluationSteps
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import add_minute
from making import START, bare_page, snapshot
from waiting import wait_for

from agent.errors import ScrapeError
from agent.history.store import HistoryStore
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from exporters.documents.replay import line
from rules.confidence import nearest_rank
from rules.evaluator import tier_minutes, timeline
from rules.evaluator.scrape_rules import cascade_limits
from rules.evaluator.state import EvaluatorState
from rules.evaluator.timeline import TimelineEvent, TimelineKind, parse_start_event, start_event
from rules.plan.load_bins import build_tier_context
from rules.replicas import starts
from rules.replicas.starts import (
    KEPT_SECONDS,
    MOST,
    READY_SECONDS,
    ReplicaStart,
    Timing,
    add_start,
    describe_start,
    update_start,
)
from rules.replicas.state import ReplicaState, ScrapeTrack, apply_failed_scrape, apply_snapshot, detect_start
from rules.telemetry.signals import Reading
from rules.telemetry.snapshots import PodTimes, Snapshot

VIEW = build_tier_context("t", None)


def told(seconds: float, started: float, ready: float, finished: float = 7.0, running: float = 0.0) -> Snapshot:
    """A page `seconds` after START of a process that tells when it started and was ready."""
    return snapshot(
        START + seconds,
        started_at=START + started,
        ready_at=START + ready,
        counters={"requests_finished": finished, "engine_steps": finished},
        gauges={"requests_running": running, "requests_waiting": 0.0},
    )


def silent(seconds: float, finished: float, **gauges: float) -> Snapshot:
    """A page of an engine that tells nothing of its process."""
    counters = {"requests_finished": finished, "generation_tokens": finished, "engine_steps": finished}
    return snapshot(START + seconds, started_at=None, ready_at=None, counters=counters, gauges=gauges)


def walk(*outcomes: Snapshot | float, replica: ReplicaState | None = None) -> ReplicaState:
    """Through good pages and scrapes that failed so many seconds after START."""
    replica = replica or ReplicaState(tier="t", name="r2")
    for outcome in outcomes:
        stepped = (
            apply_snapshot(replica, outcome, cascade_limits(VIEW))
            if isinstance(outcome, Snapshot)
            else apply_failed_scrape(replica, START + outcome)
        )
        replica = stepped[0]
    return replica


def found(*outcomes: Snapshot | float) -> ReplicaStart:
    start = walk(*outcomes).start
    assert start is not None
    return start


OLD = told(0, -1000, -900)
RESTARTED = (OLD, 15.0, 30.0, told(225, 80, 211))


def test_restart_is_timed_twice() -> None:
    start = found(*RESTARTED)
    assert start.seconds == Reading(value=131.0, low=131.0, high=145.0, n=1.0)
    assert (start.lead_seconds, start.t) == (131.0, START + 211)
    assert describe_start(start) == "process start to ready 131 s"


def test_long_silence_times_the_process() -> None:
    start = found(OLD, 15.0, 7200.0, told(7215, 7080, 7211))
    assert (start.lead_seconds, start.timing) == (131.0, Timing.PROCESS)


def test_takeover_was_never_gone() -> None:
    start = found(OLD, told(15, 2, 9))
    assert start.seconds == Reading(value=7.0, low=7.0, high=13.0, n=1.0)
    assert describe_start(start) == "process start to ready 7 s"


def test_awaited_replica_is_bounded() -> None:
    start = found(0.0, 15.0, told(45, 12, 40))
    assert start.seconds == Reading(value=28.0, low=28.0, high=33.0, n=1.0)
    assert start.has_observed_begin


def test_met_process_has_no_bound() -> None:
    for met in (walk(told(0, -1000, -900)), walk(0.0, 15.0, told(30, -1000, -900))):
        assert met.start.seconds == Reading(value=100.0, low=100.0, high=None, n=1.0)
        assert not met.start.has_observed_begin
    assert walk(OLD, told(15, -1000, -900)).start == walk(OLD).start


def test_late_first_page_has_start() -> None:
    replica, _, _ = apply_failed_scrape(ReplicaState(tier="t", name="a"), START + 100.2)
    replica = walk(told(100.1, started=-4000.0, ready=-3960.0), replica=replica)
    assert replica.start.started_at == START - 4000


def test_shared_address_makes_no_starts() -> None:
    other = walk(OLD, told(15, -800, -750)).start
    assert (other.lead_seconds, other.has_observed_begin) == (50.0, False)
    known: tuple[ReplicaStart, ...] = ()
    replica = ReplicaState(tier="t", name="r2")
    for n in range(10):
        replica = walk(told(n * 15, -1000, -900) if n % 2 else told(n * 15, -800, -750), replica=replica)
        assert replica.start is not None
        known = starts.add_start(known, replica.start)
    assert [one.lead_seconds for one in known] == [100.0, 50.0]


def test_silence_alone_bounds_start() -> None:
    start = found(silent(0, 50), 15.0, 30.0, silent(95, 0))
    assert (start.timing, start.seconds, start.lead_seconds) == (None, None, None)
    assert describe_start(start) == "back at most 95 s after it was gone"


def test_fallen_counters_tell_no_start() -> None:
    assert walk(silent(0, 50), silent(15, 0)).start is None
    assert walk(silent(0, 50), 15.0, silent(30, 60)).start is None


def test_start_time_is_bounded_by_scrapes() -> None:
    def only_started(seconds: float, started: float) -> Snapshot:
        return replace(told(seconds, started, started + 1), ready_at=None)

    start = found(only_started(0, -1000), 15.0, 30.0, only_started(95, 5))
    assert start.seconds == Reading(value=None, low=10.0, high=90.0, n=1.0)
    assert describe_start(start) == "at most 90 s after its process started"
    assert walk(only_started(0, -1000)).start is None


def test_metrics_or_clock_tell_no_start() -> None:
    start = found(OLD, 15.0, 30.0, told(95, 90, 90))
    assert (start.started_at, start.seconds) == (None, None)
    assert describe_start(start) == "back at most 95 s after it was gone"
    assert walk(replace(OLD, t=START + 100), told(50, 20, 40)).start == walk(replace(OLD, t=START + 100)).start


def test_tier_keeps_newest_starts() -> None:
    def one(days: float, replica: str = "r0") -> ReplicaStart:
        t = START + days * 86_400
        return ReplicaStart(replica=replica, seen_at=t + 5, started_at=t - 60, ready_at=t)

    known: tuple[ReplicaStart, ...] = ()
    for days in (5, 1, 3, 3, 1):
        known = starts.add_start(known, one(days))
    assert [(s.t - START) / 86_400 for s in known] == [1, 3, 5]
    assert starts.add_start(known, replace(one(3), seen_at=START)) is known
    assert len(starts.add_start(known, one(3, "r1"))) == 4
    four_weeks = KEPT_SECONDS / 86_400
    assert [s.t for s in starts.add_start(known, one(3 + four_weeks))] == [one(5).t, one(3 + four_weeks).t]
    assert starts.add_start(known, one(5 - four_weeks)) is known
    assert len(starts.add_start(known, one(5.1 - four_weeks))) == 4
    many = tuple(one(n / 100) for n in range(MOST))
    assert starts.add_start(many, one(9)) == (*many[1:], one(9))


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.95, 1.0]))
def test_nearest_rank_is_a_value(values: list[float], q: float) -> None:
    quantile = nearest_rank(values, q)
    assert quantile in values
    assert sum(v <= quantile for v in values) >= q * len(values) - 1e-6
    assert sum(v < quantile for v in values) < q * len(values)


def test_nearest_ranks_by_hand() -> None:
    twenty = [float(n) for n in range(1, 21)]
    assert (nearest_rank(twenty, 0.5), nearest_rank(twenty, 0.95), nearest_rank(twenty[:19], 0.95)) == (10, 19, 19)
    with pytest.raises(ValueError, match="no values"):
        nearest_rank([], 0.5)


@pytest.mark.parametrize(
    "start", [found(*RESTARTED), found(silent(0, 50), 15.0, silent(95, 0)), found(told(0, -1000, -900))]
)
def test_start_is_event_in_words(start: ReplicaStart) -> None:
    event = timeline.start_event("t", start)
    assert (event.t, event.kind, event.replica, timeline.parse_start_event(event)) == (
        start.t,
        TimelineKind.COLD_START,
        "r2",
        start,
    )
    (entry,) = timeline.list_entries([], [], [event], 0.0)
    assert line(entry, START) == f"cold start: {describe_start(start)}"
    assert timeline.parse_start_event(replace(event, kind=TimelineKind.RESTART)) is None


@pytest.mark.parametrize(
    "text", ["", "ready after a while", "[]", '{"replica": "r2"}', '{"replica": "r", "seen_at": "x"}']
)
def test_startless_event_is_kept(text: str) -> None:
    event = TimelineEvent(t=START, kind=TimelineKind.COLD_START, tier="t", replica="r2", text=text)
    assert timeline.parse_start_event(event) is None
    assert timeline.list_entries([], [], [event], 0.0)[0].text == text


def watched(name: str) -> Iterator[tuple[str, ReplicaStart]]:
    """The starts of a recording, as the daemon finds them."""
    recording, _ = load(recorded.folder(name))
    watcher = EvaluationSteps({})
    readers = [PageReader(target.engine) for target in recording.targets]
    for scrape in scrapes(recording, []):
        target = recording.targets[scrape.target]
        try:
            seen = None if scrape.body is None else readers[scrape.target].read(scrape.body, scrape.t)
        except ScrapeError:
            seen = None
        if seen is None:
            watcher.apply_failed_scrape(target.tier, target.replica, scrape.t)
        else:
            watcher.apply_snapshot(target.tier, target.replica, seen)
    return ((tier, start) for tier in watcher.minutes for start in watcher.of_tier(tier).starts)


def test_recorded_restarts_match_stopwatch() -> None:
    """Its stopwatch: first start 36.0 s, after SIGKILL 51.1 s, after SIGTERM 27.9 s."""
    first, killed, ended = [start for _, start in watched("restart")]
    assert first.lead_seconds == pytest.approx(35.95, abs=1.0)
    for start, cold in ((killed, 51.11), (ended, 27.88)):
        assert start.seconds.value == pytest.approx(cold, abs=1.2)
        assert (start.seconds.low or 0.0) <= cold <= (start.seconds.high or 0.0)
    assert describe_start(ended) == "process start to ready 26.8 s"


def test_recorded_replica_is_new() -> None:
    """Its stopwatch said 15.9 s."""
    met, new = [start for _, start in watched("scale_up_cold_cache")]
    assert (met.has_observed_begin, new.has_observed_begin, new.replica) == (False, True, "cpu-small-1")
    assert (new.seconds.low or 0.0) <= 15.91 <= (new.seconds.high or 0.0)


def test_tiers_are_never_put_together() -> None:
    assert [(tier, start.replica) for tier, start in watched("mixed_tier")] == [
        ("cpu-fast", "cpu-fast-0"),
        ("cpu-slow", "cpu-slow-0"),
    ]


def test_starts_outlive_minutes_and_another_plan() -> None:
    start = found(*RESTARTED)
    state = EvaluatorState()
    assert state.add_start("t", start)
    assert not state.add_start("t", start), "it is known"
    kept = state.of_tier("t")
    assert tier_minutes.rebin_minutes(kept, VIEW).starts == (start,)
    replica = walk(told(240, 80, 211), told(255, 80, 211), told(360, 80, 211))
    assert add_minute(kept, replica.open[0], "r2", VIEW).starts == (start,)


def test_restarted_agent_books_starts_once(tmp_path: Path) -> None:
    shift = time.time() - 3600
    with engines() as served:
        served[0].pages = tuple(born(body, shift) for body in pages())
        path = write(tmp_path, configuration(served))
        for _ in range(2):
            with running(path) as daemon:
                known = wait_for(lambda: daemon.loop.state.of_tier("cpu-small").starts)
                assert [(s.replica, s.started_at) for s in known] == [("r0", pytest.approx(shift))]
                assert daemon.counts.cycle_errors == daemon.loop.defects == 0
        served[0].pages = tuple(born(body, shift + 600) for body in pages())
        with running(path) as daemon:
            assert wait_for(lambda: len(daemon.loop.state.of_tier("cpu-small").starts) == 2)
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as store:
        events = [event for event in store.events(0.0) if event.kind == TimelineKind.COLD_START]
    assert [(event.tier, event.replica) for event in events] == [("cpu-small", "r0")] * 2
    assert json.loads(events[0].text)["started_at"] == pytest.approx(shift)


def test_unwatched_tier_stays_gone(tmp_path: Path) -> None:
    folder = tmp_path / "sizewatch-data"
    folder.mkdir()
    start = ReplicaStart(replica="r0", seen_at=time.time(), started_at=time.time() - 60, ready_at=time.time() - 5)
    with HistoryStore(folder / "history.db") as store:
        store.book(events=[timeline.start_event("gold", start), timeline.start_event("cpu-small", start)])
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        assert start in daemon.loop.state.of_tier("cpu-small").starts
        assert "gold" not in daemon.loop.state.minutes


def test_old_process_is_booked_once(tmp_path: Path) -> None:
    with engines() as served:
        served[0].pages = tuple(born(body, time.time() - 40 * 86_400) for body in pages())
        with running(write(tmp_path, configuration(served))) as daemon:
            (known,) = wait_for(lambda: daemon.loop.state.of_tier("cpu-small").starts)
    assert known.lead_seconds == pytest.approx(40)
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as store:
        assert [event for event in store.events(0.0) if event.kind == TimelineKind.COLD_START] == []


ASKED = 1000.0
STARTING = PodTimes(asked_at=ASKED, container_at=1060.0)
READY = replace(STARTING, ready_at=1312.0)


def page(t: float, pod: PodTimes | None, ready_at: float | None = 1290.0, **counters: float) -> Snapshot:
    return bare_page(t, started_at=1061.0 if ready_at else None, ready_at=ready_at, counters=counters, pod=pod)


def test_start_spans_request_to_ready() -> None:
    first = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    assert first.unready, "it answers, and no traffic comes yet"
    assert add_start((), first) == ()
    last = update_start(first, page(1315.0, READY))
    assert (last.unready, last.timing, last.lead_seconds) == (False, Timing.POD, 312.0)
    assert describe_start(last) == "pod Ready 312 s after it was asked for"
    assert update_start(last, page(1330.0, READY)) is last
    assert parse_start_event(start_event("t", last)) == last
    assert add_start((), last) == (last,)


def test_pod_readiness_known_or_never() -> None:
    start = detect_start(ScrapeTrack(), page(1313.0, READY), "r")
    assert (start.unready, start.lead_seconds) == (False, 312.0)
    start = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    later = update_start(start, page(1300.0 + READY_SECONDS + 1, STARTING))
    assert (later.unready, later.timing, later.lead_seconds) == (False, Timing.PROCESS, 229.0), "it is no whole start"


def test_silent_page_uses_its_pod() -> None:
    start = detect_start(ScrapeTrack(), page(1300.0, READY, ready_at=None), "r")
    assert start.lead_seconds == 312.0
    assert describe_start(start) == "pod Ready 312 s after it was asked for"


def test_restarted_container_times_as_before() -> None:
    again = PodTimes(container_at=1060.0)
    start = detect_start(ScrapeTrack(), page(1300.0, again), "r")
    plain = detect_start(ScrapeTrack(), page(1300.0, None), "r")
    assert start.timing is plain.timing is Timing.PROCESS
    assert start.seconds == plain.seconds
