"""What is written on the disk: who may read it, what becomes of traps laid there, and what a crash would leave."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_runs import configuration, process, running, write
from engine_server import engines
from history_samples import booking
from waiting import CEILING_SECONDS, wait_for

from agent.errors import ConfigError
from agent.files import LOCK_FILE, DataDir, open_new_file
from agent.history.schema import HistoryError
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
    path = write(tmp_path, configuration([], data_dir=str(tmp_path / "data")))
    (tmp_path / "data").mkdir(mode=0o700)
    with HistoryStore(tmp_path / "data" / "history.db") as store:
        store.book((booking(0),))
    with process("report", "-c", str(path), "--out", str(tmp_path / "out")) as made:
        out, err = made.communicate(timeout=CEILING_SECONDS)
    assert (tmp_path / "out" / "report.json").exists(), out + err
    files = {name: mode for name, mode in modes(tmp_path / "out").items() if name != "out"}
    assert {name: oct(mode) for name, mode in files.items() if mode & 0o022} == {}


BESIDE = tuple(f"history.db-{suffix}" for suffix in ("wal", "shm", "journal"))
TRAPS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "state": (f".{STATE_FILE}.new", lambda place: write_state(place / STATE_FILE, ReportState(begun_at=1.0))),
    "lock": (LOCK_FILE, lambda place: DataDir(place, place / "sizewatch.yaml").close()),
    "file": ("file", lambda place: open_new_file(place / "file", 0o600).close()),
    "history": ("history.db", lambda place: HistoryStore(place / "history.db").close()),
    **{name: (name, lambda place: HistoryStore(place / "history.db").close()) for name in BESIDE},
}
"""Where a link lies, and what writes there."""


@pytest.mark.parametrize("what", TRAPS)
@pytest.mark.parametrize("there", [True, False])
def test_link_in_data_folder_is_not_followed(tmp_path: Path, what: str, there: bool) -> None:
    """Whoever may write where we write would have a file of their choice made or changed with our rights."""
    name, write_there = TRAPS[what]
    victim, place = tmp_path / "elsewhere" / "victim", tmp_path / "data"
    victim.parent.mkdir()
    if there:
        HistoryStore(victim).close()
    before = victim.read_bytes() if there else b""
    place.mkdir()
    (place / name).symlink_to(victim)
    # SQLite replaces a link beside its file.
    with contextlib.suppress(HistoryError) if what in BESIDE else pytest.raises((OSError, ConfigError, HistoryError)):
        write_there(place)
    assert (victim.read_bytes() if there else b"") == before
    assert sorted(one.name for one in victim.parent.iterdir()) == (["victim"] if there else [])


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


def test_crash_leaves_no_core_file(tmp_path: Path) -> None:
    with engines(1) as served:
        path = write(tmp_path, configuration(served, data_dir=str(tmp_path / "data"), web={"listen": "127.0.0.1:0"}))
        with process("run", "-c", str(path)) as daemon:
            limits = Path(f"/proc/{daemon.pid}/limits")

            def core() -> list[str]:
                (line,) = [one for one in limits.read_text().splitlines() if one.startswith("Max core file size")]
                return line.split()[4:6]

            assert wait_for(lambda: core() == ["0", "0"]), core()
            assert daemon.poll() is None
            os.kill(daemon.pid, 15)
            daemon.communicate(timeout=CEILING_SECONDS)
