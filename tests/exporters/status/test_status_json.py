"""`/api/status` says what the page says, and every number of it is one of JSON."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from status_samples import NOW, agent_status, replica, unplanned_tier

from exporters.status.active_findings import list_alerting, list_notes, list_unknowns, tier_state
from exporters.status.plan_comparison import compare_with_plan
from exporters.status.records import AgentHealth, ForecastHealth
from exporters.status.status_json import status_json
from exporters.status.tier_overview import headline
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.verdicts.verdict import Subject


def walk(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield value
    for part in parts:
        yield from walk(part)


def test_the_json_twin_says_the_same_as_the_page() -> None:
    status = agent_status()
    found = json.loads(json.dumps(status_json(status), allow_nan=False))
    assert found["schema"] == 1
    assert found["verdict"]["text"] == headline(status).text
    for tier, told in zip(status.tiers, found["tiers"], strict=True):
        findings = (*list_alerting(tier), *list_notes(tier))
        assert (told["tier"], told["status"]) == (tier.name, tier_state(tier).value)
        assert [v["sentence"] for v in told["verdicts"]] == [finding.verdict.sentence for finding in findings]
        assert [v["started_at"] for v in told["verdicts"]] == [finding.finding.started_at for finding in findings]
        assert [v["note"] for v in told["verdicts"]] == [finding.is_note for finding in findings]
        assert [u["rule"] for u in told["unknowns"]] == [unknown.rule for unknown in list_unknowns(tier)]
        assert [number["key"] for number in told["numbers"]] == [row.row.key for row in compare_with_plan(tier)]
        assert len(told["trend"]) == len(tier.trend)
        assert [r["replica"] for r in told["replicas"]] == [r.name for r in tier.replicas]
    ttft = found["tiers"][0]["numbers"][0]
    assert (ttft["now"]["low"], ttft["now"]["high"], ttft["planned"]["value"]) == (0.75, 1.0, 2.0)
    assert {alert["severity"] for alert in found["alerts"]} == {"critical", "warning"}
    assert {incident["root"] for incident in found["incidents"]} >= {"KvCacheCascade", "PrefixHitDivergence"}
    assert all(isinstance(part, (dict, list, str, float, int, bool, type(None))) for part in walk(found))


def test_a_number_that_is_none_becomes_null_in_json() -> None:
    gauges = {"requests_running": math.nan, "requests_waiting": math.inf}
    found = status_json(replace(agent_status(), tiers=(unplanned_tier(replicas=(replica("t", "r", gauges=gauges),)),)))
    told = json.loads(json.dumps(found, allow_nan=False))["tiers"][0]["replicas"][0]
    assert told["gauges"] == {"requests_running": None, "requests_waiting": None}
    assert not {"totals", "name", "versions"} & told.keys()
    assert told["engine_version"] == "after 0.29.0"


def test_alerts_of_others_and_the_health_of_parts_keep_their_keys() -> None:
    diagnosis = Diagnosis(rule="R", subject=Subject(tier="t", replica="r"), began_at=NOW, certain=True, sentence="s")
    alert = ExternalAlert(
        name="a", labels=(("tier", "t"),), summary="", started_at=NOW, ended_at=None, heard_at=NOW, diagnosis=diagnosis
    )
    health = AgentHealth(scrape_failures={("t", "r", "timeout"): 2}, forecasting=ForecastHealth(runs=7))
    found = status_json(replace(agent_status(), foreign=(alert, replace(alert, diagnosis=None)), health=health))
    first, second = found["foreign_alerts"]
    assert (first["labels"], second["diagnosis"]) == ({"tier": "t"}, None)
    assert first["diagnosis"] == {
        "rule": "R",
        "tier": "t",
        "replica": "r",
        "began_at": NOW,
        "certain": True,
        "sentence": "s",
    }
    assert found["agent"]["scrape_failures"] == [{"tier": "t", "replica": "r", "kind": "timeout", "count": 2}]
    assert found["agent"]["forecasting"]["answers"] == 7
