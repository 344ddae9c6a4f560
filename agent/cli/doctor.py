"""Commands `sizewatch doctor` and `sizewatch lint RULES...`: checks of this installation, and of rule files."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.arguments import BAD_INPUT, FINDING, FINE, add_config, add_format
from agent.config.load import LoadedConfig, find, load
from agent.doctor.check_result import exit_code, format_text
from agent.doctor.run import run_checks
from agent.errors import ConfigError
from rules.telemetry.wording import format_count

if TYPE_CHECKING:
    from agent.lint.linting import LintResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    loaded = _loaded(options.config)
    found = run_checks(loaded)
    if options.format == "json":
        print(json.dumps({"schema": 1, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        print(format_text(found))
    return BAD_INPUT if isinstance(loaded, ConfigError) else exit_code(found)


def _loaded(given: str | None) -> LoadedConfig | ConfigError:
    """Return the configuration, or its error as the first finding."""
    try:
        return load(find(given))
    except ConfigError as error:
        return error


def add_arguments_lint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rules", nargs="+", metavar="RULES", help="rule files, PrometheusRule objects, dashboards (.json)"
    )
    parser.add_argument(
        "--target-label",
        action="append",
        default=[],
        metavar="NAME",
        help="a label that Prometheus adds to targets; may be repeated",
    )
    add_format(parser)


def run_lint(options: argparse.Namespace) -> int:
    # On demand: it imports the parser of PromQL, which the doctor does not need.
    from agent.lint.linting import lint_files

    result = lint_files([Path(name) for name in options.rules], options.target_label)
    print(json.dumps({"schema": 1, **asdict(result)}, indent=2) if options.format == "json" else _lint_text(result))
    for problem in result.broken:
        print(f"sizewatch lint: {problem}", file=sys.stderr)
    return BAD_INPUT if result.broken else FINDING if result.findings else FINE


def _lint_text(result: LintResult) -> str:
    counts = ((result.expressions, "expression"), (result.files, "file"), (len(result.findings), "finding"))
    expressions, files, findings = (format_count(count, word) for count, word in counts)
    return "\n".join((*map(str, result.findings), f"{expressions} in {files}: {findings}"))
