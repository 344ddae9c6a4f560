"""Command line: command table, exit codes, and output that is safe for terminals.

User errors exit with 2, defects with 70 and a traceback. A new command is a module in `agent/cli/` and a row of
COMMANDS; modules are imported on demand. Control characters in names and responses are removed from the output.
Exceptions are the demo's colours and a leading carriage return for progress bars.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from agent.cli.arguments import BAD_INPUT, FINE, normalize_arguments, sentence
from agent.errors import SizewatchError, explain_missing_module
from agent.version import VERSION
from exporters.render.text import strip_control_characters

_OURS = re.compile(r"(\x1b\[(?:0|1;\d\d)m)")
"""Colour codes of `agent.demo.runner`."""


def escape_text(text: str) -> str:
    """Remove control characters from the text, except our own."""
    start = "\r" if text.startswith("\r") else ""
    if "\x1b" not in text:
        return start + strip_control_characters(text[len(start) :])
    parts = _OURS.split(text[len(start) :])
    return start + "".join(part if number % 2 else strip_control_characters(part) for number, part in enumerate(parts))


class _Plain:
    """Wrapper of a stream that escapes written text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escape_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Wrap `sys.stdout` and `sys.stderr` during the block. A closed stream stays closed."""
    before: tuple[TextIO | None, TextIO | None] = sys.stdout, sys.stderr
    made: list[Any] = [None if stream is None else _Plain(stream) for stream in before]
    sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class Command(NamedTuple):
    """Command with its help text and exit codes; each exit text begins with its digit. Code 2 has a default text.

    `file` is the module name if it differs from the command.
    """

    name: str
    text: str
    exits: tuple[str, ...]
    file: str = ""

    @property
    def module(self) -> str:
        return f"agent.cli.{self.file or self.name}"


COMMANDS: tuple[Command, ...] = (
    Command(
        "init",
        "a configuration and a plan from the engines that run on this machine; asks nothing",
        ("0 both files are written", "3 no engine was found"),
    ),
    Command(
        "run",
        "the daemon: watch targets, judge them against the plan, serve the status page",
        ("0 ended by SIGTERM or SIGINT",),
    ),
    Command(
        "demo",
        "recorded engines served over HTTP and watched live; no GPU, no server needed",
        ("0 ended by Ctrl-C or after --seconds",),
    ),
    Command(
        "check",
        "step 13: does production confirm the benchmark?",
        ("0 it does, as far as it could be judged", "1 in some tier it does not", "3 no tier could be judged"),
    ),
    Command(
        "replay",
        "the same judgement over a recording, or over the past of a Prometheus-compatible store",
        (
            "0 nothing was found",
            "1 something was found",
            "3 there is nothing to judge, or the store failed on the way: up to when was printed",
        ),
    ),
    Command(
        "import",
        "the past of a Prometheus-compatible store, put into an embedded history",
        ("0 the history holds what the store has", "3 the store has nothing of it, or failed on the way"),
        "import_history",
    ),
    Command(
        "plan",
        "check or show a sizing plan, import its benchmark, print the schema, tell two apart",
        (
            "0 a valid plan, or done",
            "1 two plans differ, or a grave mistake was found",
            "3 nothing was seen of the workload",
        ),
    ),
    Command("inspect", "what a page exposes, signal by signal", ("0 the page was read",)),
    Command(
        "signals",
        "which signal each engine can give: known, bounded, or not exposed and why",
        ("0 the table was printed",),
    ),
    Command(
        "lint",
        "wrong metric and label names in rule files and dashboards",
        (
            "0 nothing wrong was found",
            "1 something was found",
            "2 a rule file or an expression that cannot be read",
        ),
    ),
    Command(
        "doctor",
        "is this installation sound? what to do, line by line",
        (
            "0 sound, perhaps with warnings",
            "1 at least one line fails",
            "2 wrong arguments, or a configuration that cannot be used",
        ),
    ),
    Command(
        "status",
        "each tier of a running daemon in one table: replicas now and recommended, money, certainty, incident",
        (
            "0 no incident is open",
            "1 an incident is open",
            "3 no daemon answers, or it refuses the credentials",
        ),
    ),
    Command(
        "timeline",
        "what happened: findings, alerts of others, restarts, changes of plan and configuration, a line each",
        ("0 the timeline was printed",),
    ),
    Command(
        "forecast",
        "what is expected to arrive, and how well such forecasts did in the last day",
        ("0 the forecast was printed, or why there is none yet",),
    ),
    Command(
        "backtest",
        "how well would the traffic have been forecast, beside the methods that anyone would try first?",
        ("0 the table was printed",),
    ),
    Command(
        "prewarm",
        "how many replicas must be warm one cold start from now, why, and what it was worth; as manifests too",
        ("0 the recommendation was printed", "3 there is none; what is missing was printed"),
    ),
    Command(
        "report",
        "the re-size report: what production showed against the plan, and the plan that follows",
        (
            "0 the report is written, and sent where that was asked for",
            "1 a destination did not take it",
            "3 it is written, and nothing was seen in that time",
        ),
    ),
    Command(
        "whatif",
        "another number of replicas, another load, other prompts: what would be seen, cost and break first?",
        ("0 the SLO would hold", "1 it would break", "3 nobody can tell; what is missing was printed"),
    ),
    Command("dashboards", "put the dashboards into a Grafana", ("0 all of them are there",)),
    Command(
        "render",
        "write the generated files of a checkout anew: schemas and tables of the documentation",
        ("0 written, or nothing to write", "1 with --check: a file differs"),
    ),
)

DEFECT = 70
"""Exit code of a defect: EX_SOFTWARE of sysexits.h, different from a finding."""
INTERRUPTED = 130
"""Exit code of shells for a command ended by Ctrl-C."""

UNWRITABLE = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})


def parser(commands: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser with the arguments of all or some commands. Each import costs start-up time."""
    top = argparse.ArgumentParser(
        prog="sizewatch",
        description="Tells whether an LLM serving fleet is still the size that was planned.",
        epilog="Exit codes: 0 fine, 1 a finding, 2 bad input or configuration, 3 could not judge, "
        "70 a defect of sizewatch itself, 130 ended by Ctrl-C.",
    )
    top.add_argument("--version", action="version", version=f"sizewatch {VERSION}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.text, description=sentence(command.text), epilog=_exit_codes(command)
        )
        if commands is None or command.name in commands:
            importlib.import_module(command.module).add_arguments(sub)
    return top


def _exit_codes(command: Command) -> str:
    codes = {BAD_INPUT: f"{BAD_INPUT} bad input or configuration", **{int(text[0]): text for text in command.exits}}
    return f"Exit codes: {'; '.join(codes[code] for code in sorted(codes))}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    with plain_output():
        return _flushed(words)


def _flushed(words: list[str]) -> int:
    code = _guarded(words)
    try:
        # Flushed here, because nobody handles an error at process exit.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _unwritable(error, code)
    return code


def _guarded(words: list[str]) -> int:
    try:
        return _run(words)
    except SystemExit as end:
        # Raised by argparse after --help, --version or a usage error.
        return end.code if isinstance(end.code, int) else FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno in UNWRITABLE:
            return _unwritable(error, FINE)
        return _defect(words)
    except Exception:  # noqa: BLE001 - any other exception is a defect; it must not look like a finding
        return _defect(words)


def _run(words: list[str]) -> int:
    named = [word for word in words[:1] if word in {command.name for command in COMMANDS}]
    options = parser(named).parse_args(normalize_arguments(words))
    modules = {command.name: command.module for command in COMMANDS}
    command = importlib.import_module(modules[options.command])
    try:
        return int(command.run(options))
    except SizewatchError as error:
        _complain(words, *str(error).splitlines())
        return BAD_INPUT
    except ModuleNotFoundError as error:
        advice = explain_missing_module(error)
        if advice is None:
            raise
        _complain(words, advice)
        return BAD_INPUT


def _complain(words: list[str], *lines: str) -> None:
    for line in lines:
        print(f"sizewatch {words[0] if words else ''}: {line}", file=sys.stderr)


def _defect(words: list[str]) -> int:
    traceback.print_exc()
    _complain(words, "this is a defect in sizewatch; please report it with the lines above")
    return DEFECT


def _unwritable(error: OSError, code: int) -> int:
    """Return the exit code for unwritable output. A closed pipe (head, less) keeps the code."""
    if sys.stdout is not None:
        # The rest of the buffer would fail again at process exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code
    print(f"sizewatch: the output cannot be written: {error.strerror}", file=sys.stderr)
    return BAD_INPUT
