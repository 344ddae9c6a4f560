"""`sizewatch render [--check]`: the generated files of a checkout, written anew or compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent import cli
from agent.config import config_schema
from agent.errors import SizewatchError
from exporters.artefacts import ARTEFACTS, Sources
from exporters.runbook_blocks import RunbookProblem

FINE, FINDING = 0, 1


class RenderProblem(SizewatchError):
    """The generated files cannot be read or written where they should stand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing; name the files that would change")
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )


def run(options: argparse.Namespace) -> int:
    """A checkout without `docs/`, a file that cannot be used or a runbook without its blocks raises RenderProblem (exit 2)."""
    if not (options.root / "docs").is_dir():
        raise RenderProblem(f"{options.root.absolute()} holds no docs/; run it in a checkout, or name one with --root")
    changes = stale(options.root)
    for path, text in changes.items():
        if options.check:
            print(f"{path} differs from what the program renders; write it anew: sizewatch render")
        else:
            _write(options.root / path, text)
            print(f"{path}: written")
    if not changes:
        print(f"{len(ARTEFACTS)} files are as rendered")
    return FINDING if options.check and changes else FINE


def stale(root: Path) -> dict[str, str]:
    """The text of every generated file that does not hold it, by path from `root`. Raises RenderProblem."""
    sources = Sources(config_schema=config_schema(), parser=cli.parser())
    found = {}
    for path, render in ARTEFACTS.items():
        present = _read(root / path)
        try:
            text = render(sources, present)
        except RunbookProblem as problem:
            raise RenderProblem(f"{root / path}: {problem}") from problem
        if text != present:
            found[path] = text
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise RenderProblem(f"{path}: cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RenderProblem(f"{path}: cannot be written: {error.strerror}") from error
