"""The command line: help, exit codes, every mistake at once, and no traceback but for what is our own fault."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import recorded
from daemon_runs import process
from engine_server import engines, hangs
from paths import ROOT, TESTS
from waiting import CEILING_SECONDS, wait_for

from agent.cli import explain as explain_command
from agent.cli import main
from agent.cli import plan as plan_command
from agent.cli.terminal import highlight, safe_streams
from agent.version import VERSION
from exporters.docs.reference_pages import list_contexts

Captured = pytest.CaptureFixture[str]

PLAN = TESTS / "plans" / "cpu-small.yaml"
PAGE = TESTS / "pages" / "vllm-0.33.0.prom"

NAMES = (*main.TEXTS,)
PARTS = (*(f"plan {one.name}" for one in plan_command.SUBCOMMANDS), "dashboards push")


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of shell in which `sizewatch` is ours; its exit code is that of the first part of a pipe."""
    text = f'sizewatch() {{ {sys.executable} -m agent "$@"; }}\n{script}\nexit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", text],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=CEILING_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("words", [*NAMES, *PARTS])
def test_every_command_has_help_with_exit_codes(words: str, capsys: Captured) -> None:
    assert main.main([*words.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: sizewatch {words}")
    parts = out.split("\n\n")
    sentence = parts[1].strip()
    assert sentence[0].isupper()
    assert sentence.endswith((".", "?"))
    assert parts[-1].startswith("  Exit codes: 0 ")
    assert "; 2 " in " ".join(parts[-1].split())


CODES = ("0 fine", "1 a finding", "2 bad input", "3 could not judge", "70 a defect", "71 out of memory", "130 ended by")


def test_help_names_every_command_and_exit_code(capsys: Captured) -> None:
    assert main.main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(part) for part in ("\nSet up:\n", "\n  init ", "\nJudge production:\n", "\n  check ")]
    assert places == sorted(places)
    assert len(set(NAMES)) == len(NAMES)
    out = " ".join(text.split())
    assert all(f" {name} " in out for name in NAMES)
    assert all(code in out for code in CODES)


def test_json_stands_beside_every_format() -> None:
    for context in list_contexts(main.command_line()):
        names = {name for parameter in context.command.params for name in parameter.opts}
        assert "--json" in names or "--format" not in names, context.command_path


def test_json_is_the_same_as_format_json(capsys: Captured) -> None:
    main.main(["inspect", str(PAGE), "--format", "json"])
    asked = capsys.readouterr().out
    assert main.main(["inspect", str(PAGE), "--json"]) == 0
    assert capsys.readouterr().out == asked


@pytest.mark.parametrize(
    "words", ["run -c tests/configs/ten-mistakes.yaml", "plan check tests/plans/ten-mistakes.yaml"]
)
def test_ten_mistakes_are_ten_lines(words: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Which they are is proven where each file is read."""
    monkeypatch.chdir(ROOT)
    command, *rest = words.split()
    assert main.main([command, *rest]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, len(lines) >= 10) == ("", True)
    assert all(line.startswith(f"sizewatch {command}: ") and "tests/" in line for line in lines)
    assert "Traceback" not in err
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"plan check {PLAN}", 0),
        (f"plan show {PLAN}", 0),
        ("plan schema", 0),
        (f"inspect {PAGE}", 0),
        *(
            (f"replay {recorded.folder(name)} --plan {PLAN}", code)
            for name, code in (("steady_quiet", 0), ("steady", 1))
        ),
    ],
)
def test_findings_decide_the_exit_code(words: str, code: int, capsys: Captured) -> None:
    assert main.main(words.split()) == code
    out, err = capsys.readouterr()
    assert (out != "", err) == (True, "")


def test_doctor_without_a_configuration_ends_with_2(capsys: Captured) -> None:
    assert main.main(["doctor", "-c", "/nowhere"]) == 2
    assert "fail  config" in capsys.readouterr().out


DEFECT = "sizewatch explain: this is a defect in sizewatch; please report it with the lines above\n"


@pytest.mark.parametrize(
    ("error", "code", "end"),
    [
        (ZeroDivisionError("ours"), 70, DEFECT),
        (OSError(2, "not the output's"), 70, DEFECT),
        (MemoryError(), 71, "sizewatch explain: out of memory; is a limit of memory (RLIMIT_AS, MemoryMax) too low?\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_in_a_command_has_its_code(
    error: BaseException, code: int, end: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(explain_command, "run", mock.Mock(side_effect=error))
    assert main.main(["explain"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err if code == 70 else err == end
    assert err.endswith(end)


def test_ctrl_c_has_no_traceback() -> None:
    with engines() as (engine,), process("inspect", engine.url) as started:
        engine.act = hangs
        assert wait_for(lambda: engine.asked)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=CEILING_SECONDS)
    assert (started.returncode, out, err) == (130, "", "")


def test_reader_that_goes_away_is_no_error() -> None:
    for script in ("sizewatch plan schema | head -1", "sizewatch --help | true", "sizewatch inspect {page} | head -1"):
        done = shell(script.format(page=PAGE))
        assert (done.returncode, done.stderr) == (0, ""), script
    assert "Traceback" not in shell(f"sizewatch plan check {PLAN} >&-").stderr


@pytest.mark.parametrize("words", ["| true", "--json | head -c 9", "2>&1 --plan /nowhere | true", "2> /dev/full"])
def test_exit_code_survives_a_lost_reader(words: str) -> None:
    done = shell(f"sizewatch replay {recorded.folder('cascade_fast')} {words}", PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (2 if "nowhere" in words else 1, "")


def test_a_shell_completes_commands_options_and_choices() -> None:
    for line, completed in (
        ("sizewatch wha", ["whatif"]),
        ("sizewatch plan im", ["import"]),
        ("sizewatch check --fo", ["--format"]),
        ("sizewatch plan workload --tool vllm", ["vllm-bench"]),
    ):
        words = len(line.split()) - 1
        done = shell("sizewatch", _SIZEWATCH_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(words))
        assert done.stdout.split() == [f"plain,{word}" for word in completed], line


FULL = "sizewatch: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to write to")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("plan schema > /dev/full", FULL),
        ("--help > /dev/full", FULL),
        ("--version > /dev/full", FULL),
        ("plan --help > /dev/full", FULL),
        ("plan schema > /dev/full 2> /dev/full", ""),
        ("chek 2>&-", ""),
    ],
)
def test_lost_output_is_told_in_one_line(words: str, error: str) -> None:
    done = shell(f"sizewatch {words}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error)


def test_ascii_terminal_gets_the_plan() -> None:
    done = shell(f"sizewatch plan show {PLAN}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu-small" in done.stdout


def test_version_is_printed() -> None:
    assert shell("sizewatch --version").stdout == f"sizewatch {VERSION}\n"


def test_command_is_loaded_only_when_asked() -> None:
    code = "import sys; from agent.cli import main; main.main(['plan', '--help']); print('agent.daemon.daemon' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_unfilled_plan_names_its_lines(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "plan.yaml"
    tier = "    model: m\n    engine: vllm\n    gpu:\n      product:\n      per_replica:\n    slo:\n      ttft_p99_seconds:\n"
    path.write_text(f"schema: 1\ntiers:\n  t:\n{tier}")
    assert main.main(["plan", "check", str(path)]) == 2
    empty = "is empty: fill in this line (`plan init` marks it FILL IN), or delete it"
    assert capsys.readouterr().err.splitlines() == [
        f"sizewatch plan: {path}: tiers.t.gpu.product: {empty}",
        f"sizewatch plan: {path}: tiers.t.gpu.per_replica: {empty}",
    ]
    path.write_text(path.read_text().replace("product:", "product: A").replace("per_replica:", "per_replica: 1"))
    assert main.main(["plan", "check", str(path)]) == 2
    assert capsys.readouterr().err == f"sizewatch plan: {path}: tiers.t.slo.ttft_p99_seconds: is missing\n"


MIXED = str(TESTS / "plans" / "mixed-tier.yaml")
RED = "\x1b[31m\x1b[1m"


def on_terminal(*words: str, program: tuple[str, str] = ("-m", "agent"), **environment: str) -> tuple[int, str]:
    """Run a command in a terminal of 80 columns, which `script` of util-linux plays; its code and what it shows."""
    if shutil.which("script") is None:
        pytest.skip("`script` of util-linux is not here: colours and progress in a terminal were NOT checked")
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    done = subprocess.run(
        ["script", "-qec", shlex.join([sys.executable, *program, *words]), "/dev/null"],
        cwd=ROOT,
        env={**kept, "TERM": "xterm", "COLUMNS": "80", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CEILING_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.decode().replace("\r\n", "\n")


def test_a_pipe_gets_no_colour() -> None:
    done = shell(f"sizewatch plan check {MIXED}")
    assert (done.returncode, done.stdout[:9]) == (1, "mistake: ")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_follow_the_environment(environment: dict[str, str], coloured: bool) -> None:
    shown = on_terminal("plan", "check", MIXED, **environment)[1]
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
