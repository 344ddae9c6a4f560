"""Command line: the table of commands and how each ends. `agent.cli.terminal` has the output.

A new command is a module here with `parameters` and
`run`, and a row of GROUPS.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import click

from agent.cli.arguments import HELP_OPTION, Exit, help_of, make_command, name_options
from agent.cli.terminal import UnwritableOutputError, safe_streams
from agent.errors import CannotJudgeError, SizewatchError, explain_missing_module
from agent.version import VERSION

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Set up": {
        "init": "a configuration and a plan from the engines that run on this machine, or at URLs; asks nothing",
        "run": "the daemon: watch targets, judge them against the plan, serve the status page",
        "demo": "recorded engines served over HTTP and watched live; no GPU, no server needed",
        "doctor": "say what is wrong with the engines of some addresses; without one, check this installation",
    },
    "Judge production": {
        "check": "does production confirm the benchmark?",
        "status": "each tier of a running daemon in one table: replicas now and recommended, money, certainty, incident",
        "timeline": "what happened: findings, alerts of others, restarts, changes of plan and configuration, a line each",
        "replay": "evaluate a recording or the past of a Prometheus-compatible store",
        "explain": "what a rule means, how it is judged, and what to do: its runbook",
    },
    "Plan and size": {
        "plan": "check or show a sizing plan, import its benchmark, print the schema, tell two apart",
        "report": "the re-size report: what production showed against the plan, and the plan that follows",
        "whatif": "another number of replicas, another load: what would be seen, cost and break first?",
    },
    "Look ahead": {
        "forecast": "what is expected to arrive, and how well such forecasts did in the last day",
        "backtest": "backtest the forecaster against naive baselines",
        "prewarm": "how many replicas must be warm one cold start from now, why, and what it was worth; as manifests too",
    },
    "Look into pages": {
        "inspect": "what a page exposes, signal by signal",
    },
    "Publish": {
        "dashboards": "put the dashboards into a Grafana",
        "render": "regenerate the files of a checkout: schemas, rules, dashboards and tables of the documentation",
    },
}
"""Help texts of commands, by what the commands are for, in the order of the help."""

TEXTS = {name: text for commands in GROUPS.values() for name, text in commands.items()}

MODULES = {"timeline": "status", "backtest": "forecast"}
"""Module of a command where its name differs. Its functions then end in the command's name."""

COMPLETE = "_SIZEWATCH_COMPLETE"
"""Variable by which a shell asks for completions."""


class CommandLine(click.Group):
    """The whole command line. A command's module is imported on use: each costs start-up time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*TEXTS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in TEXTS:
            return None
        module = importlib.import_module(f"agent.cli.{MODULES.get(cmd_name, cmd_name)}")
        if hasattr(module, "SUBCOMMANDS"):
            return click.Group(cmd_name, commands=module.SUBCOMMANDS, **help_of(TEXTS[cmd_name]))
        end = ""
        if cmd_name in MODULES:
            end = f"_{cmd_name}"
        parameters, run = (getattr(module, f"{verb}{end}") for verb in ("parameters", "run"))
        return make_command(cmd_name, TEXTS[cmd_name], parameters(), run)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*commands.items()])


def command_line() -> CommandLine:
    top = CommandLine(
        "sizewatch",
        # Stand-ins, by which click suggests a name.
        commands={name: click.Command(name) for name in TEXTS},
        help="Tells whether an LLM serving fleet is still the size that was planned.",
        epilog="`sizewatch COMMAND --help` explains a command. Exit codes: 0 fine, 1 a finding, 2 bad input or "
        "configuration, 3 could not judge, 70 a defect of sizewatch itself, 71 out of memory, "
        "130 ended by Ctrl-C.",
        context_settings=HELP_OPTION,
    )
    return click.version_option(VERSION, message="%(prog)s %(version)s")(top)


def main(arguments: Sequence[str] | None = None) -> int:
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
    with safe_streams(ends_with_reader=words[:1] == ["demo"]):
        try:
            code = _run(words)
            # Flushed here, because nobody handles an error at process exit.
            sys.stdout.flush()
        except UnwritableOutputError as error:
            if error.errno == errno.EPIPE:
                return Exit.FINE
            print(f"sizewatch: the output cannot be written: {error.strerror}", file=sys.stderr)
            return Exit.BAD_INPUT
    return code


def _run(words: list[str]) -> int:
    name = "".join(words[:1])
    top = command_line()
    try:
        if "" in words:
            raise SizewatchError("an argument is empty; is a variable of the shell not set?")
        with top.make_context("sizewatch", [*words]) as context:
            return int(top.invoke(context))
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        name_options(error).show(sys.stderr)
        return Exit.BAD_INPUT
    except SizewatchError as error:
        _complain(name, *str(error).splitlines())
        if isinstance(error, CannotJudgeError):
            return Exit.CANNOT_JUDGE
        return Exit.BAD_INPUT
    except UnwritableOutputError:
        raise
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except MemoryError:
        _complain(name, "out of memory; is a limit of memory (RLIMIT_AS, MemoryMax) too low?")
        return Exit.NO_RESOURCES
    except Exception as error:  # noqa: BLE001 - any other exception is a defect; it must not look like a finding
        if isinstance(error, ModuleNotFoundError) and (advice := explain_missing_module(error)) is not None:
            _complain(name, advice)
            return Exit.BAD_INPUT
        traceback.print_exc()
        _complain(name, "this is a defect in sizewatch; please report it with the lines above")
        return Exit.DEFECT


def _complain(name: str, *lines: str) -> None:
    for line in lines:
        print(f"sizewatch {name}".rstrip() + f": {line}", file=sys.stderr)
