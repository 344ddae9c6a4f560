"""The command line: one row a command, exit codes, and no traceback for what a user got wrong.

Owns the parser and the translation of errors into exit code 2. What a command does lives in `agent/commands/`, one
module each, loaded only when asked for. A new command is a module there and a row here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from agent.errors import SizewatchError
from agent.version import VERSION


class Command(NamedTuple):
    """One row: its name, what it is for, and what its exit codes mean, each beginning with its digit; 2 unless given."""

    name: str
    text: str
    exits: tuple[str, ...]


COMMANDS: tuple[Command, ...] = (
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
        "the same judgement over a recording",
        ("0 nothing was found", "1 something was found", "3 the recording holds nothing to judge"),
    ),
    Command("plan", "check, show or print the schema of a sizing plan", ("0 a valid plan",)),
    Command("inspect", "what a page exposes, signal by signal", ("0 the page was read",)),
    Command(
        "doctor",
        "is this installation sound? what to do, line by line",
        (
            "0 sound, perhaps with warnings",
            "1 at least one line fails, a configuration that cannot be used among them",
            "2 wrong arguments",
        ),
    ),
    Command(
        "render",
        "write the generated files of a checkout anew: schemas and tables of the documentation",
        ("0 written, or nothing to write", "1 with --check: a file differs"),
    ),
)

FINE, FINDING, BAD_INPUT, CANNOT_JUDGE = 0, 1, 2, 3


def parser(commands: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole parser, or that of some commands only (loading a command's module costs start-up time)."""
    top = argparse.ArgumentParser(
        prog="sizewatch",
        description="Tells whether an LLM serving fleet is still the size that was planned.",
        epilog="Exit codes: 0 fine, 1 a finding, 2 bad input or configuration, 3 could not judge.",
    )
    top.add_argument("--version", action="version", version=f"sizewatch {VERSION}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.text, description=_sentence(command.text), epilog=_exit_codes(command)
        )
        if commands is None or command.name in commands:
            importlib.import_module(f"agent.commands.{command.name}").add_arguments(sub)
    return top


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def _exit_codes(command: Command) -> str:
    codes = {BAD_INPUT: f"{BAD_INPUT} bad input or configuration", **{int(text[0]): text for text in command.exits}}
    return f"Exit codes: {'; '.join(codes[code] for code in sorted(codes))}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = [word for word in words[:1] if word in {command.name for command in COMMANDS}]
    options = parser(named).parse_args(words)
    command = importlib.import_module(f"agent.commands.{options.command}")
    try:
        return int(command.run(options))
    except SizewatchError as error:
        for line in str(error).splitlines():
            print(f"sizewatch {options.command}: {line}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (head, less): point stdout elsewhere so that the exit flush does not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
