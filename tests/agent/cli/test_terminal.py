"""Habits of a terminal: colours, pager, progress, quiet. A pseudo-terminal of the system plays the real one."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT, TESTS
from waiting import CEILING_SECONDS

from agent.cli import main, terminal
from agent.cli import plan as plan_command
from agent.cli.terminal import Progress, highlight, tell_progress

PLAN = str(TESTS / "plans" / "mixed-tier.yaml")
RED = "\x1b[1;31m"
SILENT_SECONDS = 2.0


def on_terminal(*words: str, **environment: str) -> tuple[int, str]:
    """Run a command whose three streams are a terminal of 80 columns and 20 lines; its code and what it shows."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LESS", "PAGER")}
    started = subprocess.Popen(
        [sys.executable, "-m", "agent", *words],
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


@pytest.fixture(autouse=True)
def shown_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is outside of tests (tests/conftest.py)."""
    monkeypatch.setattr(terminal, "SILENT_SECONDS", SILENT_SECONDS)


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
    assert (pager.parent / "less").read_text() == "FRX\n"


@pytest.mark.parametrize("words", [["--no-pager", "plan", "check"], ["plan", "check", "--no-pager"]])
def test_no_pager_prints_all_of_it(words: list[str], pager: Path) -> None:
    code, shown = on_terminal(*words, PLAN, PAGER=str(pager))
    assert (code, shown.count("\n")) == (1, 15)
    assert not (pager.parent / "paged").exists()


@pytest.mark.parametrize("value", ["", "cat", "/nowhere/pager", "'"])
def test_without_a_usable_pager_all_of_it_is_printed(value: str) -> None:
    assert on_terminal("plan", "check", PLAN, PAGER=value)[1].count("\n") == 15


def test_short_output_and_errors_stay_on_the_terminal_in_their_order(pager: Path) -> None:
    code, shown = on_terminal("plan", "check", "/nowhere", PAGER=str(pager))
    assert (code, shown) == (2, "sizewatch plan: /nowhere: there is no such file\n")
    assert not (pager.parent / "paged").exists()


def test_long_help_is_paged_too(pager: Path) -> None:
    assert on_terminal("plan", "import", "--help", PAGER=str(pager)) == (0, "")
    assert (pager.parent / "paged").read_text().startswith("usage: sizewatch plan import")


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
    assert highlight("a  warn  b") == "a  \x1b[1;33mwarn\x1b[0m  b"
    for plain in ('  "status": "ok"', "a warning of 5%", "warnings: 3", "critical-tier up", "okay"):
        assert highlight(plain) == plain


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(console: io.StringIO, times: list[float]) -> Progress:
    return Progress("sizewatch demo", console, clock=lambda: times[0])


def test_progress_without_a_terminal_is_a_line_each_tenth_or_half_minute() -> None:
    console, times = io.StringIO(), [100.0]
    shown = progress(console, times)
    for second in range(140):
        times[0] = 100.0 + second
        shown.tell(second / 140, "filling in the past")
        shown.draw()
    lines = console.getvalue().splitlines()
    assert lines[0] == "sizewatch demo: filling in the past 10%, 2 min left"
    assert len(lines) == 9
    assert lines[-1] == "sizewatch demo: filling in the past 90%, 14 s left"


def test_what_is_done_is_told_once() -> None:
    console, times = io.StringIO(), [0.0]
    shown = progress(console, times)
    for second, share in ((10, 0.5), (20, 1.0), (60, 1.0), (120, 1.0)):
        times[0] = float(second)
        shown.tell(share, "filling in the past")
        shown.draw()
    assert console.getvalue().splitlines()[1:] == ["sizewatch demo: filling in the past 100%"]


def test_slow_progress_without_a_terminal_is_a_line_each_half_minute() -> None:
    console, times = io.StringIO(), [0.0]
    shown = progress(console, times)
    shown.tell(0.01, "history of a")
    for second in range(100):
        times[0] = float(second)
        shown.draw()
    assert len(console.getvalue().splitlines()) == 3


def test_progress_of_a_terminal_is_one_line_that_goes_away() -> None:
    console, times = _Terminal(), [0.0]
    shown = progress(console, times)
    shown.draw()
    times[0] = SILENT_SECONDS
    shown.draw()
    shown.tell(0.5, "weeks")
    shown.draw()
    shown.clear()
    assert console.getvalue() == (
        "\rsizewatch demo 2 s\x1b[K\rsizewatch demo: weeks [##########..........] 50%, 2 s left\x1b[K\r\x1b[K"
    )


def test_quick_work_shows_no_progress() -> None:
    for console in (io.StringIO(), _Terminal()):
        shown = progress(console, [5.0])
        shown.tell(0.7, "weeks")
        shown.draw()
        assert console.getvalue() == ""


def test_the_progress_of_a_command_is_drawn_and_quiet_silences_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = threading.Event()

    def work(options: object) -> int:
        tell_progress(0.5, "half")
        drawn.wait(CEILING_SECONDS if not getattr(options, "quiet", False) else 0.0)
        print("remark", file=sys.stderr)
        return 0

    class Drawn(Progress):
        def draw(self) -> None:
            super().draw()
            drawn.set()

    monkeypatch.setattr(terminal, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "Progress", Drawn)
    monkeypatch.setattr(plan_command, "run", work)
    assert main.main(["plan", "schema"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "remark"
    assert drawn.is_set()
    assert main.main(["plan", "schema", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


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
