"""Rule files for Prometheus: the types of a group's rows, and their YAML as a person would write it.

Owns Alert, Record, Group and how they are printed, plain or as PrometheusRule objects. It knows no rule and no name of
a metric: `exporters.prometheus_rules.alerts`, `.recording_rules`, `.itself_rules` and `.engine_only` fill the groups. A new kind
of file is a function here.

What the generated alerts share: labels, where the runbooks are, and templates that fetch what a verdict saw.

Owns these texts. Templates run inside Prometheus, so a value that is not there leaves words and no hole. A new unit is a
row of UNITS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.metrics import names
from exporters.render.yaml import Block, Dumper, comment_lines, dump_yaml
from rules.evaluator.external_alerts import OURS
from rules.telemetry.signals import Unit
from rules.verdicts.rule import Rule, Severity

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule: must hold `hold_seconds` before it fires, and fires `keep_seconds` longer than it holds."""

    name: str
    expr: str
    hold_seconds: float
    keep_seconds: float
    labels: Pairs
    annotations: Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule; `labels` are added to what it computes."""

    name: str
    expr: str
    labels: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are evaluated together, in order, every `interval_seconds`."""

    name: str
    interval_seconds: float
    rows: tuple[Alert | Record, ...]


Dumper.add_representer(Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def rule_file(head: str, groups: Iterable[Group]) -> str:
    """A rule file for `rule_files:` of Prometheus; `head` is its comment."""
    return f"{comment_lines(head)}\n{dump_yaml({'groups': plain_groups(groups)})}"


def rule_objects(head: str, objects: Mapping[str, Iterable[Group]]) -> str:
    """The same groups as PrometheusRule objects of the Prometheus operator, by the objects' names."""
    documents = (
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "sizewatch"}},
            "spec": {"groups": plain_groups(groups)},
        }
        for name, groups in objects.items()
    )
    return "\n".join((comment_lines(head), "---\n".join(dump_yaml(document) for document in documents)))


def plain_groups(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """The groups as YAML has them."""
    return [
        {
            "name": group.name,
            "interval": duration(group.interval_seconds),
            "rules": [_alert(row) if isinstance(row, Alert) else _record(row) for row in group.rows],
        }
        for group in groups
    ]


def duration(seconds: float) -> str:
    """Whole seconds as Prometheus writes them: 90s, 5m, 1h, 3d."""
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


def _record(record: Record) -> dict[str, Any]:
    labels = {"labels": dict(record.labels)} if record.labels else {}
    return {"record": record.name, "expr": Block(record.expr), **labels}


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
