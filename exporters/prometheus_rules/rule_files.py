"""Rule files for Prometheus: types of alerts and groups, their YAML, and the labels and templates that all alerts share.

Alerts print as plain groups. `exporters.prometheus_rules.alerts` and
`.self_monitoring` fill the groups. Templates run inside Prometheus: a missing value must leave
readable text. A new unit is a row of UNITS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.metrics import self_metrics
from exporters.render.text import Block, alert_name, comment_lines, dump_yaml, runbook_url
from rules.evaluator.external_alerts import OURS
from rules.verdicts.rule import Rule, Severity

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Alerting rule with its hold (`for`) and `keep_firing_for` in seconds."""

    name: str
    expr: str
    hold_seconds: float
    keep_seconds: float
    labels: Pairs
    annotations: Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Group of alerts evaluated together, in order, every `interval_seconds`."""

    name: str
    interval_seconds: float
    rows: tuple[Alert, ...]


def rule_file(head: str, groups: Iterable[Group]) -> str:
    """Return a rule file for `rule_files:` of Prometheus. `head` is its comment."""
    return f"{comment_lines(head)}\n{dump_yaml({'groups': plain_groups(groups)})}"


def plain_groups(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """Return the groups as YAML data."""
    return [
        {
            "name": group.name,
            "interval": duration(group.interval_seconds),
            "rules": [_alert(row) for row in group.rows],
        }
        for group in groups
    ]


def duration(seconds: float) -> str:
    """Return whole seconds as a Prometheus duration: 90s, 5m, 1h, 3d."""
    whole = round(seconds)
    if whole != seconds or whole < 0:
        raise ValueError(f"{seconds} is no whole number of seconds")
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def _alert(alert: Alert) -> dict[str, Any]:
    times = {"for": alert.hold_seconds, "keep_firing_for": alert.keep_seconds}
    return {
        "alert": alert_name(alert.name),
        "expr": Block(alert.expr),
        **{key: duration(seconds) for key, seconds in times.items() if seconds},
        "labels": dict(alert.labels),
        "annotations": {key: Block(text) if "\n" in text else text for key, text in alert.annotations},
    }


ALERTING = "docs/alerting.md"
"""Path of the repository."""

WATCHER_LABELS = ("instance", "pod", "node", "container", "endpoint")
"""Labels that identify the agent. On an alert they would make it a new alert after a restart."""

UNITS: Mapping[str, str] = {
    "seconds": "{0} s",
    "ratio": "{%}",
    "per_second": "{0} requests/s",
    "tokens_per_second": "{0} tokens/s",
    "events_per_second": "{0}/s",
    "tokens_per_hour": "{0} tokens/GPU-hour",
    "celsius": "{0} °C",
    "watts": "{0} W",
    "bytes_per_second": "{0} B/s",
    "joules_per_token": "{0} J/token",
}
"""Templates of values by unit. Any other unit prints as the number and the unit's name."""


def common_labels(severity: Severity) -> Pairs:
    """Return the labels of every alert of this severity."""
    return (("severity", severity.value), OURS)


def alerting_url(heading: str) -> str:
    """Return the address of a section of docs/alerting.md."""
    return f"{ALERTING}#{heading.lower()}"


def subject_labels(of_replica: bool) -> str:
    """Return the subject of an alert for a summary."""
    return "{{ $labels.tier }}{{ with $labels.replica }}/{{ . }}{{ end }}" if of_replica else "{{ $labels.tier }}"


def value_template(rule: Rule) -> str:
    """Return a template of what the rule sees now, "" if its unit is none that people read. It asks one query."""
    if rule.unit not in UNITS:
        return ""
    query = f"max by (bound) ({self_metrics.OBSERVED.name}{{tier=%q,replica=%q,rule='{rule.name}'}})"
    value = f"{{{{ with .Labels.bound }}}}{{{{ . }}}} bound {{{{ end }}}}{_value(rule.unit)}"
    return (
        f'{{{{- with printf "{query}" $labels.tier $labels.replica | query }}}}'
        f"Now: {{{{ with index . 0 }}}}{value}{{{{ end }}}}{{{{ end }}}}"
    )


def link_templates(rule: str, external_url: str) -> Pairs:
    """Return the links to the runbook and to the card of the tier: of the status page at `external_url`, if given.

    Otherwise the runbook is a path of the repository, and one query looks for the page of the agent that watches the tier.
    """
    card = "#tier-{{ $labels.tier | urlquery }}"
    if external_url:
        address = external_url.rstrip("/")
        return ("runbook_url", f"{address}/runbooks/{rule}"), ("status_url", f"{address}/{card}")
    agent = f"{self_metrics.STATUS_PAGE.name} and on (instance) {self_metrics.VERDICT.name}{{tier=%q}}"
    query = f'printf "{agent}" $labels.tier | query'
    page = f'{{{{ with {query} }}}}{{{{ . | first | label "url" }}}}/{card}{{{{ end }}}}'
    return ("runbook_url", runbook_url(rule)), ("status_url", page)


def _value(unit: str) -> str:
    pattern = UNITS.get(unit, "{0} " + unit.replace("_", " "))
    return pattern.replace("{%}", "{{ .Value | humanizePercentage }}").replace("{0}", '{{ .Value | printf "%.4g" }}')
