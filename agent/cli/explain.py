"""Command `sizewatch explain RULE`: the runbook of a rule."""

from __future__ import annotations

import argparse
import shutil

from agent.cli.arguments import FINE
from exporters.docs.runbooks import SELF_ALERTS, rules_text, runbook_text, self_alert_text
from rules.catalogue.registry import RULES

WIDEST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = {name.casefold(): name for name in (*(rule.name for rule in RULES), *SELF_ALERTS)}
    parser.add_argument(
        "rule",
        nargs="?",
        type=lambda text: names.get(text.casefold(), text),
        choices=list(names.values()),
        metavar="RULE",
        help="name of a rule, which is also its alertname; without it all are listed",
    )


def run(options: argparse.Namespace) -> int:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    if options.rule is None:
        print(rules_text(width))
    else:
        print((self_alert_text if options.rule in SELF_ALERTS else runbook_text)(options.rule, width))
    return FINE
