"""The command line: help, exit codes, every mistake at once, and no traceback but for what is our own fault."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import recorded
from daemon_runs import process
from engine_server import engines, hangs
from paths import ROOT, TESTS
from waiting import CEILING_SECONDS, wait_for

from agent.cli import explain as explain_command
from agent.cli import main
from agent.cli import plan as plan_command
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


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nosuch",
        "plan",
        "plan nosuch",
        "check --since -3d",
        "check --since soon",
        "check --format xml",
        "replay",
        "replay x --step 0s",
        "inspect",
        "run --role cluster",
        "demo --port 65536",
        "demo --speed nan",
    ],
)
def test_wrong_arguments_print_the_usage(words: str, capsys: Captured) -> None:
    assert main.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: sizewatch")
    assert "Error: " in err or "Commands:" in err or "Set up:" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["plan", "improt"], "No such command 'improt'. Did you mean 'import'?"),
        (["check", "--formt", "json"], "No such option '--formt'. Did you mean '--format'?"),
        (["init", "--tier", "a"], "No such option '--tier'."),
        (["check", "--format", "jsno"], "'jsno' is not one of 'text', 'json'."),
        (["init", "http://gpu-1:8000"], "Got unexpected extra argument (http://gpu-1:8000)"),
        (["zzz"], "No such command 'zzz'."),
    ],
)
def test_misspelt_word_gets_a_suggestion(words: list[str], said: str, capsys: Captured) -> None:
    assert main.main(words) == 2
    assert said in capsys.readouterr().err


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
    "words",
    [
        ["run", "-c", str(TESTS / "configs" / "ten-mistakes.yaml")],
        ["plan", "check", str(TESTS / "plans" / "ten-mistakes.yaml")],
    ],
    ids=["configuration", "plan"],
)
def test_ten_mistakes_are_ten_lines(words: list[str], capsys: Captured) -> None:
    """Which they are is proven where each file is read."""
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, len(lines) >= 10) == ("", True)
    assert all(line.startswith(f"sizewatch {words[0]}: ") and str(TESTS) in line for line in lines)
    assert "Traceback" not in err
    assert "hunter2" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "-c", "/nowhere/sizewatch.yaml"], "/nowhere/sizewatch.yaml: there is no such file"),
        (["check", "-c", "/nowhere/sizewatch.yaml"], "there is no such file"),
        (["plan", "show", "/nowhere/plan.yaml"], "there is no such file"),
        (["plan", "show", str(PLAN), "--tier", "other"], "has no tier other; it has cpu-small"),
        (["replay", "/nowhere"], "has no recording.yaml"),
        (["replay", str(PLAN), "--plan", str(PLAN)], "has no recording.yaml: is this the folder of a recording?"),
        (["replay", str(recorded.folder("steady")), "--plan", "/nowhere.yaml"], "there is no such file"),
        (["inspect", "/nowhere.prom"], "/nowhere.prom: cannot be read: No such file or directory; an address"),
        (["render", "--root", "/nowhere"], "holds no docs/"),
    ],
)
def test_missing_file_is_named(words: list[str], said: str, capsys: Captured) -> None:
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"sizewatch {words[0]}: ")
    assert said in err


def test_missing_configuration_names_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["run"]) == 2
    places = "neither sizewatch.yaml nor /etc/sizewatch/sizewatch.yaml; `sizewatch init` writes one, -c names another"
    assert places in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "check", str(PLAN)], 0),
        (["plan", "show", str(PLAN)], 0),
        (["plan", "schema"], 0),
        (["inspect", str(PAGE)], 0),
        (["replay", str(recorded.folder("cascade_fast"))], 1),
        (["render", "--check", "--root", "EMPTY"], 1),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, list) else str(given),
)
def test_findings_decide_the_exit_code(words: list[str], code: int, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "docs").mkdir()
    runbooks = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    (tmp_path / "docs" / "runbooks.md").write_text(runbooks, encoding="utf-8")
    assert main.main([str(tmp_path) if word == "EMPTY" else word for word in words]) == code
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_empty_recording_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "recording.yaml").write_text("targets: [{file: m.jsonl.gz, tier: t, replica: r}]")
    with gzip.open(tmp_path / "m.jsonl.gz", "wb"):
        pass
    assert main.main(["replay", str(tmp_path)]) == 3


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
    monkeypatch.setattr(explain_command, "run", lambda options: _raise(error))
    assert main.main(["explain"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err if code == 70 else err == end
    assert err.endswith(end)


def _raise(error: BaseException) -> int:
    raise error


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
    assert "Traceback" not in shell(f"sizewatch plan check {PLAN} >&-").stderr


def test_ascii_terminal_gets_the_plan() -> None:
    done = shell(f"sizewatch plan show {PLAN}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu-small" in done.stdout


def test_alert_about_sizewatch_is_explained(capsys: Captured) -> None:
    assert main.main(["explain", "agentdown"]) == 0
    told = capsys.readouterr().out
    assert "no_cycles: The agent on <instance> answers and does not work." in told
    assert "{{" not in told


def test_python_m_agent_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"sizewatch {VERSION}\n"


def test_command_is_loaded_only_when_asked() -> None:
    code = "import sys; from agent.cli import main; main.main(['plan', '--help']); print('agent.daemon.daemon' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_plan_is_no_configuration(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "sizewatch.yaml"
    path.write_text("targets: []\n")
    for words, said in (
        (["run", "-c", str(PLAN)], "cpu-small.yaml: schema: is not a key"),
        (["plan", "check", str(path)], "sizewatch.yaml: targets: is not a key"),
    ):
        assert main.main(words) == 2
        assert said in capsys.readouterr().err


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
