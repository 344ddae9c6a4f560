"""Histories of other formats: renamed by the daemon, named by the doctor, read by nobody.

`history_formats/format-4.db.gz` was written by the code of format 4.
"""

from __future__ import annotations

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
from agent.history.errors import HistoryError, HistoryFormatError
from agent.history.schema import DAY, VERSION
from agent.history.service import HistoryService
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


def read_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@FORMATS
def test_a_history_of_another_format_is_renamed_and_a_new_one_begins(
    tmp_path: Path, make: Callable[[Path], Path], version: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path)
    renamed = tmp_path / f"history.db.format-{version}"
    with HistoryStore(path) as store:
        assert store.renamed == renamed
        assert store.minutes("h100", *EVER) == ()
        store.book([booking(0)])
    assert f"renamed history of another format file={path} format={version} to={renamed}" in caplog.text
    assert (read_version(path), read_version(renamed)) == (VERSION, version)
    assert renamed.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {"history.db", renamed.name}, (
        "nothing of its log is left beside"
    )
    with HistoryStore(path) as store:
        assert store.renamed is None
        assert len(store.minutes("h100", *EVER)) == 1


def test_what_lies_in_its_log_alone_goes_with_it(tmp_path: Path) -> None:
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
    with closing(sqlite3.connect(tmp_path / "history.db.format-4")) as connection:
        assert connection.execute("SELECT value FROM kept WHERE name = 'late'").fetchall() == [("1",)]


def test_one_that_was_renamed_before_is_never_written_over(tmp_path: Path) -> None:
    for ending in ("", ".1", ".2"):
        with HistoryStore(make_older(tmp_path)) as store:
            assert store.renamed == tmp_path / f"history.db.format-4{ending}"


def test_one_that_another_process_has_open_is_not_renamed_until_it_is_closed(tmp_path: Path) -> None:
    path = make_older(tmp_path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT count(*) FROM series").fetchone()
        with pytest.raises(HistoryError, match=r"is locked|another process"):
            HistoryStore(path, 0.05)
        assert read_version(path) == 4
    HistoryStore(path).close()
    assert read_version(path) == VERSION


@FORMATS
def test_a_command_does_not_read_it_and_changes_nothing(
    tmp_path: Path, make: Callable[[Path], Path], version: int
) -> None:
    path = make(tmp_path)
    before = path.read_bytes()
    with pytest.raises(HistoryFormatError) as refused:
        HistoryStore.open_reader(path)
    assert f"is of format {version}, this sizewatch knows {VERSION}; `sizewatch run` renames it" in str(refused.value)
    assert path.read_bytes() == before


def test_a_daemon_says_that_its_history_began_anew(tmp_path: Path) -> None:
    folder = tmp_path / "sizewatch-data"
    folder.mkdir(mode=0o700)
    make_older(folder)
    with engines(1) as served, running(write(tmp_path, configuration(served))) as daemon:
        notice = daemon.status().health.history_notice
        assert notice is not None
        assert f"of another format and is named {folder}/history.db.format-4 now" in notice
        assert daemon.status().health.history_trouble is None


def test_a_daemon_of_a_known_format_says_nothing(tmp_path: Path) -> None:
    HistoryStore(tmp_path / "history.db").close()
    service = HistoryService(lambda: HistoryStore(tmp_path / "history.db"))
    assert service.notice is None
    service.close()


def findings(folder: Path, check: str = "history") -> list[CheckResult]:
    return about(run_checks(loaded(folder, data_dir=".")), check)


@FORMATS
def test_the_doctor_tells_that_it_will_be_renamed(tmp_path: Path, make: Callable[[Path], Path], version: int) -> None:
    make(tmp_path)
    (result,) = findings(tmp_path)
    assert result.level is CheckLevel.WARN
    assert result.text.endswith("is of another format, which no command reads")
    assert result.advice == f"`sizewatch run` renames it to history.db.format-{version} and begins a new one"


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
