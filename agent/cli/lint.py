"""`sizewatch lint RULES...`: metric and label names in rule files and dashboards."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.arguments import BAD_INPUT, FINDING, FINE, add_format
from rules.telemetry.wording import format_count

if TYPE_CHECKING:
    from agent.lint.linting import LintResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
    # Its parser of PromQL is in an extra.
    from agent.lint.linting import lint_files

    result = lint_files([Path(name) for name in options.rules], options.target_label)
    print(json.dumps({"schema": 1, **asdict(result)}, indent=2) if options.format == "json" else _text(result))
    for problem in result.broken:
        print(f"sizewatch lint: {problem}", file=sys.stderr)
    return BAD_INPUT if result.broken else FINDING if result.findings else FINE


def _text(result: LintResult) -> str:
    counts = ((result.expressions, "expression"), (result.files, "file"), (len(result.findings), "finding"))
    expressions, files, findings = (format_count(count, word) for count, word in counts)
    return "\n".join((*map(str, result.findings), f"{expressions} in {files}: {findings}"))
