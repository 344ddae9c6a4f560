"""Alerts that only Prometheus can raise: each fires for what it is about and for nothing beside it."""

from pathlib import Path

import pytest
from paths import ROOT
from promtool import Case, complaints, differences, firing

from exporters.prometheus_rules.alerts import alert_groups
from exporters.prometheus_rules.rule_files import Group, rule_file
from exporters.prometheus_rules.self_monitoring import NOT_SEEING, ROWS, alert
from rules.catalogue.registry import RULES
from rules.telemetry.signals import Gap

DOCS = ROOT / "docs" / "alerting.md"
BUILD = 'sizewatch_build_info{job="s",instance="a:1"}'
UP = 'up{job="s",instance="a:1"}'


def of_tier(name: str, tier: str, more: str = "") -> str:
    return f'sizewatch_{name}{{job="s",instance="a:1",tier="{tier}"{more}}}'


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """All rows, also those to which the catalogue has its own by now."""
    file = tmp_path / "itself.yaml"
    group = Group(name="itself", interval_seconds=15, rows=tuple(alert(row) for row in ROWS))
    file.write_text(rule_file("for a test", [group]), encoding="utf-8")
    assert not complaints(file)
    return file


@pytest.mark.slow
def test_the_watchdog_always_fires(tmp_path: Path, rules: Path) -> None:
    values = [("0s", firing("SizewatchWatchdog"), 1.0), ("1h", firing("SizewatchWatchdog"), 1.0)]
    assert not differences(
        tmp_path, rules, [Case(series={}, values=values), Case(series={BUILD: "1x300"}, values=values)]
    )


@pytest.mark.slow
def test_absent_agents_alert_after_five_minutes(tmp_path: Path, rules: Path) -> None:
    absent = firing("AgentDown", reason="absent")
    assert not differences(
        tmp_path,
        rules,
        [
            Case(series={}, values=[("4m45s", absent, 0), ("5m", absent, 1)]),
            Case(series={BUILD: "1x100"}, values=[("20m", firing("AgentDown"), 0)]),
            Case(series={BUILD: "1x20 stale"}, values=[("10m", absent, 0), ("10m15s", absent, 1)]),
        ],
    )


@pytest.mark.slow
def test_unscraped_agent_is_named(tmp_path: Path, rules: Path) -> None:
    down = firing("AgentDown", reason="not_scraped", instance="a:1")
    other = {BUILD: "1x100", 'up{job="vllm",instance="v:8000"}': "0x100", UP: "1x100"}
    assert not differences(
        tmp_path,
        rules,
        [
            Case(series={BUILD: "1x20 stale", UP: "1x20 0x100"}, values=[("10m", down, 0), ("10m15s", down, 1)]),
            Case(series=other, values=[("20m", firing("AgentDown"), 0)]),
        ],
    )


@pytest.mark.slow
def test_lost_tier_is_missed_an_hour(tmp_path: Path, rules: Path) -> None:
    missed = firing("AgentDown", reason="tier_not_judged", tier="t")
    seen = {of_tier("target_up", "t", ',replica="r",pool="mixed"'): "1x20 stale", BUILD: "1x400"}
    verdict = {of_tier("verdict", "t", ',rule="R"'): "0x20 stale"}
    unknown = {of_tier("unknown", "t", ',rule="R",reason="no_traffic"'): "1x400"}
    assert not differences(
        tmp_path,
        rules,
        [
            Case(series={**seen, **verdict}, values=[("10m", missed, 0), ("10m15s", missed, 1), ("75m", missed, 0)]),
            Case(series={**seen, **unknown}, values=[("20m", missed, 0)]),
        ],
    )


@pytest.mark.slow
def test_stuck_or_broken_agent_alerts(tmp_path: Path, rules: Path) -> None:
    stuck, degraded = firing("AgentDown", reason="no_cycles"), "SizewatchDegraded"
    cycles = 'sizewatch_last_cycle_timestamp_seconds{job="s",instance="a:1"}'
    sick = {
        'sizewatch_history_up{instance="a:1"}': "0x100",
        'sizewatch_config_last_reload_successful{instance="a:1"}': "1x100",
    }
    assert not differences(
        tmp_path,
        rules,
        [
            Case(series={cycles: "0+15x4 60x100"}, values=[("5m", stuck, 0), ("5m15s", stuck, 1)]),
            Case(series={cycles: "0+15x100"}, values=[("20m", stuck, 0)]),
            Case(
                series=sick,
                values=[
                    ("9m45s", firing(degraded), 0),
                    ("10m", firing(degraded, reason="history"), 1),
                    ("20m", firing(degraded, reason="configuration"), 0),
                ],
            ),
        ],
    )


@pytest.mark.slow
def test_only_fresh_cycle_errors_alert(tmp_path: Path, rules: Path) -> None:
    errors = 'sizewatch_cycle_errors_total{job="s",instance="a:1"}'
    told, degraded = firing("SizewatchDegraded", reason="cycle_errors", job="s", instance="a:1"), "SizewatchDegraded"
    assert not differences(
        tmp_path,
        rules,
        [
            # An error at every cycle from the first on, then none any more.
            Case(series={errors: "0+1x40 40x120"}, values=[("5m", told, 0), ("5m15s", told, 1), ("30m", told, 0)]),
            # One error, which was an accident, is told while it is in the ten minutes, and ends.
            Case(series={errors: "0x20 1x150"}, values=[("9m", told, 0), ("12m", told, 1), ("25m", told, 0)]),
            Case(series={errors: "7x100"}, values=[("20m", firing(degraded), 0)]),
        ],
    )


@pytest.mark.slow
def test_failed_report_alerts_after_two_hours(tmp_path: Path, rules: Path) -> None:
    degraded = "SizewatchDegraded"
    delivery = 'sizewatch_report_delivery_up{instance="a:1",destination="%s"}'
    series = {
        'sizewatch_report_up{instance="a:1"}': "0x600",
        delivery % "mail": "0x600",
        delivery % "chat": "0x200 1x400",
    }
    values = [
        ("119m", firing(degraded), 0),
        ("2h", firing(degraded, reason="report"), 1),
        ("2h", firing(degraded, reason="report_delivery", destination="mail"), 1),
        ("2h", firing(degraded, reason="report_delivery", destination="chat"), 0),
    ]
    assert not differences(tmp_path, rules, [Case(series=series, values=values)])


@pytest.mark.slow
def test_lasting_blindness_is_one_alert(tmp_path: Path, rules: Path) -> None:
    blind = {of_tier("unknown", "t", f',rule="R{n}",reason="scrape_failed"'): "1x200" for n in range(3)}
    idle = {of_tier("unknown", "t", f',rule="{gap}",reason="{gap}"'): "1x200" for gap in Gap if gap not in NOT_SEEING}
    told = firing("UnknownTooLong", tier="t", reason="scrape_failed")
    annotations = {
        "summary": "t cannot be judged: scrape_failed",
        "description": "3 judgements of this tier could not be made for half an hour. Unknown is not healthy.\n"
        "Next: the status page names them and says why; `sizewatch doctor` says what to do.",
        "runbook_url": "docs/alerting.md#unknowntoolong",
    }
    labels = {
        "tier": "t",
        "reason": "scrape_failed",
        "job": "s",
        "severity": "warning",
        "source": "sizewatch",
    }
    assert not differences(
        tmp_path,
        rules,
        [
            Case(
                series=blind,
                values=[("29m45s", told, 0), ("30m", told, 1)],
                alerts=[("30m", "UnknownTooLong", [{"exp_labels": labels, "exp_annotations": annotations}])],
            ),
            Case(series=idle, values=[("45m", firing("UnknownTooLong"), 0)]),
        ],
    )


def test_row_yields_only_if_marked() -> None:
    catalogued = {rule.name for rule in RULES}
    (itself,) = [group for group in alert_groups() if group.name == "sizewatch-itself"]
    expected = [row.name for row in ROWS if not (row.until_judged and row.name in catalogued)]
    assert [row.name for row in itself.rows] == expected


def test_every_row_has_its_section_for_operators() -> None:
    headings = {line.removeprefix("## ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:3] == "## "}
    assert {row.name for row in ROWS} <= headings
