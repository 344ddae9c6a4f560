"""docs/commands.md: every command with its arguments and exit codes, out of the parser that reads them.

Owns the layout and nothing of what the commands are: they come as an argparse parser. A new command or option needs no
change here; its help text, its choices and its epilog (the exit codes) are what is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

HEAD = """\
# Commands

<!-- Generated from the command line's own parsers; `sizewatch render` writes it anew. -->

`sizewatch COMMAND --help` says the same. From a checkout `python -m agent COMMAND` does too."""

TABLE = "| argument | default | meaning |\n|---|---|---|"


def commands_page(parser: argparse.ArgumentParser) -> str:
    """The whole page. `parser` is the whole command line: every command a subparser."""
    top = [HEAD, _table(parser), parser.epilog or ""]
    sections = [part for command in _subparsers(parser) for part in _sections(command, "##")]
    return "\n\n".join([part for part in (*top, *sections) if part]) + "\n"


def _sections(parser: argparse.ArgumentParser, mark: str) -> Iterator[str]:
    """A command's section; a command made of parts has one below it for each."""
    yield f"{mark} {parser.prog}"
    yield parser.description or ""
    parts = _subparsers(parser)
    if not parts:
        yield f"```\n{_usage(parser)}\n```"
    yield _table(parser)
    yield parser.epilog or ""
    for part in parts:
        yield from _sections(part, f"{mark}#")


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The commands below a parser, with the short help as description where they have no longer one."""
    found = []
    for action in parser._actions:
        # argparse has no public way to list what was added; these names have not changed since Python 2.7.
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, command in action.choices.items():
                short = helps.get(name) or ""
                command.description = command.description or f"{short[:1].upper()}{short[1:]}."
                found.append(command)
    return found


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [a for a in parser._actions if not isinstance(a, hidden) and a.help != argparse.SUPPRESS]


def _usage(parser: argparse.ArgumentParser) -> str:
    """One line, however long; argparse's own depends on the terminal's width and on Python's version."""
    words = [parser.prog]
    for action in _arguments(parser):
        text = _spelt(action, action.option_strings[0]) if action.option_strings else _value(action)
        words.append(text if action.required else f"[{text}]")
    return " ".join(words)


def _spelt(action: argparse.Action, option: str) -> str:
    return option if action.nargs == 0 else f"{option} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _table(parser: argparse.ArgumentParser) -> str:
    rows = [_row(parser, action) for action in _arguments(parser)]
    return "\n".join([TABLE, *rows]) if rows else ""


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    names = [_spelt(action, option) for option in action.option_strings] or [_value(action)]
    default = "required" if action.required else _argument_default(action)
    meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
    cells = (", ".join(f"`{name}`" for name in names), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _argument_default(action: argparse.Action) -> str:
    """Empty where there is none. A duration stands in seconds here, and as it is written in its metavar ("7d")."""
    value, metavar = action.default, action.metavar
    if isinstance(value, float) and isinstance(metavar, str) and metavar[:1].isdigit():
        return f"`{metavar}`"
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == argparse.SUPPRESS:
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
