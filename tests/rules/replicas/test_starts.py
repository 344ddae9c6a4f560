"""A start is timed from what was seen of it, with bounds; what was a stop, or only met, is no measured outage."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
from daemon_runs import configuration, running, write
from engine_server import born, engines, pages
from evaluation_steps import EvaluationSteps
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import add_minute
from making import START, bare_page, reading, snapshot
from waiting import wait_for

from agent.errors import ScrapeError
from agent.history.store import HistoryStore
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from exporters.documents.replay import line
from rules.confidence import nearest_rank
from rules.evaluator import tier_minutes, timeline
from rules.evaluator.rule_evaluation import cascade_limits
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
    return walk(*outcomes).start


OLD = told(0, -1000, -900)
RESTARTED = (OLD, 15.0, 30.0, told(225, 80, 211))


def only_started(seconds: float, started: float) -> Snapshot:
    return replace(told(seconds, started, started + 1), ready_at=None)


@pytest.mark.parametrize(
    ("outcomes", "seconds", "text"),
    [
        (RESTARTED, reading(131.0, 131.0, 145.0), "process start to ready 131 s"),
        # A long silence times the process alone; a takeover was never gone; an awaited replica is bounded.
        ((OLD, 15.0, 7200.0, told(7215, 7080, 7211)), ..., "process start to ready 131 s"),
        ((OLD, told(15, 2, 9)), reading(7.0, 7.0, 13.0), "process start to ready 7 s"),
        ((0.0, 15.0, told(45, 12, 40)), reading(28.0, 28.0, 33.0), ...),
        # A process that is met, or whose address is shared, has no bound.
        ((told(0, -1000, -900),), reading(100.0, 100.0, None), ...),
        ((0.0, 15.0, told(30, -1000, -900)), reading(100.0, 100.0, None), ...),
        ((OLD, told(15, -800, -750)), reading(50.0, 50.0, None), ...),
        # Silence or a start time bounds what tells no readiness; metrics that are ready at once tell neither.
        ((silent(0, 50), 15.0, 30.0, silent(95, 0)), None, "back at most 95 s after it was gone"),
        (
            (only_started(0, -1000), 15.0, 30.0, only_started(95, 5)),
            *(reading(None, 10.0, 90.0), "at most 90 s after its process started"),
        ),
        ((OLD, 15.0, 30.0, told(95, 90, 90)), None, "back at most 95 s after it was gone"),
    ],
)
def test_start_is_timed_by_what_was_seen(outcomes: tuple[Snapshot | float, ...], seconds: Any, text: Any) -> None:
    start = found(*outcomes)
    assert seconds is ... or start.seconds == seconds
    assert text is ... or describe_start(start) == text
    assert start.has_observed_begin is (seconds is None or seconds is ... or seconds.high is not None)
    if isinstance(seconds, Reading):
        assert start.lead_seconds == (seconds.value or seconds.high)
    else:
        assert start.lead_seconds == (None if seconds is None else 131.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), (only_started(0, -1000),)),
        # Fallen counters tell no start, nor does a clock that went back, nor the process that is known.
        ((), (silent(0, 50), silent(15, 0))),
        ((), (silent(0, 50), 15.0, silent(30, 60))),
        ((replace(OLD, t=START + 100),), (told(50, 20, 40),)),
        ((OLD,), (told(15, -1000, -900),)),
    ],
)
def test_what_tells_no_start(before: tuple[Snapshot, ...], after: tuple[Snapshot | float, ...]) -> None:
    assert walk(*before, *after).start == walk(*before).start


def test_shared_address_makes_no_starts() -> None:
    known: tuple[ReplicaStart, ...] = ()
    replica = ReplicaState(tier="t", name="r2")
    for n in range(10):
        replica = walk(told(n * 15, -1000, -900) if n % 2 else told(n * 15, -800, -750), replica=replica)
        known = starts.add_start(known, replica.start)
    assert [one.lead_seconds for one in known] == [100.0, 50.0]
    # A page that is older than the failure before it still has its start.
    failed, _, _ = apply_failed_scrape(ReplicaState(tier="t", name="a"), START + 100.2)
    late = walk(told(100.1, started=-4000.0, ready=-3960.0), replica=failed)
    assert late.start.started_at == START - 4000


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
    with pytest.raises(ValueError, match="no values"):
        nearest_rank([], q)


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
            seen = readers[scrape.target].read(scrape.body or b"", scrape.t)
        except ScrapeError:
            watcher.apply_failed_scrape(target.tier, target.replica, scrape.t)
        else:
            watcher.apply_snapshot(target.tier, target.replica, seen)
    return ((tier, start) for tier in watcher.minutes for start in watcher.of_tier(tier).starts)


def test_recorded_starts_match_stopwatch() -> None:
    """Its stopwatch: first start 36.0 s, after SIGKILL 51.1 s, after SIGTERM 27.9 s; a new replica 15.9 s."""
    first, killed, ended = [start for _, start in watched("restart")]
    assert first.lead_seconds == pytest.approx(35.95, abs=1.0)
    assert describe_start(ended) == "process start to ready 26.8 s"
    met, new = [start for _, start in watched("scale_up_cold_cache")]
    assert (met.has_observed_begin, new.has_observed_begin, new.replica) == (False, True, "cpu-small-1")
    for start, cold in ((killed, 51.11), (ended, 27.88), (new, 15.91)):
        assert start.seconds.value == pytest.approx(cold, abs=1.2)
        assert (start.seconds.low or 0.0) <= cold <= (start.seconds.high or 0.0)
    tiers = [(tier, start.replica) for tier, start in watched("mixed_tier")]
    assert tiers == [("cpu-fast", "cpu-fast-0"), ("cpu-slow", "cpu-slow-0")], "tiers are never put together"


def test_starts_outlive_minutes_and_another_plan() -> None:
    start = found(*RESTARTED)
    state = EvaluatorState()
    assert state.add_start("t", start)
    assert not state.add_start("t", start), "it is known"
    kept = state.of_tier("t")
    assert tier_minutes.rebin_minutes(kept, VIEW).starts == (start,)
    replica = walk(told(240, 80, 211), told(255, 80, 211), told(360, 80, 211))
    assert add_minute(kept, replica.open[0], "r2", VIEW).starts == (start,)


def cold_starts(folder: Path) -> list[TimelineEvent]:
    with HistoryStore.open_reader(folder / "sizewatch-data" / "history.db") as store:
        return [event for event in store.events(0.0) if event.kind == TimelineKind.COLD_START]


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
    events = cold_starts(tmp_path)
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


def test_old_process_is_no_event(tmp_path: Path) -> None:
    with engines() as served:
        served[0].pages = tuple(born(body, time.time() - 40 * 86_400) for body in pages())
        with running(write(tmp_path, configuration(served))) as daemon:
            (known,) = wait_for(lambda: daemon.loop.state.of_tier("cpu-small").starts)
    assert known.lead_seconds == pytest.approx(40)
    assert cold_starts(tmp_path) == []


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
    silent_page = detect_start(ScrapeTrack(), page(1300.0, READY, ready_at=None), "r")
    assert describe_start(silent_page) == "pod Ready 312 s after it was asked for"
    start = detect_start(ScrapeTrack(), page(1300.0, STARTING), "r")
    later = update_start(start, page(1300.0 + READY_SECONDS + 1, STARTING))
    assert (later.unready, later.timing, later.lead_seconds) == (False, Timing.PROCESS, 229.0), "it is no whole start"
    # A container that restarted is timed as before.
    again, plain = (
        detect_start(ScrapeTrack(), page(1300.0, pod), "r") for pod in (PodTimes(container_at=1060.0), None)
    )
    assert again.timing is plain.timing is Timing.PROCESS
    assert again.seconds == plain.seconds
