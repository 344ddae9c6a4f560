"""What the daemon does with its history: booked or waiting, Step 13 once a plan version, what an earlier run left."""

import json
import logging
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import making
import pytest
from history_samples import START, window
from paths import TESTS

from agent.config.files import load_plan
from agent.history import service
from agent.history.schema import HistoryError, HistoryOpenError
from agent.history.service import HistoryService, HistorySink, check_tier
from agent.history.store import HistoryStore
from exporters.documents.replay import check_json, headline
from rules.evaluator.observation import ClosedMinute, StepResult
from rules.evaluator.timeline import TimelineEvent
from rules.plan import load_bins
from rules.plan.schema import plan_version
from rules.verdicts.verdict import Finding

DAY = 86_400.0
PLAN = load_plan(TESTS / "plans" / "cpu-small.yaml")


@pytest.fixture(name="path")
def history_path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def closed(minute: int, tier: str = "t") -> ClosedMinute:
    return ClosedMinute(tier=tier, replica="r", slice=load_bins.bin_window(window(minute), None, "r"))


def finding(ended_at: float | None = None, started_at: float = START, sentence: str = "bad") -> Finding:
    return making.finding(making.verdict(t=started_at, sentence=sentence), ended_at=ended_at)


def event(t: float) -> TimelineEvent:
    return TimelineEvent(t=t, kind="start", tier=None, replica=None, text="began")


@pytest.fixture(name="keeping")
def open_keeping(path: Path) -> Iterator[HistoryService]:
    keeping = HistoryService(lambda: HistoryStore(path, busy_timeout_seconds=0.05))
    yield keeping
    keeping.close()


def kept(path: Path) -> tuple[int, int, list[str]]:
    """Minutes, episodes and kinds of events in the file."""
    with HistoryStore.open_reader(path) as reader:
        minutes = reader.minutes("t", START - DAY, START + DAY)
        return len(minutes), len(reader.spans(Finding, 0.0)), [event.kind for event in reader.events(0.0)]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_locked_file_is_written_later(keeping: HistoryService, path: Path) -> None:
    keeping.write_error = "full: as upkeep found"
    keeping.write_cycle()
    assert keeping.error == "full: as upkeep found", "an empty cycle clears no error"
    with locked(path):
        keeping.add_events([event(START)])
        for minute in range(3):
            keeping.write_cycle([closed(minute)], [finding(START + 60, START + minute)])
            assert "database is locked" in str(keeping.error)
        assert keeping.waiting_minutes == 3
    keeping.write_cycle()
    assert kept(path) == (3, 3, ["start"])
    assert (keeping.error, keeping.waiting_minutes, keeping.dropped_minutes) == (None, 0, 0)


@pytest.mark.parametrize("operation", ["list_booked_seconds", "book"])
def test_minutes_are_booked_once_after_trouble(operation: str, path: Path) -> None:
    """They come late, behind a newer minute that had to wait."""
    with closing(HistoryService(lambda: HistoryStore(path))) as earlier:
        earlier.write_cycle([closed(minute) for minute in range(3)], now=START + 180)
    store = HistoryStore(path)
    newer = replace(closed(3), replica="other", slice=load_bins.bin_window(window(3), None, "other"))
    with closing(HistoryService(lambda: store)) as later:
        with pytest.MonkeyPatch.context() as fails_once:
            fails_once.setattr(store, operation, Mock(side_effect=HistoryError(path, "database is locked")))
            later.write_cycle([newer], now=START + 241)
        assert later.waiting_minutes == 1
        later.write_cycle([closed(minute) for minute in range(3)], now=START + 242)
        later.write_cycle([closed(3)], now=START + 243)
    assert kept(path)[0] == 5
    with HistoryStore.open_reader(path) as reader:
        told = reader.requests("t", START, START + 600)
    assert sum(one.requests for one in told) == 5 * window(0).counters["requests_finished"]


def test_minutes_wait_for_the_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full, foreign = HistoryError(path, "full"), HistoryOpenError(path, "another program's")
    opened = Mock(side_effect=[full, foreign, full, HistoryStore(path, 0.05)])
    let_go = Mock()
    keeping = HistoryService(opened, let_go)
    assert keeping.error == f"{path}: full"
    keeping.write_cycle([closed(0), closed(1)])
    assert (keeping.waiting_minutes, keeping.error) == (2, f"{path}: another program's")
    assert keeping.load_previous_run(0.0, START).findings == ()
    keeping.write_cycle([closed(2)])
    assert (kept(path)[0], keeping.error, keeping.dropped_minutes) == (3, None, 0)
    with locked(path), caplog.at_level(logging.ERROR):
        keeping.write_cycle([closed(3)])
        keeping.close()
    let_go.assert_called_once()
    assert "lost unwritten history minutes=1" in caplog.text


@pytest.mark.parametrize("is_replaced", [False, True])
def test_minutes_follow_a_removed_history(keeping: HistoryService, path: Path, is_replaced: bool) -> None:
    with patch("os.stat", side_effect=OSError("failing disk")):
        keeping.write_cycle([closed(0)])
    assert kept(path)[0] == 1
    for file in path.parent.glob("history.db*"):
        file.unlink()
    if is_replaced:
        with closing(HistoryService(lambda: HistoryStore(path))) as restored:
            restored.write_cycle([closed(1)])
    keeping.write_cycle([closed(2)])
    assert (kept(path)[0], keeping.error) == (1 + is_replaced, None)


def test_rest_of_a_restarted_minute_is_booked(path: Path) -> None:
    whole = window(0)
    cut = {"expected_seconds": 10.0, "covered_seconds": 10.0}
    first = replace(whole, end=START + 10, **cut)
    rest = replace(whole, start=START + 10, expected_seconds=50.0, covered_seconds=50.0)
    for part, now in ((first, START + 10), (rest, START + 60)):
        with closing(HistoryService(lambda: HistoryStore(path))) as run:
            record = ClosedMinute(tier="t", replica="r", slice=load_bins.bin_window(part, None, "r"))
            run.write_cycle([record], now=now)
    with HistoryStore.open_reader(path) as reader:
        (minute,) = reader.minutes("t", START, START + 60)
    assert minute.window.covered_seconds == 60.0


def test_oldest_minutes_are_lost_and_counted(
    keeping: HistoryService, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_BYTES", 10_000)
    with locked(path):
        for minute in range(100):
            keeping.write_cycle([closed(minute)])
    waiting = keeping.waiting_minutes
    assert 1 < waiting < 50
    assert keeping.dropped_minutes == 100 - waiting
    keeping.write_cycle()
    with HistoryStore.open_reader(path) as reader:
        starts = [minute.window.start for minute in reader.minutes("t", START, START + DAY)]
    assert starts == [START + 60.0 * minute for minute in range(100 - waiting, 100)]


def test_impossible_minutes_are_a_defect_once(
    keeping: HistoryService, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(path):
        keeping.write_cycle([closed(0)])
    with monkeypatch.context() as broken:
        broken.setattr(HistoryStore, "book", Mock(side_effect=KeyError("defect")))
        with pytest.raises(KeyError):
            keeping.write_cycle()
    keeping.write_cycle([closed(1)])
    assert kept(path)[0] == 1


def test_restarted_daemon_finds_open_and_ended(keeping: HistoryService) -> None:
    keeping.write_cycle([closed(0)], [finding(START + 60)], [finding(None, START + 5)])
    soon = keeping.load_previous_run(START - DAY, START + 3600)
    assert [e.started_at for e in soon.findings if e.ended_at is not None] == [START]
    assert [e.started_at for e in soon.findings if e.ended_at is None] == [START + 5]
    assert soon.seen_at == START + 60


VIEW = load_bins.build_tier_context("cpu-small", PLAN.tiers["cpu-small"])
VERSION = plan_version(PLAN.tiers["cpu-small"])


def keep_step13(keeping: HistoryService, at: float, version: str = VERSION) -> dict[str, str]:
    return keeping.upkeep({"cpu-small": VIEW}, {"cpu-small": version}, at)


def test_step_13_is_done_once_a_plan(keeping: HistoryService, path: Path) -> None:
    with locked(path):
        assert keep_step13(keeping, START) == {}
        assert keeping.error is not None
    for hour in range(0, int(7 * DAY), 3600):
        assert keep_step13(keeping, START + hour) == {}
    first = keep_step13(keeping, START + 7 * DAY)
    assert first["cpu-small"].startswith("cpu-small: cannot be judged")
    keeping.write_cycle([closed(0)])
    assert (keep_step13(keeping, START + 30 * DAY), keeping.error) == (first, None), "the first week's answer stays"
    for day in (31, 37):
        assert keep_step13(keeping, START + day * DAY, "another") == {}
    assert keep_step13(keeping, START + 38 * DAY, "another") != {}
    assert keep_step13(keeping, START + 39 * DAY) == first, "back on the first plan, its answer is known"
    assert kept(path)[2] == ["step13", "step13"]


DAMAGE = {
    "DROP TABLE kept": "no such table: kept (SQLITE_ERROR); put a backup in its place",
    "UPDATE kept SET value = '{'": "is damaged: kept holds",
    "INSERT INTO events (t, kind, text) VALUES ('soon', 'start', '')": "is damaged: events holds",
    "INSERT INTO events (t, kind, text) VALUES (9e999, 'start', '')": "is damaged: events holds",
}


@pytest.mark.parametrize(("statement", "text"), DAMAGE.items())
def test_damage_costs_its_part_alone(
    keeping: HistoryService, path: Path, statement: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep_step13(keeping, START)
    keeping.write_cycle([closed(0)], [finding(START + 60)])
    keeping.store()._connection.execute(statement)
    for _ in range(2):
        assert len(keeping.load_previous_run(0.0, START).findings) == 1
    assert len(keep_step13(keeping, START + 7 * DAY)) == ("events holds" in text)
    keeping.write_cycle([closed(1)])
    assert keeping.error is not None or "events holds" in text, "work of the hour still fails"
    mended = "CREATE TABLE IF NOT EXISTS kept (name PRIMARY KEY, value); DELETE FROM kept; DELETE FROM events"
    keeping.store()._connection.executescript(mended)
    keep_step13(keeping, START + 7 * DAY + 60)
    assert keeping.error is None, "the same work has succeeded"
    assert caplog.messages[0].startswith(f'history read failed error="{path}: {text}')


def test_step_13_rests_on_its_week(keeping: HistoryService) -> None:
    hours = range(-48, 24 * 7 + 5, 6)
    keep_step13(keeping, START)
    for hour in hours:
        one = load_bins.bin_window(window(60 * hour), VIEW.curve, "r")
        keeping.write_cycle([ClosedMinute(tier="cpu-small", replica="r", slice=one, plan_version=VERSION)])
    keep_step13(keeping, START + 7 * DAY)
    with closing(sqlite3.connect(keeping.store()._path)) as connection:
        (body,) = connection.execute("SELECT value FROM kept WHERE name LIKE 'step13/%'").fetchone()
    result = check_tier(keeping.store(), VIEW, VERSION, START, START + 7 * DAY)
    assert json.loads(body) == headline(result)
    (tier,) = check_json([result])["tiers"]
    assert tier["requests"] == 60.0 * len([h for h in hours if 0 <= h < 24 * 7])
    assert math.isclose(tier["highest_rps"], 1.0)


def test_minutes_are_written_after_the_cycle(path: Path) -> None:
    source: Any = SimpleNamespace(targets=(SimpleNamespace(key=("t", "r"), pool="prefill"),))
    sink = HistorySink(HistoryService(lambda: HistoryStore(path)), source, {"t": "v1"})
    first, second, unkept = (replace(closed(n), pool="prefill", kept=n < 2) for n in range(3))
    sink.accept(StepResult(now=START + 60, minutes=(first, replace(first, tier="unplanned"))))
    sink.accept(StepResult(now=START + 120, minutes=(second, unkept)))
    sink.end_cycle(START + 180)
    sink.end_cycle(START + 240)
    sink.close()
    with HistoryStore.open_reader(path) as reader:
        minutes = reader.minutes("t", 0.0, START + 600, "v1")
        assert len(reader.minutes("unplanned", 0.0, START + 600, "")) == 1
        assert reader.requests("t", START, START + 600) == (), "a prefill pool has no arrivals of its own"
    assert [one.window.start for one in minutes] == [START, START + 60]


def test_failed_write_and_recovery_are_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agent.history.service")
    store = HistoryStore(path)
    source: Any = SimpleNamespace(targets=())
    sink = HistorySink(HistoryService(lambda: store), source, {})
    book, full = store.book, Mock(side_effect=HistoryError(path, "no space left"))
    for cycle in range(5):
        monkeypatch.setattr(store, "book", full if cycle in (1, 2) else book)
        sink.accept(StepResult(now=START, minutes=(closed(cycle),)))
        sink.end_cycle(START + 360)
    sink.close()
    said = [record.getMessage().partition(" error=")[0] for record in caplog.records]
    assert said == ["history write failed, buffering in memory", "history write recovered"]
    assert kept(path)[0] == 5
