"""What is written on the disk: who may read it under the most careless umask, and what becomes of traps laid there."""

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
