"""Alerts about sizewatch itself that only Prometheus can raise, such as a dead agent.

These rules are not in the catalogue. A new alert is a row here and a section of docs/alerting.md under its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporters.metrics import names
from exporters.prometheus_rules.rule_files import WATCHER_LABELS, Fields, alert_of
from rules.telemetry.signals import Gap
from rules.verdicts.rule import Severity

NOT_SEEING: tuple[Gap, ...] = (
    Gap.NOT_SCRAPED,
    Gap.STALE,
    Gap.RESTARTED,
    Gap.CONTRADICTORY,
    Gap.IMPOSSIBLE,
    Gap.SCRAPE_FAILED,
)
"""Gap reasons that are a fault if they last. Other gaps leave nothing to evaluate: little traffic, no plan, a missing
engine signal, or a load that LoadBeyondBenchmark reports.
"""

REMEMBERED = "1h"
"""Lookback for a missing tier. A tier removed from the plan is forgotten after it."""

CYCLE_AGE_SECONDS = 120
"""Maximum age of a cycle in seconds: eight cycles at the default of 15 s."""


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


def _without(expr: str, *more: str) -> str:
    return f"({', '.join((*more, *WATCHER_LABELS))}) ({expr})"


_SEEN = f"group without {_without(f'last_over_time({names.TARGET_UP.name}[{REMEMBERED}])', names.POOL, names.REPLICA)}"
_TOLD = f"group without {_without(names.VERDICT.name, names.RULE, names.REPLICA)}"
_ASKED = f"group without {_without(names.UNKNOWN.name, names.RULE, names.REPLICA, names.REASON)}"

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
        expr=f"up == 0\nand on (job, instance)\nlast_over_time({names.BUILD_INFO.name}[{REMEMBERED}])",
        hold_seconds=300,
        summary="The agent on {{ $labels.instance }} does not answer",
        description="What only this agent watches is judged by nobody.\n"
        "Next: is its process up, does /metrics answer, are token and certificate still right?",
    ),
    SelfMonitoringAlert(
        name="AgentDown",
        reason="tier_not_judged",
        expr=f"{_SEEN}\nunless\n{_TOLD}\nunless\n{_ASKED}",
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
        hold_seconds=120,
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
        summary="The agent on {{ $labels.instance }} cannot write its history",
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
    """Return the alert of a row."""
    runbook = f"docs/alerting.md#{row.name.lower()}"
    texts = {"summary": row.summary, "description": row.description, "runbook_url": runbook}
    rule = alert_of(row.name, row.expr, (row.hold_seconds, row.keep_seconds), row.severity, texts)
    if row.reason:
        rule["labels"]["reason"] = row.reason
    return rule
