"""The committed alert rules, and those that only Prometheus can raise: promtool's linter and unit tests, a real Prometheus."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT
from prometheus_server import prometheus_with_blocks
from promql_parser import parse
from promtool import Case, complaints, differences, firing, narrowed
from waiting import CEILING_SECONDS

from exporters.metrics import names
from exporters.prometheus_rules.alerts import (
    INTERVALS,
    KEEP,
    LEVELS,
    ROWS,
    UNITS,
    WHOLE_TIER,
    alert,
    alert_groups,
    duration,
    hold_seconds,
    rule_file,
    verdict_alert,
)
from exporters.render.text import alert_name
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Rule, Scope, Severity
from rules.verdicts.verdict import SEVERITY, Status

FOLDER = ROOT / "rules" / "prometheus"
ALERTS = FOLDER / "sizewatch-alerts.yaml"
LEVELLED = [(rule, level) for rule in RULES for level in LEVELS[rule.severity]]
"""Every alert that comes from the catalogue."""

ALL_ALERTS = [row for group in alert_groups() for row in group["rules"]]

SPOKEN = {"seconds": "0.25 s", "ratio": "25%", "per_second": "0.25 requests/s"}
"""A quarter in some units."""


def of(severity: Severity) -> list[tuple[Rule, Severity]]:
    return [pair for pair in LEVELLED if pair[1] is severity]


def series(rule: Rule, metric: str, values: str, instance: str = "a:19095", **labels: str) -> dict[str, str]:
    """One series of a rule about tier t, by the agent at `instance`."""
    own = {"rule": rule.name, "tier": "t", "instance": instance, "job": "sizewatch", **labels}
    if rule.scope is Scope.REPLICA:
        own["replica"] = "r1"
    return {f"{metric}{{{','.join(f'{k}={json.dumps(v)}' for k, v in own.items())}}}": values}


def verdict(rule: Rule, values: str, certain: str = "1x200", instance: str = "a:19095") -> dict[str, str]:
    return {
        **series(rule, names.VERDICT.name, values, instance),
        **series(rule, names.VERDICT_CERTAIN.name, certain, instance),
    }


def raised(rule: Rule, level: Severity, values: str, instance: str = "a:19095") -> dict[str, str]:
    """What raises an alert: an incident that alerts under the rule, of a note its certain verdict."""
    if level is Severity.REPORT:
        return verdict(rule, values, values, instance)
    return series(rule, names.INCIDENT_ALERT.name, values, instance, severity=level.value)


def count(rule: Rule, severity: Severity) -> str:
    return firing(rule.name, severity=severity.value)


def after(seconds: float) -> str:
    return f"{round(seconds)}s"


def spoken(unit: str) -> str:
    return SPOKEN.get(unit) or UNITS.get(unit, "{0} " + unit.replace("_", " ")).replace("{0}", "0.25")


def test_each_rule_has_its_alerts() -> None:
    found = [(row["alert"], row["labels"]["severity"]) for row in ALL_ALERTS]
    for rule in RULES:
        severities = [severity for name, severity in found if name == alert_name(rule.name)]
        expected = {
            Severity.PAGE: ["critical", "warning"],
            Severity.TICKET: ["warning"],
            Severity.REPORT: ["info"],
        }
        assert severities == expected[rule.severity], rule.name
    others = {name for name, _ in found} - {alert_name(rule.name) for rule in RULES}
    assert others <= {alert_name(row.name) for row in ROWS}
    assert {"SizewatchAgentDown", "SizewatchWatchdog"} <= {name for name, _ in found}


@pytest.mark.parametrize(("rule", "level"), LEVELLED)
def test_alerts_read_incidents_notes_read_verdicts(rule: Rule, level: Severity) -> None:
    row = verdict_alert(rule, level)
    read = {names.VERDICT.name, names.VERDICT_CERTAIN.name}
    if level is not Severity.REPORT:
        read = {names.INCIDENT_ALERT.name}
    read |= {names.TARGET_UP.name} if rule.name in WHOLE_TIER else set()
    assert set(re.findall(r"sizewatch_\w+", row["expr"])) == read
    assert str(parse(row["expr"]))


@pytest.mark.slow
@pytest.mark.parametrize("severity", Severity)
def test_alert_waits_and_survives_a_gap(tmp_path: Path, severity: Severity) -> None:
    """Not just before its hold, at its hold, through a gap a little shorter than it is kept, and over after it."""
    told: dict[str, str] = {}
    values = []
    for rule, level in of(severity):
        hold, keep = hold_seconds(rule, severity), KEEP[severity]
        steps = round((hold + 60) / 15)
        told |= raised(rule, level, f"1x{steps} stale")
        last = steps * 15
        fire = count(rule, severity)
        values += [(after(hold - 15), fire, 0.0)] if hold else []
        values += [(after(hold), fire, 1.0), (after(last + keep - 15), fire, 1.0)]
        values.append((after(last + keep + 60), fire, 0.0))
    assert not differences(tmp_path, ALERTS, [Case(series=told, values=values)])


def test_ticket_ends_before_its_page() -> None:
    """The groups are evaluated apart from each other, and Alertmanager is told in between."""
    assert KEEP[Severity.PAGE] - KEEP[Severity.TICKET] >= INTERVALS[Severity.PAGE] + INTERVALS[Severity.TICKET]


CASCADE, EVICTION = BY_NAME["KvCacheCascade"], BY_NAME["KvEviction"]


@pytest.mark.slow
def test_incident_or_certain_note_is_one_alert(tmp_path: Path) -> None:
    """Of two findings and of two agents too; of findings alone, or a likely or low note, there is none."""
    found = {**verdict(CASCADE, "2x200"), **verdict(EVICTION, "2x200")}
    (page, _) = LEVELS[CASCADE.severity]
    every = 'count(ALERTS{source="sizewatch",alertstate="firing",severity=~"critical|warning",tier="t"}) or vector(0)'
    sent = expected(CASCADE, page)
    sent["exp_annotations"]["value"] = ""
    likely: dict[str, str] = {}
    below: dict[str, str] = {}
    for rule, _ in of(Severity.REPORT):
        likely |= verdict(rule, f"{SEVERITY[Status.WARNING]}x130", "0x130")
        below |= verdict(rule, f"{SEVERITY[Status.WARNING] - 1}x130")
    silent = [(after(1800), count(rule, Severity.REPORT), 0.0) for rule, _ in of(Severity.REPORT)]
    (note, _), (rule, level) = of(Severity.REPORT)[0], of(Severity.TICKET)[0]
    fire = count(rule, Severity.TICKET)
    crossed = {**verdict(note, "1x200", "0x200", "a:1"), **verdict(note, "0x200", "1x200", "b:1")}
    both = {**raised(rule, level, "1x200", "a:1"), **raised(rule, level, "1x200", "b:1")}
    moved = {**raised(rule, level, "1x40 stale", "a:1"), **raised(rule, level, "_x42 1x200", "b:1")}
    since = f'time() - ALERTS_FOR_STATE{{alertname="Sizewatch{rule.name}"}}'
    cases = [
        Case(
            name="one of two findings",
            series={**found, **raised(CASCADE, page, "2x40 stale")},
            values=[("5m", every, 1), ("14m45s", every, 1), ("16m", every, 0)],
            alerts=[("5m", "KvCacheCascade", [sent]), ("5m", "KvEviction", [])],
        ),
        Case(name="certain findings whose alert waits", series=found, values=[("20m", every, 0)]),
        Case(name="likely notes", series=likely, values=silent),
        Case(name="low notes", series=below, values=silent),
        Case(name="crossed", series=crossed, values=[("20m", count(note, Severity.REPORT), 0)]),
        Case(name="both", series=both, values=[("20m", fire, 1)]),
        Case(name="moved", series=moved, values=[("20m", fire, 1), ("20m", f"scalar({since}) + vector(0)", 1200)]),
    ]
    assert not differences(tmp_path, ALERTS, cases)


def test_down_tier_alerts_within_ninety_seconds() -> None:
    """The longest way: the last page just before the death, and every reader just misses what it waits for."""
    rule, scrape = BY_NAME["TierDown"], 15.0
    silent = max(rule.limit("seconds", {}), scrape * rule.limit("misses", {}))
    routes = yaml.safe_load((ROOT / "examples" / "alertmanager.yml").read_text(encoding="utf-8"))["route"]["routes"]
    (wait,) = (float(one["group_wait"].removesuffix("s")) for one in routes if one.get("receiver") == "pages")
    ways = (-(-silent // scrape) * scrape, scrape, INTERVALS[Severity.PAGE], hold_seconds(rule, Severity.PAGE), wait)
    assert sum(ways) <= 90.0


@pytest.mark.slow
@pytest.mark.parametrize("severity", Severity)
def test_alert_has_labels_seen_and_expected(tmp_path: Path, severity: Severity) -> None:
    cases = []
    for rule, level in of(severity):
        told = raised(rule, level, "1x70")
        told |= series(rule, names.OBSERVED.name, "0.25x70")
        told |= series(rule, names.EXPECTED.name, "0.25x70", bound="upper")
        alerts = [("16m", rule.name, [expected(rule, level)])]
        cases.append(Case(name=rule.name, series=told, alerts=alerts))
    # The whole file for each of its alerts takes promtool half a minute, and a start for each of them is as dear.
    for some in (cases[n : n + 3] for n in range(0, len(cases), 3)):
        assert not differences(tmp_path, narrowed(tmp_path, ALERTS, *(case.name for case in some)), some)


def expected(rule: Rule, level: Severity) -> dict[str, Any]:
    value = spoken(rule.unit)
    replica = {"replica": "r1"} if rule.scope is Scope.REPLICA else {}
    about = "t/r1" if replica else "t"
    return {
        "exp_labels": {
            "severity": level.value,
            "source": "sizewatch",
            "tier": "t",
            "rule": rule.name,
            "job": "sizewatch",
            **replica,
        },
        "exp_annotations": {
            "summary": f"{rule.title}: {about}",
            "description": f"{rule.meaning}\nNext: {rule.actions[0]}.",
            **({"value": f"Now: {value}"} if rule.unit in UNITS else {}),
            "runbook_url": f"docs/runbooks.md#{rule.name.lower()}",
            "status_url": "",
        },
    }


@pytest.mark.slow
def test_alert_links_card_and_names_bound(tmp_path: Path) -> None:
    rule = BY_NAME["TtftDivergence"]
    (level,) = LEVELS[rule.severity]
    given = expected(rule, level)
    given["exp_annotations"] |= {"value": "Now: lower bound 2.5 s", "status_url": "https://sizewatch.example/#tier-t"}
    told = {
        **raised(rule, level, "1x200"),
        **verdict(rule, "1x200"),
        **series(rule, names.OBSERVED.name, "2.5x200", bound="lower"),
        **series(rule, names.OBSERVED.name, "9x200", bound="lower", cluster="b"),
        f'{names.STATUS_PAGE.name}{{url="https://sizewatch.example",instance="a:19095"}}': "1x200",
        f'{names.STATUS_PAGE.name}{{url="https://other.example",instance="a:19095",cluster="b"}}': "1x200",
    }
    assert not differences(tmp_path, ALERTS, [Case(series=told, alerts=[("30m", rule.name, [given])])])


def test_alert_asks_at_most_two_queries() -> None:
    for url, most in (("", 2), ("https://sizewatch.example/{{x}}/", 1)):
        rows = {row["alert"]: row for group in alert_groups(external_url=url) for row in group["rules"]}
        for name, row in rows.items():
            assert sum(text.count("| query") for text in row["annotations"].values()) <= most, name
    links = rows["SizewatchKvCacheCascade"]["annotations"]
    assert links["runbook_url"] == "https://sizewatch.example/%7B%7Bx}}/runbooks/KvCacheCascade"
    assert links["status_url"] == "https://sizewatch.example/%7B%7Bx}}/#tier-{{ $labels.tier | urlquery }}"


@pytest.mark.server
def test_prometheus_evaluates_the_file(tmp_path: Path) -> None:
    sample = ("sizewatch_cycles_total", {}, 1_700_000_000.0, 1.0)
    with (
        prometheus_with_blocks(tmp_path, [sample], (ALERTS,)) as url,
        urllib.request.urlopen(f"{url}/api/v1/rules", timeout=CEILING_SECONDS) as result,
    ):
        groups = json.load(result)["data"]["groups"]
    assert {group["name"] for group in groups} == {group["name"] for group in alert_groups()}
    assert not [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]


def test_durations_are_written_as_prometheus_writes_them() -> None:
    assert [duration(s) for s in (0, 15, 60, 90, 3600, 86400, 259200)] == ["0s", "15s", "1m", "90s", "1h", "1d", "3d"]
    with pytest.raises(ValueError, match=r"0\.5 is no whole number of seconds"):
        duration(0.5)


def test_file_is_linted_and_follows_the_catalogue() -> None:
    assert not complaints(ALERTS)
    assert alert_groups() == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]


@pytest.mark.slow
def test_node_never_calls_tier_down(tmp_path: Path) -> None:
    down = {
        'sizewatch_incident_alert{tier="t",replica="",rule="TierDown",severity="critical",instance="node-1"}': "1x80",
        'sizewatch_target_up{tier="t",replica="r1",pool="mixed",instance="node-1"}': "0x80",
    }
    other = 'sizewatch_target_up{tier="t",replica="r2",pool="mixed",instance="node-2"}'
    pages = firing("TierDown", severity="critical")
    paged = [("15m", pages, 1.0)]
    cases = [
        Case(name="another node's replica answers", series={**down, other: "1x80"}, values=[("15m", pages, 0)]),
        Case(name="that one does not either", series={**down, other: "0x80"}, values=paged),
        Case(name="another tier's does", series={**down, other.replace('"t"', '"u"'): "1x80"}, values=paged),
        Case(name="another cluster's does", series={**down, other.replace("{", '{cluster="b",'): "1x80"}, values=paged),
    ]
    assert not differences(tmp_path, narrowed(tmp_path, ALERTS, "TierDown"), cases)


BUILD = 'sizewatch_build_info{job="s",instance="a:1"}'
UP = 'up{job="s",instance="a:1"}'
CYCLES = 'sizewatch_last_cycle_timestamp_seconds{job="s",instance="a:1"}'
CYCLE_ERRORS = 'sizewatch_cycle_errors_total{job="s",instance="a:1"}'
SEEN = {'sizewatch_target_up{job="s",instance="a:1",tier="t",replica="r",pool="mixed"}': "1x20 stale", BUILD: "1x400"}
WATCHDOG = firing("SizewatchWatchdog")
ABSENT = firing("AgentDown", reason="absent")
DOWN = firing("AgentDown", reason="not_scraped", instance="a:1")
MISSED = firing("AgentDown", reason="tier_not_judged", tier="t")
STUCK = firing("AgentDown", reason="no_cycles")
DEGRADED = firing("SizewatchDegraded")
ERRORS = firing("SizewatchDegraded", reason="cycle_errors", job="s", instance="a:1")

CASES = (
    Case(name="no agent", series={}, values=[("0s", WATCHDOG, 1), ("4m45s", ABSENT, 0), ("5m", ABSENT, 1)]),
    Case(
        name="an agent that works, with old errors",
        series={BUILD: "1x100", CYCLES: "0+15x100", CYCLE_ERRORS: "7x100"},
        values=[("0s", WATCHDOG, 1), ("20m", WATCHDOG, 1), ("20m", firing("AgentDown"), 0), ("20m", DEGRADED, 0)],
    ),
    Case(name="agent gone", series={BUILD: "1x20 stale"}, values=[("10m", ABSENT, 0), ("10m15s", ABSENT, 1)]),
    Case(
        name="not scraped",
        series={BUILD: "1x20 stale", UP: "1x20 0x800"},
        values=[("10m", DOWN, 0), ("10m15s", DOWN, 1), ("3h", DOWN, 1)],
    ),
    Case(
        name="another job is down",
        series={BUILD: "1x100", 'up{job="vllm",instance="v:8000"}': "0x100", UP: "1x100"},
        values=[("20m", firing("AgentDown"), 0)],
    ),
    Case(
        name="lost tier, for an hour",
        series={**SEEN, 'sizewatch_verdict{job="s",instance="a:1",tier="t",rule="R"}': "0x20 stale"},
        values=[("10m", MISSED, 0), ("10m15s", MISSED, 1), ("75m", MISSED, 0)],
    ),
    Case(
        name="tier without verdict, of another job's agent",
        series={**SEEN, 'sizewatch_unknown{job="o",instance="b:1",tier="t",rule="R",reason="no_traffic"}': "1x400"},
        values=[("20m", MISSED, 0)],
    ),
    Case(name="stuck", series={CYCLES: "0+15x4 60x100"}, values=[("7m", STUCK, 0), ("7m15s", STUCK, 1)]),
    Case(name="slow", series={CYCLES: "0x20 300x20 600x20 900x20"}, values=[("5m15s", STUCK, 0), ("20m", STUCK, 0)]),
    Case(
        name="history fails",
        series={
            'sizewatch_history_up{instance="a:1"}': "0x100",
            'sizewatch_config_last_reload_successful{instance="a:1"}': "1x100",
        },
        values=[
            ("9m45s", DEGRADED, 0),
            ("10m", firing("SizewatchDegraded", reason="history"), 1),
            ("20m", firing("SizewatchDegraded", reason="configuration"), 0),
        ],
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
)


@pytest.mark.slow
def test_own_alert_fires_for_its_cause_only(tmp_path: Path) -> None:
    file = tmp_path / "itself.yaml"
    group = {"name": "itself", "interval": "15s", "rules": [alert(row) for row in ROWS]}
    file.write_text(rule_file("for a test", [group]), encoding="utf-8")
    assert not complaints(file)
    assert not differences(tmp_path, file, CASES)


def test_every_row_has_its_section_for_operators() -> None:
    page = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ") for line in page.splitlines() if line[:3] == "## "}
    assert {row.name for row in ROWS} <= headings
