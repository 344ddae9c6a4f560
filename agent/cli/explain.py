"""Command `sizewatch explain RULE`: the runbook of a rule."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

from agent.cli.arguments import Exit, Parameters, argument
from agent.errors import SizewatchError
from exporters.docs.runbooks import SELF_ALERTS, rules_text, runbook_text, self_alert_text
from exporters.render.terminal import WIDTH
from rules.catalogue.registry import RULES
from rules.problems import find_close_name


def parameters() -> Parameters:
    text = "name of a rule, whose alertname is Sizewatch and that name; without it all are listed"
    return (argument("rule", "[RULE]", text, str, required=False),)


def run(options: SimpleNamespace) -> int:
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    if options.rule is None:
        print(rules_text(width))
        return Exit.FINE
    names = {name.casefold(): name for name in (*(rule.name for rule in RULES), *SELF_ALERTS)}
    wanted = options.rule.casefold()
    # An alert's name, as it stands in a message, is the rule's after the product's.
    name = names.get(wanted) or names.get(wanted.removeprefix("sizewatch"))
    if name is None:
        alike = [names[key] for key in names if wanted in key]
        alike = alike or list(filter(None, [find_close_name(options.rule, names.values())]))
        hint = "without a name all are listed"
        if alike:
            hint = f"did you mean {', '.join(alike)}?"
        raise SizewatchError(f"there is no rule {options.rule!r}; {hint}")
    print(self_alert_text(name, width) if name in SELF_ALERTS else runbook_text(name, width))
    return Exit.FINE
