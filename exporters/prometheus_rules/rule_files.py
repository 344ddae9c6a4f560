"""Rule files for Prometheus: types of alerts and groups, their YAML, and the labels and templates that all alerts share.

Alerts print as plain groups or as a PrometheusRule object. `exporters.prometheus_rules.alerts` and
`.self_monitoring` fill the groups. Templates run inside Prometheus: a missing value must leave
readable text. A new unit is a row of UNITS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.metrics import names
from exporters.render.text import Block, comment_lines, dump_yaml, runbook_url
from rules.evaluator.external_alerts import OURS
from rules.replicas.cascade import STAGES
from rules.telemetry.signals import Unit
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


def rule_object(head: str, name: str, groups: Iterable[Group]) -> str:
    """Return the groups as a PrometheusRule object of the Prometheus operator."""
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "sizewatch"}},
        "spec": {"groups": plain_groups(groups)},
    }
    return f"{comment_lines(head)}\n{dump_yaml(document)}"


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
        "alert": alert.name,
        "expr": Block(alert.expr),
        **{key: duration(seconds) for key, seconds in times.items() if seconds},
        "labels": dict(alert.labels),
        "annotations": {key: Block(text) if "\n" in text else text for key, text in alert.annotations},
    }


ALERTING = "https://sizewatch.dev/alerting"
"""Address of docs/alerting.md. An operator with a copy changes this prefix (docs/alerting.md)."""

SEVERITIES: Mapping[Severity, str] = {
    Severity.PAGE: "critical",
    Severity.TICKET: "warning",
    Severity.REPORT: "info",
}
"""Severity label values of common routing trees (PEERS 6.1), by severity."""

WATCHER_LABELS = ("instance", "pod", "node", "container", "endpoint")
"""Labels that identify the agent. On an alert they would make it a new alert after a restart."""

UNITS: Mapping[str, str] = {
    Unit.SECONDS: "{0} s",
    Unit.RATIO: "{%}",
    Unit.PER_SECOND: "{0} requests/s",
    Unit.TOKENS_PER_SECOND: "{0} tokens/s",
    Unit.EVENTS_PER_SECOND: "{0}/s",
    Unit.TOKENS_PER_HOUR: "{0} tokens/GPU-hour",
    Unit.CELSIUS: "{0} °C",
    Unit.WATTS: "{0} W",
    Unit.BYTES_PER_SECOND: "{0} B/s",
    Unit.JOULES_PER_TOKEN: "{0} J/token",
}
"""Templates of values by unit. Any other unit prints as the number and the unit's name."""


def common_labels(loudness: Severity) -> Pairs:
    """Return the labels of every alert of this severity."""
    return (("severity", SEVERITIES[loudness]), ("loudness", loudness.value), OURS)


def alerting_url(heading: str) -> str:
    """Return the address of a section of docs/alerting.md."""
    return f"{ALERTING}#{heading.lower()}"


def subject_labels(of_replica: bool) -> str:
    """Return the subject of an alert for a summary."""
    return "{{ $labels.tier }}{{ with $labels.replica }}/{{ . }}{{ end }}" if of_replica else "{{ $labels.tier }}"


def story_template(rule: Rule) -> str:
    """Return the present state of an incident: what and since when, root, first suspect, stage, queue, evidence.

    It is a text on several lines. A line without a value is left out.
    """
    tier, of_rule = "$labels.tier", f"$labels.tier $labels.replica `{rule.name}`"
    start = f"{names.INCIDENT_ALERT_START.name}{{tier=%q,replica=%q,rule=%q"
    queue = names.FAMILY["requests_waiting"].name
    stages = "".join(f"{{{{ if eq . {number}.0 }}}}{text}{{{{ end }}}}" for number, text in STAGES.items() if number)
    stage = f"{{{{ with . | first | value }}}}Stage {{{{ . }}}} of {max(STAGES)}, {stages}.{{{{ end }}}}"
    watchers = ", ".join(WATCHER_LABELS)
    return "\n".join(
        (
            f"{rule.title} in tier {{{{ {tier} }}}}{{{{ with $labels.replica }}}}, replica {{{{ . }}}}{{{{ end }}}}",
            _with(
                f"min({start}}})",
                of_rule,
                " since {{ . | first | value | humanizeTimestamp }}",
                ".",
            ),
            _with(
                f"{start},root!='{rule.name}'}}",
                of_rule,
                '\nRoot: {{ . | first | label "root" }}.',
            ),
            _with(
                f"max by (cause) ({names.SUSPECT.name}{{tier=%q,replica=%q,rule=%q}})",
                of_rule,
                '\nFirst suspect: {{ . | first | label "cause" }}.',
            ),
            _with(f"max({names.CASCADE_STAGE.name}{{tier=%q}} > 0)", tier, f"\n{stage}"),
            _with(
                f"sum(max without ({watchers}) ({queue}{{tier=%q}}))",
                tier,
                '\nQueue: {{ . | first | value | printf "%.0f" }} requests waiting.',
            ),
            *_evidence(rule),
        )
    )


def _with(query: str, arguments: str, text: str, after: str = "") -> str:
    """Return a template of `text` with the results of a query, nothing if there are none, and then `after`."""
    return f'{{{{- with printf "{query}" {arguments} | query }}}}{text}{{{{ end }}}}{after}'


def _evidence(rule: Rule) -> Iterator[str]:
    """Yield the observed and expected values that are known, if their unit is one that people read."""
    if rule.unit in UNITS:
        sign = f"{{{{ with .Labels.{names.BOUND} }}}}{{{{ . }}}} bound {{{{ end }}}}"
        for metric, word in ((names.OBSERVED, "\nObserved"), (names.EXPECTED, "; expected")):
            query = f"sort(max by ({names.BOUND}) ({metric.name}{{rule='{rule.name}',tier=%q,replica=%q}}))"
            numbers = f"{{{{ range . }}}} {sign}{_value(rule.unit)}{{{{ end }}}}"
            yield _with(query, "$labels.tier $labels.replica", f"{word}:{numbers}")


def _page_link(own: str, otherwise: str = "") -> str:
    """Return a template of an address below the status page of the agent that watches the tier, if that is known."""
    query = f'printf "{names.STATUS_PAGE.name} and on (instance) {names.VERDICT.name}{{tier=%q}}" $labels.tier | query'
    found = '{{ . | first | label "url" }}'
    return f"{{{{ with {query} }}}}{found}/{own}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def link_templates(rule: str) -> Pairs:
    """Return the annotations that link the runbook and the card of the tier."""
    return (
        ("runbook_url", _page_link(f"runbooks/{rule}", runbook_url(rule))),
        ("status_url", _page_link("#tier-{{ $labels.tier | urlquery }}")),
    )


def _value(unit: str) -> str:
    pattern = UNITS.get(unit, "{0} " + unit.replace("_", " "))
    return pattern.replace("{%}", "{{ .Value | humanizePercentage }}").replace("{0}", '{{ .Value | printf "%.4g" }}')
