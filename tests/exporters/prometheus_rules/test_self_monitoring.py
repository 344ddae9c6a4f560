"""Alerts that only Prometheus can raise: each fires for what it is about and for nothing beside it."""

from pathlib import Path

import pytest
from paths import ROOT
from promtool import Case, complaints, differences, firing

from exporters.prometheus_rules.alerts import ROWS, alert, rule_file

DOCS = ROOT / "docs" / "alerting.md"
BUILD = 'sizewatch_build_info{job="s",instance="a:1"}'
UP = 'up{job="s",instance="a:1"}'


def of_tier(name: str, tier: str, more: str = "") -> str:
    return f'sizewatch_{name}{{job="s",instance="a:1",tier="{tier}"{more}}}'


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "itself.yaml"
    group = {"name": "itself", "interval": "15s", "rules": [alert(row) for row in ROWS]}
    file.write_text(rule_file("for a test", [group]), encoding="utf-8")
    assert not complaints(file)
    return file


WATCHDOG = firing("SizewatchWatchdog")
ABSENT = firing("AgentDown", reason="absent")
DOWN = firing("AgentDown", reason="not_scraped", instance="a:1")
MISSED = firing("AgentDown", reason="tier_not_judged", tier="t")
STUCK = firing("AgentDown", reason="no_cycles")
DEGRADED = firing("SizewatchDegraded")
ERRORS = firing("SizewatchDegraded", reason="cycle_errors", job="s", instance="a:1")

OTHER = {BUILD: "1x100", 'up{job="vllm",instance="v:8000"}': "0x100", UP: "1x100"}
SEEN = {of_tier("target_up", "t", ',replica="r",pool="mixed"'): "1x20 stale", BUILD: "1x400"}
VERDICT = {of_tier("verdict", "t", ',rule="R"'): "0x20 stale"}
UNKNOWN = {of_tier("unknown", "t", ',rule="R",reason="no_traffic"'): "1x400"}
CYCLES = 'sizewatch_last_cycle_timestamp_seconds{job="s",instance="a:1"}'
CYCLE_ERRORS = 'sizewatch_cycle_errors_total{job="s",instance="a:1"}'
SICK = {
    'sizewatch_history_up{instance="a:1"}': "0x100",
    'sizewatch_config_last_reload_successful{instance="a:1"}': "1x100",
}
HISTORY = firing("SizewatchDegraded", reason="history")
CONFIGURATION = firing("SizewatchDegraded", reason="configuration")

CASES = (
    Case(name="watchdog alone", series={}, values=[("0s", WATCHDOG, 1), ("1h", WATCHDOG, 1)]),
    Case(name="watchdog beside an agent", series={BUILD: "1x300"}, values=[("0s", WATCHDOG, 1), ("1h", WATCHDOG, 1)]),
    Case(name="no agent", series={}, values=[("4m45s", ABSENT, 0), ("5m", ABSENT, 1)]),
    Case(name="an agent", series={BUILD: "1x100"}, values=[("20m", firing("AgentDown"), 0)]),
    Case(name="agent gone", series={BUILD: "1x20 stale"}, values=[("10m", ABSENT, 0), ("10m15s", ABSENT, 1)]),
    Case(
        name="not scraped",
        series={BUILD: "1x20 stale", UP: "1x20 0x100"},
        values=[("10m", DOWN, 0), ("10m15s", DOWN, 1)],
    ),
    Case(name="another job is down", series=OTHER, values=[("20m", firing("AgentDown"), 0)]),
    Case(
        name="lost tier, for an hour",
        series={**SEEN, **VERDICT},
        values=[("10m", MISSED, 0), ("10m15s", MISSED, 1), ("75m", MISSED, 0)],
    ),
    Case(name="tier without verdict", series={**SEEN, **UNKNOWN}, values=[("20m", MISSED, 0)]),
    Case(name="stuck", series={CYCLES: "0+15x4 60x100"}, values=[("5m", STUCK, 0), ("5m15s", STUCK, 1)]),
    Case(name="not stuck", series={CYCLES: "0+15x100"}, values=[("20m", STUCK, 0)]),
    Case(
        name="history fails",
        series=SICK,
        values=[("9m45s", DEGRADED, 0), ("10m", HISTORY, 1), ("20m", CONFIGURATION, 0)],
    ),
    Case(
        name="an error at every cycle, then none",
        series={CYCLE_ERRORS: "0+1x40 40x120"},
        values=[("5m", ERRORS, 0), ("5m15s", ERRORS, 1), ("30m", ERRORS, 0)],
    ),
    Case(
        name="one error lasts ten minutes",
        series={CYCLE_ERRORS: "0x20 1x150"},
        values=[("9m", ERRORS, 0), ("12m", ERRORS, 1), ("25m", ERRORS, 0)],
    ),
    Case(
        name="report and a delivery fail for two hours",
        series={
            'sizewatch_report_up{instance="a:1"}': "0x600",
            'sizewatch_report_delivery_up{instance="a:1",destination="mail"}': "0x600",
            'sizewatch_report_delivery_up{instance="a:1",destination="chat"}': "0x200 1x400",
        },
        values=[
            ("119m", DEGRADED, 0),
            ("2h", firing("SizewatchDegraded", reason="report"), 1),
            ("2h", firing("SizewatchDegraded", reason="report_delivery", destination="mail"), 1),
            ("2h", firing("SizewatchDegraded", reason="report_delivery", destination="chat"), 0),
        ],
    ),
    Case(name="old errors", series={CYCLE_ERRORS: "7x100"}, values=[("20m", DEGRADED, 0)]),
)


@pytest.mark.slow
def test_each_alert_fires_for_its_cause_only(tmp_path: Path, rules: Path) -> None:
    assert not differences(tmp_path, rules, CASES)


def test_every_row_has_its_section_for_operators() -> None:
    headings = {line.removeprefix("## ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:3] == "## "}
    assert {row.name for row in ROWS} <= headings
