"""`sizewatch lint RULES...`: metric and label names in rule files and dashboards."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from agent.cli.arguments import add_format
from agent.lint.linting import LintResult, lint_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    """Print the findings. Return the exit code."""
    result = lint_files([Path(name) for name in options.rules], options.target_label)
    print(json.dumps({"schema": 1, **asdict(result)}, indent=2) if options.format == "json" else _text(result))
    for problem in result.broken:
        print(f"sizewatch lint: {problem}", file=sys.stderr)
    return 2 if result.broken else 1 if result.findings else 0


def _text(result: LintResult) -> str:
    counts = ((result.expressions, "expression"), (result.files, "file"), (len(result.findings), "finding"))
    expressions, files, findings = (f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
    return "\n".join((*map(str, result.findings), f"{expressions} in {files}: {findings}"))
