"""Alert rules for Prometheus: an alert per row of the catalogue, and for a page also a ticket.

Everything follows from the catalogue. An agent groups findings into incidents and exports one alert for each of them,
under the name of a rule. Pages and tickets read those, notes read certain verdicts (DESIGN 3.10). ROWS are faults that
only Prometheus can see, such as a dead agent; docs/alerting.md has a section for each. Templates run inside Prometheus:
a missing value must leave readable text. A new unit is a row of UNITS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.metrics import names
from exporters.render.text import Block, alert_name, comment_lines, dump_yaml, runbook_url
from rules.catalogue.registry import RULES
from rules.evaluator.external_alerts import OURS
from rules.telemetry.signals import Gap
from rules.verdicts.rule import Rule, Scope, Severity
from rules.verdicts.verdict import SEVERITY, Status

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
    """Return a template of what the rule sees now, "" for a unit that nobody reads. It asks one query."""
    if rule.unit not in UNITS:
        return ""
    query = f"max by (bound) ({names.OBSERVED.name}{{cluster=%q,tier=%q,replica=%q,rule='{rule.name}'}})"
    value = UNITS[rule.unit].replace("{%}", "{{ .Value | humanizePercentage }}")
    value = value.replace("{0}", '{{ .Value | printf "%.4g" }}')
    value = f"{{{{ with .Labels.bound }}}}{{{{ . }}}} bound {{{{ end }}}}{value}"
    return (
        f'{{{{- with printf "{query}" $labels.cluster $labels.tier $labels.replica | query }}}}'
        f"Now: {{{{ with index . 0 }}}}{value}{{{{ end }}}}{{{{ end }}}}"
    )


def link_templates(rule: str, external_url: str) -> dict[str, str]:
    """Return the links to the runbook and to the card of the tier: of the status page at `external_url`, if given.

    Otherwise a path of the repository, and the page that a query finds.
    """
    card = "#tier-{{ $labels.tier | urlquery }}"
    if external_url:
        address = external_url.rstrip("/").replace("{", "%7B")
        return {"runbook_url": f"{address}/runbooks/{rule}", "status_url": f"{address}/{card}"}
    agent = f"{names.STATUS_PAGE.name} and on (cluster, instance) {names.VERDICT.name}{{cluster=%q,tier=%q}}"
    query = f'printf "{agent}" $labels.cluster $labels.tier | query'
    page = f'{{{{ with {query} }}}}{{{{ . | first | label "url" }}}}/{card}{{{{ end }}}}'
    return {"runbook_url": runbook_url(rule), "status_url": page}


NOT_SEEING: tuple[Gap, ...] = (
    Gap.NOT_SCRAPED,
    Gap.STALE,
    Gap.RESTARTED,
    Gap.CONTRADICTORY,
    Gap.IMPOSSIBLE,
    Gap.SCRAPE_FAILED,
)
"""Gaps that are a fault if they last. Others leave nothing to evaluate: little traffic, no plan, a missing
engine signal, or a load that LoadBeyondBenchmark reports.
"""

REMEMBERED = "1h"
"""Lookback for a missing tier. A removed tier is forgotten after it."""

CYCLE_AGE_SECONDS = 120
"""Seconds: eight cycles of 15 s. The hold covers the longest cycle, 300 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfMonitoringAlert:
    """Row of an alert. `reason` separates rows of a name."""

    name: str
    reason: str = ""
    expr: str
    hold_seconds: float
    keep_seconds: float = 300.0
    severity: Severity = Severity.TICKET
    summary: str
    description: str


OF_TIER = f"cluster, {names.TIER}"
"""Labels of a tier in a store of several clusters. An absent one is harmless."""

_SEEN = f"group by ({OF_TIER}) (last_over_time({names.TARGET_UP.name}[{REMEMBERED}]))"
_TOLD = f"group by ({OF_TIER}) ({names.VERDICT.name} or {names.UNKNOWN.name})"
_DOWN = f'ALERTS{{alertname="{alert_name("AgentDown")}",reason="not_scraped"}}'
"""Keeps the alert beyond the lookback."""

ROWS: tuple[SelfMonitoringAlert, ...] = (
    SelfMonitoringAlert(
        name="SizewatchWatchdog",
        expr="vector(1)",
        hold_seconds=0,
        keep_seconds=0,
        severity=Severity.REPORT,
        summary="Always firing: Prometheus and Alertmanager still deliver",
        description="A dead man's switch. Send it to something outside that alarms when it stops; nobody reads it.",
    ),
    SelfMonitoringAlert(
        name="AgentDown",
        reason="absent",
        expr=f"absent({names.BUILD_INFO.name})",
        hold_seconds=300,
        summary="No sizewatch agent is scraped at all",
        description="Prometheus has no agent's page: nothing is judged, and silence means nothing.\n"
        "Next: look at the scrape job's targets in Prometheus, then at the agents.",
    ),
    SelfMonitoringAlert(
        name="AgentDown",
        reason="not_scraped",
        expr=f"up == 0\nand on (job, instance)\n(last_over_time({names.BUILD_INFO.name}[{REMEMBERED}]) or {_DOWN})",
        hold_seconds=300,
        summary="The agent on {{ $labels.instance }} does not answer",
        description="What only this agent watches is judged by nobody.\n"
        "Next: is its process up, does /metrics answer, are token and certificate still right?",
    ),
    SelfMonitoringAlert(
        name="AgentDown",
        reason="tier_not_judged",
        expr=f"{_SEEN}\nunless\n{_TOLD}",
        hold_seconds=300,
        summary="Nothing is told of {{ $labels.tier }} any more",
        description=f"The tier was watched within the last {REMEMBERED}, and no agent says anything about it now: neither "
        "a verdict nor why there is none.\nNext: find the agent that watched it; after its tier was taken out of the "
        "configuration this ends by itself.",
    ),
    SelfMonitoringAlert(
        name="AgentDown",
        reason="no_cycles",
        expr=f"time() - {names.LAST_CYCLE.name} > {CYCLE_AGE_SECONDS}",
        hold_seconds=240,
        summary="The agent on {{ $labels.instance }} answers and does not work",
        description="Its last cycle ended {{ $value | humanizeDuration }} ago: what it shows is old.\n"
        "Next: look at its log; restart it if the cycles do not come back.",
    ),
    SelfMonitoringAlert(
        name="SizewatchDegraded",
        reason="cycle_errors",
        expr=f"increase({names.CYCLE_ERRORS.name}[10m]) > 0",
        hold_seconds=300,
        summary="Cycles of the agent on {{ $labels.instance }} meet unexpected errors",
        description="{{ $value }} errors in ten minutes: verdicts may be missing.\n"
        "Next: each error is in its log with a traceback; is its memory limit too low?",
    ),
    SelfMonitoringAlert(
        name="SizewatchDegraded",
        reason="configuration",
        expr=f"{names.CONFIG_OK.name} == 0",
        hold_seconds=600,
        summary="The agent on {{ $labels.instance }} could not use its new configuration",
        description="It goes on with the old one.\nNext: `sizewatch doctor -c FILE` on that machine names every problem.",
    ),
    SelfMonitoringAlert(
        name="SizewatchDegraded",
        reason="history",
        expr=f"{names.HISTORY_UP.name} == 0",
        hold_seconds=600,
        summary="The agent on {{ $labels.instance }} cannot write or read its history",
        description="Verdicts go on; reports will have a hole.\nNext: look at the disk that holds its data directory.",
    ),
    SelfMonitoringAlert(
        name="SizewatchDegraded",
        reason="report",
        expr=f"{names.REPORT_UP.name} == 0",
        hold_seconds=7200,
        summary="The agent on {{ $labels.instance }} cannot write its weekly report",
        description="It tries again every hour.\nNext: the status page says why; `sizewatch report --out DIR` there writes one "
        "by hand.",
    ),
    SelfMonitoringAlert(
        name="SizewatchDegraded",
        reason="report_delivery",
        expr=f"{names.REPORT_DELIVERY_UP.name} == 0",
        hold_seconds=7200,
        summary="The weekly report does not reach {{ $labels.destination }}",
        description="It stands at /reports/ of the agent.\nNext: the status page says why.",
    ),
)


def alert(row: SelfMonitoringAlert) -> Fields:
    runbook = f"docs/alerting.md#{row.name.lower()}"
    texts = {"summary": row.summary, "description": row.description, "runbook_url": runbook}
    rule = alert_of(row.name, row.expr, (row.hold_seconds, row.keep_seconds), row.severity, texts)
    if row.reason:
        rule["labels"]["reason"] = row.reason
    return rule


SCRAPE_HOLD = 30.0
"""Hold in seconds of a page by scrapes: two at the default 15 s. Users wait during the hold."""

TICKET_SCRAPE_HOLD = 60.0
"""Hold in seconds of a ticket by scrapes: four at 15 s, two at 30 s."""

WINDOW_HOLD = 120.0
"""Hold in seconds of a rule over closed minutes: two minutes. The verdict includes the rule's own hold."""

REPORT_HOLD = 900.0
"""Hold in seconds of a rule of severity report (PEERS 6.1: long for information)."""

KEEP: Mapping[Severity, float] = {Severity.PAGE: 300.0, Severity.TICKET: 240.0, Severity.REPORT: 900.0}
"""Seconds that an alert keeps firing. A scrape gap, a restart or a short likely verdict is no recovery.

A ticket ends before a page that inhibits it: the difference is longer than an evaluation of either group.
"""

OWN_HOLD: Mapping[tuple[str, Severity], float] = {
    ("TierDown", Severity.PAGE): 0.0,
    ("TargetDown", Severity.TICKET): 300.0,
}
"""Holds in seconds of rules that count failed scrapes themselves. A tier that is down pages at once,
a replica that is away for longer than a restart is a ticket."""

HEAD = """\
Generated by `sizewatch render` from the rule catalogue; changes by hand are lost.

One alert for each rule: Sizewatch and the rule's name. sizewatch groups its certain findings into incidents, and one alert fires
for each: that of the rule most upstream when the incident began. The others are held back.
A ticket (severity: warning) is sent for an incident that does not page (severity: critical). Thresholds stand in
sizewatch, and each runbook lists them.
Use this file, or let the agent post its alerts itself, never both: docs/alerting.md."""


LEVELS: Mapping[Severity, tuple[Severity, ...]] = {
    Severity.PAGE: (Severity.PAGE, Severity.TICKET),
    Severity.TICKET: (Severity.TICKET,),
    Severity.REPORT: (Severity.REPORT,),
}
"""Severities of alerts by that of the rule: a warning of a paging rule is a ticket, which its page inhibits."""

INTERVALS: Mapping[Severity, float] = {Severity.PAGE: 15.0, Severity.TICKET: 30.0, Severity.REPORT: 60.0}
"""Evaluation interval in seconds by severity. The server default of 60 s would make a hold of 30 s two minutes."""


def alerts_text(external_url: str = "") -> str:
    """Return the file sizewatch-alerts.yaml, with links to the status page at `external_url`."""
    return rule_file(HEAD, alert_groups(external_url=external_url))


def alert_groups(rules: tuple[Rule, ...] = RULES, external_url: str = "") -> list[Fields]:
    groups: list[Fields] = []
    for severity in Severity:
        alerts = []
        for rule in rules:
            if severity in LEVELS[rule.severity]:
                alerts.append(verdict_alert(rule, severity, external_url))
        interval = duration(INTERVALS[severity])
        groups.append({"name": f"sizewatch-{severity.value}", "interval": interval, "rules": alerts})
    itself: Fields = {"name": "sizewatch-itself", "interval": "30s", "rules": list(map(alert, ROWS))}
    return [*groups, itself]


def verdict_alert(rule: Rule, severity: Severity, external_url: str = "") -> Fields:
    subject = "{{ $labels.tier }}"
    if rule.scope is Scope.REPLICA:
        subject += "{{ with $labels.replica }}/{{ . }}{{ end }}"
    annotations = {
        "summary": f"{rule.title}: {subject}",
        "description": f"{rule.meaning}\nNext: {rule.actions[0]}.",
        "value": value_template(rule),
        **link_templates(rule.name, external_url),
    }
    holds = hold_seconds(rule, severity), KEEP[severity]
    return alert_of(rule.name, alert_expr(rule.name, severity), holds, severity, annotations)


WHOLE_TIER: Mapping[str, str] = {
    "TierDown": f"unless on ({OF_TIER})\n(max by ({OF_TIER}) ({names.TARGET_UP.name}) > 0)",
}
"""Extra conditions of whole-tier rules. The agent of a node sees only the replicas of its node."""


def alert_expr(rule: str, severity: Severity) -> str:
    """Return the incidents that alert under this rule and severity, of a note its certain verdicts.

    The labels that identify the agent are left out.
    """
    text = f'{names.INCIDENT_ALERT.name}{{rule="{rule}",{names.SEVERITY}="{severity.value}"}} > 0'
    if severity is Severity.REPORT:
        text = f'{names.VERDICT.name}{{rule="{rule}"}} >= {SEVERITY[Status.WARNING]}'
        text += f'\n  and\n  {names.VERDICT_CERTAIN.name}{{rule="{rule}"}} == 1'
    summed = f"max without ({', '.join((*WATCHER_LABELS, names.SEVERITY))}) (\n  {text}\n)"
    if rule in WHOLE_TIER:
        summed += f"\n{WHOLE_TIER[rule]}"
    return summed


def hold_seconds(rule: Rule, severity: Severity) -> float:
    """Return the seconds that Prometheus holds the verdict. It covers a scrape or a minute, not the rule's hold."""
    if (rule.name, severity) in OWN_HOLD:
        return OWN_HOLD[rule.name, severity]
    if severity is Severity.REPORT:
        return REPORT_HOLD
    if rule.window_seconds:
        return WINDOW_HOLD
    if severity is Severity.PAGE:
        return SCRAPE_HOLD
    return TICKET_SCRAPE_HOLD
