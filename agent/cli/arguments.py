"""Arguments that several commands share, and how their text becomes values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import takewhile

from agent.durations import PATTERN, parse_duration

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
