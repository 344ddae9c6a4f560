"""Habits of a terminal: colours, pager, progress, quiet. A pseudo-terminal of the system plays the real one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_runs import process
from paths import ROOT, TESTS
from waiting import CEILING_SECONDS

from agent.cli import main
from agent.cli.terminal import Terminal, highlight

PLAN = str(TESTS / "plans" / "mixed-tier.yaml")
RED = "\x1b[31m\x1b[1m"


def on_terminal(*words: str, program: tuple[str, str] = ("-m", "agent"), **environment: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal of 80 columns and 20 lines; its code and what it shows."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LESS", "PAGER")}
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


@pytest.fixture
def pager(tmp_path: Path) -> Iterator[Path]:
    """A pager that notes what it was given, and its options."""
    script = tmp_path / "pager"
    script.write_text(f'#!/bin/sh\necho "$LESS" > {tmp_path}/less\ncat > {tmp_path}/paged\n')
    script.chmod(0o755)
    return script


def test_long_output_goes_to_the_pager_on_a_terminal_with_its_colours_and_its_exit_code(pager: Path) -> None:
    code, shown = on_terminal("plan", "check", PLAN, PAGER=str(pager))
    paged = (pager.parent / "paged").read_text()
    assert code == 1
    assert shown == ""
    assert paged.startswith(f"{RED}mistake\x1b[0m: tiers.cpu-slow")
    assert paged.count("\n") == 15
    assert (pager.parent / "less").read_text() == "-FRX\n"


@pytest.mark.parametrize("words", [["--no-pager", "plan", "check"], ["plan", "check", "--no-pager"]])
def test_no_pager_prints_all_of_it(words: list[str], pager: Path) -> None:
    code, shown = on_terminal(*words, PLAN, PAGER=str(pager))
    assert (code, shown.count("\n")) == (1, 15)
    assert not (pager.parent / "paged").exists()


@pytest.mark.parametrize("value", ["cat", "/nowhere/pager", "'"])
def test_without_a_usable_pager_all_of_it_is_printed(value: str) -> None:
    assert on_terminal("plan", "check", PLAN, PAGER=value)[1].count("\n") == 15


def test_short_output_and_errors_stay_on_the_terminal_in_their_order(pager: Path) -> None:
    code, shown = on_terminal("plan", "check", "/nowhere", PAGER=str(pager))
    assert (code, shown) == (2, "sizewatch plan: /nowhere: there is no such file\n")
    assert not (pager.parent / "paged").exists()


def test_long_help_is_paged_too(pager: Path) -> None:
    assert on_terminal("plan", "import", "--help", PAGER=str(pager)) == (0, "")
    assert (pager.parent / "paged").read_text().startswith("Usage: sizewatch plan import")


def test_a_pipe_gets_neither_pager_nor_colour(pager: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "plan", "check", PLAN],
        cwd=ROOT,
        env={**os.environ, "PAGER": str(pager)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("mistake: ")
    assert not (pager.parent / "paged").exists()


@pytest.mark.parametrize(
    ("words", "environment", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_follow_the_option_then_no_color_then_the_terminal(
    words: list[str], environment: dict[str, str], coloured: bool
) -> None:
    shown = on_terminal("--no-pager", "plan", "check", PLAN, *words, **environment)[1]
    assert shown.startswith(f"{RED}mistake\x1b[0m: " if coloured else "mistake: ")


def test_only_a_severity_at_the_start_of_a_column_is_coloured() -> None:
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


def test_progress_is_a_bar_of_a_terminal_that_other_lines_do_not_touch() -> None:
    code, shown = on_terminal("explain", program=("-c", WORK))
    assert code == 1
    assert "history of \ufffd[2J" in shown
    assert f"\rsizewatch explain  [{'#' * 18}{'-' * 18}]   50%  weeks" in shown.replace("\x1b[?25l", "")
    assert f"\rsizewatch explain  [{'#' * 36}]  100%  weeks" in shown.replace("\x1b[?25l", "")
    assert shown.count("\x1b[?25h\n") == 2
    assert "\x1b[?25h\nremark\n" in shown
    assert shown.endswith("\x1b[?25h\nresult\n")


def test_quiet_and_a_pipe_have_no_progress() -> None:
    assert on_terminal("explain", "-q", program=("-c", WORK)) == (1, "result\n")
    done = subprocess.run(
        [sys.executable, "-c", WORK, "explain"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "result\n", "remark\n")


def test_a_command_that_prints_while_it_runs_is_not_kept_until_its_end() -> None:
    with process("demo", "--port", "0", "--seconds", "1000") as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("Demo: recorded engines")


def test_quiet_silences_remarks_and_keeps_the_reason_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = [str(path) for path in sorted((TESTS / "bench" / "vllm-cpu").glob("bench_c*.json"))]
    assert sweep
    assert main.main(["plan", "import", *sweep]) == 0
    loud = capsys.readouterr()
    assert main.main(["plan", "import", "-q", *sweep]) == 0
    assert capsys.readouterr() == (loud.out, "")
    assert loud.err
    assert main.main(["-q", "plan", "check", "/nowhere"]) == 2
    assert capsys.readouterr().err == "sizewatch plan: /nowhere: there is no such file\n"


def test_quiet_keeps_the_reason_of_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status", "--url", "http://127.0.0.1:1", "-q"]) == 3
    assert "Is `sizewatch run` up?" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to write to")
def test_a_log_goes_on_when_its_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", buffering=1) as log, (tmp_path / "log").open("w") as room:
        monkeypatch.setattr("sys.stderr", log)
        with Terminal([]):
            print("lost", file=sys.stderr)
            os.dup2(room.fileno(), log.fileno())
            print("kept", file=sys.stderr)
    assert (tmp_path / "log").read_text().endswith("kept\n")
