"""Arguments that several commands share, and how their text becomes values."""

from __future__ import annotations

import argparse

from agent.durations import parse_duration


def duration(text: str) -> float:
    """Seconds of a written duration; argparse turns the error into its usage message and exit code 2."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be longer than nothing")
    return seconds


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
