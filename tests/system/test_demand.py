"""Demand in the history: added to as minutes close, kept thirteen weeks, and read as series; damage is told as damage."""

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from history_samples import START, booking, finished
from numpy.testing import assert_array_equal

from agent.forecasting.history_input import read_demand
from agent.forecasting.messages import settled_time
from agent.history.reader import Reader
from agent.history.schema import DAY, DEMAND_COLUMNS, VERSION, HistoryError
from agent.history.store import HistoryStore
from rules.telemetry.arrivals import MinuteDemand

EVER = (0.0, START + 1000 * DAY)
NAN = math.nan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    with HistoryStore(path) as one:
        yield one


def requests(several: tuple[MinuteDemand, ...]) -> list[tuple[float, float | None]]:
    return [((one.start - START) / 60, one.requests) for one in several]


def test_request_through_both_pools_arrives_once(store: HistoryStore) -> None:
    pools = [replace(booking(0, name), pool=name) for name in ("prefill", "decode")]
    store.book(pools)
    assert requests(store.demand("h100", *EVER)) == [(0, 60.0)]
    assert finished(store.minutes("h100", *EVER)) == 120.0


def test_demand_is_atomic_with_minutes(store: HistoryStore) -> None:
    store.book([booking(0)])
    store._connection.execute("ALTER TABLE demand RENAME COLUMN waiting TO gone")
    with pytest.raises(sqlite3.OperationalError):
        store.book([booking(1)])
    store._connection.execute("ALTER TABLE demand RENAME COLUMN gone TO waiting")
    assert finished(store.minutes("h100", *EVER)) == 60.0
    assert requests(store.demand("h100", *EVER)) == [(0, 60.0)]


def test_the_columns_are_those_of_this_format() -> None:
    """A column that comes or goes needs another VERSION, or a history of today is no longer read."""
    assert VERSION == 6
    assert ", ".join(DEMAND_COLUMNS) == (
        "first, last, expected_seconds, covered_seconds, requests, requests_seconds, completed, prompt_tokens,"
        " prompt_seconds, generation_tokens, generation_seconds, waiting, waiting_seconds, computed_tokens, computed_seconds"
    )


@pytest.mark.parametrize(("column", "value", "read"), [
    ("prompt_tokens", "'x'", Reader.demand),
    ("requests", "x'00ff'", Reader.requests),
])  # fmt: skip
def test_a_value_of_another_type_is_damage(
    path: Path, store: HistoryStore, column: str, value: str, read: Callable[..., object]
) -> None:
    store.book([booking(0)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE demand SET {column} = {value}")
    with HistoryStore.open_reader(path) as reader, pytest.raises(HistoryError, match="is damaged: demand holds"):
        read(reader, "h100", START, START + 600)


def minute(place: int, amount: float | None) -> MinuteDemand:
    spans = {"start": START + 60.0 * place, "covered_seconds": 60.0, "expected_seconds": 60.0}
    return MinuteDemand(requests=amount, prompt_tokens=None, generation_tokens=None, waiting=None, **spans)


def test_unknown_minutes_are_missing_in_series() -> None:
    kept = [minute(0, None), minute(1, 5.0), minute(3, None), minute(4, 7.0)]
    reader: Any = SimpleNamespace(demand=lambda *_: kept)
    (found,) = read_demand(reader, "h100", START, START + 360.0, zone="Europe/Berlin")
    assert (found.start, found.bin_seconds, found.zone) == (START, 60.0, "Europe/Berlin")
    assert_array_equal(found.values, np.array([NAN, 5, NAN, NAN, 7, NAN]))


def test_minute_settles_after_two_intervals() -> None:
    assert [settled_time(START + t, 30.0) - START for t in (29, 30, 89, 90)] == [-60.0, 0.0, 0.0, 60.0]
