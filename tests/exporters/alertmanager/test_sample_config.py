"""The sample configuration of Alertmanager: accepted, routing by severity, and silencing what it claims to."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from alert_path_servers import Alertmanager, alertmanager
from paths import ROOT
from tools import tool
from waiting import CEILING_SECONDS, wait_for

from agent.durations import parse_duration
from exporters.prometheus_rules.alerts import ROWS as ITSELF
from exporters.prometheus_rules.alerts import alert_groups
from exporters.render.text import alert_name
from rules.catalogue.registry import BY_NAME

SAMPLE = ROOT / "examples" / "alertmanager.yml"
INHIBITIONS: list[dict[str, list[str]]] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))["inhibit_rules"]
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
        ("pages", ("alertname=SizewatchKvCacheCascade", "severity=critical")),
        ("tickets", ("alertname=SizewatchKvCacheCascade", "severity=warning")),
        ("tickets", ("alertname=SomethingElse",)),
        ("nowhere", ("alertname=SizewatchGpuMemoryLow", "severity=info")),
        ("outside", ("alertname=SizewatchWatchdog", "severity=info")),
    ],
)
def test_routes_follow_severity_watchdog_goes_outside(receiver: str, labels: tuple[str, ...]) -> None:
    ran = amtool("config", "routes", "test", f"--config.file={SAMPLE}", f"--verify.receivers={receiver}", *labels)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("receivers", "labels"),
    [
        ("sizewatch,tickets", ("alertname=ApiLatencyHigh", "severity=warning")),
        ("sizewatch,pages", ("alertname=ApiDown", "severity=critical")),
        ("api-team", ("alertname=SizewatchForeignAlertDiagnosis", "severity=info", "source=sizewatch")),
        ("tickets", ("alertname=SizewatchQueueGrowing", "severity=warning", "source=sizewatch")),
        ("pages", ("alertname=SizewatchKvCacheCascade", "severity=critical", "source=sizewatch")),
    ],
)
def test_webhook_route_takes_no_team_alert(receivers: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
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


def test_inhibitions_name_existing_rules() -> None:
    named = set(re.findall(r'alertname!?="(\w+)"', str(INHIBITIONS)))
    assert named <= {alert_name(name) for name in (*BY_NAME, *(row.name for row in ITSELF))}
    assert len(INHIBITIONS) == 3


def fits(matcher: str, labels: Labels) -> bool:
    name, operator, value = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
    equal = bool(re.fullmatch(value if operator == "=~" else re.escape(value), labels.get(name, "")))
    return equal != (operator == "!=")


@pytest.mark.parametrize("row", INHIBITIONS[1:], ids=lambda row: row["source_matchers"][0])
def test_inhibitor_outlasts_what_it_inhibits(row: dict[str, list[str]]) -> None:
    alerts_of_rules = [alert for group in alert_groups() for alert in group["rules"]]
    kept = {
        side: [
            parse_duration(alert["keep_firing_for"])
            for alert in alerts_of_rules
            if alert["labels"]["severity"] != "info"
            and all(
                fits(matcher, {"tier": "t", **alert["labels"], "alertname": alert["alert"]}) for matcher in row[side]
            )
        ]
        for side in ("source_matchers", "target_matchers")
    }
    assert min(kept["source_matchers"]) >= max(kept["target_matchers"])


def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": alert_name(name), "severity": severity, "source": "sizewatch", "tier": "t", **labels}


SILENCED: tuple[tuple[str, Labels, Labels], ...] = (
    ("its ticket", alert("KvCacheCascade", "critical", replica="a"), alert("KvCacheCascade", "warning", replica="a")),
    ("a replica", alert("TierDown", "critical"), alert("TargetDown", "warning", replica="a")),
    ("a latency", alert("TierDown", "critical"), alert("TtftDivergence", "warning")),
    ("a page", alert("TierDown", "critical"), alert("TtftSloBurn", "critical")),
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
    ("another page", alert("KvCacheCascade", "critical", replica="a"), alert("TtftSloBurn", "critical")),
)


@pytest.mark.server
def test_alertmanager_silences_only_what_is_meant(tmp_path: Path) -> None:
    """Each pair in a cluster of its own, so that the pairs do not meet."""
    quiet = {**yaml.safe_load(SAMPLE.read_text(encoding="utf-8")), "receivers": [{"name": "nowhere"}]}
    quiet["route"] = {"receiver": "nowhere", "group_wait": "0s", "group_by": ["..."]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(quiet), encoding="utf-8")
    pairs = [(f"silenced: {what}", *pair) for what, *pair in SILENCED] + [
        (f"told: {what}", *pair) for what, *pair in TOLD
    ]
    with alertmanager(tmp_path, tmp_path / "alertmanager.yml") as manager:
        manager.post(*({"labels": {"cluster": what, **labels}} for what, *both in pairs for labels in both))
        found = _settled(manager, len(SILENCED))
    assert found == {(f"silenced: {what}", name_of(silent)) for what, _, silent in SILENCED}


def name_of(labels: Labels) -> tuple[str, str]:
    return labels["alertname"], labels["severity"]


def _settled(manager: Alertmanager, silenced: int) -> set[tuple[str, tuple[str, str]]]:
    """The inhibited alerts by cluster and name; asked again until so many are, for routing takes its moment."""
    found: set[tuple[str, tuple[str, str]]] = set()

    def settled() -> bool:
        found.clear()
        inhibited = (one["labels"] for one in manager.alerts() if one["status"]["inhibitedBy"])
        found.update((labels["cluster"], name_of(labels)) for labels in inhibited)
        return len(found) >= silenced

    wait_for(settled)
    return found
