"""The sample configuration of Alertmanager: accepted, routing by severity, and silencing what it claims to."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from alertmanager_server import alertmanager, alerts, post
from paths import ROOT
from tools import tool
from waiting import CEILING_SECONDS, wait_for

from exporters.alertmanager.sample_config import TICKETS, Inhibition, inhibitions
from exporters.prometheus_rules.alerts import alert_groups
from exporters.prometheus_rules.self_monitoring import ROWS as ITSELF
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Scope, Severity

SAMPLE = ROOT / "rules" / "prometheus" / "alertmanager.sample.yaml"
Labels = Mapping[str, str]


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("amtool"), *arguments], capture_output=True, text=True, timeout=CEILING_SECONDS)


def test_amtool_accepts_it() -> None:
    ran = amtool("check-config", str(SAMPLE))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SUCCESS" in ran.stdout


@pytest.mark.parametrize(
    ("receiver", "labels"),
    [
        ("pages", ("alertname=KvCacheCascade", "severity=critical")),
        ("tickets", ("alertname=KvCacheCascade", "severity=warning")),
        ("tickets", ("alertname=SomethingElse",)),
        ("nowhere", ("alertname=GpuMemoryLow", "severity=info")),
        ("outside", ("alertname=SizewatchWatchdog", "severity=info")),
    ],
)
def test_alerts_are_routed_by_their_severity_and_the_watchdog_goes_outside(
    receiver: str, labels: tuple[str, ...]
) -> None:
    ran = amtool("config", "routes", "test", f"--config.file={SAMPLE}", f"--verify.receivers={receiver}", *labels)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("receivers", "labels"),
    [
        ("sizewatch,tickets", ("alertname=ApiLatencyHigh", "severity=warning")),
        ("sizewatch,pages", ("alertname=ApiDown", "severity=critical")),
        ("api-team", ("alertname=ForeignAlertDiagnosis", "severity=info", "source=sizewatch")),
        ("tickets", ("alertname=QueueGrowing", "severity=warning", "source=sizewatch")),
        ("pages", ("alertname=KvCacheCascade", "severity=critical", "source=sizewatch")),
    ],
)
def test_the_webhook_route_of_the_docs_takes_no_alert_from_its_team(
    receivers: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "alerting-posts.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (theirs,) = (block for block in blocks if "route" in block)
    (diagnosis,) = (block for block in blocks if isinstance(block, list))
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    first, last = theirs["route"]["routes"]
    sample["route"]["routes"] = [first, *diagnosis, *sample["route"]["routes"], last]
    sample["receivers"] += [{"name": "sizewatch"}, {"name": "api-team"}]
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(sample), encoding="utf-8")
    config = f"--config.file={tmp_path / 'alertmanager.yml'}"
    ran = amtool("config", "routes", "test", config, f"--verify.receivers={receivers}", *labels)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_that_is_named_exists() -> None:
    known = {*BY_NAME, *(row.name for row in ITSELF)}
    for row in inhibitions():
        for matcher in (*row.source, *row.target):
            if matcher.startswith("alertname"):
                (values,) = re.findall(r'"(.*)"', matcher)
                assert set(values.split("|")) <= known


def matched(matchers: tuple[str, ...]) -> set[str]:
    """The rules that the matcher of the alert's name fits."""
    return set(re.findall(r'"(.*)"', matchers[0])[0].split("|"))


def test_a_cause_silences_its_symptoms_and_no_ticket_silences_a_page() -> None:
    pages = {rule.name for rule in RULES if rule.loudness is Severity.PAGE}
    pairs = {
        (one, other) for row in inhibitions()[1:-1] for one in matched(row.source) for other in matched(row.target)
    }
    loud = {rule.name for rule in RULES if rule.loudness is not Severity.REPORT}
    explained = {(one.name, other.name) for one in RULES for other in RULES if 0 < one.stage < other.stage}
    assert {pair for pair in explained if loud.issuperset(pair)} <= pairs
    for row in inhibitions():
        if row.target[-1] != TICKETS and "alertname" in row.source[0]:
            assert matched(row.source) <= pages | {"AgentDown"}


def test_between_rules_about_replicas_a_cause_silences_its_own_replica_only() -> None:
    of_replicas = {rule.name for rule in RULES if rule.scope is Scope.REPLICA}
    rows = [row for row in inhibitions()[1:-1] if matched(row.source) | matched(row.target) <= of_replicas]
    assert {row.equal for row in rows} == {("cluster", "tier", "replica")}


def fits(matcher: str, labels: Labels) -> bool:
    name, operator, value = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
    return bool(re.fullmatch(value if operator == "=~" else re.escape(value), labels.get(name, "")))


@pytest.mark.parametrize("row", inhibitions(), ids=lambda row: row.source[0])
def test_an_inhibitor_keeps_firing_at_least_as_long_as_what_it_inhibits(row: Inhibition) -> None:
    rows = [row for group in alert_groups() for row in group.rows]
    found = {
        side: [
            one.keep_seconds
            for one in rows
            if all(fits(matcher, {**dict(one.labels), "alertname": one.name}) for matcher in matchers)
        ]
        for side, matchers in (("source", row.source), ("target", row.target))
    }
    if row.source[0].startswith("source="):
        # A page and the ticket of the same rule.
        paging = [rule.name for rule in RULES if rule.loudness is Severity.PAGE]
        found["target"] = [
            one.keep_seconds for one in rows if one.name in paging and ("severity", "warning") in one.labels
        ]
    assert found["source"]
    assert found["target"]
    assert min(found["source"]) >= max(found["target"])


def test_a_tier_that_is_down_silences_every_rule_about_one_replica() -> None:
    names = {name for row in inhibitions() if 'alertname="TierDown"' in row.source for name in matched(row.target)}
    assert {rule.name for rule in RULES if rule.scope is Scope.REPLICA} - {"TierDown"} <= names
    assert {"TtftDivergence", "TpotDivergence", "ItlDivergence"} <= names


def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "severity": severity, "source": "sizewatch", "tier": "t", **labels}


SILENCED: tuple[tuple[str, Labels, Labels], ...] = (
    ("its ticket", alert("KvCacheCascade", "critical", replica="a"), alert("KvCacheCascade", "warning", replica="a")),
    ("a replica", alert("TierDown", "critical"), alert("TargetDown", "warning", replica="a")),
    ("a latency", alert("TierDown", "critical"), alert("TtftDivergence", "warning")),
    ("evictions", alert("KvCacheCascade", "critical", replica="a"), alert("KvEviction", "warning")),
    ("ttft", alert("KvCacheCascade", "critical", replica="a"), alert("TtftDivergence", "warning")),
    ("a page", alert("KvCacheCascade", "critical", replica="a"), alert("TtftSloBurn", "critical")),
    ("its cause", alert("KvCacheCascade", "critical", replica="a"), alert("WorkloadDrift", "warning")),
    ("a queue's", alert("QueueGrowing", "warning"), alert("TtftDivergence", "warning")),
    ("a drift's", alert("WorkloadDrift", "warning"), alert("QueueGrowing", "warning")),
    ("stale", alert("TargetDown", "warning", replica="a"), alert("TelemetryStale", "warning", replica="a")),
)
TOLD: tuple[tuple[str, Labels, Labels], ...] = (
    (
        "other replica",
        alert("KvCacheCascade", "critical", replica="a"),
        alert("KvCacheCascade", "warning", replica="b"),
    ),
    (
        "other replica stale",
        alert("TargetDown", "warning", replica="a"),
        alert("TelemetryStale", "warning", replica="b"),
    ),
    ("other tier", alert("TierDown", "critical"), {**alert("TargetDown", "warning", replica="a"), "tier": "u"}),
    ("other cluster", alert("TierDown", "critical", cluster="x"), alert("TtftDivergence", "warning", cluster="y")),
    ("no symptom", alert("KvCacheCascade", "critical", replica="a"), alert("GpuMemoryHigh", "warning")),
)


@pytest.mark.server
def test_a_real_alertmanager_silences_what_is_meant_and_nothing_else(tmp_path: Path) -> None:
    """Each pair in a cluster of its own, so that the pairs do not meet."""
    quiet = {**yaml.safe_load(SAMPLE.read_text(encoding="utf-8")), "receivers": [{"name": "nowhere"}]}
    quiet["route"] = {"receiver": "nowhere", "group_wait": "0s", "group_by": ["..."]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(quiet), encoding="utf-8")
    pairs = [(f"silenced: {what}", *pair) for what, *pair in SILENCED] + [
        (f"told: {what}", *pair) for what, *pair in TOLD
    ]
    with alertmanager(tmp_path, tmp_path / "alertmanager.yml") as url:
        post(url, [{"labels": {"cluster": what, **labels}} for what, *both in pairs for labels in both])
        found = _settled(url, len(SILENCED))
    assert found == {(f"silenced: {what}", name_of(silent)) for what, _, silent in SILENCED}


def name_of(labels: Labels) -> tuple[str, str]:
    return labels["alertname"], labels["severity"]


def _settled(url: str, silenced: int) -> set[tuple[str, tuple[str, str]]]:
    """The inhibited alerts by cluster and name; asked again until so many are, for routing takes its moment."""
    found: set[tuple[str, tuple[str, str]]] = set()

    def settled() -> bool:
        found.clear()
        inhibited = (one["labels"] for one in alerts(url) if one["status"]["inhibitedBy"])
        found.update((labels["cluster"], name_of(labels)) for labels in inhibited)
        return len(found) >= silenced

    wait_for(settled)
    return found
