"""Histories of other formats: renamed by the daemon, named by the doctor, read by nobody.

`history_formats/format-4.db.gz` was written by the code of format 4.
"""

import gzip
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from daemon_runs import configuration, running, write
from engine_server import engines
from history_samples import START, booking
from paths import TESTS
from test_run import about, loaded

from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks
from agent.history.schema import VERSION, HistoryError, HistoryFormatError
from agent.history.store import HistoryStore


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


def read_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@FORMATS
def test_old_file_stays_beside_a_new_history(tmp_path: Path, make: Callable[[Path], Path], version: int) -> None:
    folder = tmp_path / "sizewatch-data"
    folder.mkdir(mode=0o700)
    path = make(folder)
    with engines(1) as served, running(write(tmp_path, configuration(served))) as daemon:
        text = daemon.status().timeline[0].text
        assert daemon.status().health.history_trouble is None
    (kept,) = folder.glob("history.db.2*Z")
    assert text == f"the history was of format {version}: it is named {kept.name} now, and a new one began"
    assert (read_version(path), read_version(kept)) == (VERSION, version)
    assert kept.stat().st_mode & 0o777 == 0o600


def test_log_goes_with_its_file(tmp_path: Path) -> None:
    path = make_older(tmp_path)
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO kept (name, value) VALUES ('late', '1')")
        connection.commit()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "history.db-wal").stat().st_size > 0
    HistoryStore(path).close()
    (kept,) = tmp_path.glob("history.db.2*Z")
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT value FROM kept WHERE name = 'late'").fetchall() == [("1",)]


def test_open_file_is_not_renamed(tmp_path: Path) -> None:
    path = make_older(tmp_path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT count(*) FROM series").fetchone()
        with pytest.raises(HistoryError, match="is locked"):
            HistoryStore(path, 0.05)
        assert read_version(path) == 4
    HistoryStore(path).close()
    assert read_version(path) == VERSION


@FORMATS
def test_command_does_not_change_an_old_file(tmp_path: Path, make: Callable[[Path], Path], version: int) -> None:
    path = make(tmp_path)
    before = path.read_bytes()
    with pytest.raises(HistoryFormatError) as refused:
        HistoryStore.open_reader(path)
    told = f"{path}: is of format {version}, this sizewatch reads {VERSION}"
    assert str(refused.value) == f"{told}; `sizewatch run` renames it and begins a new one"
    (result,) = about(run_checks(loaded(tmp_path, data_dir=".")), "history")
    assert (result.level, result.text) == (CheckLevel.WARN, str(refused.value))
    assert path.read_bytes() == before


def test_doctor_tells_of_times_ahead(tmp_path: Path) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        store.book([booking(89)])

    def at(now: float) -> list[CheckResult]:
        return about(run_checks(loaded(tmp_path, data_dir="."), lambda: now), "history")

    end = START + 90 * 60.0
    assert [one.level for one in at(end)] == [CheckLevel.OK]
    (ahead,) = at(end - 3600.0)
    assert ahead.level is CheckLevel.WARN
    assert "its newest minute is 3600 s ahead of this machine's clock" in ahead.text
