"""The history under bad luck: kill -9, readers beside the writer, a full disk, locks, damage, other people's files."""

import contextlib
import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from daemon_runs import configuration, running, write
from engine_server import engines
from history_samples import START, booking, finished
from history_writer import REPLICAS
from paths import ROOT, SUPPORT, TESTS
from test_run import about, loaded

from agent.doctor.check_result import CheckLevel
from agent.doctor.run import run_checks
from agent.errors import ConfigError
from agent.files import LOCK_FILE, DataDir
from agent.history import schema
from agent.history.schema import DAY, VERSION, HistoryError, HistoryFormatError, HistoryOpenError, encode_window
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from rules.verdicts.verdict import Finding

EVER = (0.0, START + 1000 * DAY)
WRITER = SUPPORT / "history_writer.py"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


@pytest.fixture
def store(path):
    with HistoryStore(path, busy_timeout_seconds=0.05) as one:
        yield one


def writer(*arguments):
    """The writing process; both the tests and the program stand on its path."""
    folders = os.pathsep.join((str(WRITER.parent), str(ROOT)))
    return subprocess.Popen(
        [sys.executable, str(WRITER), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folders},
    )


def turns_in(reader):
    """The turns that are there, each with all its replicas, and that all three sums tell the same."""
    minutes = reader.minutes("h100", *EVER)
    turns = {}
    for one in minutes:
        turns.setdefault(round((one.window.start - START) / 60), []).append(one)
    for turn, several in turns.items():
        assert [one.replica for one in several] == list(REPLICAS), f"half of turn {turn}"
        assert finished(tuple(several)) == len(REPLICAS) * (turn + 1)
    return turns.keys(), finished(minutes)


def trouble_of(call, *arguments, kind=HistoryError):
    with pytest.raises(kind) as raised:
        call(*arguments)
    return str(raised.value)


def problem_of(call, path):
    """The problem of a place, which its text names first."""
    place, _, text = trouble_of(call, path, kind=HistoryOpenError).partition(": ")
    assert place == str(path)
    return text


def test_killed_writer_loses_no_acknowledged_minute(path):
    with writer("kill", path, 15) as process:
        told = json.loads(process.stdout.read())
    assert told["deaths"] == 15
    assert len(told["acknowledged"]) > 15
    with HistoryStore.open_reader(path) as reader:
        there, requests = turns_in(reader)
        assert there >= set(told["acknowledged"])
        # Beyond what was acknowledged only the one turn a child was killed in.
        assert len(there) <= len(told["acknowledged"]) + 15
        assert finished(reader.replica_bins("h100", *EVER)) == requests
        assert finished(reader.bins("h100", *EVER)) == requests
    with HistoryStore(path) as store:
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        store.book([booking(20_000, replica, finished=20_001.0) for replica in REPLICAS])
        assert turns_in(store)[0] == there | {20_000}


def test_reader_sees_whole_turns(path):
    with writer("write", path, 0, 400) as process:
        process.stdout.readline()
        seen = []
        with HistoryStore.open_reader(path) as reader:
            while process.poll() is None:
                turns, _ = turns_in(reader)
                assert turns == set(range(len(turns)))
                seen.append(len(turns))
            turns, requests = turns_in(reader)
            assert finished(reader.bins("h100", *EVER)) == requests
    assert process.returncode == 0
    assert turns == set(range(400))
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_reader_can_change_nothing(store, path):
    store.book([booking(0)])
    with HistoryStore.open_reader(path) as reader:
        assert not hasattr(reader, "book")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM hours")
    assert len(store.bins("h100", *EVER)) == 1


def test_threads_share_a_store(store):
    def book(replica):
        for minute in range(30):
            store.book([booking(minute, replica)])
            store.bins("h100", *EVER)

    with ThreadPoolExecutor() as pool:
        tuple(pool.map(book, REPLICAS))
    assert finished(store.bins("h100", *EVER)) == 3 * 30 * 60.0


def fill(store):
    """No page more: as if the disk were full."""
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_full_disk_books_later(store):
    store.book([booking(0)])
    fill(store)
    service = HistoryService(lambda: store)
    many = [booking(minute, f"r{n}") for minute in range(1, 4) for n in range(40)]
    service.write_cycle(many)
    assert service.error.endswith("database or disk is full (SQLITE_FULL)")
    assert service.waiting_minutes == 120
    for ask in (store.minutes, store.replica_bins, store.bins):
        assert finished(ask("h100", *EVER)) == 60.0
    store._connection.execute("PRAGMA max_page_count = 1000000")
    service.write_cycle()
    assert (service.waiting_minutes, service.dropped_minutes, service.error) == (0, 0, None)
    for ask in (store.minutes, store.replica_bins, store.bins):
        assert finished(ask("h100", *EVER)) == 121 * 60.0


def test_damaged_pages_are_a_trouble(path):
    with HistoryStore(path) as store:
        store.book([booking(minute, f"r{n}") for minute in range(30) for n in range(20)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with HistoryStore(path) as store:
        assert "(SQLITE_CORRUPT" in trouble_of(store.minutes, "h100", *EVER)
        assert "(SQLITE_CORRUPT" in trouble_of(store.book, [booking(0)])


@pytest.mark.parametrize("body", [b"", b"no zlib", encode_window(booking(0).slice.window)[:-9]])
def test_damaged_row_is_not_overwritten(store, body):
    store.book([booking(0)])
    store.keep("a", "1")
    run = store._connection.execute
    run("UPDATE hours SET body = ?", (body,))
    run("INSERT INTO spans VALUES ('episode', 'R', 't', '', 1.0, NULL, '{\"rule\": 1}')")
    run("UPDATE kept SET value = CAST(x'78cc0f' AS TEXT)")
    for call, arguments in ((store.bins, ("h100", *EVER)), (store.book, ([booking(1)],))):
        assert "is damaged: hours holds Error -" in trouble_of(call, *arguments)
    assert finished(store.minutes("h100", *EVER)) == 60.0
    assert "is damaged: spans holds" in trouble_of(store.spans, Finding, 0.0)
    assert "Could not decode to UTF-8" in trouble_of(store.read_value, "a", str)
    run("PRAGMA query_only = ON")
    assert "(SQLITE_READONLY)" in trouble_of(store.book, [booking(60)])
    assert "(SQLITE_READONLY)" in trouble_of(store.keep, "name", "1")


def test_history_closed_by_reload_is_no_defect(path):
    service = HistoryService(lambda: HistoryStore(path))
    store = service.store()
    store.close()
    with pytest.raises(HistoryError, match="is closed"):
        store.minutes("h100", *EVER)
    assert service.load_previous_run(0.0, START).findings == ()
    assert "is closed" in service.error


def test_error_in_our_sql_is_a_defect(store, path):
    with pytest.raises(sqlite3.OperationalError, match="no such table"), schema.translate_sqlite_errors(path):
        store._connection.execute("SELECT * FROM nowhere")


def test_foreign_files_are_refused_and_kept(path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
        other.commit()
    for text, problem in (
        (None, "is a SQLite file of another program; give another path"),
        ("tiers:\n  h100: {}\n" * 100, "is no history (file is not a database); move it away, or give another path"),
    ):
        if text is not None:
            path.write_text(text)
        before = path.read_bytes()
        assert problem_of(HistoryStore, path) == problem
        assert path.read_bytes() == before


def test_impossible_places_are_named(tmp_path):
    nowhere = tmp_path / "nowhere" / "history.db"
    assert problem_of(HistoryStore, nowhere).startswith("cannot be made (No such file or directory)")
    (tmp_path / "file").touch()
    for place in (nowhere, tmp_path / "file" / "history.db"):
        assert problem_of(HistoryStore.open_reader, place).startswith("does not exist; `sizewatch run` makes it")
    # Marks of a URI are parts of a path, and an empty file becomes a history.
    path = tmp_path / "a?mode=memory#1%20.db"
    path.touch()
    assert problem_of(HistoryStore.open_reader, path) == "is empty; `sizewatch run` fills it"
    with HistoryStore(path) as store:
        store.book([booking(0)])
        assert len(store.bins("h100", *EVER)) == 1
    assert path.stat().st_size > 4096


def test_locked_folder_is_said():
    nobody, user = 65_534, os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        locked = Path(folder) / "locked"
        locked.mkdir(mode=0)
        if user == 0:
            os.setresuid(nobody, nobody, user)
        try:
            told = problem_of(HistoryStore.open_reader, locked / "history.db")
        finally:
            os.setresuid(user, user, user)
    assert told.startswith("may not be read by this user")


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
    end = START + 90 * 60.0
    clocks = (lambda: end), (lambda: end - 3600.0)
    now, ahead = (about(run_checks(loaded(tmp_path, data_dir="."), clock), "history")[0] for clock in clocks)
    assert (now.level, ahead.level) == (CheckLevel.OK, CheckLevel.WARN)
    assert "its newest minute is 3600 s ahead of this machine's clock" in ahead.text


NAMED = Path("/etc/sizewatch/sizewatch.yaml")


def test_folder_is_private_and_of_one_daemon(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    expected = rf"^{NAMED}: data_dir: {folder} is in use by another sizewatch \(process {os.getpid()}\)"
    ours = DataDir(folder, NAMED)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / LOCK_FILE).unlink()
    other = DataDir(folder, NAMED)
    with pytest.raises(ConfigError, match=expected):
        ours.lock()
    other.close()
    for _ in range(2):
        ours.lock()
    with pytest.raises(ConfigError, match=expected):
        DataDir(folder, NAMED)
    ours.close()


@pytest.mark.parametrize(
    ("name", "why"), [("file", "File exists"), ("file/x", "Not a directory"), ("/proc/x", "No such file or directory")]
)
def test_impossible_folder_has_its_remedy(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    words = rf"data_dir: .*{name} cannot be written \({why}\); make it writable, or name another"
    with pytest.raises(ConfigError, match=words):
        DataDir(tmp_path / name, NAMED)
