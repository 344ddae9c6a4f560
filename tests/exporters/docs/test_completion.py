"""Completion in the real shells, and the man page through groff."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import tool

from agent.cli import main

BASH = """
source {script}
COMP_WORDS=({words} "$1"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_sizewatch
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ : }}
_describe() {{ print -rl -- ${{${{(P)2}}%%:*}} }}
_files() {{ print -rl -- $PREFIX*(N) }}
source {script}
words=({words} "$1"); CURRENT=$#words; PREFIX=$1
_sizewatch
"""
FISH = "source {script}; complete -C '{words} '$argv[1]"


def written(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main.main(["completion", name]) == 0
    path = folder / f"script.{name}"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


Complete = Callable[[str, str], set[str]]


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Complete:
    """What a shell offers for the beginning of a word, after other words. Its folder holds plan.yaml."""
    shell: str = request.param
    script = written(shell, tmp_path, capsys)
    (tmp_path / "plan.yaml").touch()

    def found(words: str, begun: str) -> set[str]:
        text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(script=script, words=words)
        given = {"bash": ["-c", text, "-"], "zsh": ["-f", "-c", text, "-"], "fish": ["-N", "-c", text, "--"]}[shell]
        done = subprocess.run(
            [tool(shell), *given, begun], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == ""
        # zsh and fish give all words of the place or their meanings too; matching is the shell's own work.
        return {line.split("\t")[0] for line in done.stdout.splitlines() if line.startswith(begun) and line}

    return found


def test_commands_are_completed(complete: Complete) -> None:
    assert complete("sizewatch", "pl") == {"plan"}
    assert complete("sizewatch plan", "i") == {"import", "init"}


def test_options_are_those_of_the_command(complete: Complete) -> None:
    assert complete("sizewatch plan import", "--fo") == {"--format"}
    assert "--step" in complete("sizewatch replay", "--s")
    assert complete("sizewatch check", "--s") == {"--since"}


def test_values_are_the_choices_also_after_a_global_option(complete: Complete) -> None:
    assert complete("sizewatch -q plan import --from", "g") == {"guidellm"}
    assert complete("sizewatch --color", "a") == {"auto", "always"}
    assert complete("sizewatch explain", "KvE") == {"KvEviction"}


def test_files_are_completed_where_a_file_belongs(complete: Complete) -> None:
    assert complete("sizewatch plan check", "pla") == {"plan.yaml"}
    assert complete("sizewatch check -c", "pla") == {"plan.yaml"}
    assert complete("sizewatch check --since", "pla") == set()


def test_every_command_is_in_every_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bash", "zsh", "fish", "man"):
        text = written(name, tmp_path, capsys).read_text(encoding="utf-8")
        assert all(command.name in text for command in main.COMMANDS), name


def test_the_man_page_has_no_warning_and_every_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = written("man", tmp_path, capsys)
    words = [tool("groff"), "-man", "-Tutf8", "-ww", "-rHY=0", "-P-cbou", str(page)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    shown = " ".join(done.stdout.split())
    assert "sizewatch plan check [--page FILE-or-URL]" in shown.replace("[--tier T] ", "").replace("PLAN ", "")
    assert "Exit codes: 0 they say the same; 1 they differ; 2 bad input or configuration." in shown
    assert "130 ended by Ctrl-C" in shown
    assert "%(" not in shown
