"""Arguments that several commands share, and how their text becomes values.

The options by which a command that asks an address itself gets in: the same of every command.

Owns their names and words, and what they make of an address. Secrets stand in files. A further way in is a row of ROWS and
a field of `agent.http_client.transport.TargetOptions` and of whatever else is made from `ways_in`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from agent.durations import PATTERN, parse_duration

if TYPE_CHECKING:
    from agent.http_client.transport import TargetOptions


_BACK = re.compile(f"-{PATTERN.strip('^$')}", re.ASCII)
"""A duration back from now, such as -7d."""


def duration(text: str) -> float:
    """Seconds of a written duration; argparse turns the error into its usage message and exit code 2."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be longer than nothing")
    return seconds


def normalize_arguments(words: Sequence[str]) -> list[str]:
    """The words of a command line, a duration back from now put to its option: `--from -7d` is `--from=-7d`.

    argparse takes a word that begins with - for an option, unless it is a number.
    """
    options = list(takewhile(lambda word: word != "--", words))
    made: list[str] = []
    for word in options:
        if _BACK.fullmatch(word) and made and made[-1].startswith("--") and "=" not in made[-1]:
            made[-1] += f"={word}"
        else:
            made.append(word)
    return [*made, *words[len(options) :]]


def add_config(parser: argparse.ArgumentParser) -> None:
    """`-c FILE`."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration; default ./sizewatch.yaml, then /etc/sizewatch/sizewatch.yaml",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--format text|json`."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people or for programs")


ROWS = (
    ("bearer_token_file", "FILE", "token for {whose}"),
    ("username", "NAME", "user of {whose}, with --password-file"),
    ("password_file", "FILE", "password of that user"),
    ("ca_file", "FILE", "CA that signed the certificate of {whose}"),
    ("client_cert_file", "FILE", "client certificate, where {whose} wants one"),
    ("client_key_file", "FILE", "its key, where it is not in that file"),
    ("server_name", "NAME", "what the certificate of {whose} is for, where that is not the host"),
)
NAMES = tuple(name for name, _, _ in ROWS)


def add_ways_in(parser: argparse.ArgumentParser, whose: str = "the address") -> None:
    """Adds all of them."""
    for name, metavar, text in ROWS:
        parser.add_argument(option(name), metavar=metavar, help=text.format(whose=whose))


def target_options(options: argparse.Namespace, url: str, timeout_seconds: float = 10.0) -> TargetOptions:
    """How to ask this address. Raises BadConfig."""
    # It brings what speaks HTTP, which a command that may ask an address often does not need.
    from agent.http_client.transport import TargetOptions

    return TargetOptions(url=url, timeout_seconds=timeout_seconds, **ways_in(options))


def ways_in(options: argparse.Namespace) -> dict[str, Any]:
    """What was given, by the names that TargetOptions and StoreOptions have for it."""
    return {name: getattr(options, name) for name in NAMES}


def option(name: str) -> str:
    """How it is written on the command line."""
    return f"--{name.replace('_', '-')}"
