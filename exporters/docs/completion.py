"""Shell completion scripts and the man page, made from the argument parser.

A script holds words, not code: which words may follow where. A new shell is a function of the levels and a row of
FORMATS.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporters.docs.command_pages import list_arguments, list_commands, spell, usage

FILES = ("FILE", "DIR", "PLAN", "CSV", "RECORDING", "RULES", "FOLDER", "FILE-or-URL", "FILE.svg")
"""Placeholders of files and folders, beside arguments whose type is Path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """What may follow a command. `at` is the command with a blank before each word, "" for none."""

    at: str
    parser: argparse.ArgumentParser
    commands: tuple[tuple[str, str], ...]
    options: tuple[argparse.Action, ...]
    positionals: tuple[argparse.Action, ...]

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """Return every word that may follow, with its meaning."""
        choices = [(str(word), "") for action in self.positionals for word in action.choices or ()]
        options = [(word, _help(action)) for action in self.options for word in action.option_strings]
        return (*self.commands, *choices, *options)

    @property
    def takes_files(self) -> bool:
        return any(map(_is_file, self.positionals))


def _levels(parser: argparse.ArgumentParser, at: str = "") -> Iterator[_Level]:
    commands = list_commands(parser)
    arguments = [*list_arguments(parser), *(a for a in parser._actions if isinstance(a, argparse._HelpAction))]
    yield _Level(
        at=at,
        parser=parser,
        commands=tuple((one.prog.rpartition(" ")[2], (one.description or "").rstrip(".")) for one in commands),
        options=tuple(action for action in arguments if action.option_strings),
        positionals=tuple(action for action in arguments if not action.option_strings),
    )
    for one in commands:
        yield from _levels(one, f"{at} {one.prog.rpartition(' ')[2]}")


def _is_file(action: argparse.Action) -> bool:
    return not action.choices and (action.type is Path or action.metavar in FILES)


def _help(action: argparse.Action) -> str:
    return " ".join(((action.help or "") % {**vars(action), "prog": "sizewatch"}).split())


def _values(levels: list[_Level]) -> Iterator[tuple[str, str, bool]]:
    """Yield each option with a value: its pattern in a `case`, the choices, and whether it is a file."""
    for level in levels:
        for action in (action for action in level.options if action.nargs != 0):
            pattern = "|".join(shlex.quote(f"{level.at}:{word}") for word in action.option_strings)
            yield pattern, " ".join(map(str, action.choices or ())), _is_file(action)


def bash_script(parser: argparse.ArgumentParser) -> str:
    levels = list(_levels(parser))
    lines = [
        "# Completion of sizewatch for bash: source <(sizewatch completion bash)",
        "_sizewatch() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at= word words= files=",
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'        case "$at $word" in {_known(levels)}) at="$at $word" ;; esac',
        "    done",
        "    # bash breaks a line at =.",
        '    [ "$before" = "=" ] && before=${COMP_WORDS[COMP_CWORD-2]}',
        '    case "$at:$before" in',
    ]
    for pattern, choices, is_file in _values(levels):
        lines.append(f"        {pattern}) {'files=1' if is_file else f'words={shlex.quote(choices)}'} ;;")
    lines.append('        *) case "$at" in')
    for level in levels:
        words = shlex.quote(" ".join(word for word, _ in level.words))
        lines.append(f"            {shlex.quote(level.at)}) words={words}{' files=1' * level.takes_files} ;;")
    lines += [
        "        esac ;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        '    if [ -n "$files" ] && [[ $cur != -* ]]; then',
        "        compopt -o filenames 2>/dev/null",
        '        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")',
        "    fi",
        "}",
        "complete -F _sizewatch sizewatch",
    ]
    return "\n".join(lines) + "\n"


def _known(levels: list[_Level]) -> str:
    return "|".join(shlex.quote(level.at) for level in levels if level.at)


def zsh_script(parser: argparse.ArgumentParser) -> str:
    levels = list(_levels(parser))
    lines = [
        "#compdef sizewatch",
        "# Completion of sizewatch for zsh: source <(sizewatch completion zsh), after compinit",
        "_sizewatch() {",
        '    local at="" word; local -a found',
        "    for word in ${words[2,CURRENT-1]}; do",
        f'        case "$at $word" in ({_known(levels)}) at="$at $word" ;; esac',
        "    done",
        '    case "$at:${words[CURRENT-1]}" in',
    ]
    for pattern, choices, is_file in _values(levels):
        then = "_files" if is_file else f"found=({choices}); _describe value found"
        lines.append(f"        ({pattern}) {then}; return ;;")
    lines += ["    esac", '    case "$at" in']
    for level in levels:
        found = " ".join(shlex.quote(f"{word}:{text}" if text else word) for word, text in level.words)
        files = "; [[ $PREFIX = -* ]] || _files" * level.takes_files
        lines.append(f"        ({shlex.quote(level.at)}) found=({found}); _describe word found{files} ;;")
    ends = 'if [ "$funcstack[1]" = _sizewatch ]; then _sizewatch "$@"; else compdef _sizewatch sizewatch; fi'
    return "\n".join([*lines, "    esac", "}", ends]) + "\n"


def fish_script(parser: argparse.ArgumentParser) -> str:
    levels = list(_levels(parser))
    lines = [
        "# Completion of sizewatch for fish: sizewatch completion fish | source",
        "function __sizewatch_at",
        "    set -l at",
        "    for word in (commandline -opc)[2..-1]",
        '        switch "$at $word"',
        f"            case {' '.join(_fish(level.at) for level in levels if level.at)}",
        '                set at "$at $word"',
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        "complete -c sizewatch -f",
    ]
    for level in levels:
        here = f"complete -c sizewatch -n {_fish(f'__sizewatch_at {_fish(level.at)}')}"
        lines += [f"{here} -a {_fish(word)} -d {_fish(text)}" for word, text in level.words if word[0] != "-"]
        lines += [f"{here} -F"] if level.takes_files else []
        for action in level.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings)
            value = "" if action.nargs == 0 else " -r -F" if _is_file(action) else " -x"
            value += f" -a {_fish(' '.join(map(str, action.choices)))}" if action.choices else ""
            lines.append(f"{here} {names}{value} -d {_fish(_help(action))}")
    return "\n".join(lines) + "\n"


def _fish(text: str) -> str:
    """Return a quoted word. Inside of single quotes fish knows the backslash."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


def man_page(parser: argparse.ArgumentParser) -> str:
    """Return the man page of section 1, in roff."""
    top, *levels = _levels(parser)
    lines = ['.TH SIZEWATCH 1 "" sizewatch "User Commands"', ".SH NAME", f"sizewatch \\- {_roff(_first(parser))}"]
    lines += [".SH SYNOPSIS", _roff("sizewatch [OPTION]... COMMAND [ARGUMENT]..."), ".SH OPTIONS", *_options(top)]
    lines.append(".SH COMMANDS")
    for level in levels:
        lines += [f'.SS "{_roff(level.parser.prog)}"', _roff(level.parser.description or "")]
        if not level.commands:
            lines += [".PP", _roff(usage(level.parser, top.options))]
        lines += _options(level, top.options)
        lines += [".PP", _roff(level.parser.epilog)] if level.parser.epilog else []
    lines += [".SH EXIT STATUS", _roff(parser.epilog or ""), ".SH ENVIRONMENT"]
    for name, text in ENVIRONMENT.items():
        lines += [".TP", f".B {name}", _roff(text)]
    return "\n".join(line for line in lines if line) + "\n"


ENVIRONMENT: Mapping[str, str] = {
    "NO_COLOR": "No colours, whatever its value, unless it is empty.",
    "PAGER": "Pager of long output on a terminal, by default less. Empty or cat: none.",
    "LESS": "Options of less, by default FRX.",
}


def _first(parser: argparse.ArgumentParser) -> str:
    text = parser.description or ""
    return (text[:1].lower() + text[1:]).rstrip(".")


def _options(level: _Level, known: tuple[argparse.Action, ...] = ()) -> list[str]:
    """Return a paragraph for each argument, except options of every command."""
    lines = []
    everywhere = {tuple(action.option_strings) for action in known}
    for action in (*level.positionals, *level.options):
        if action.option_strings and tuple(action.option_strings) in everywhere:
            continue
        names = [spell(action, option) for option in action.option_strings] or [spell(action, "")]
        lines += [".TP", f".B {_roff(', '.join(names))}", _roff(_help(action))]
    return lines


def _roff(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


FORMATS: Mapping[str, Callable[[argparse.ArgumentParser], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
    "man": man_page,
}
"""Texts by name: a script for each shell, and the man page."""
