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


@pytest.fixture(scope="module")
def with_webhook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with the routes of the documentation to sizewatch's webhook and to another team."""
    page = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (theirs,) = (block for block in blocks if "route" in block)
    (diagnosis,) = (block for block in blocks if isinstance(block, list))
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    first, last = theirs["route"]["routes"]
    sample["route"]["routes"] = [first, *diagnosis, *sample["route"]["routes"], last]
    sample["receivers"] += [{"name": "sizewatch"}, {"name": "api-team"}]
    path = tmp_path_factory.mktemp("webhook") / "alertmanager.yml"
    path.write_text(yaml.safe_dump(sample), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("alone", "webhook", "name", "labels"),
    [
        ("pages", "pages", "SizewatchKvCacheCascade", "severity=critical source=sizewatch"),
        ("tickets", "tickets", "SizewatchQueueGrowing", "severity=warning source=sizewatch"),
        ("tickets", "sizewatch,tickets", "SomethingElse", ""),
        ("tickets", "sizewatch,tickets", "ApiLatencyHigh", "severity=warning"),
        ("pages", "sizewatch,pages", "ApiDown", "severity=critical"),
        ("nowhere", "nowhere", "SizewatchGpuMemoryLow", "severity=info source=sizewatch"),
        ("outside", "outside", "SizewatchWatchdog", "severity=info source=sizewatch"),
        ("nowhere", "api-team", "SizewatchForeignAlertDiagnosis", "severity=info source=sizewatch"),
    ],
)
def test_routes_follow_severity_and_source(
    alone: str, webhook: str, name: str, labels: str, with_webhook: Path
) -> None:
    """The watchdog goes outside. The webhook's route takes no alert from a team."""
    for config, receivers in ((SAMPLE, alone), (with_webhook, webhook)):
        options = (f"--config.file={config}", f"--verify.receivers={receivers}", f"alertname={name}")
        ran = amtool("config", "routes", "test", *options, *labels.split())
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


CASCADE, DOWN = alert("KvCacheCascade", "critical", replica="a"), alert("TierDown", "critical")
DEAD, SLOW = alert("TargetDown", "warning", replica="a"), alert("TtftDivergence", "warning")
BURN = alert("TtftSloBurn", "critical")
SILENCED: dict[str, tuple[Labels, Labels]] = {
    "its ticket": (CASCADE, alert("KvCacheCascade", "warning", replica="a")),
    "a replica": (DOWN, DEAD),
    "a latency": (DOWN, SLOW),
    "a page": (DOWN, BURN),
}
TOLD: dict[str, tuple[Labels, Labels]] = {
    "other replica": (CASCADE, alert("KvCacheCascade", "warning", replica="b")),
    "other replica stale": (DEAD, alert("TelemetryStale", "warning", replica="b")),
    "other tier": (DOWN, {**DEAD, "tier": "u"}),
    "other cluster": ({**DOWN, "cluster": "x"}, {**SLOW, "cluster": "y"}),
    "no symptom": (CASCADE, alert("GpuMemoryHigh", "warning")),
    "another page": (CASCADE, BURN),
}


@pytest.mark.server
def test_alertmanager_silences_only_what_is_meant(tmp_path: Path) -> None:
    """Each pair in a cluster of its own, so that the pairs do not meet."""
    quiet = {**yaml.safe_load(SAMPLE.read_text(encoding="utf-8")), "receivers": [{"name": "nowhere"}]}
    quiet["route"] = {"receiver": "nowhere", "group_wait": "0s", "group_by": ["..."]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(quiet), encoding="utf-8")
    pairs = {**SILENCED, **TOLD}
    silenced = {(what, target["alertname"], target["severity"]) for what, (_, target) in SILENCED.items()}
    with alertmanager(tmp_path, tmp_path / "alertmanager.yml") as manager:
        manager.post(*({"labels": {"cluster": what, **labels}} for what, pair in pairs.items() for labels in pair))
        # Routing takes its moment.
        wait_for(lambda: len(list_inhibited(manager)) >= len(silenced))
        assert list_inhibited(manager) == silenced


def list_inhibited(manager: Alertmanager) -> set[tuple[str, str, str]]:
    """Return cluster, name and severity of the inhibited alerts."""
    labels = (row["labels"] for row in manager.alerts() if row["status"]["inhibitedBy"])
    return {(row["cluster"], row["alertname"], row["severity"]) for row in labels}
