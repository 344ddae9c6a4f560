"""Histories as each released format wrote them (made by that version's own code): opened by the present one, and one of a format
that is yet to come.

`history_formats/format-N.db.gz` all hold the same: 90 minutes of two replicas, an episode that ended and one that lasts, two events
and a kept value. A new format gets its file there by the code that wrote the one before.
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import configuration, running, write
from engine_server import engines
from history_samples import START, booking
from paths import TESTS
from test_run import about, loaded

from agent.config.load import load
from agent.daemon.factory import assemble
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks
from agent.files import DataDir
from agent.history.errors import HistoryOpenError
from agent.history.schema import DAY, VERSION
from agent.history.store import HistoryStore

FILES = TESTS / "history_formats"
FORMATS = range(1, VERSION + 1)
EVER = (0.0, START + 1000 * DAY)


def made(folder: Path, format: int) -> Path:
    """The history of a format, as its version left it."""
    path = folder / "history.db"
    path.write_bytes(gzip.decompress((FILES / f"format-{format}.db.gz").read_bytes()))
    path.chmod(0o600)
    return path


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def of_later(folder: Path) -> Path:
    """A history that a version to come wrote: the present format and a table more."""
    path = made(folder, VERSION)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.commit()
    connection.close()
    return path


def content(path: Path) -> dict[str, Any]:
    """All that every format has."""
    with HistoryStore.open_reader(path) as reader:
        return {
            "minutes": reader.minutes("h100", *EVER),
            "quarters": reader.replica_bins("h100", *EVER),
            "hours": reader.bins("h100", *EVER),
            "versions": reader.plan_versions("h100", *EVER),
            "episodes": reader.findings(0.0),
            "unknowns": reader.unknowns(0.0),
            "events": reader.events(0.0),
            "kept": reader.read_value("first-seen/h100/v1"),
        }


@pytest.mark.parametrize("format", FORMATS)
def test_what_an_older_version_wrote_is_copied_and_then_the_same_in_the_present_format(
    tmp_path: Path, format: int
) -> None:
    path = made(tmp_path, format)
    assert version(path) == format
    before = content(path)
    assert [len(before[name]) for name in ("minutes", "episodes", "events")] == [180, 2, 2]
    assert json.loads(before["kept"]) == START
    with HistoryStore(path) as store:
        store.seal(START + 3 * DAY)
        store.book([booking(200)])
    after = content(path)
    assert len(after["minutes"]) == 181
    assert {**after, "minutes": after["minutes"][:-1], "quarters": 0, "hours": 0} == {
        **before,
        "quarters": 0,
        "hours": 0,
    }
    copy = path.with_name(f"history.db.format-{format}")
    assert copy.exists() == (format < VERSION)
    if format < VERSION:
        assert (version(copy), content(copy)) == (format, before)


@pytest.mark.parametrize("format", FORMATS[1:])
def test_demand_of_an_older_format_is_read_as_it_stands_and_after_the_writer_came(tmp_path: Path, format: int) -> None:
    path = made(tmp_path, format)
    with HistoryStore.open_reader(path) as reader:
        before = reader.demand("h100", *EVER)
    assert len(before) == 90
    with HistoryStore(path) as store:
        store.book([booking(200)])
        after = store.demand("h100", *EVER)
    assert after[:90] == before
    # What was computed of the prompts is not told by the older rows, and counts as the plan's share.
    assert {one.computed for one in before} == {None}


def test_every_format_holds_the_same(tmp_path: Path) -> None:
    several = []
    for format in FORMATS:
        (tmp_path / str(format)).mkdir()
        several.append(content(made(tmp_path / str(format), format)))
    assert all(one == several[0] for one in several)


def test_going_back_is_putting_the_copy_in_the_place_of_the_history(tmp_path: Path) -> None:
    path = made(tmp_path, 2)
    before = content(path)
    with HistoryStore(path) as store:
        store.book([booking(200)])
    path.with_name("history.db.format-2").replace(path)
    # What the newer version booked since is lost; nothing else is.
    assert (version(path), content(path)) == (2, before)


def test_a_history_of_a_newer_version_is_refused_untouched_with_the_copy_to_go_back_to(tmp_path: Path) -> None:
    path = of_later(tmp_path)
    before = path.read_bytes()
    with pytest.raises(HistoryOpenError) as alone:
        HistoryStore(path)
    assert f"was written by a newer sizewatch (format {VERSION + 1}, this one knows {VERSION})" in str(alone.value)
    assert "run that version, or stop the daemon, move it away with its -wal and -shm, and a new history begins" in str(
        alone.value
    )
    copy = path.with_name(f"history.db.format-{VERSION}")
    copy.write_bytes(b"a copy")
    for opened in (HistoryStore, HistoryStore.open_reader):
        with pytest.raises(HistoryOpenError, match=f"with its -wal and -shm, and put {copy} in its place"):
            opened(path)
    assert path.read_bytes() == before
    # A reader of SQLite's leaves an empty log.
    assert {one.name for one in tmp_path.iterdir() if one.stat().st_size} <= {path.name, copy.name, "history.db-shm"}


def test_a_daemon_does_not_start_on_a_newer_history_and_one_of_role_node_does_not_care(tmp_path: Path) -> None:
    folder = tmp_path / "sizewatch-data"
    folder.mkdir()
    path = of_later(folder)
    before = path.read_bytes()
    with engines(1) as served:
        keys = configuration(served)
        with pytest.raises(HistoryOpenError, match="was written by a newer sizewatch"):
            assemble(load(write(tmp_path, keys)), None)
        # The folder was let go again: another daemon may have it.
        DataDir(folder, tmp_path).close()
        with running(write(tmp_path, {**keys, "role": "node"})) as daemon:
            assert daemon.assembly.history is None
    assert path.read_bytes() == before


def findings(folder: Path, check: str = "history") -> list[CheckResult]:
    return about(run_checks(loaded(folder, data_dir=".")), check)


def test_the_doctor_tells_of_a_newer_history_and_what_to_go_back_to(tmp_path: Path) -> None:
    of_later(tmp_path)
    (bad,) = findings(tmp_path)
    assert bad.level is CheckLevel.FAIL
    assert "was written by a newer sizewatch" in bad.text
    (tmp_path / f"history.db.format-{VERSION}").write_bytes(b"a copy")
    assert f"put {tmp_path}/history.db.format-{VERSION} in its place" in findings(tmp_path)[0].text


def test_the_doctor_tells_that_an_older_history_will_be_copied_and_brought_to_the_present_format(
    tmp_path: Path,
) -> None:
    made(tmp_path, 2)
    (good,) = findings(tmp_path)
    assert good.level is CheckLevel.OK
    assert f"of format 2; `sizewatch run` copies it to history.db.format-2 and brings it to {VERSION}" in good.text


def test_the_doctor_tells_of_copies_that_may_go_and_of_those_that_were_never_finished(tmp_path: Path) -> None:
    with HistoryStore(made(tmp_path, 2)):
        pass
    (tmp_path / "history.db.format-1.4711").write_bytes(b"half")
    good, copy = findings(tmp_path)
    assert good.level is CheckLevel.OK
    assert copy.level is CheckLevel.WARN
    assert copy.text.startswith("left over from changes of the format: history.db.format-1.4711, history.db.format-2 (")
    assert copy.advice.startswith("delete them once nobody goes back to the older sizewatch")


def test_what_a_killed_copy_left_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    path = made(tmp_path, 2)
    half = tmp_path / "history.db.format-2.4711"
    half.write_bytes(b"half")
    other = tmp_path / "history.db.format-2.kept"
    other.write_bytes(b"not ours")
    HistoryStore(path).close()
    assert not half.exists()
    assert other.exists()


def test_the_doctor_tells_of_another_daemon_on_the_same_history(tmp_path: Path) -> None:
    ours = DataDir(tmp_path, tmp_path / "other.yaml")
    try:
        found = findings(tmp_path, "data_dir")
        assert found[-1].level is CheckLevel.FAIL
        assert f"is in use by another sizewatch (process {os.getpid()}), which does not answer" in found[-1].text
    finally:
        ours.close()
    assert all("in use" not in one.text for one in findings(tmp_path, "data_dir"))


def test_the_doctor_tells_of_a_history_that_is_ahead_of_the_clock(tmp_path: Path) -> None:
    made(tmp_path, 2)

    def at(now: float) -> list[CheckResult]:
        return about(run_checks(loaded(tmp_path, data_dir="."), lambda: now), "history")

    end = START + 90 * 60.0
    assert len(at(end)) == 1
    _, ahead = at(end - 3600.0)
    assert ahead.level is CheckLevel.WARN
    assert "its newest minute is 3600 s ahead of this machine's clock" in ahead.text
    assert "minutes of a time that is booked already are judged and not kept, all others are kept" in ahead.advice
