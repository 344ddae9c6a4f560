"""Command line: command table, global options and exit codes. `agent.cli.terminal` has the output.

User errors exit with 2, defects with 70 and a traceback. A new command is a module in `agent/cli/` and a row of
COMMANDS; modules are imported on demand.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Literal, NamedTuple

from agent.cli.arguments import (
    BAD_INPUT,
    CANNOT_JUDGE,
    FINE,
    NO_RESOURCES,
    Parser,
    exit_codes_text,
    normalize_arguments,
    sentence,
)
from agent.cli.terminal import Session, terminal_session
from agent.errors import SizewatchError, explain_missing_module
from agent.version import VERSION


class Command(NamedTuple):
    """Command with its help text and exit codes; each exit text begins with its digit. Code 2 has a default text.

    `file` is the module name if it differs from the command. `output` is kept for the pager, or printed at once
    (streamed). The output of role "log" is a log: `--quiet` leaves it alone.
    """

    name: str
    text: str
    exits: tuple[str, ...]
    file: str = ""
    output: Literal["kept", "streamed", "log"] = "kept"

    def function(self, verb: str) -> Callable[..., Any]:
        """Return a function of the command's module: `run`, or `run_signals` where several commands share a module."""
        module = importlib.import_module(f"agent.cli.{self.file or self.name}")
        found: Callable[..., Any] = getattr(module, f"{verb}_{self.name}", None) or getattr(module, verb)
        return found


COMMANDS: tuple[Command, ...] = (
    Command(
        "init",
        "a configuration and a plan from the engines that run on this machine; asks nothing",
        ("0 both files are written", "3 no engine was found"),
    ),
    Command(
        "run",
        "the daemon: watch targets, judge them against the plan, serve the status page",
        ("0 ended by SIGTERM or SIGINT", "71 no threads or memory to start with"),
        output="log",
    ),
    Command(
        "demo",
        "recorded engines served over HTTP and watched live; no GPU, no server needed",
        ("0 ended by Ctrl-C or after --seconds",),
        output="streamed",
    ),
    Command(
        "check",
        "does production confirm the benchmark?",
        ("0 it does, as far as it could be judged", "1 in some tier it does not", "3 no tier could be judged"),
    ),
    Command(
        "replay",
        "evaluate a recording or the past of a Prometheus-compatible store",
        (
            "0 nothing was found",
            "1 something was found",
            "3 there is nothing to judge, or the store failed on the way: up to when was printed",
        ),
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
        "inspect",
    ),
    Command(
        "explain",
        "what a rule means, how it is judged, and what to do: its runbook",
        ("0 the runbook was printed", "2 there is no such rule"),
    ),
    Command(
        "doctor",
        "check this installation and print advice",
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
        "status",
    ),
    Command(
        "forecast",
        "what is expected to arrive, and how well such forecasts did in the last day",
        ("0 the forecast was printed, or why there is none yet",),
    ),
    Command(
        "backtest",
        "backtest the forecaster against naive baselines",
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
        "another number of replicas, another load: what would be seen, cost and break first?",
        ("0 the SLO would hold", "1 it would break", "3 nobody can tell; what is missing was printed"),
    ),
    Command("dashboards", "put the dashboards into a Grafana", ("0 all of them are there",), output="streamed"),
    Command(
        "render",
        "regenerate the files of a checkout: schemas, rules, dashboards and tables of the documentation",
        ("0 written, or nothing to write", "1 with --check: a file differs"),
    ),
)

BY_NAME = {command.name: command for command in COMMANDS}

DEFECT = 70
"""Exit code of a defect: EX_SOFTWARE of sysexits.h, different from a finding."""
INTERRUPTED = 130
"""Exit code of shells for a command ended by Ctrl-C."""

UNWRITABLE = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})


def parser(commands: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser with the arguments of all or some commands. Each import costs start-up time."""
    top = Parser(
        prog="sizewatch",
        description="Tells whether an LLM serving fleet is still the size that was planned.",
        epilog="`sizewatch help COMMAND` explains a command. Exit codes: 0 fine, 1 a finding, 2 bad input or "
        "configuration, 3 could not judge, 70 a defect of sizewatch itself, 71 out of memory, "
        "130 ended by Ctrl-C.",
    )
    top.add_argument("--version", action="version", version=f"sizewatch {VERSION}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.text, description=sentence(command.text), epilog=exit_codes_text(command.exits)
        )
        if commands is None or command.name in commands:
            command.function("add_arguments")(sub)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:
        # argparse would print errors to stdout.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    with terminal_session() as session:
        return _flushed(words, session)


def _flushed(words: list[str], session: Session) -> int:
    # Global options may stand before the command.
    name = next((word for word in words if word in BY_NAME), "")
    code = _guarded(words, name, session)
    try:
        session.end(paged=code < DEFECT and "--no-pager" not in words)
        # Flushed here, because nobody handles an error at process exit.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _unwritable(error, code)
    return code


def _guarded(words: list[str], name: str, session: Session) -> int:
    try:
        return _run(words, name, session)
    except SystemExit as end:
        # Raised by argparse after --help, --version or a usage error.
        return end.code if isinstance(end.code, int) else FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno in UNWRITABLE:
            return _unwritable(error, FINE)
        return _defect(name)
    except MemoryError:
        _complain(name, "out of memory; is a limit of memory (RLIMIT_AS, MemoryMax) too low?")
        return NO_RESOURCES
    except Exception:  # noqa: BLE001 - any other exception is a defect; it must not look like a finding
        return _defect(name)


def _run(words: list[str], name: str, session: Session) -> int:
    options = parser([name]).parse_args(normalize_arguments(words))
    options.words = words
    command, code = BY_NAME[options.command], DEFECT
    log = command.output == "log"
    quiet = getattr(options, "quiet", False) and not log
    session.configure(color=getattr(options, "color", "auto"), quiet=quiet, streams=command.output != "kept")
    try:
        with nullcontext() if log else session.progress(f"sizewatch {name}"):
            code = int(command.function("run")(options))
    except SizewatchError as error:
        code = BAD_INPUT
        session.end_quiet(failed=True)
        _complain(name, *str(error).splitlines())
    except ModuleNotFoundError as error:
        advice = explain_missing_module(error)
        if advice is None:
            raise
        code = BAD_INPUT
        session.end_quiet(failed=True)
        _complain(name, advice)
    finally:
        session.end_quiet(failed=code in (BAD_INPUT, CANNOT_JUDGE, DEFECT))
    return code


def _complain(name: str, *lines: str) -> None:
    for line in lines:
        print(f"sizewatch {name}: {line}", file=sys.stderr)


def _defect(name: str) -> int:
    traceback.print_exc()
    _complain(name, "this is a defect in sizewatch; please report it with the lines above")
    return DEFECT


def _unwritable(error: OSError, code: int) -> int:
    """Return the exit code for unwritable output. A closed pipe (head, less) keeps the code."""
    if sys.stdout is not None:
        # The rest of the buffer would fail again at process exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code
    # Where stderr is full too, the exit code is all that is left to tell.
    with suppress(OSError):
        print(f"sizewatch: the output cannot be written: {error.strerror}", file=sys.stderr, flush=True)
    return BAD_INPUT
