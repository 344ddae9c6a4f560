"""Command `sizewatch render`: generated files of a checkout, or Prometheus rules for engines without an agent.

Contents come from `exporters.docs.generated_files` and, with --engine-only, `exporters.prometheus_rules.engine_only`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.cli import main
from agent.cli.arguments import FINDING, FINE
from agent.config.files import load_plan
from agent.config.load import config_schema
from agent.errors import SizewatchError
from exporters.docs.generated_files import ARTEFACTS, RenderInputs
from exporters.docs.runbooks import RunbookError
from exporters.prometheus_rules.engine_only import EngineRulesOptions, engine_only_text
from exporters.prometheus_rules.engine_queries import UnsupportedSeriesError


class RenderError(SizewatchError):
    """Generated file that cannot be read or written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing; name the files that would change")
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )
    alone = parser.add_argument_group("rules for Prometheus where no agent runs")
    alone.add_argument("--engine-only", action="store_true", help="write them, and nothing else; needs --plan")
    alone.add_argument("--plan", type=Path, metavar="PLAN", help="the plan whose tiers and objectives they watch")
    alone.add_argument("--engine", default="", metavar="NAME", help="only tiers that run this engine")
    alone.add_argument(
        "--selector",
        default="",
        metavar="MATCHERS",
        help="labels that find a tier's engines, such as 'tier=\"{tier}\"'; {tier} and {model} are filled in "
        "(default: the engine's own label of the model)",
    )
    alone.add_argument("--out", type=Path, metavar="FILE", help="where to write them (default: print them)")


def run(options: argparse.Namespace) -> int:
    """Write or check the generated files. Raise RenderError for a missing `docs/`, an unusable file or a runbook
    without its blocks (exit 2)."""
    if options.engine_only:
        return _engine_only(options)
    for option in ("plan", "engine", "selector", "out"):
        if getattr(options, option):
            raise RenderError(f"--{option} goes with --engine-only")
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


def _engine_only(options: argparse.Namespace) -> int:
    if options.plan is None or options.check:
        raise RenderError("--engine-only writes rules for a plan: it needs --plan PLAN, and --check is not for it")
    asked = EngineRulesOptions(
        plan=load_plan(options.plan), source=str(options.plan), engine=options.engine, selector=options.selector
    )
    try:
        text = engine_only_text(asked)
    except UnsupportedSeriesError as why:
        raise RenderError(str(why)) from why
    if options.out is None:
        print(text, end="")
    else:
        _write(options.out, text)
        print(f"{options.out}: written")
    return FINE


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
