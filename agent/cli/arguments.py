"""Exit codes and shared parameters of commands, among them the connection options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from agent.durations import duration_text, parse_duration
from agent.errors import ConfigError


class Exit(IntEnum):
    """Exit codes, the last three of sysexits.h and shells. After NO_RESOURCES try again."""

    FINE = 0
    FINDING = 1
    BAD_INPUT = 2
    CANNOT_JUDGE = 3
    DEFECT = 70
    NO_RESOURCES = 71
    INTERRUPTED = 130


PATH = click.Path(path_type=Path)
"""Type of a file or folder; a shell completes its name."""

Parameters = tuple[click.Parameter, ...]

LONGEST_SECONDS = 10_000 * 86_400.0
"""Longest duration that an option takes, in seconds."""


def number(
    least: float, most: float, parse: Callable[[str], float] = float, show: Callable[[float], str] = "{:g}".format
) -> Callable[[str], float]:
    """Return the parser of a number in this range. click's own range lets NaN pass."""

    def read(text: str) -> float:
        value = parse(text)
        if not least <= value <= most:
            raise ValueError(f"must be from {show(least)} to {show(most)}")
        return value

    return read


def duration(least: float = 0.001, most: float = LONGEST_SECONDS) -> Callable[[str], float]:
    """Return the parser of a duration in this range, in seconds."""
    return number(least, most, parse_duration, duration_text)


HELP_OPTION: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def help_of(text: str) -> dict[str, Any]:
    return {
        "help": text[0].upper() + text[1:] + ("" if text.endswith("?") else "."),
        "short_help": text,
        "epilog": "Exit codes: 0 fine; 1 a finding; 2 bad input or configuration; 3 could not judge.",
        "context_settings": HELP_OPTION,
    }


def make_command(name: str, text: str, parameters: Parameters, run: Callable[[SimpleNamespace], int]) -> click.Command:
    """Return the command that calls `run` with its options, by their names."""
    return click.Command(
        name, callback=lambda **values: run(SimpleNamespace(**values)), params=[*parameters], **help_of(text)
    )


def name_options(error: click.UsageError) -> click.UsageError:
    ways = []
    if error.ctx is not None and "extra argument (" in error.message:
        for parameter in error.ctx.command.params:
            if parameter.name in ("history", "config", "url", "store"):
                ways.append(f"{max(parameter.opts, key=len)} {parameter.metavar}")
    if not ways:
        return error
    return click.UsageError(f"{error.message}; write {' or '.join(ways)}", error.ctx)


def option(names: str, metavar: str, text: str, kind: Any = str, **more: Any) -> click.Option:
    """Return an option with a value. `names` are separated by blanks."""
    return click.Option(names.split(), type=kind, metavar=metavar, help=text, **more)


def argument(name: str, metavar: str, text: str, kind: Any = PATH, **more: Any) -> click.Argument:
    """Return an argument, a file or folder unless `kind` is another."""
    return click.Argument([name], type=kind, metavar=metavar, help=text, **more)


def choice(name: str, values: Iterable[str], default: str | None, text: str) -> click.Option:
    return click.Option([name], type=click.Choice(tuple(values)), default=default, help=text)


def flag(names: str, text: str) -> click.Option:
    return click.Option(names.split(), is_flag=True, help=text)


_SEARCHED = "configuration; default ./sizewatch.yaml, then /etc/sizewatch/sizewatch.yaml"
CONFIG = option("-c --config", "FILE", _SEARCHED, click.Path())

JSON = click.Option(["--json", "format"], flag_value="json", help="the same as --format json")
"""Stands beside every `--format`."""

FORMAT = (
    choice("--format", ("text", "json"), "text", "for people or for programs"),
    JSON,
)


def since_option(text: str = "how far back", least: float = 0.001) -> click.Option:
    """Return `--since 7d`, of at least so many seconds."""
    return option("--since", "7d", f"{text} (default 7d; 13 weeks are kept)", duration(least), default="7d")


def tier_option(text: str = "one tier; default all of the plan") -> click.Option:
    """Return `--tier T`."""
    return option("--tier", "T", text)


WAYS_IN = (
    ("bearer_token_file", "FILE", "token for {whose}"),
    ("username", "NAME", "user of {whose}, with --password-file"),
    ("password_file", "FILE", "password of that user"),
    ("ca_file", "FILE", "CA that signed the certificate of {whose}"),
    ("client_cert_file", "FILE", "client certificate for {whose}"),
    ("client_key_file", "FILE", "its key, where it is not in that file"),
    ("server_name", "NAME", "what the certificate of {whose} is for, where that is not the host"),
)


def connection_options(owner: str = "the address") -> tuple[click.Option, ...]:
    return tuple(
        option(
            f"--{name.replace('_', '-')}", metavar, text.format(whose=owner), click.Path() if metavar == "FILE" else str
        )
        for name, metavar, text in WAYS_IN
    )


def ways_in(options: SimpleNamespace) -> dict[str, Any]:
    """Return the given connection options as fields of a Peer."""
    given = {name: value for name, _, _ in WAYS_IN if (value := getattr(options, name, None)) is not None}
    fields: dict[str, Any] = {"bearer_token_file": given.pop("bearer_token_file", None)}
    login = {name: given.pop(name) for name in ("username", "password_file") if name in given}
    if len(login) == 1:
        raise ConfigError(("--username and --password-file go together: give both, or neither",))
    if login:
        fields["basic_auth"] = login
    if given:
        fields["tls"] = {name.removeprefix("client_"): value for name, value in given.items()}
    return fields


def print_result(options: SimpleNamespace, document: Mapping[str, Any], text: str) -> None:
    """Print the document for `--format json`, else the text."""
    print(json.dumps(document, indent=2) if options.format == "json" else text)
