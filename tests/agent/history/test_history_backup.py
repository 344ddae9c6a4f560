"""A history of an older format: copied before it is changed, and what it held is read afterwards, sealed or not."""

import shutil
import sqlite3
from collections import namedtuple

import pytest
from history_samples import START, booking, finished
from test_demand import old_file, version

from agent.history import schema
from agent.history import schema as backup
from agent.history.codec import encode_window
from agent.history.errors import HistoryError, HistoryErrorKind
from agent.history.schema import DAY, VERSION
from agent.history.store import HistoryStore

EVER = (0.0, START + 1000 * DAY)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


def filled(path, format):
    """A file of an older format, in the log's own mode, with 90 minutes of a replica in it."""
    old_file(path, format)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    for number, replica in ((1, "r0"), (2, "")):
        connection.execute("INSERT INTO series VALUES (?, 'h100', 'v1', ?, ?)", (number, replica, int(START)))
    for minute in range(90):
        one = booking(minute).slice.window
        for table, seconds, series in (("minutes", 60, 1), ("quarters", 900, 1), ("hours", 3600, 2)):
            if minute * 60 % seconds == 0:
                row = (int(START) + minute * 60, series, 1, "", encode_window(one))
                connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("format", range(1, VERSION))
def test_an_older_history_is_copied_first_and_then_goes_on(path, format):
    filled(path, format)
    with HistoryStore.open_reader(path) as reader:
        before = reader.minutes("h100", *EVER), reader.replica_bins("h100", *EVER), reader.bins("h100", *EVER)
        versions = reader.plan_versions("h100", *EVER)
        assert reader.has_rows_since("h100", START)
    assert [len(one) for one in before] == [90, 6, 2]
    with HistoryStore(path) as store:
        assert version(path) == VERSION
        store.seal(START + 3 * DAY)
        assert (store.minutes("h100", *EVER), store.replica_bins("h100", *EVER), store.bins("h100", *EVER)) == before
        assert store.plan_versions("h100", *EVER) == versions == ("v1",)
        store.book([booking(200)])
        assert finished(store.minutes("h100", *EVER)) == 91 * 60.0
    copy = path.with_name(f"history.db.format-{format}")
    assert sorted(one.name for one in path.parent.iterdir()) == ["history.db", copy.name]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert version(copy) == format
    with HistoryStore.open_reader(copy) as reader:
        assert reader.minutes("h100", *EVER) == before[0]


def test_a_history_of_this_format_is_not_copied(path):
    HistoryStore(path).close()
    HistoryStore(path).close()
    assert [one.name for one in path.parent.iterdir()] == ["history.db"]


def test_without_room_for_the_copy_nothing_is_changed_and_it_is_told(path, monkeypatch):
    filled(path, 2)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(backup.shutil, "disk_usage", lambda folder: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(HistoryError, match=r"history\.db\.format-2: has no room") as raised:
        HistoryStore(path)
    assert raised.value.kind is HistoryErrorKind.FULL
    assert version(path) == 2
    assert [one.name for one in path.parent.iterdir() if "format" in one.name] == []
    monkeypatch.undo()
    HistoryStore(path).close()
    assert version(path) == VERSION


def test_a_copy_that_was_begun_and_not_ended_is_made_anew(path):
    filled(path, 2)
    path.with_name("history.db.format-2").write_bytes(b"half of it")
    HistoryStore(path).close()
    assert version(path.with_name("history.db.format-2")) == 2


@pytest.mark.parametrize("left", ["history.db.format-2.4711", "history.db.format-2.4711-journal"])
def test_what_a_copying_that_was_killed_left_is_named_and_goes_with_the_next(path, left):
    filled(path, 2)
    path.with_name(left).write_bytes(b"half of it")
    assert [one.name for one in backup.list_copies(path)] == [left]
    HistoryStore(path).close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["history.db", "history.db.format-2"]


def test_as_long_as_there_is_no_room_the_log_speaks_of_no_copy(path, monkeypatch, caplog):
    filled(path, 2)
    monkeypatch.setattr(backup, "ROOM", 10.0**9)
    for _ in range(3):
        with pytest.raises(HistoryError):
            HistoryStore(path)
    assert caplog.messages == []
    monkeypatch.undo()
    HistoryStore(path).close()
    assert [text.partition("/history.db")[2] for text in caplog.messages] == [
        " format=2",
        f" from=2 to={VERSION}",
        ".format-2",
    ]


def test_a_step_that_fails_after_the_copy_leaves_the_older_format(path, monkeypatch):
    filled(path, 2)
    broken = {**schema.TABLES, "chunks": "CREATE TABLE chunks ("}
    monkeypatch.setattr(schema, "TABLES", broken)
    with pytest.raises(sqlite3.OperationalError):
        HistoryStore(path)
    monkeypatch.undo()
    assert version(path) == 2
    with HistoryStore(path) as store:
        assert len(store.minutes("h100", *EVER)) == 90


def test_the_copy_stands_in_for_the_history_when_it_is_put_back(path):
    filled(path, 2)
    with HistoryStore(path) as store:
        store.seal(START + 3 * DAY)
    shutil.copyfile(path.with_name("history.db.format-2"), path)
    assert version(path) == 2
    with HistoryStore.open_reader(path) as reader:
        assert len(reader.minutes("h100", *EVER)) == 90
