"""Exit codes, arguments and subcommands shared by several commands, including the connection options.

Secrets are in files. A further connection option is a row of ROWS and a field of every class made from `ways_in`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.durations import PATTERN, parse_duration
from rules.problems import find_close_name

if TYPE_CHECKING:
    from agent.http_client.transport import TargetOptions

FINE, FINDING, BAD_INPUT, CANNOT_JUDGE = 0, 1, 2, 3

NO_RESOURCES = 71
"""Exit code (EX_OSERR of sysexits.h) without threads or memory. The service manager tries again."""
WEEK_SECONDS = 604_800.0

_BACK = re.compile(f"-{PATTERN.strip('^$')}", re.ASCII)
"""Duration before now, such as -7d."""


COLOR = ("auto", "always", "never")


class Parser(argparse.ArgumentParser):
    """Parser with the global options, and with suggestions for misspelt commands, options and choices."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        every = self.add_argument_group("options of every command")
        every.add_argument(
            "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="neither remarks nor progress"
        )
        every.add_argument(
            "--color",
            choices=COLOR,
            default=argparse.SUPPRESS,
            help="severity words in colour (default auto: on a terminal, unless NO_COLOR is set)",
        )
        every.add_argument(
            "--no-pager",
            action="store_true",
            default=argparse.SUPPRESS,
            help="do not show long output in $PAGER (default less), which is done on a terminal only",
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse swallows the error of a full disk, and exits with 0.
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = suggestion(str(value), known) or f"; choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        for word in (word for word in rest if word.startswith("--")):
            name = word.partition("=")[0]
            known = (option[2:] for option in self._option_string_actions if option.startswith("--"))
            self.error(f"there is no option {name}{suggestion(name[2:], known, '--')}")
        if rest and not rest[0].startswith("-"):
            self.error(f"no argument {rest[0]!r} is expected here; see {self.prog} --help")
        return found, rest


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return words that name the closest known word, or ""."""
    close = find_close_name(word, known)
    return f"; did you mean {prefix}{close}?" if close else ""


def exit_codes_text(exits: Sequence[str]) -> str:
    """Return the line of exit codes. Each text begins with its code."""
    codes = {BAD_INPUT: f"{BAD_INPUT} bad input or configuration", **{int(text[0]): text for text in exits}}
    return f"Exit codes: {'; '.join(codes[code] for code in sorted(codes))}."


def duration(text: str) -> float:
    """Parse a duration to seconds. argparse turns the error into its usage message and exit code 2."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be longer than nothing")
    return seconds


def output_folder(text: str) -> Path:
    """Parse a folder to write into. An empty one, as of an unset variable, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder; . is the current one")
    return Path(text)


def normalize_arguments(words: Sequence[str]) -> list[str]:
    """Join a duration before now to its option, so that `--from -7d` becomes `--from=-7d`.

    Otherwise argparse takes a word that begins with - for an option, unless it is a number.
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
    """Add `-c FILE`."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration; default ./sizewatch.yaml, then /etc/sizewatch/sizewatch.yaml",
    )


def add_since(
    parser: argparse.ArgumentParser, text: str = "how far back", kind: Callable[[str], float] = duration
) -> None:
    """Add `--since 7d`."""
    parser.add_argument(
        "--since",
        type=kind,
        default=WEEK_SECONDS,
        metavar="7d",
        help=f"{text} (default 7d; 13 weeks are kept)",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format text|json`."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people or for programs")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` beside a `--format`."""
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        default=argparse.SUPPRESS,
        help="the same as --format json",
    )


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
    """Add the connection options."""
    for name, metavar, text in ROWS:
        parser.add_argument(option(name), metavar=metavar, help=text.format(whose=whose))


def target_options(options: argparse.Namespace, url: str, timeout_seconds: float = 10.0) -> TargetOptions:
    """Return the options of a request to this address. Raise ConfigError."""
    # On demand: it imports the HTTP client, which few calls need.
    from agent.http_client.transport import TargetOptions

    return TargetOptions(url=url, timeout_seconds=timeout_seconds, **ways_in(options))


def ways_in(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given connection options by their names in TargetOptions and StoreOptions."""
    return {name: getattr(options, name) for name in NAMES}


def option(name: str) -> str:
    """Return the command line spelling."""
    return f"--{name.replace('_', '-')}"


class Subcommand(NamedTuple):
    """Subcommand: name, help text, arguments, function and exit codes as in `Command`."""

    name: str
    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    exits: tuple[str, ...] = ("0 done",)


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Sequence[Subcommand]) -> None:
    """Add the subcommands. The function of the chosen one is `run_subcommand` of the options."""
    names = "|".join(one.name for one in subcommands)
    added = parser.add_subparsers(dest="part", metavar=names, required=True)
    for one in subcommands:
        codes = exit_codes_text(one.exits)
        sub = added.add_parser(one.name, help=one.text, description=sentence(one.text), epilog=codes)
        one.add_arguments(sub)
        sub.set_defaults(run_subcommand=one.run)


def sentence(text: str) -> str:
    """Return a help text as a sentence."""
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")
