"""Histories of other formats: refused by the daemon, the commands and the doctor, and left alone.

`history_formats/format-4.db.gz` was written by the code of format 4.
"""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from history_samples import START, booking
from paths import TESTS
from test_run import about, loaded

from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks
from agent.history.errors import HistoryOpenError
from agent.history.schema import DAY, VERSION
from agent.history.store import HistoryStore

EVER = (0.0, START + 1000 * DAY)


def make_older(folder: Path) -> Path:
    """A history as the code of format 4 left it."""
    path = folder / "history.db"
    path.write_bytes(gzip.decompress((TESTS / "history_formats" / "format-4.db.gz").read_bytes()))
    path.chmod(0o600)
    return path


def make_newer(folder: Path) -> Path:
    """A history that a version to come wrote: the present format and a table more."""
    path = folder / "history.db"
    HistoryStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    return path


FORMATS = pytest.mark.parametrize(("make", "version"), [(make_older, 4), (make_newer, VERSION + 1)])


def refusal(path: Path, version: int) -> str:
    text = f"is of format {version}, this sizewatch reads {VERSION}; move it away, and `sizewatch run` begins a new one"
    return f"{path}: {text}"


@FORMATS
def test_a_history_of_another_format_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], Path], version: int
) -> None:
    path = make(tmp_path)
    before = path.read_bytes()
    for open_history in (HistoryStore, HistoryStore.open_reader):
        with pytest.raises(HistoryOpenError) as refused:
            open_history(path)
        assert str(refused.value) == refusal(path, version)
    assert path.read_bytes() == before


def findings(folder: Path, check: str = "history") -> list[CheckResult]:
    return about(run_checks(loaded(folder, data_dir=".")), check)


@FORMATS
def test_the_doctor_names_the_format(tmp_path: Path, make: Callable[[Path], Path], version: int) -> None:
    path = make(tmp_path)
    (result,) = findings(tmp_path)
    assert result.level is CheckLevel.FAIL
    assert result.text == refusal(path, version)


def test_the_doctor_tells_of_a_history_that_is_ahead_of_the_clock(tmp_path: Path) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        store.book([booking(89)])

    def at(now: float) -> list[CheckResult]:
        return about(run_checks(loaded(tmp_path, data_dir="."), lambda: now), "history")

    end = START + 90 * 60.0
    assert [one.level for one in at(end)] == [CheckLevel.OK]
    (ahead,) = at(end - 3600.0)
    assert ahead.level is CheckLevel.WARN
    assert "its newest minute is 3600 s ahead of this machine's clock" in ahead.text
