"""The commands of docs/history.md for a backup and its way back, run as they stand there: only the places are others'."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from history_samples import START, booking, finished
from paths import ROOT
from test_run import about, loaded
from waiting import CEILING_SECONDS

from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks
from agent.history.schema import DAY, VERSION
from agent.history.store import HistoryStore

PAGE = ROOT / "docs" / "history.md"
EVER = (0.0, START + 1000 * DAY)
REPLICA = "h100"


def blocks() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## Backup and restore")[2]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def run(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A block in the shell of a folder with `lib` and `backups`."""
    lines = [line for line in block.splitlines() if not line.startswith("systemctl ")]
    text = "\n".join(("set -e", *lines)).replace("/opt/sizewatch/bin/python", sys.executable)
    text = text.replace("/var/lib/sizewatch", str(folder / "lib")).replace("/var/backups", str(folder / "backups"))
    return subprocess.run(
        ["sh", "-c", text], cwd="/", capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("lib", "backups"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path


@contextmanager
def booked(path: Path) -> Iterator[None]:
    """A daemon that books without a pause, after 100 minutes of the present hour."""
    ended, begun = threading.Event(), threading.Event()

    def book() -> None:
        with HistoryStore(path) as store:
            store.book([booking(minute) for minute in range(100)])
            minute = 100
            while not ended.is_set():
                store.book([booking(minute)])
                minute += 1
                begun.set()

    thread = threading.Thread(target=book)
    thread.start()
    assert begun.wait(CEILING_SECONDS)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def killed(path: Path, first: int, last: int) -> None:
    """A daemon books these minutes and dies; what it booked last stands in the log."""
    code = (
        f"import sys, os; sys.path[:0] = {sys.path!r}\n"
        "from agent.history.store import HistoryStore; from history_samples import booking\n"
        f"store = HistoryStore({str(path)!r})\n"
        f"for minute in range({first}, {last}): store.book([booking(minute)])\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=CEILING_SECONDS)
    assert path.with_name(f"{path.name}-wal").stat().st_size


def minutes(path: Path) -> float:
    with HistoryStore.open_reader(path) as reader:
        return finished(reader.minutes(REPLICA, *EVER))


def doctor(folder: Path) -> list[CheckResult]:
    return about(run_checks(loaded(folder, data_dir="lib")), "history")


@pytest.mark.parametrize("block", [0, 1], ids=["sqlite3", "python"])
def test_a_backup_is_made_as_documented_while_minutes_are_booked(block: int, folder: Path) -> None:
    if block == 0 and shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed here")
    with booked(folder / "lib" / "history.db"):
        done = run(blocks()[block], folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (copy,) = (folder / "backups").iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert minutes(copy) >= 100 * 60.0
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()


@pytest.mark.parametrize("block", [0, 1], ids=["sqlite3", "python"])
def test_a_backup_of_a_history_that_is_not_there_fails_and_makes_none(block: int, folder: Path) -> None:
    if block == 0 and shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed here")
    assert run(blocks()[block], folder).returncode
    assert list((folder / "lib").iterdir()) == []


def test_a_backup_is_put_back_as_documented_and_goes_on(folder: Path) -> None:
    path = folder / "lib" / "history.db"
    killed(path, 0, 60)
    assert run(blocks()[1], folder).returncode == 0
    killed(path, 60, 200)
    if os.geteuid() == 0:
        os.chown(folder / "lib", 65534, 65534)
    done = run(blocks()[2], folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(one.name for one in path.parent.iterdir()) == ["aside", "history.db"]
    assert path.stat().st_uid == path.parent.stat().st_uid
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.level for one in doctor(folder)] == [CheckLevel.OK]
    assert minutes(path) == 60 * 60.0
    with HistoryStore(path) as store:
        store.book([booking(61)])
    assert minutes(path) == 61 * 60.0
    assert minutes(folder / "lib" / "aside" / "history.db") == 200 * 60.0


def test_of_a_history_that_was_replaced_without_its_log_the_doctor_says_that_it_is_damaged(folder: Path) -> None:
    path = folder / "lib" / "history.db"
    killed(path, 0, 60)
    assert run(blocks()[1], folder).returncode == 0
    killed(path, 60, 400)
    shutil.copyfile(folder / "backups" / "sizewatch-history.db", path)
    (line,) = [one for one in doctor(folder) if one.level is CheckLevel.FAIL]
    assert line.text.startswith(f"{path} is damaged (")
    # Restoring once more, as documented, mends it.
    assert run(blocks()[2], folder).returncode == 0
    assert [one.level for one in doctor(folder)] == [CheckLevel.OK]
    assert minutes(path) == 60 * 60.0


def test_a_history_whose_log_alone_is_lost_is_whole_without_its_newest_minutes(folder: Path) -> None:
    path = folder / "lib" / "history.db"
    killed(path, 0, 400)
    path.with_name("history.db-wal").unlink()
    assert [one.level for one in doctor(folder)] == [CheckLevel.OK]
    assert 0.0 < minutes(path) < 400 * 60.0
