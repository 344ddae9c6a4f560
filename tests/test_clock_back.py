"""The machine's clock goes back an hour while a daemon watches: turns go on, and no minute is booked twice."""

from __future__ import annotations

from pathlib import Path

from daemon_runs import configuration, free_port, write
from engine_server import engines
from making import START, window
from stored_recordings import agent_samples
from test_episodes import answer
from test_fleet_turns import told_by_agents

from agent.assembly import assemble
from agent.config import load
from agent.cycle import Watcher
from agent.history.store import Store
from agent.store.answers import RawSeries
from rules import episodes, slices, watch
from rules.signals import Gap
from rules.verdicts import Status, Subject

HOUR = 3600.0
BEGIN = 1_800_000_015.0


def test_minutes_that_were_booked_are_not_booked_again_after_an_hour_back(tmp_path: Path) -> None:
    now = BEGIN
    with engines(1) as served:
        target = {"url": served[0].url, "tier": "cpu-small", "replica": "r0"}
        dead = {**target, "url": f"http://127.0.0.1:{free_port()}/metrics", "replica": "dead"}
        keys = configuration([], targets=[target, dead], scrape_interval="15s")
        assembly = assemble(load(write(tmp_path, keys)), None, clock=lambda: now)
        for number in range(80):
            now += -HOUR if number == 40 else 30.0
            assembly.turns.turn()
        down = assembly.turns.watcher.standings["TargetDown", Subject(tier="cpu-small", replica="dead")]
        assembly.close(now)
    assert assembly.turns.defects == 0
    assert now == BEGIN + 79 * 30.0 - HOUR
    assert down.answer.t == now
    with Store.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        minutes = reader.minutes("cpu-small", 0.0, BEGIN + 10 * HOUR)
        demand = reader.demand("cpu-small", 0.0, BEGIN + 10 * HOUR)
    for replica in ("r0", "dead"):
        of_it = [one.window for one in minutes if one.replica == replica]
        # From the first scrape on there is nothing that is missing, and nothing that is there twice.
        assert sum(one.expected_seconds for one in of_it) == 39 * 30.0
        assert max(one.expected_seconds for one in of_it) <= 60.0
    assert max(one.expected_seconds for one in demand) <= 120.0


def test_after_the_booked_time_is_reached_again_minutes_are_booked(tmp_path: Path) -> None:
    watcher = Watcher({"t": slices.view("t", None)})
    t, closed = START, []
    for number in range(60):
        t += -600.0 if number == 20 else 30.0
        watcher.no_page("t", "r", t, Gap.SCRAPE_FAILED)
        closed += watcher.turn(t)[1]
    ends = [one.slice.window.end for one in closed if not one.again]
    assert ends == sorted(set(ends))
    assert any(one.again for one in closed)
    assert ends[-1] > START + 600.0


def test_minutes_of_a_time_that_has_yet_to_come_are_no_rule_s_business() -> None:
    view = slices.view("t", None)
    minutes = watch.Minutes()
    for number in range(70):
        minutes = watch.closed_minute(minutes, window(START + 60.0 * number), "r", view)
    minutes = watch.closed_minute(minutes, window(START), "r", view)
    assert max(one.window.end for one in minutes.slices) <= START + 60.0 + watch.AHEAD_SECONDS


def test_role_fleet_asks_the_store_for_no_time_that_ends_before_it_begins() -> None:
    fleet, api = told_by_agents(list(agent_samples("steady")))
    asked: list[tuple[float, float]] = []
    raw = api.store.raw

    def noted(selector: str, start: float, end: float) -> tuple[RawSeries, ...]:
        asked.append((start, end))
        return raw(selector, start, end)

    api.store.raw = noted  # type: ignore[method-assign]
    fleet.go(3)
    before = fleet.answer("TargetDown", "cpu-small-0")
    fleet.now -= HOUR
    fleet.go(2)
    assert all(start < end for start, end in asked)
    assert fleet.turns.store_troubles == {}
    assert before.status is Status.OK
    fleet.now += HOUR - 180.0
    fleet.go(2)
    assert fleet.answer("TargetDown", "cpu-small-0").status is Status.OK
    ends = [one.slice.window.end for one in fleet.closed]
    assert ends == sorted(set(ends))


def test_nothing_ends_before_it_began() -> None:
    standing, _ = episodes.advance(None, answer(HOUR, Status.CRITICAL))
    _, (ended,) = episodes.advance(standing, answer(0.0, Status.OK))
    assert (ended.started_at, ended.ended_at) == (HOUR, HOUR)
    assert [one.ended_at for one in episodes.end(standing, 0.0)] == [HOUR]
