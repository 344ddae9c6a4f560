"""Rule files for Prometheus: alerts and groups as their YAML has them, and the labels and templates that all share.

`exporters.prometheus_rules.alerts` and `.self_monitoring` fill the groups. Templates run inside Prometheus: a missing
value must leave readable text. A new unit is a row of UNITS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exporters.metrics import names
from exporters.render.text import Block, alert_name, comment_lines, dump_yaml, runbook_url
from rules.evaluator.external_alerts import OURS
from rules.verdicts.rule import Rule, Severity

Fields = dict[str, Any]
"""Alert, or group of alerts that are evaluated together, in order, as in the file."""


def rule_file(head: str, groups: Iterable[Fields]) -> str:
    """Return a rule file for `rule_files:` of Prometheus. `head` is its comment."""
    return f"{comment_lines(head)}\n{dump_yaml({'groups': list(groups)})}"


def duration(seconds: float) -> str:
    """Return whole seconds as a Prometheus duration: 90s, 5m, 1h, 3d."""
    whole = round(seconds)
    if whole != seconds or whole < 0:
        raise ValueError(f"{seconds} is no whole number of seconds")
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def alert_of(
    name: str, expr: str, holds: tuple[float, float], severity: Severity, annotations: Mapping[str, str]
) -> Fields:
    """Return an alert. `holds` are the seconds of `for` and of `keep_firing_for`; empty annotations are left out."""
    alert: Fields = {"alert": alert_name(name), "expr": Block(expr)}
    for key, seconds in zip(("for", "keep_firing_for"), holds, strict=True):
        if seconds:
            alert[key] = duration(seconds)
    alert["labels"] = {"severity": severity.value, OURS[0]: OURS[1]}
    texts = {key: Block(text) if "\n" in text else text for key, text in annotations.items() if text}
    return alert | {"annotations": texts}


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
"""Templates of values by unit. A value of another unit is not shown."""


def value_template(rule: Rule) -> str:
    """Return a template of what the rule sees now, "" if its unit is none that people read. It asks one query."""
    if rule.unit not in UNITS:
        return ""
    query = f"max by (bound) ({names.OBSERVED.name}{{tier=%q,replica=%q,rule='{rule.name}'}})"
    value = UNITS[rule.unit].replace("{%}", "{{ .Value | humanizePercentage }}")
    value = value.replace("{0}", '{{ .Value | printf "%.4g" }}')
    value = f"{{{{ with .Labels.bound }}}}{{{{ . }}}} bound {{{{ end }}}}{value}"
    return (
        f'{{{{- with printf "{query}" $labels.tier $labels.replica | query }}}}'
        f"Now: {{{{ with index . 0 }}}}{value}{{{{ end }}}}{{{{ end }}}}"
    )


def link_templates(rule: str, external_url: str) -> dict[str, str]:
    """Return the links to the runbook and to the card of the tier: of the status page at `external_url`, if given.

    Otherwise the runbook is a path of the repository, and one query looks for the page of the agent that watches the tier.
    """
    card = "#tier-{{ $labels.tier | urlquery }}"
    if external_url:
        address = external_url.rstrip("/")
        return {"runbook_url": f"{address}/runbooks/{rule}", "status_url": f"{address}/{card}"}
    agent = f"{names.STATUS_PAGE.name} and on (instance) {names.VERDICT.name}{{tier=%q}}"
    query = f'printf "{agent}" $labels.tier | query'
    page = f'{{{{ with {query} }}}}{{{{ . | first | label "url" }}}}/{card}{{{{ end }}}}'
    return {"runbook_url": runbook_url(rule), "status_url": page}
