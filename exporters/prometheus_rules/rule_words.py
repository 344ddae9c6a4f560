"""What the generated alerts share: labels, where the runbooks are, and templates that fetch what a verdict saw.

Owns these texts. Templates run inside Prometheus, so a value that is not there leaves words and no hole. A new unit is a
row of UNITS.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporters.metrics import names
from exporters.prometheus_rules.rule_files import Pairs
from rules.evaluator.external_alerts import OURS
from rules.telemetry.signals import Unit
from rules.verdicts.rule import Rule, Severity

ALERTING = "https://sizewatch.dev/alerting"
"""Where docs/alerting.md is published. Whoever keeps a copy changes the prefix: that page says how."""

SEVERITIES: Mapping[Severity, str] = {
    Severity.PAGE: "critical",
    Severity.TICKET: "warning",
    Severity.REPORT: "info",
}
"""The small set of words that routing trees know (PEERS 6.1), for each loudness of ours."""

WATCHER_LABELS = ("instance", "pod", "node", "container", "endpoint")
"""Labels that say which agent told a thing. An alert that carried them would be another one after a restart."""

UNITS: Mapping[str, str] = {
    Unit.SECONDS: "{0} s",
    Unit.RATIO: "{%}",
    Unit.PER_SECOND: "{0} requests/s",
    Unit.TOKENS_PER_SECOND: "{0} tokens/s",
    Unit.EVENTS_PER_SECOND: "{0}/s",
    Unit.TOKENS_PER_HOUR: "{0} tokens/GPU-hour",
    Unit.CELSIUS: "{0} °C",
    Unit.WATTS: "{0} W",
}
"""How a value of a unit is written; any other unit is the number and the unit's name."""


def common_labels(loudness: Severity) -> Pairs:
    """The labels of every alert of this loudness."""
    return (("severity", SEVERITIES[loudness]), ("loudness", loudness.value), OURS)


def alerting_url(heading: str) -> str:
    """Where a section of docs/alerting.md stands."""
    return f"{ALERTING}#{heading.lower()}"


def subject_labels(of_replica: bool) -> str:
    """The subject of an alert, in a summary."""
    return "{{ $labels.tier }}{{ with $labels.replica }}/{{ . }}{{ end }}" if of_replica else "{{ $labels.tier }}"


def first_step(rule: Rule) -> str:
    """The first action that makes sense in an alert, which has no causes below it."""
    return next((action for action in rule.actions if "causes below" not in action), rule.actions[0])


def summary_template(rule: str, unit: str) -> str:
    """Tier, planned model, and what the verdict saw and expected: one sentence, written in several lines."""
    selector = f"{{{{- $of := printf \"{{rule='{rule}',tier=%q,replica=%q}}\" $labels.tier $labels.replica -}}}}"
    planned = f'{{{{- with printf "{names.PLAN_INFO.name}{{tier=%q}}" $labels.tier | query }}}}'
    name = '({{ . | first | label "model" }}){{ end }}'
    observed = _numbers(names.OBSERVED.name, unit, "not known")
    expected = _numbers(names.EXPECTED.name, unit, "no one number, see the runbook")
    return f"{selector}\nTier {{{{ $labels.tier }}}}\n{planned} {name}: observed\n{observed}; expected\n{expected}."


def _numbers(metric: str, unit: str, otherwise: str) -> str:
    query = f'printf "sort(max by ({names.BOUND}) ({metric}%s))" $of | query'
    sign = f"{{{{ with .Labels.{names.BOUND} }}}}{{{{ . }}}} bound {{{{ end }}}}"
    return f"{{{{- range {query} }}}} {sign}{_value(unit)}{{{{ else }}}} {otherwise}{{{{ end }}}}"


def _value(unit: str) -> str:
    pattern = UNITS.get(unit, "{0} " + unit.replace("_", " "))
    return pattern.replace("{%}", "{{ .Value | humanizePercentage }}").replace("{0}", '{{ .Value | printf "%.4g" }}')
