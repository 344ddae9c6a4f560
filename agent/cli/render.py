"""Command `sizewatch render`: generated files of a checkout. Contents come from `exporters.docs.generated_files`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import click

from agent.cli import main
from agent.cli.arguments import FINDING, FINE, PATH
from agent.config.load import config_schema
from agent.errors import SizewatchError
from exporters.docs.generated_files import ARTEFACTS, RenderInputs
from exporters.docs.runbooks import RunbookError


class RenderError(SizewatchError):
    """Generated file that cannot be read or written."""


def parameters() -> tuple[click.Parameter, ...]:
    check = click.Option(["--check"], is_flag=True, help="change nothing; name the files that would change")
    root = click.Option(
        ["--root"], type=PATH, default=".", metavar="DIR", help="the checkout (default: the current folder)"
    )
    return check, root


def run(options: SimpleNamespace) -> int:
    """Write or check the generated files. Raise RenderError for a missing `docs/`, an unusable file or a runbook
    without its blocks (exit 2)."""
    if not (options.root / "docs").is_dir():
        raise RenderError(f"{options.root.absolute()} holds no docs/; run it in a checkout, or name one with --root")
    changes = list_stale_files(options.root)
    for path, text in changes.items():
        if options.check:
            print(f"{path} differs from what the program renders; write it anew: sizewatch render")
        else:
            _write(options.root / path, text)
            print(f"{path}: written")
    if not changes:
        print(f"{len(ARTEFACTS)} files are as rendered")
    return FINDING if options.check and changes else FINE


def list_stale_files(root: Path) -> dict[str, str]:
    """Return the new text of every outdated generated file, by path from `root`. Raise RenderError."""
    sources = RenderInputs(config_schema=config_schema(), command_line=main.command_line())
    found = {}
    for path, render in ARTEFACTS.items():
        present = _read(root / path)
        try:
            text = render(sources, present)
        except RunbookError as problem:
            raise RenderError(f"{root / path}: {problem}") from problem
        if text != present:
            found[path] = text
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise RenderError(f"{path}: cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RenderError(f"{path}: cannot be written: {error.strerror}") from error
