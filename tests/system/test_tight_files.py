"""What is written on the disk: who may read it under the most careless umask, and what becomes of traps laid there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_runs import configuration, process, running, write
from engine_server import engines
from history_samples import booking
from waiting import CEILING_SECONDS

from agent.errors import ConfigError
from agent.files import LOCK_FILE, DataDir, open_new_file
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.reporting.storage import STATE_FILE, ReportState, write_state


@pytest.fixture(name="careless")
def _careless() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(place: Path) -> dict[str, int]:
    found = {place.name: place.stat().st_mode}
    found |= {str(one.relative_to(place)): one.lstat().st_mode for one in place.rglob("*")}
    return {name: stat.S_IMODE(mode) for name, mode in found.items() if not stat.S_ISLNK(mode)}


@pytest.mark.usefixtures("careless")
def test_careless_umask_leaves_files_private(tmp_path: Path) -> None:
    with engines(1) as served:
        path = write(tmp_path, configuration(served, data_dir=str(tmp_path / "data")))
        with running(path, cycles=4):
            during = modes(tmp_path / "data")
    write_state(tmp_path / "data" / STATE_FILE, ReportState(begun_at=1.0))
    storage.publish(tmp_path / "data" / "reports", "2026-11-23", {"report.html": b"x", "report.json": b"{}"}, keep=26)
    found = during | modes(tmp_path / "data")
    assert {"history.db", LOCK_FILE, STATE_FILE, "reports/2026-11-23/report.json"} <= found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o027} == {}
    private = {name: mode for name, mode in found.items() if not name.startswith("reports")}
    assert {name: oct(mode) for name, mode in private.items() if mode & 0o077} == {}


@pytest.mark.usefixtures("careless")
def test_report_is_writable_by_owner_alone(tmp_path: Path) -> None:
    with engines(1) as served:
        path = write(tmp_path, configuration(served, data_dir=str(tmp_path / "data")))
        (tmp_path / "data").mkdir(mode=0o700)
        with HistoryStore(tmp_path / "data" / "history.db") as store:
            store.book((booking(0),))
        with process("report", "-c", str(path), "--out", str(tmp_path / "out")) as made:
            out, err = made.communicate(timeout=CEILING_SECONDS)
    assert (tmp_path / "out" / "report.json").exists(), out + err
    files = {name: mode for name, mode in modes(tmp_path / "out").items() if name != "out"}
    assert {name: oct(mode) for name, mode in files.items() if mode & 0o022} == {}


TRAPS = {
    "state": lambda place: write_state(place / STATE_FILE, ReportState(begun_at=1.0)),
    "lock": lambda place: DataDir(place, place / "sizewatch.yaml").close(),
    "file": lambda place: open_new_file(place / "file", 0o600).close(),
}
NAMES = {"state": f".{STATE_FILE}.new", "lock": LOCK_FILE, "file": "file"}


@pytest.mark.parametrize("what", TRAPS)
def test_link_in_data_folder_is_not_followed(tmp_path: Path, what: str) -> None:
    victim, place = tmp_path / "victim", tmp_path / "data"
    victim.write_text("precious")
    place.mkdir()
    (place / NAMES[what]).symlink_to(victim)
    with pytest.raises((OSError, ConfigError)):
        TRAPS[what](place)
    assert victim.read_text() == "precious"


def test_report_links_are_replaced_not_followed(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "reports"
    victim.mkdir()
    (victim / "report.html").write_text("precious")
    place.mkdir()
    for name in (".new-2026-11-23", "2026-11-23"):
        (place / name).symlink_to(victim)
    storage.publish(place, "2026-11-23", {"report.html": b"ours"}, keep=1)
    assert (victim / "report.html").read_text() == "precious"
    assert storage.read_report_file(place, "2026-11-23", "report.html") == b"ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files take root")
def test_history_of_another_user_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    HistoryStore(data / "history.db").close()
    for one in (data, data / "history.db"):
        os.chown(one, 65534, 65534)
    os.chmod(data, 0o755)
    for one in (*tmp_path.parents, tmp_path):
        if one != Path("/"):
            os.chmod(one, one.stat().st_mode | 0o055)
    pid = os.fork()
    if pid == 0:
        os._exit(_as_stranger(data))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _as_stranger(data: Path) -> int:
    """In a process of its own: 0 where the folder is refused in words and not changed."""
    os.setgid(12345)
    os.setuid(12345)
    try:
        DataDir(data, data / "sizewatch.yaml")
    except ConfigError as bad:
        return 0 if "cannot be written (Permission denied)" in str(bad) else 1
    return 2
