"""The sink of the history: what it writes in a cycle, and what it logs when that fails."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from making import START, window

from agent.history.schema import HistoryError
from agent.history.service import HistoryService, HistorySink
from agent.history.store import HistoryStore
from rules.evaluator.observation import ClosedMinute, StepResult
from rules.plan import load_bins

TARGET = SimpleNamespace(key=("t", "r"), pool="prefill")
SOURCE: Any = SimpleNamespace(targets=(TARGET,))


def closed(number: int, kept: bool = True) -> ClosedMinute:
    whole = window(START + 60.0 * number, counters={"requests_finished": 5.0})
    return ClosedMinute(tier="t", replica="r", slice=load_bins.bin_window(whole, None, "r"), kept=kept)


def test_minutes_are_written_after_the_cycle(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    sink = HistorySink(HistoryService(lambda: HistoryStore(path)), SOURCE, {"t": "v1"})
    sink.accept(StepResult(now=START + 60, minutes=(closed(0), replace(closed(0), tier="unplanned"))))
    sink.accept(StepResult(now=START + 120, minutes=(closed(1), closed(2, kept=False))))
    sink.end_cycle(START + 180)
    sink.end_cycle(START + 240)
    sink.close()
    with HistoryStore.open_reader(path) as reader:
        minutes = reader.minutes("t", 0.0, START + 600, "v1")
        assert len(reader.minutes("unplanned", 0.0, START + 600, "")) == 1
        assert reader.requests("t", START, START + 600) == (), "a prefill pool has no arrivals of its own"
    assert [one.window.start for one in minutes] == [START, START + 60]


def test_row_has_release_and_precision(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history.db")
    sink = HistorySink(HistoryService(lambda: store), SOURCE, {"t": "v1"})
    minute = replace(closed(0), release="vllm 0.32.0", precision="fp8/bf16")
    sink.accept(StepResult(now=START + 60, minutes=(minute,)))
    sink.end_cycle(START + 180)
    rows = store._connection.execute(
        "SELECT release, precision FROM hours JOIN series ON series.id = hours.series"
    ).fetchall()
    sink.close()
    assert rows == [("vllm 0.32.0", "fp8/bf16")]


def test_failed_write_and_recovery_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agent.history.service")
    store = HistoryStore(tmp_path / "history.db")
    sink = HistorySink(HistoryService(lambda: store), SOURCE, {})
    book = store.book

    def full(*several: Any) -> None:
        raise HistoryError(tmp_path, "no space left")

    for cycle in range(5):
        monkeypatch.setattr(store, "book", full if cycle in (1, 2) else book)
        sink.accept(StepResult(now=START, minutes=(closed(cycle),)))
        sink.end_cycle(START + 360)
    sink.close()
    said = [record.getMessage().partition(" error=")[0] for record in caplog.records]
    assert said == ["history write failed, buffering in memory", "history write recovered"]
    with HistoryStore.open_reader(tmp_path / "history.db") as reader:
        assert len(reader.minutes("t", 0.0, START + 600)) == 5
