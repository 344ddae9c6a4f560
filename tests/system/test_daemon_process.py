"""`sizewatch run` as a process of its own: signals, kill -9, and commands beside it."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import PLAN, ask, configuration, process, results, running, write
from engine_server import Engine, engines
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.history.store import HistoryStore

Process = subprocess.Popen[str]


@contextmanager
def daemon(folder: Path, served: list[Engine], **keys: Any) -> Iterator[tuple[Process, str]]:
    """`sizewatch run` after its first cycle, and its address."""
    port = free_port()
    path = write(folder, configuration(served, web={"listen": f"127.0.0.1:{port}"}, **keys))
    url = f"http://127.0.0.1:{port}/"
    with process("run", "-c", str(path)) as started:
        assert wait_for(lambda: results(url) or started.poll() is not None)
        yield started, url


def ended(started: Process) -> tuple[int, str, str]:
    """Exit code, standard output and error."""
    out, err = started.communicate(timeout=CEILING_SECONDS)
    return started.returncode, out, err


def run(*words: str) -> tuple[int, str, str]:
    with process(*words) as started:
        return ended(started)


def minutes(folder: Path) -> float:
    """Replica-seconds in the history."""
    with HistoryStore.open_reader(folder / "sizewatch-data" / "history.db") as reader:
        return sum(one.window.covered_seconds for one in reader.minutes("cpu-small", 0.0, 1e11))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_and_books_open_minute(tmp_path: Path, number: signal.Signals) -> None:
    with engines() as served, daemon(tmp_path, served) as (started, url):
        assert wait_for(lambda: len(served[0].asked) >= 4)
        started.send_signal(number)
        code, out, err = ended(started)
    assert (code, out) == (0, "")
    assert 'watching="1 target" interval_seconds=0.5 role=standalone' in err
    assert f"status_page={url}" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err
    assert not results(url)
    assert minutes(tmp_path) > 0.5


def test_sighup_takes_good_and_bad_configuration(tmp_path: Path) -> None:
    with engines(2) as served, daemon(tmp_path, served[:1]) as (started, url):
        path = tmp_path / "sizewatch.yaml"
        good = path.read_text()
        path.write_text(good + "nonsense: 1\n")
        started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: "nonsense" in str(json.loads(ask(url, "api/status"))["agent"]["config_trouble"]))
        path.write_text(good.replace("targets:\n", f"targets:\n- {{url: '{served[1].url}', tier: cpu-small}}\n"))
        for _ in range(20):
            started.send_signal(signal.SIGHUP)
        assert wait_for(lambda: len(served[1].asked) >= 2)
        status = json.loads(ask(url, "api/status"))
        assert status["config"] == str(path)
        agent = status["agent"]
        assert agent["config_trouble"] is None
        assert agent["cycle_errors"] == 0
        started.send_signal(signal.SIGTERM)
        assert ended(started)[0] == 0


def test_pipe_as_plan_stops_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_bytes(PLAN.read_bytes())
    with engines() as served, daemon(tmp_path, served, plan=str(plan)) as (started, url):
        plan.unlink()
        os.mkfifo(plan)
        started.send_signal(signal.SIGHUP)
        asked = len(served[0].asked)
        assert wait_for(lambda: len(served[0].asked) > asked + 2), "cycles go on"
        assert results(url)
        started.send_signal(signal.SIGTERM)
        code, _, err = ended(started)
    assert code == 0
    assert f"{plan}: is a pipe" in err
    assert "stopped cycles=" in err
    assert "Traceback" not in err


def test_kill_9_leaves_a_whole_history(tmp_path: Path) -> None:
    with engines() as served:
        with running(write(tmp_path, configuration(served)), cycles=5):
            pass
        before = minutes(tmp_path)
        assert before > 0
        with daemon(tmp_path, served) as (started, url):
            beside = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
            assert results(url)
            started.send_signal(signal.SIGKILL)
            assert ended(started)[0] == -signal.SIGKILL
        after = run("check", "-c", str(tmp_path / "sizewatch.yaml"))
        for code, out, err in (beside, after):
            assert (code, err) == (3, "")
            assert out.startswith("cpu-small: cannot be judged (")
        assert minutes(tmp_path) >= before
        with closing(sqlite3.connect(tmp_path / "sizewatch-data" / "history.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with running(tmp_path / "sizewatch.yaml") as again:
            assert again.counts.cycle_errors == 0
