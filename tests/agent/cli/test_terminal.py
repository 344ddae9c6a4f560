"""Habits of a terminal: colours and progress. A pseudo-terminal of the system plays the real one."""

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from daemon_runs import process
from paths import ROOT, TESTS
from waiting import CEILING_SECONDS

from agent.cli.terminal import highlight, safe_streams

PLAN = str(TESTS / "plans" / "mixed-tier.yaml")
RED = "\x1b[31m\x1b[1m"


def on_terminal(*words: str, program: tuple[str, str] = ("-m", "agent"), **environment: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal of 80 columns and 20 lines; its code and what it shows."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    started = subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=ROOT,
        env={**kept, "TERM": "xterm", "COLUMNS": "80", "LINES": "20", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                shown.extend(os.read(ours, 65536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    code = started.wait(CEILING_SECONDS)
    reader.join(CEILING_SECONDS)
    os.close(ours)
    return code, shown.decode().replace("\r\n", "\n")


def test_a_pipe_gets_no_colour() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "plan", "check", PLAN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:9]) == (1, "mistake: ")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_follow_the_environment(environment: dict[str, str], coloured: bool) -> None:
    shown = on_terminal("plan", "check", PLAN, **environment)[1]
    assert shown.startswith(f"{RED}mistake\x1b[0m: " if coloured else "mistake: ")


def test_only_severities_in_columns_are_coloured() -> None:
    assert highlight("CRITICAL KvEviction") == f"{RED}CRITICAL\x1b[0m KvEviction"
    assert highlight("a  warn  b") == "a  \x1b[33m\x1b[1mwarn\x1b[0m  b"
    for plain in ('  "status": "ok"', "a warning of 5%", "warnings: 3", "critical-tier up", "okay"):
        assert highlight(plain) == plain


WORK = """
import sys
from agent.cli import explain, main
from agent.cli.terminal import tell_progress

def work(options):
    tell_progress(0.0, "history of \\x1b[2J")
    tell_progress(0.5, "weeks")
    print("remark", file=sys.stderr)
    tell_progress(1.0, "weeks")
    print("result")
    return 1

explain.run = work
sys.exit(main.main(sys.argv[1:]))
"""


def test_progress_is_erased_before_other_lines() -> None:
    code, shown = on_terminal("explain", program=("-c", WORK))
    erase = "\r\x1b[K"
    first = f"history of \ufffd[2J 0%{erase}weeks 50%{erase}remark\n"
    assert (code, shown) == (1, f"{first}weeks 100%{erase}result\n")


def test_a_pipe_has_no_progress() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK, "explain"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "result\n", "remark\n")


def test_a_command_prints_while_it_runs() -> None:
    with process("demo", "--port", "0", "--seconds", "1000") as started:
        assert started.stdout.readline().startswith("Demo: recorded engines")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to write to")
def test_log_continues_when_its_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1) as log, (tmp_path / "log").open("w") as room:
        monkeypatch.setattr("sys.stderr", log)
        with safe_streams():
            print("lost", file=sys.stderr)
            os.dup2(room.fileno(), log.fileno())
            print("kept", file=sys.stderr)
    assert (tmp_path / "log").read_text().endswith("kept\n")
