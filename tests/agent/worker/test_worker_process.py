"""The child process: its limits, its environment, its errors, and its end with the parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import worker_calls
from paths import ROOT
from waiting import CEILING_SECONDS, wait_for

from agent.worker.process import INHERITED, MIB, ONE_THREAD, WorkerError, WorkerFailure, WorkerProcess

SCRIPT = """
import sys
from agent.cli.main import main
import worker_calls
from agent.worker.process import WorkerProcess
if __name__ == "__main__":
    process = WorkerProcess(2**29)
    try:
        if sys.argv[1] == "modules":
            print(*process.call(worker_calls.state, seconds=300.0)[2])
        else:
            process.call(worker_calls.writes_forever, sys.argv[1], seconds=300.0)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        process.close()
"""


@contextmanager
def child() -> Iterator[WorkerProcess]:
    process = WorkerProcess(512 * MIB)
    try:
        yield process
    finally:
        process.close()


def begun(folder: Path, word: str) -> subprocess.Popen[str]:
    """A program as the console script is one: its main module is imported by the child."""
    (folder / "script").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(folder / "script"), word],
        cwd=folder,
        # Its own imports are of the project; those of its child are what is tested.
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_worker_has_limit_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with child() as process:
        limit, environment, _ = process.call(worker_calls.state, seconds=CEILING_SECONDS)
        assert limit == 512 * MIB
        assert set(environment) <= {*INHERITED, *ONE_THREAD}
        assert ONE_THREAD.items() <= environment.items()
        # A Ctrl-C at the terminal does not reach it.
        assert os.getsid(process.pid) == process.pid


def test_main_module_is_imported_without_libraries(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the working directory was imported')")
    done = begun(tmp_path, "modules")
    out, errors = done.communicate(timeout=CEILING_SECONDS)
    assert errors == ""
    loaded = {name.partition(".")[0] for name in out.split()}
    assert "agent" in loaded
    assert loaded & {"numpy", "pandas", "apprise", "pydantic"} == set()


def test_error_leaves_the_worker_answering() -> None:
    with child() as process:
        with pytest.raises(WorkerError) as failed:
            process.call(worker_calls.fails, seconds=CEILING_SECONDS)
        assert (failed.value.fault, str(failed.value)) == (WorkerFailure.ERROR, "ValueError: one line and another")
        assert "in fails" in failed.value.trace
        assert process.call(worker_calls.state, seconds=CEILING_SECONDS)


@pytest.mark.parametrize(("number", "errors"), [(signal.SIGINT, "interrupted\n"), (signal.SIGKILL, "")])
def test_child_never_outlives_its_parent(tmp_path: Path, number: int, errors: str) -> None:
    parent = begun(tmp_path, str(tmp_path / "pid"))
    try:
        assert wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)
        else:
            parent.kill()
        assert parent.communicate(timeout=CEILING_SECONDS)[1] == errors
    finally:
        parent.kill()
    assert wait_for(lambda: is_gone(pid))
