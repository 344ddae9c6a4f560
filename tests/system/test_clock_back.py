"""The machine's clock goes back while a daemon watches, or between two: cycles go on, every minute is kept, and none twice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from evaluation_steps import EvaluationSteps
from history_samples import booking
from judging_samples import add_minute
from making import START, snapshot, window
from stored_recordings import agent_samples
from test_finding import result
from test_fleet_cycles import Fleet, told_by_agents

from agent.history.service import HistoryService, HistorySink
from agent.history.store import HistoryStore
from agent.pipeline.runtime_state import RuntimeState
from agent.prometheus.answers import MatrixSeries
from exporters.alertmanager import payload
from exporters.alertmanager.payload import AlertSettings
from rules.confidence import Certainty
from rules.evaluator import tier_minutes
from rules.evaluator.incident_alerts import TICKET_WAIT_SECONDS, step_incident_alerts
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status, close_rule_state, step_rule_state

HOUR = 3600.0
BEGIN = 1_800_000_015.0


class Life:
    """What a daemon is for its history, half a minute a cycle, on a clock that is moved by hand: a replica and a dead one."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now = folder / "history.db", BEGIN
        self.begin()

    def begin(self) -> None:
        self.watcher = EvaluationSteps({"t": load_bins.build_tier_context("t", None)})
        self.keeping = HistoryService(lambda: HistoryStore(self.path))

    def cycles(self, minutes: float) -> None:
        for _ in range(round(2 * minutes)):
            self.now += 30.0
            self.watcher.apply_snapshot("t", "r0", snapshot(self.now))
            self.watcher.apply_failed_scrape("t", "dead", self.now)
            self._book(self.watcher.step(self.now)[1])

    def _book(self, closed: tuple[ClosedMinute, ...]) -> None:
        self.keeping.write_cycle([one for one in closed if one.kept], now=self.now)

    def end(self) -> None:
        self._book(self.watcher.flush())
        assert self.keeping.error is None
        self.keeping.close()

    def jump(self, hours: float) -> None:
        self.now += hours * HOUR

    def restart(self, times: float = 1) -> None:
        self.end()
        self.begin()

    def replace(self, times: float = 1) -> None:
        """The pods go, and others of their names come."""
        self.watcher.remove_replicas({("t", "dead"), ("t", "r0")})

    def kept(self) -> Spans:
        self.end()
        found = kept_once(self.path, "t", ("r0", "dead"))
        assert found["r0"] == found["dead"]
        return found["r0"]


Spans = tuple[tuple[float, float], ...]
"""From and to (unix seconds), in order of time; no two touch."""


def join_spans(several: Iterable[tuple[float, float]]) -> Spans:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(several):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def kept_once(path: Path, tier: str, replicas: tuple[str, ...]) -> dict[str, Spans]:
    """When each replica was seen, as the history has it; no second of it twice, neither in minutes, hours nor demand."""
    with HistoryStore.open_reader(path) as reader:
        minutes = reader.minutes(tier, 0.0, BEGIN + 10 * HOUR)
        hours = reader.bins(tier, 0.0, BEGIN + 10 * HOUR)
        demand = reader.demand(tier, 0.0, BEGIN + 10 * HOUR)
    found: dict[str, Spans] = {}
    for replica in replicas:
        of_it = [one.window for one in minutes if one.replica == replica]
        # Of a minute that the clock's edge cuts less than half may be there twice.
        assert max(one.expected_seconds for one in of_it) <= 90.0
        found[replica] = join_spans((one.start, one.end) for one in of_it)
        whole = sum(one.expected_seconds for one in of_it)
        assert abs(whole - sum(end - begin for begin, end in found[replica])) <= 60.0
    both = sum(one.window.expected_seconds for one in minutes)
    assert sum(one.window.expected_seconds for one in hours) == both
    assert abs(sum(one.expected_seconds for one in demand) - both) < 0.001
    assert max(one.expected_seconds for one in demand) <= 180.0
    return found


def about(found: Spans, *expected: tuple[float, float]) -> bool:
    """Whether these are the spans, in minutes after BEGIN; an edge of told time, or a restart, may cost half a minute."""
    joined = join_spans(((begin, end + 30.0) for begin, end in found))
    ours = [((begin - BEGIN) / 60.0, (end - BEGIN) / 60.0 - 0.5) for begin, end in joined]
    if len(ours) != len(expected):
        return False
    return all(
        abs(a - b) <= 0.5 for one, other in zip(ours, expected, strict=True) for a, b in zip(one, other, strict=True)
    )


LIVES: dict[str, tuple[tuple[tuple[str, float], ...], tuple[tuple[float, float], ...]]] = {
    # From 15 minutes before the first cycle to 35 after it, of which the first 15 were told by the clock that was ahead.
    "ahead at first": ((("cycles", 15), ("jump", -0.5), ("cycles", 50)), ((-14.5, 35.0),)),
    "only jumped over": (
        (("cycles", 10), ("jump", 1), ("cycles", 10), ("jump", -1), ("cycles", 80)),
        ((0.5, 10.0), (20.5, 100.0)),
    ),
    "restarts after it went back": (
        (("cycles", 15), ("jump", -0.5), ("restart", 1), ("cycles", 20), ("restart", 1), ("cycles", 30)),
        ((-14.5, 35.0),),
    ),
    "another pod": ((("cycles", 15), ("jump", -0.5), ("replace", 1), ("cycles", 50)), ((-14.5, 35.0),)),
    "into the run before": (
        (("cycles", 20), ("restart", 1), ("cycles", 5), ("jump", -0.25), ("cycles", 25)),
        ((0.5, 35.0),),
    ),
    "slept for hours": ((("cycles", 5), ("jump", 3), ("cycles", 5)), ((0.5, 5.0), (185.5, 190.0))),
}
"""What a daemon and its clock do, in minutes, hours or times; and the spans that its history has then."""


@pytest.mark.parametrize("name", LIVES)
def test_clock_jump_keeps_each_second_once(tmp_path: Path, name: str) -> None:
    steps, spans = LIVES[name]
    life = Life(tmp_path)
    for verb, amount in steps:
        getattr(life, verb)(amount)
    assert about(life.kept(), *spans)


def test_clock_to_and_fro_books_nothing_twice(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for number in range(20):
        life.cycles(5)
        life.jump(1 if number % 2 else -1)
    life.cycles(90)
    assert life.kept()[-1][1] == life.now


def test_restart_loses_no_second_of_minute(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.cycles(3.5)
    life.restart()
    life.cycles(4)
    # Between the last cycle of the one and the first of the other nobody watched.
    assert [end - begin for begin, end in life.kept()] == [180.0, 210.0]


def test_waiting_minutes_survive_clock_jump(tmp_path: Path) -> None:
    waiting = [booking(1, "r1"), booking(60, "r1")]
    with closing(HistoryStore(tmp_path / "history.db")) as store:
        store.book([booking(60, "r0")])
    with closing(HistoryService(lambda: HistoryStore(tmp_path / "history.db"))) as keeping:
        keeping.write_cycle(waiting, now=waiting[0].slice.window.end + 30.0)
        assert len(keeping.store().minutes("h100", 0.0, math.inf)) == 3


def test_clock_stepping_back_costs_no_minute(tmp_path: Path) -> None:
    watcher = EvaluationSteps({"t": load_bins.build_tier_context("t", None)})
    keeping = HistoryService(lambda: HistoryStore(tmp_path / "h.db"))
    t = START
    for number in range(400):
        t += -1.0 if number % 2 else 15.0
        watcher.apply_failed_scrape("t", "r", t, Gap.SCRAPE_FAILED)
        ended, closed = watcher.step(t)
        keeping.write_cycle([one for one in closed if one.kept], ended, now=t)
    with HistoryStore.open_reader(tmp_path / "h.db") as reader:
        seconds = sum(one.window.expected_seconds for one in reader.minutes("t", 0.0, t + HOUR))
    keeping.close()
    assert 0.95 * (t - START) <= seconds <= 1.1 * (t - START)


def test_plan_week_restarts_after_clock_ahead(tmp_path: Path) -> None:
    keeping = HistoryService(lambda: HistoryStore(tmp_path / "h.db"))
    context = load_bins.build_tier_context("t", None)
    keeping.upkeep({"t": context}, {"t": "v"}, START + 30 * 24 * HOUR)
    keeping.upkeep({"t": context}, {"t": "v"}, START)
    assert keeping.store().read_value("first-seen/t/v", float) == START
    keeping.upkeep({"t": context}, {"t": "v"}, START + 60.0)
    assert keeping.store().read_value("first-seen/t/v", float) == START
    keeping.close()


def test_trend_continues_by_new_time() -> None:
    ledger, contexts = RuntimeState(), {"t": load_bins.build_tier_context("t", None)}

    def minute(number: int, replica: str) -> ClosedMinute:
        counters = {"requests_finished": 60.0}
        whole = window(START + 60.0 * number, counters=counters)
        return ClosedMinute(tier="t", replica=replica, slice=load_bins.bin_window(whole, None, replica))

    for number in (*range(60, 80), *range(20)):
        for replica in ("a", "b"):
            ledger.record_minutes((minute(number, replica),), contexts, START + 60.0 * (number + 1))
    points = ledger.trend("t")
    assert [point.t for point in points] == [START + 60.0 * (number + 1) for number in range(20)]


def test_future_minutes_reach_no_rule() -> None:
    context = load_bins.build_tier_context("t", None)
    minutes = tier_minutes.TierMinutes()
    for number in range(70):
        minutes = add_minute(minutes, window(START + 60.0 * number), "r", context)
    minutes = add_minute(minutes, window(START), "r", context)
    assert max(one.window.end for one in minutes.binned) <= START + 60.0 + tier_minutes.AHEAD_SECONDS


def keep_history(fleet: Fleet, path: Path) -> None:
    fleet.loop.sinks += (HistorySink(HistoryService(lambda: HistoryStore(path)), fleet.source, {}),)


def test_fleet_asks_no_reversed_time_span(tmp_path: Path) -> None:
    fleet, api = told_by_agents(list(agent_samples("steady")))
    keep_history(fleet, tmp_path / "h.db")
    asked: list[tuple[float, float]] = []
    raw = api.store.query_samples

    def noted(selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        asked.append((start, end))
        return raw(selector, start, end)

    api.store.query_samples = noted  # type: ignore[method-assign]
    fleet.go(3)
    before = fleet.result("TargetDown", "cpu-small-0")
    fleet.now -= HOUR
    fleet.go(2)
    assert all(start < end for start, end in asked)
    # An hour ago there was nothing yet.
    assert set(fleet.source.errors.values()) <= {"the store has had no sample of the tier for 60 s"}
    assert before.status is Status.OK
    fleet.now += HOUR - 180.0
    fleet.go(2)
    assert fleet.result("TargetDown", "cpu-small-0").status is Status.OK
    fleet.loop.stop()
    with HistoryStore.open_reader(tmp_path / "h.db") as reader:
        minutes = [one.window for one in reader.minutes("cpu-small", 0.0, fleet.now + HOUR)]
    assert len(minutes) > 2
    assert max(one.expected_seconds for one in minutes) <= 90.0


def test_restarted_fleet_books_no_minute_twice(tmp_path: Path) -> None:
    samples = list(agent_samples("steady"))

    def booked(stops: tuple[int, ...]) -> tuple[Window, float]:
        path = tmp_path / f"{len(stops)}.db"
        now = min(one[2] for one in samples) - 1.0
        for cycles in stops:
            fleet, _ = told_by_agents(samples)
            fleet.now = now
            keep_history(fleet, path)
            fleet.go(cycles)
            fleet.loop.stop()
            now = fleet.now
        with HistoryStore.open_reader(path) as reader:
            minutes = reader.minutes("cpu-small", 0.0, now + HOUR)
            return windows.sum_windows(one.window for one in minutes), now

    (whole, end), (restarted, _) = booked((6,)), booked((2, 2, 2))
    assert end > whole.end - HOUR
    # What was open at a stop and what the first page after it begins with is not seen; nothing is there twice.
    assert 0.5 * whole.expected_seconds < restarted.expected_seconds <= whole.expected_seconds + 30.0
    assert restarted.counters["requests_finished"] <= whole.counters["requests_finished"] * 1.1


def test_alert_times_stay_ordered_after_clock_ahead() -> None:
    """It refuses an alert whose endsAt is before its startsAt, and one whose endsAt has yet to come fires (api/v2)."""
    firing = result(HOUR, Status.CRITICAL, Certainty.CERTAIN)
    settings = AlertSettings(resend_seconds=60.0)
    opened, _ = step_rule_state(None, firing)
    _, (closed,) = step_rule_state(opened, result(HOUR + 60.0, Status.OK, Certainty.CERTAIN))
    assert opened.finding is not None
    assert isinstance(closed, Finding)
    alerts = step_incident_alerts((), group_incidents([opened.finding]), HOUR + TICKET_WAIT_SECONDS)
    assert [one.resolved_at for one in alerts] == [None]
    for known, fires in ((opened.finding, True), (closed, False)):
        (after,) = step_incident_alerts(alerts, group_incidents([known]), 75.0)
        assert (after.resolved_at is None) == fires
        (one,) = payload.present((after,), (), 75.0, settings)
        starts, ends = (datetime.fromisoformat(one.body[name]).timestamp() for name in ("startsAt", "endsAt"))
        assert starts <= ends
        assert one.firing == (ends > 75.0) == fires


def test_nothing_ends_before_it_began() -> None:
    rule_state, _ = step_rule_state(None, result(HOUR, Status.CRITICAL))
    _, (ended,) = step_rule_state(rule_state, result(0.0, Status.OK))
    assert (ended.started_at, ended.ended_at) == (HOUR, HOUR)
    assert [one.ended_at for one in close_rule_state(rule_state, 0.0)] == [HOUR]
