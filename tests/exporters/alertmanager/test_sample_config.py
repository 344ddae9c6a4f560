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

from exporters.alertmanager.sample_config import OF_THE_CASCADE, inhibitions
from exporters.prometheus_rules.self_monitoring import ROWS as ITSELF
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Scope

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


def test_every_rule_that_is_named_exists() -> None:
    known = {*BY_NAME, *(row.name for row in ITSELF)}
    for row in inhibitions():
        for matcher in (*row.source, *row.target):
            if matcher.startswith("alertname"):
                (values,) = re.findall(r'"(.*)"', matcher)
                assert set(values.split("|")) <= known
    assert set(OF_THE_CASCADE) <= set(BY_NAME)


def test_a_tier_that_is_down_silences_every_rule_about_one_replica() -> None:
    down = next(row for row in inhibitions() if 'alertname="TierDown"' in row.source)
    names = set(re.findall(r'"(.*)"', down.target[0])[0].split("|"))
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
    ("stale", alert("TargetDown", "warning", replica="a"), alert("TelemetryStale", "warning", replica="a")),
)
TOLD: tuple[tuple[str, Labels, Labels], ...] = (
    (
        "other replica",
        alert("KvCacheCascade", "critical", replica="a"),
        alert("KvCacheCascade", "warning", replica="b"),
    ),
    ("other tier", alert("TierDown", "critical"), {**alert("TargetDown", "warning", replica="a"), "tier": "u"}),
    ("other cluster", alert("TierDown", "critical", cluster="x"), alert("TtftDivergence", "warning", cluster="y")),
    ("cascade's ticket", alert("KvCacheCascade", "warning", replica="a"), alert("TtftDivergence", "warning")),
    ("not latency", alert("TierDown", "critical"), alert("PrefixHitDivergence", "warning")),
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
    assert found == {what: what.startswith("silenced") for what, *_ in pairs if "cluster" not in what} | {
        "x": False,
        "y": False,
    }


def _settled(url: str, silenced: int) -> dict[str, bool]:
    """By cluster, whether an alert of it is inhibited; asked again until so many are, for routing takes its moment."""
    found: dict[str, bool] = {}

    def settled() -> bool:
        found.clear()
        for one in alerts(url):
            cluster = one["labels"]["cluster"]
            found[cluster] = found.get(cluster, False) or bool(one["status"]["inhibitedBy"])
        return sum(found.values()) >= silenced

    wait_for(settled)
    return found
