"""The examples of the documentation, run again: what a page shows is what the program prints."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
from functools import cache
from typing import Any

import pytest
import recorded
from paths import ROOT

from agent.cli import main

PAGES = sorted((ROOT / "docs").glob("*.md"))

CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
JSON = re.compile(r"<!-- (replay|replay-verdict): (\w+)((?: \w+=[\w.-]+)*) -->\s*```json\n(.*?)```", re.DOTALL)
ANY_REPLAY = re.compile(r"<!-- replay")


def sessions() -> list[tuple[str, str, tuple[str, ...]]]:
    """(page, command, lines shown) of every console block; several commands may follow each other in one."""
    found = []
    for page in PAGES:
        for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *lines = part.rstrip("\n").split("\n")
                found.append((page.name, command, tuple(lines)))
    return found


def facts() -> list[tuple[str, str, str, dict[str, str], Any]]:
    """(page, kind, recording, options, what is shown) of every JSON block that names a recording."""
    found = []
    for page in PAGES:
        for kind, name, options, shown in JSON.findall(page.read_text(encoding="utf-8")):
            given = dict(option.split("=", 1) for option in options.split())
            found.append((page.name, kind, name, given, json.loads(shown)))
    return found


@cache
def output(command: str) -> str:
    """What a command prints, run from the root of the repository."""
    words = [str(ROOT / word) if "/" in word else word for word in shlex.split(command)]
    assert words[0] == "sizewatch"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main.main(words[1:])
    return printed.getvalue()


@cache
def replayed(name: str, plan: str, step: str) -> Any:
    folder = recorded.folder(name).relative_to(ROOT)
    return json.loads(output(f"sizewatch replay {folder} --plan tests/plans/{plan}.yaml --format json --step {step}"))


def differs(shown: Any, real: Any) -> bool:
    """Numbers are shown with three digits; what is not shown is not compared."""
    if isinstance(shown, dict):
        return not isinstance(real, dict) or any(key not in real or differs(shown[key], real[key]) for key in shown)
    if isinstance(shown, float | int) and isinstance(real, float | int):
        return not math.isclose(shown, real, rel_tol=0.005, abs_tol=1e-9)
    return bool(shown != real)


@pytest.mark.parametrize(("page", "command", "lines"), sessions())
def test_a_console_example_shows_what_the_command_prints(page: str, command: str, lines: tuple[str, ...]) -> None:
    left = output(command).split("\n")
    shown = [line for line in lines if line != "..."]
    assert shown, f"docs/{page}: {command} shows nothing"
    for line in shown:
        assert line in left, (
            f"docs/{page}: `{command}` does not print (or not there): {line!r}; it prints\n{output(command)}"
        )
        left = left[left.index(line) + 1 :]


@pytest.mark.parametrize(("page", "kind", "name", "options", "shown"), facts())
def test_a_number_from_a_recording_is_what_its_replay_says(
    page: str, kind: str, name: str, options: dict[str, str], shown: dict[str, Any]
) -> None:
    found = replayed(name, options.get("plan", "cpu-small-open"), options.get("step", "60s"))
    real = _verdict(found, options) if kind == "replay-verdict" else _readings(found, options)
    wrong = {key: real.get(key) for key in shown if differs(shown[key], real.get(key))}
    assert not wrong, f"docs/{page}: {name} {options}: the replay says {wrong}"


def _readings(found: Any, options: dict[str, str]) -> dict[str, Any]:
    start = min(window["start"] for window in found["windows"]) + float(options["from"])
    (window,) = (w for w in found["windows"] if abs(w["start"] - start) < 1 and w["replica"] == options.get("replica"))
    if "coverage" in options:
        assert window["coverage"] == pytest.approx(float(options["coverage"]), abs=0.005)
    return dict(window["readings"])


def _verdict(found: Any, options: dict[str, str]) -> dict[str, Any]:
    """The first episode of a rule, its times in seconds since the recording began."""
    start = min(window["start"] for window in found["windows"])
    verdict = next(v for v in found["verdicts"] if v["rule"] == options["rule"])
    stages: dict[str, int] = {}
    for change in verdict["transitions"]:
        if change["stage"]:
            stages.setdefault(str(change["stage"]), round(change["t"] - start))
    times = {key: verdict[key] and round(verdict[key] - start) for key in ("started_at", "ended_at")}
    return {**verdict, **times, "stages": stages}


def test_the_pages_do_show_examples_and_none_is_passed_over() -> None:
    assert sessions()
    marked = sum(len(ANY_REPLAY.findall(page.read_text(encoding="utf-8"))) for page in PAGES)
    assert len(facts()) == marked >= 8
