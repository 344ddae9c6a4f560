"""What was found to go wrong, done for real: the doctor has a line with what to do, changes nothing and says no secret.

Another fault is a function here that makes it in a folder and gives the configuration's keys, and a row in FAULTS.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hostile_store
import pytest
from history_samples import booking
from paths import ROOT
from test_run import PAGE, about, loaded, serving, target

from agent.config.load import mistakes, weaknesses
from agent.config.peer import Peer
from agent.doctor.check_result import CheckLevel, CheckResult, exit_code, format_text
from agent.doctor.run import CHECKS, run_checks
from agent.errors import ScrapeError
from agent.history.store import HistoryStore
from agent.http_client.client import PageFetcher

CANARY = "canary-7f3a91c2d4e5b6a7"
AS_ROOT = os.geteuid() == 0

Keys = dict[str, Any]
Fault = Callable[[Path], AbstractContextManager[Keys]]


def history(folder: Path) -> Path:
    """A history of some minutes, as a daemon left it that was stopped."""
    (folder / "d").mkdir(mode=0o700)
    with HistoryStore(folder / "d" / "history.db") as store:
        store.book([booking(minute) for minute in range(600)])
    return folder / "d" / "history.db"


def token(folder: Path, mode: int = 0o600) -> str:
    (folder / "token").write_text(CANARY)
    (folder / "token").chmod(mode)
    return str(folder / "token")


@contextmanager
def cut_history(folder: Path) -> Iterator[Keys]:
    path = history(folder)
    os.truncate(path, path.stat().st_size // 8192 * 4096)
    yield {"data_dir": "d"}


@contextmanager
def full_disk(folder: Path) -> Iterator[Keys]:
    with mounted(folder, "size=256k"):
        (folder / "d" / "more").write_bytes(bytes(256 * 1024))
        yield {"data_dir": "d"}


@contextmanager
def read_only_disk(folder: Path) -> Iterator[Keys]:
    with mounted(folder, "ro"):
        yield {"data_dir": "d"}


@contextmanager
def read_only_history(folder: Path) -> Iterator[Keys]:
    with mounted(folder, "size=1m"):
        with HistoryStore(folder / "d" / "history.db") as store:
            store.book([booking(0)])
        subprocess.run(["mount", "-o", "remount,ro", str(folder / "d")], check=True)
        yield {"data_dir": "d"}


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory; skips where that is not allowed."""
    (folder / "d").mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", str(folder / "d")]
    if not AS_ROOT or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder / "d")], check=True)


@contextmanager
def open_secret(folder: Path) -> Iterator[Keys]:
    (folder / "mount").mkdir()
    (folder / "mount" / "..data").symlink_to("x")
    with serving() as port:
        web = {"bearer_token_file": token(folder / "mount", 0o644)}
        yield {"targets": [target(port, bearer_token_file=token(folder, 0o644))], "web": web}


@contextmanager
def another_behind_one_address(old: bytes, new: bytes, _: Path) -> Iterator[Keys]:
    """Another page with each connection, as behind a load balancer."""
    pages = (PAGE, PAGE.replace(old, new))

    def act(handler: hostile_store.Handler) -> None:
        handler.close_connection = True
        hostile_store.give(handler, pages[len(server.asked) % 2], kind="text/plain", Connection="close")

    with hostile_store.serving() as server:
        server.act = act
        yield {"targets": [target(server.port)]}


@contextmanager
def one_engine_twice(_: Path) -> Iterator[Keys]:
    with serving() as port:
        yield {"targets": [target(port), {**target(port), "replica": "other"}]}


@contextmanager
def slow_stranger_at_our_port(_: Path) -> Iterator[Keys]:
    with hostile_store.serving() as server:
        server.act = hostile_store.drips
        yield {"web": {"listen": f"127.0.0.1:{server.port}"}}


@contextmanager
def alertmanager_that_refuses(folder: Path) -> Iterator[Keys]:
    with serving(CANARY.encode(), status=401) as port:
        one = {"url": f"http://127.0.0.1:{port}", "bearer_token_file": token(folder)}
        yield {"alerting": {"path": "posts", "alertmanagers": [one]}}


@contextmanager
def silent_api(folder: Path) -> Iterator[Keys]:
    with hostile_store.serving() as server:
        server.act = hostile_store.hangs
        api = {"url": server.url, "bearer_token_file": token(folder)}
        yield {"discovery": {"kubernetes": {"api": api, "node": "n1"}}}


FAIL, WARN = CheckLevel.FAIL, CheckLevel.WARN

PROCESSES = partial(another_behind_one_address, b"process_start_time_seconds 1", b"process_start_time_seconds 0")
MODELS = partial(another_behind_one_address, b'model_name="small-llama"', b'model_name="other"')

FAULTS: tuple[tuple[Fault, str, CheckLevel, str, str], ...] = (
    (cut_history, "history", FAIL, "malformed (SQLITE_CORRUPT); put a backup in its place, or move it away", ""),
    (full_disk, "data_dir", FAIL, "d: No space left on device", "free space"),
    (read_only_history, "history", FAIL, "d/history.db: cannot be written by this user", "run as the user that owns it"),
    (read_only_disk, "data_dir", FAIL, "d: Read-only file system", "name another data_dir"),
    (open_secret, "secrets", WARN, "bearer_token_file: ", "chmod o-rwx "),
    (PROCESSES, "target cpu-small/r", FAIL, "several engines answer at ", "give each engine's own address"),
    (MODELS, "target cpu-small/r", FAIL, "its model changes", "give each engine's own address"),
    (one_engine_twice, "config", FAIL, "targets[1].url: is that of targets[0]", "correct it"),
    (slow_stranger_at_our_port, "web", FAIL, "and no sizewatch answers there", "see who holds it"),
    (alertmanager_that_refuses, "alerting", FAIL, "answered 401", "correct its entry in alerting.alertmanagers"),
    (silent_api, "pods", FAIL, "the API server has not answered yet", "look at the service account"),
)  # fmt: skip


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: its rights and what is in it."""
    found = {}
    for path in folder.rglob("*"):
        is_file = path.is_file() and not path.is_symlink() and not path.is_fifo()
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, path.read_bytes() if is_file else b"")
    return found


def findings(folder: Path, keys: Keys) -> tuple[CheckResult, ...]:
    targets = keys.pop("targets", ())
    plain = loaded(folder, *targets, **{"report": {"enabled": False}, **keys})
    told = {"mistakes": mistakes(plain.config, plain.plan), "warnings": weaknesses(plain.config, plain.plan)}
    return run_checks(replace(plain, **told))


@pytest.mark.parametrize(("fault", "check", "level", "text", "advice"), FAULTS)
def test_fault_has_a_line_with_its_remedy(
    fault: Fault, check: str, level: CheckLevel, text: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.kubernetes.node_pods.LIST_SECONDS", 0.2)
    monkeypatch.setattr("agent.doctor.endpoints.WEB_SECONDS", 1.0)
    with fault(tmp_path) as keys:
        before = content(tmp_path)
        found = findings(tmp_path, keys)
        assert content(tmp_path) == before
    lines = [one for one in about(found, check) if text in one.text]
    assert [one.level for one in lines] == [level], format_text(found)
    assert advice in lines[0].advice
    assert exit_code(found) == int(level is FAIL)
    assert CANARY not in format_text(found)


def test_sound_history_has_one_line(tmp_path: Path) -> None:
    history(tmp_path)
    before = content(tmp_path)
    found = findings(tmp_path, {"data_dir": "d"})
    assert [one.level for one in about(found, "history")] == [CheckLevel.OK]
    assert content(tmp_path) == before
    assert [one.name for one in (tmp_path / "d").iterdir()] == ["history.db"]


def test_log_of_a_killed_daemon_is_read(tmp_path: Path) -> None:
    path = history(tmp_path)
    code = (
        f"import os, sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('PRAGMA wal_autocheckpoint = 0');"
        " c.execute('PRAGMA user_version = 99'); c.commit(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name("history.db-wal").stat().st_size
    (line,) = about(findings(tmp_path, {"data_dir": "d"}), "history")
    assert "is of format 99" in line.text


def test_log_without_room_is_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=1m"):
        path = tmp_path / "d" / "history.db"
        code = (
            f"import os, sys; sys.path[:0] = {sys.path!r}; from agent.history.store import HistoryStore;"
            f" HistoryStore({str(path)!r}).keep('a', '1'); os._exit(9)"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
        path.with_name("history.db-shm").unlink()
        with contextlib.suppress(OSError):
            (tmp_path / "d" / "more").write_bytes(bytes(2 * 1024 * 1024))
        (line,) = about(findings(tmp_path, {"data_dir": "d"}), "history")
    assert line.text == f"{path}: disk I/O error (SQLITE_IOERR_SHMSIZE)"


def test_token_that_is_a_pipe_stays_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    with serving() as port:
        options = Peer(url=f"http://127.0.0.1:{port}/metrics", bearer_token_file=str(tmp_path / "token"))
        with pytest.raises(ScrapeError, match=r"bearer_token_file .*token: is no file"):
            PageFetcher(options).fetch()


def test_doctor_page_has_a_row_a_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`", page.partition("## Grave mistakes")[0], re.MULTILINE)
    assert sorted(rows) == sorted({check.line for check in CHECKS})
