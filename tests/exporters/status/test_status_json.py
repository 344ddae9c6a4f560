"""`/api/status` says what the page says, and every number of it is one of JSON."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from status_samples import NOW, agent_status, replica, unplanned_tier

from exporters.status.page import status_json
from exporters.status.plan_comparison import compare_with_plan
from exporters.status.records import AgentHealth, ForecastHealth
from exporters.status.tier_overview import headline
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.verdicts.verdict import Subject


def walk(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield value
    for part in parts:
        yield from walk(part)


def test_json_equals_the_page() -> None:
    status = agent_status()
    found = json.loads(json.dumps(status_json(status), allow_nan=False))
    assert found["schema"] == 2
    assert found["verdict"]["text"] == headline(status).text
    for tier, told in zip(status.tiers, found["tiers"], strict=True):
        findings = (*tier.alerting, *tier.notes)
        assert (told["tier"], told["status"]) == (tier.name, tier.tone.value)
        assert [v["sentence"] for v in told["verdicts"]] == [finding.verdict.sentence for finding in findings]
        assert [v["started_at"] for v in told["verdicts"]] == [finding.finding.started_at for finding in findings]
        assert [v["note"] for v in told["verdicts"]] == [finding.is_note for finding in findings]
        assert [u["rule"] for u in told["unknowns"]] == [unknown.rule for unknown in tier.unknowns]
        assert [number["key"] for number in told["numbers"]] == [row.row.key for row in compare_with_plan(tier)]
        assert len(told["trend"]) == len(tier.trend)
        assert [r["name"] for r in told["replicas"]] == [r.name for r in tier.replicas]
    ttft = found["tiers"][0]["numbers"][0]
    assert (ttft["now"]["low"], ttft["now"]["high"], ttft["planned"]["value"]) == (0.75, 1.0, 2.0)
    assert {alert["severity"] for alert in found["alerts"]} == {"critical", "warning"}
    assert {incident["root"] for incident in found["incidents"]} >= {"KvCacheCascade", "PrefixHitDivergence"}
    assert all(isinstance(part, (dict, list, str, float, int, bool, type(None))) for part in walk(found))


def test_nan_and_infinity_become_null() -> None:
    gauges = {"requests_running": math.nan, "requests_waiting": math.inf}
    found = status_json(replace(agent_status(), tiers=(unplanned_tier(replicas=(replica("t", "r", gauges=gauges),)),)))
    told = json.loads(json.dumps(found, allow_nan=False))["tiers"][0]["replicas"][0]
    assert told["gauges"] == {"requests_running": None, "requests_waiting": None}
    assert (told["name"], told["versions"]) == ("r", "after 0.29.0")
    assert "totals" not in told


def test_foreign_alerts_and_health_keep_keys() -> None:
    diagnosis = Diagnosis(rule="R", subject=Subject(tier="t", replica="r"), began_at=NOW, certain=True, sentence="s")
    alert = ExternalAlert(
        name="a", labels=(("tier", "t"),), summary="", started_at=NOW, ended_at=None, heard_at=NOW, diagnosis=diagnosis
    )
    health = AgentHealth(scrape_failures={("t", "r", "timeout"): 2}, forecasting=ForecastHealth(runs=7))
    found = status_json(replace(agent_status(), foreign=(alert, replace(alert, diagnosis=None)), health=health))
    first, second = found["foreign_alerts"]
    assert (first["labels"], second["diagnosis"]) == ({"tier": "t"}, None)
    subject = {"tier": "t", "replica": "r"}
    told = {"rule": "R", "subject": subject, "began_at": NOW, "certain": True, "sentence": "s"}
    assert first["diagnosis"] == told
    assert found["agent"]["scrape_failures"] == [{"tier": "t", "replica": "r", "kind": "timeout", "count": 2}]
    assert found["agent"]["forecasting"]["runs"] == 7
