"""Command line: command table, global options and exit codes. `agent.cli.terminal` has the output.

User errors exit with 2, defects with 70 and a traceback. A new command is a module in `agent/cli/` with `parameters`
and `run`, and a row of GROUPS. Modules are imported on demand.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import click

from agent.cli.arguments import BAD_INPUT, EVERYWHERE, FINDING, FINE, HELP_OPTION, NO_RESOURCES, help_of, make_command
from agent.cli.terminal import Output, Terminal, UnwritableOutput
from agent.errors import SizewatchError, explain_missing_module
from agent.version import VERSION


class Command(NamedTuple):
    """Command with its help text and exit codes. `file` is the module name if it differs from the command."""

    name: str
    text: str
    exits: str
    file: str = ""
    output: Output = "kept"

    def load(self) -> click.Command:
        """Return the command out of its module, which has `run`, or `run_signals` where several commands share it."""
        module = importlib.import_module(f"agent.cli.{self.file or self.name}")
        if hasattr(module, "SUBCOMMANDS"):
            options = help_of(self.text, self.exits)
            return click.Group(self.name, commands=module.SUBCOMMANDS, params=[*EVERYWHERE], **options)
        end = f"_{self.name}" if self.file else ""
        parameters, run = (getattr(module, f"{verb}{end}") for verb in ("parameters", "run"))
        return make_command(self.name, self.text, parameters(), run, self.exits, self.output)


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Set up": (
        Command(
            "init",
            "a configuration and a plan from the engines that run on this machine; asks nothing",
            "0 both files are written; 3 no engine was found",
        ),
        Command(
            "run",
            "the daemon: watch targets, judge them against the plan, serve the status page",
            "0 ended by SIGTERM or SIGINT; 71 no threads or memory to start with",
            output="log",
        ),
        Command(
            "demo",
            "recorded engines served over HTTP and watched live; no GPU, no server needed",
            "0 ended by Ctrl-C or after --seconds",
            output="streamed",
        ),
        Command(
            "doctor",
            "check this installation and print advice",
            "0 sound, perhaps with warnings; 1 at least one line fails; "
            "2 wrong arguments, or a configuration that cannot be used",
        ),
    ),
    "Judge production": (
        Command(
            "check",
            "does production confirm the benchmark?",
            "0 it does, as far as it could be judged; 1 in some tier it does not; 3 no tier could be judged",
        ),
        Command(
            "status",
            "each tier of a running daemon in one table: replicas now and recommended, money, certainty, incident",
            "0 no incident is open; 1 an incident is open; 3 no daemon answers, or it refuses the credentials",
        ),
        Command(
            "timeline",
            "what happened: findings, alerts of others, restarts, changes of plan and configuration, a line each",
            "0 the timeline was printed",
            "status",
        ),
        Command(
            "replay",
            "evaluate a recording or the past of a Prometheus-compatible store",
            "0 nothing was found; 1 something was found; "
            "3 there is nothing to judge, or the store failed on the way: up to when was printed",
        ),
        Command(
            "explain",
            "what a rule means, how it is judged, and what to do: its runbook",
            "0 the runbook was printed; 2 there is no such rule",
        ),
    ),
    "Plan and size": (
        Command(
            "plan",
            "check or show a sizing plan, import its benchmark, print the schema, tell two apart",
            "0 a valid plan, or done; 1 two plans differ, or a grave mistake was found; 3 nothing was seen of the workload",
        ),
        Command(
            "report",
            "the re-size report: what production showed against the plan, and the plan that follows",
            "0 the report is written, and sent where that was asked for; 1 a destination did not take it; "
            "3 it is written, and nothing was seen in that time",
        ),
        Command(
            "whatif",
            "another number of replicas, another load: what would be seen, cost and break first?",
            "0 the SLO would hold; 1 it would break; 3 nobody can tell; what is missing was printed",
        ),
    ),
    "Look ahead": (
        Command(
            "forecast",
            "what is expected to arrive, and how well such forecasts did in the last day",
            "0 the forecast was printed, or why there is none yet",
        ),
        Command("backtest", "backtest the forecaster against naive baselines", "0 the table was printed", "forecast"),
        Command(
            "prewarm",
            "how many replicas must be warm one cold start from now, why, and what it was worth; as manifests too",
            "0 the recommendation was printed; 3 there is none; what is missing was printed",
        ),
    ),
    "Look into pages": (
        Command("inspect", "what a page exposes, signal by signal", "0 the page was read"),
        Command(
            "signals",
            "which signal each engine can give: known, bounded, or not exposed and why",
            "0 the table was printed",
            "inspect",
        ),
    ),
    "Publish": (
        Command("dashboards", "put the dashboards into a Grafana", "0 all of them are there", output="streamed"),
        Command(
            "render",
            "regenerate the files of a checkout: schemas, rules, dashboards and tables of the documentation",
            "0 written, or nothing to write; 1 with --check: a file differs",
        ),
    ),
}
"""Commands by what they are for, in the order of the help."""

COMMANDS = tuple(chain.from_iterable(GROUPS.values()))
BY_NAME = {command.name: command for command in COMMANDS}

DEFECT = 70
"""Exit code of a defect: EX_SOFTWARE of sysexits.h, different from a finding."""
INTERRUPTED = 130
"""Exit code of shells for a command ended by Ctrl-C."""

COMPLETE = "_SIZEWATCH_COMPLETE"
"""Variable by which a shell asks for completions."""


class CommandLine(click.Group):
    """The whole command line. The module of a command is imported when that is used, since each costs start-up time."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, BY_NAME[name].load() if name in BY_NAME else command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name, command.text) for command in commands])


def command_line() -> CommandLine:
    """Return the command line, with an empty stand-in for each command."""
    top = CommandLine(
        "sizewatch",
        commands=[click.Command(row.name, **help_of(row.text, row.exits)) for row in COMMANDS],
        params=[*EVERYWHERE],
        help="Tells whether an LLM serving fleet is still the size that was planned.",
        epilog="`sizewatch help COMMAND` explains a command. Exit codes: 0 fine, 1 a finding, 2 bad input or "
        "configuration, 3 could not judge, 70 a defect of sizewatch itself, 71 out of memory, "
        "130 ended by Ctrl-C.",
        context_settings=HELP_OPTION,
    )
    return click.version_option(VERSION, message="%(prog)s %(version)s")(top)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if instruction := os.environ.get(COMPLETE):
        # On demand: only a shell asks.
        from click.shell_completion import shell_complete

        return shell_complete(command_line(), {}, "sizewatch", COMPLETE, instruction)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    with Terminal(words) as terminal:
        code = _run(words, terminal)
        try:
            terminal.end(failed=code > FINDING, paged=code < DEFECT and "--no-pager" not in words)
        except UnwritableOutput as error:
            return _unwritable(error, code)
    return code


def _run(words: list[str], terminal: Terminal) -> int:
    """Return the exit code of the command, or of why it could not run."""
    # Global options may stand before the command.
    name = next((word for word in words if word in BY_NAME), "")
    top = command_line()
    try:
        with top.make_context("sizewatch", [*words], obj=terminal) as context:
            return int(top.invoke(context))
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        error.show(sys.stderr)
        return BAD_INPUT
    except SizewatchError as error:
        _complain(name, *str(error).splitlines())
        return BAD_INPUT
    except UnwritableOutput as error:
        return _unwritable(error, FINE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        _complain(name, "out of memory; is a limit of memory (RLIMIT_AS, MemoryMax) too low?")
        return NO_RESOURCES
    except Exception as error:  # noqa: BLE001 - any other exception is a defect; it must not look like a finding
        advice = explain_missing_module(error) if isinstance(error, ModuleNotFoundError) else None
        if advice is not None:
            _complain(name, advice)
            return BAD_INPUT
        traceback.print_exc()
        _complain(name, "this is a defect in sizewatch; please report it with the lines above")
        return DEFECT


def _complain(name: str, *lines: str) -> None:
    for line in lines:
        print(f"sizewatch {name}: {line}", file=sys.stderr)


def _unwritable(error: UnwritableOutput, code: int) -> int:
    """Return the exit code for unwritable output. A closed pipe (head, less) keeps the code."""
    if error.errno == errno.EPIPE:
        return code
    print(f"sizewatch: the output cannot be written: {error.strerror}", file=sys.stderr)
    return BAD_INPUT
