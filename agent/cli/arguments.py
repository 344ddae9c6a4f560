"""Exit codes, and the parameters shared by several commands, including the connection options.

Secrets are in files. A further connection option is a row of ROWS and a field of every class made from `ways_in`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from agent.cli.terminal import Output
from agent.durations import parse_duration
from rules.problems import find_close_name

if TYPE_CHECKING:
    from agent.http_client.options import TargetOptions

FINE, FINDING, BAD_INPUT, CANNOT_JUDGE = 0, 1, 2, 3

NO_RESOURCES = 71
"""Exit code (EX_OSERR of sysexits.h) without threads or memory. The service manager tries again."""

PATH = click.Path(path_type=Path)
"""Type of a file or folder; a shell completes its name."""


class Keyword(click.Choice[str]):
    """Choice that answers a misspelt word with the closest one, or with all of them."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        close = find_close_name(str(value), self.choices)
        hint = f"did you mean {close}?" if close else f"choose from {', '.join(self.choices)}"
        return f"there is no {str(value)!r}; {hint}"


def duration(text: str) -> float:
    """Parse a duration to seconds. click turns a ValueError into its usage message and exit code 2."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be longer than nothing")
    return seconds


def output_folder(text: str) -> Path:
    """Parse a folder to write into. An empty one, as of an unset variable, would be the current folder."""
    if not text:
        raise ValueError("must name a folder; . is the current one")
    return Path(text)


def _store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    # The option may stand before the command, or after it.
    if value:
        setattr(context.obj, str(parameter.name), value)


EVERYWHERE: tuple[click.Parameter, ...] = (
    click.Option(
        ["-q", "--quiet"], is_flag=True, callback=_store, expose_value=False, help="neither remarks nor progress"
    ),
    click.Option(
        ["--color"],
        type=Keyword(("auto", "always", "never")),
        callback=_store,
        expose_value=False,
        help="severity words in colour (default auto: on a terminal, unless NO_COLOR is set)",
    ),
    click.Option(
        ["--no-pager"],
        is_flag=True,
        expose_value=False,
        help="do not show long output in $PAGER (default less), which is done on a terminal only",
    ),
)
"""Options of every command."""


HELP_OPTION: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def help_of(text: str, exits: Iterable[str]) -> dict[str, Any]:
    """Return the help of a command for click, with its exit codes. Each text of `exits` begins with its code."""
    codes = {BAD_INPUT: f"{BAD_INPUT} bad input or configuration", **{int(told[0]): told for told in exits}}
    return {
        "help": text[0].upper() + text[1:] + ("" if text.endswith("?") else "."),
        "short_help": text,
        "epilog": f"Exit codes: {'; '.join(codes[code] for code in sorted(codes))}.",
        "context_settings": HELP_OPTION,
    }


def make_command(
    name: str,
    text: str,
    parameters: Iterable[click.Parameter],
    run: Callable[[SimpleNamespace], int],
    exits: Iterable[str] = ("0 done",),
    output: Output = "kept",
) -> click.Command:
    """Return the command that calls `run` with its options, by their names, and `words`, the whole command line."""

    def call(**values: Any) -> int:
        terminal = click.get_current_context().obj
        terminal.begin(output)
        return int(run(SimpleNamespace(**values, words=terminal.words)))

    return click.Command(name, callback=call, params=[*parameters, *EVERYWHERE], **help_of(text, exits))


CONFIG = click.Option(
    ["-c", "--config"],
    type=click.Path(),
    metavar="FILE",
    help="configuration; default ./sizewatch.yaml, then /etc/sizewatch/sizewatch.yaml",
)

JSON = click.Option(["--json", "format"], flag_value="json", help="the same as --format json")
"""Stands beside every `--format`."""

FORMAT = (
    click.Option(["--format"], type=Keyword(("text", "json")), default="text", help="for people or for programs"),
    JSON,
)


def since_option(text: str = "how far back", kind: Callable[[str], float] = duration) -> click.Option:
    """Return `--since 7d`."""
    return click.Option(
        ["--since"], type=kind, default="7d", metavar="7d", help=f"{text} (default 7d; 13 weeks are kept)"
    )


def tier_option(text: str = "one tier; default all of the plan") -> click.Option:
    """Return `--tier T`."""
    return click.Option(["--tier"], metavar="T", help=text)


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


def connection_options(whose: str = "the address") -> tuple[click.Option, ...]:
    """Return the connection options."""
    return tuple(
        click.Option(
            [option(name)],
            type=click.Path() if metavar == "FILE" else str,
            metavar=metavar,
            help=text.format(whose=whose),
        )
        for name, metavar, text in ROWS
    )


def target_options(options: SimpleNamespace, url: str, timeout_seconds: float = 10.0) -> TargetOptions:
    """Return the options of a request to this address. Raise ConfigError."""
    # On demand: it imports the HTTP client, which few calls need.
    from agent.http_client.options import TargetOptions

    return TargetOptions(url=url, timeout_seconds=timeout_seconds, **ways_in(options))


def ways_in(options: SimpleNamespace) -> dict[str, Any]:
    """Return the given connection options by their names in TargetOptions and StoreOptions."""
    return {name: getattr(options, name) for name in NAMES}


def option(name: str) -> str:
    """Return the command line spelling."""
    return f"--{name.replace('_', '-')}"
