"""What is damaged on our own disk is told as damage: no library's error comes out of a history, whatever stands in its columns."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import history_samples
import pytest

from agent.history.errors import HistoryError
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from rules.evaluator.timeline import TimelineEvent, TimelineKind

START = history_samples.START


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "h.db"
    with closing(HistoryStore(path)) as store:
        store.book(history_samples.booking(minute) for minute in range(5))
        store.book(events=[TimelineEvent(t=START, kind=TimelineKind.START, tier="h100", replica=None, text="text")])
    return path


ASKED: dict[str, Callable[[Reader], object]] = {
    "UPDATE demand SET prompt_tokens = 'x'": lambda reader: reader.demand("h100", START, START + 600),
    "UPDATE demand SET requests = x'00ff'": lambda reader: reader.requests("h100", START, START + 600),
}


@pytest.mark.parametrize("statement", ASKED)
def test_a_value_of_another_type_is_damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    with HistoryStore.open_reader(path) as reader, pytest.raises(HistoryError, match="is damaged: demand holds"):
        ASKED[statement](reader)
