"""Command `sizewatch render`: generated files of a checkout. Contents come from `exporters.docs.generated_files`."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.cli import main
from agent.cli.arguments import FINDING, FINE
from agent.config.load import config_schema
from agent.errors import SizewatchError
from exporters.docs.generated_files import ARTEFACTS, RenderInputs
from exporters.docs.runbooks import RunbookError


class RenderError(SizewatchError):
    """Generated file that cannot be read or written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing; name the files that would change")
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )


def run(options: argparse.Namespace) -> int:
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
    sources = RenderInputs(config_schema=config_schema(), parser=main.parser())
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
