"""Command `sizewatch explain RULE`: the runbook of a rule."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import click

from agent.cli.arguments import FINE, Keyword
from exporters.docs.runbooks import SELF_ALERTS, rules_text, runbook_text, self_alert_text
from rules.catalogue.registry import RULES

WIDEST = 100


class RuleName(Keyword):
    """Name of a rule or of an alert about sizewatch itself, in upper or lower case."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        exact = {name.casefold(): name for name in self.choices}
        return super().convert(exact.get(value.casefold(), value), param, ctx)


def parameters() -> tuple[click.Parameter, ...]:
    names = RuleName((*(rule.name for rule in RULES), *SELF_ALERTS))
    text = "name of a rule, which is also its alertname; without it all are listed"
    return (click.Argument(["rule"], required=False, type=names, metavar="[RULE]", help=text),)


def run(options: SimpleNamespace) -> int:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    if options.rule is None:
        print(rules_text(width))
    elif options.rule in SELF_ALERTS:
        print(self_alert_text(options.rule, width))
    else:
        print(runbook_text(options.rule, width))
    return FINE
