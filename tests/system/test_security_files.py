"""Files as traps and files as loot: links in the place of the history, and what a crash would leave on the disk."""

import os
from pathlib import Path

import pytest
from daemon_runs import configuration, process, write
from engine_server import engines
from waiting import CEILING_SECONDS, wait_for

from agent.history.errors import HistoryOpenError
from agent.history.store import HistoryStore


@pytest.mark.parametrize("there", [True, False])
def test_link_for_history_is_not_followed(tmp_path: Path, there: bool) -> None:
    """Whoever may write where the history is to be would have a file of their choice made or changed with our rights."""
    victim, path = tmp_path / "elsewhere" / "victim", tmp_path / "history.db"
    victim.parent.mkdir()
    if there:
        HistoryStore(victim).close()
    before = victim.read_bytes() if there else b""
    path.symlink_to(victim)
    with pytest.raises(HistoryOpenError, match="is a link"):
        HistoryStore(path)
    assert (victim.read_bytes() if there else b"") == before
    assert victim.exists() is there
    assert sorted(one.name for one in victim.parent.iterdir()) == (["victim"] if there else [])


@pytest.mark.parametrize("name", ["history.db-wal", "history.db-shm", "history.db-journal"])
def test_link_beside_history_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    try:
        HistoryStore(tmp_path / "history.db").close()
    except HistoryOpenError:
        assert victim.read_text() == "precious"
    assert victim.read_text() == "precious"


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
