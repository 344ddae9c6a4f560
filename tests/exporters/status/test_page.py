"""The status page, read as a browser would read it, and the comparison, findings and incidents behind it.

`goldens/page.txt` is the text of a page with everything open: a tier in a cascade with all its unknown rules, and a planned
one without them.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_text import check_golden
from page_reader import PageReader, browse, measure_page
from status_samples import (
    NOW,
    agent_status,
    cascading_tier,
    fine_tier,
    fleet_status,
    plan,
    planned_tier,
    replica,
    started,
    unplanned_tier,
)

from agent.config.web import Web
from agent.http_server.server import WebServer
from exporters.status.page import render_page, status_json, trace_hour
from exporters.status.plan_comparison import compare_with_plan
from exporters.status.records import (
    AgentHealth,
    AgentStatus,
    AlertmanagerHealth,
    DeliveryHealth,
    DiscoveryHealth,
    ForecastHealth,
    ReportHealth,
    StoreHealth,
    TierStatus,
    TrendPoint,
)
from exporters.status.tier_overview import (
    headline,
    list_active_incidents,
    list_incidents,
    pending_rules,
    summarize_tier,
)
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.evaluator.incidents import group_incidents
from rules.plan import load_bins
from rules.plan.capacity import stated_capacity
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.work import CapacitySource
from rules.verdicts.verdict import (
    FIRING,
    Cause,
    Finding,
    IdleReplicas,
    MissedObjective,
    Status,
    Subject,
    Transition,
    Unknown,
    Verdict,
)


def read(status: AgentStatus | None = None, **options: Any) -> PageReader:
    return PageReader(render_page(status or agent_status(), **options).decode())


def with_tiers(*tiers: TierStatus, **changes: Any) -> AgentStatus:
    return replace(agent_status(), tiers=tiers, **changes)


def test_the_page_reads_as_the_golden_text() -> None:
    tier = planned_tier()
    planned = replace(tier, results=tuple(tier.verdicts))
    shown = read(with_tiers(planned, cascading_tier()), paused=True)
    check_golden(__file__, "page.txt", "\n".join(shown.lines))


def test_headline_counts_incidents_and_names_worst() -> None:
    status = agent_status()
    found, title = headline(status), BY_NAME["KvCacheCascade"].title
    assert found.status is Status.CRITICAL
    assert found.text == f"{len(list_incidents(status))} incidents in 2 of 3 tiers: {title} in l40s-qwen14b"
    pending = sum(len(pending_rules(tier)) for tier in status.tiers)
    sentence = list_incidents(status)[0][1].incident.sentence
    assert found.detail == f"{sentence}. mi300x-mixtral has no plan. {pending} rules cannot be judged now."
    alone = headline(with_tiers(cascading_tier(), fine_tier("fine")))
    assert alone.text == f"1 incident in l40s-qwen14b: {title}"
    page = read().text
    assert f"Critical: {found.text}" in page
    assert page.index("l40s-qwen14b ■ critical") < page.index("h100-llama70b-fp8 ▲ warning")


def test_suspects_stand_with_their_evidence_in_order() -> None:
    tier = cascading_tier()
    (slow,) = [a for a in tier.results if isinstance(a, Verdict) and a.rule == "TtftDivergence"]
    causes = (
        Cause(cause="evictions", certainty=Certainty.CERTAIN, evidence=("5 preemptions", "KV cache full")),
        Cause(cause="queueing", certainty=Certainty.LIKELY, evidence=("9 waiting",), against=("arrivals are steady",)),
    )
    told = replace(slow, status=Status.WARNING, causes=causes)
    text = read(with_tiers(replace(tier, results=(told,), findings=started(told, 60)))).text
    assert "First suspect: 5 preemptions" in text
    assert "Suspects evictions KV cache full 9 waiting (likely) but arrivals are steady" in text
    assert text.count("5 preemptions") == 1


def test_capacity_without_plan_names_no_planned_rate() -> None:
    tier = planned_tier()
    seen = replace(stated_capacity(3.0, "seen"), source=CapacitySource.PRODUCTION, planned_rps=None, high=None)
    for capacity, text in (
        (seen, "usable, at least, by production"),
        (replace(seen, planned_rps=4.0, high=5.0), "usable, by production (4 by the plan)"),
    ):
        rows = compare_with_plan(replace(tier, context=load_bins.with_capacity(tier.context, capacity)))
        (tile,) = (row for row in rows if row.row.key == "completed_rps_per_replica")
        assert tile.planned.text == text


def test_gap_of_last_hour_breaks_line() -> None:
    def lines(tier: TierStatus, signal: str = "ttft_p99_seconds") -> list[int]:
        return [len(line) for line in trace_hour(tier, signal, NOW)]

    planned, unplanned = planned_tier(), unplanned_tier()
    holes = sum(isinstance(point.readings["ttft_p99_seconds"], Missing) for point in planned.trend)
    assert (holes, len(lines(planned))) == (6, 2)
    assert sum(lines(planned)) == len(planned.trend) - holes
    short = replace(unplanned, trend=(*unplanned.trend[:3], *unplanned.trend[7:]))
    assert lines(short, "kv_utilization") == [3, 3]
    assert lines(replace(unplanned, trend=unplanned.trend[-1:]), "kv_utilization") == [1]
    assert lines(replace(unplanned, trend=())) == []
    bound = TrendPoint(t=NOW, readings={"ttft_p99_seconds": Reading(value=None, low=640.0, high=None, n=9)})
    assert trace_hour(replace(planned, trend=(bound,)), "ttft_p99_seconds", NOW) == [[(1.0, 0.0)]]


HOSTILE = "<script>alert(1)</script>\"'&<b>"


def test_hostile_names_appear_as_text() -> None:
    context = load_bins.build_tier_context(HOSTILE, plan(HOSTILE, HOSTILE))
    gone = Unknown(t=NOW, rule="TtftDivergence", subject=Subject(tier=HOSTILE), reason=Gap.STALE, text=HOSTILE)
    fired = next(a for a in planned_tier().results if isinstance(a, Verdict) and a.status in FIRING)
    cause = Cause(cause=HOSTILE, certainty=Certainty.LIKELY, evidence=(HOSTILE, HOSTILE), against=(HOSTILE,))
    fired = replace(
        fired,
        subject=Subject(tier=HOSTILE, replica=HOSTILE),
        sentence=HOSTILE,
        rule=HOSTILE,
        details=(HOSTILE,),
        causes=(cause,),
        actions=(HOSTILE,),
    )
    point = TrendPoint(t=NOW, readings={"kv_utilization": Missing(gap=Gap.STALE, text=HOSTILE)})
    names = dict.fromkeys(("model", "engine", "versions", "url", "pool"), HOSTILE)
    hostile = TierStatus(
        context=context,
        recent=None,
        results=(fired, gone),
        trend=(point,),
        replicas=(replica(HOSTILE, HOSTILE, problems=(HOSTILE,), **names),),
        step13=HOSTILE,
        findings=started(fired, 60),
    )
    health = AgentHealth(
        history_trouble=HOSTILE,
        config_trouble=HOSTILE,
        gpu_problems=(HOSTILE,),
        alertmanagers=(AlertmanagerHealth(alertmanager=HOSTILE, trouble=HOSTILE, refused=(HOSTILE,)),),
    )
    page = read(with_tiers(hostile, simulated=HOSTILE, version=HOSTILE, role=HOSTILE, health=health))
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 25


def test_undecodable_name_costs_only_its_letters() -> None:
    page = read(with_tiers(unplanned_tier(replicas=(replica("t", "a\ud800b", url="http://r.svc:8000/metrics"),))))
    assert "a\ufffdb" in page.text
    assert ("span", {"title": "http://r.svc:8000/metrics"}) in page.tags


def test_page_needs_no_script_or_file() -> None:
    page = read()
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object", "embed", "form"}
    for tag, attributes in page.tags:
        assert "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")]
        if tag == "link":
            assert attributes["href"].startswith("data:image/svg+xml,")
        if tag == "a":
            assert not attributes["href"].startswith(("http:", "https:", "//"))


def test_colour_never_stands_without_a_word() -> None:
    page = render_page(agent_status()).decode()
    signs = re.findall(r'<span class="sign (\w+)"><b aria-hidden="true">(.)</b>(.*?)</span>', page)
    headline_sign = [sign for sign in signs if not sign[2].strip()]
    assert len(signs) > 30
    assert len(headline_sign) == 1  # its word follows it in the heading
    assert "</span>Critical: " in page


def test_page_refreshes_unless_paused() -> None:
    page, still = read(), read(paused=True)
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in page.tags
    assert "refresh" not in {attributes.get("http-equiv") for tag, attributes in still.tags if tag == "meta"}
    assert all("open" in attributes for tag, attributes in still.tags if tag == "details")
    folded = [attributes for tag, attributes in page.tags if tag == "details" and "id" not in attributes]
    assert folded
    assert all("open" not in attributes for attributes in folded)
    assert ("a", {"href": "?paused=1"}) in page.tags


def test_many_findings_and_replicas_are_folded() -> None:
    tier = planned_tier()
    down = next(a for a in tier.results if isinstance(a, Verdict) and a.rule == "TargetDown" and a.status in FIRING)
    results = tuple(replace(down, subject=Subject(tier=tier.name, replica=f"r{number}")) for number in range(40))
    replicas = tuple(replica(tier.name, f"r{number}", up=number != 39, misses=number // 39 * 5) for number in range(40))
    findings = tuple(finding for result in results for finding in started(result, 60))
    page = read(with_tiers(replace(tier, results=results, findings=findings, replicas=replicas)))
    assert "on r0, r1, r10 and 37 more" in page.text
    assert "24 more replicas" in page.text
    assert page.text.index("r39 ▲ down, 5 missed") < page.text.index("r0 ✓ up")
    assert all(f"r{number}" in page.text for number in range(40))
    contexts = (replace(tier.context, name=f"t{number}") for number in range(8))
    assert "2 more incidents" in read(with_tiers(*(replace(tier, context=context) for context in contexts))).text


def test_silent_finding_stays_with_its_gap() -> None:
    tier = planned_tier()
    fired = next(a for a in tier.results if a.rule == "PrefixHitDivergence")
    gone = Unknown(t=NOW, rule=fired.rule, subject=fired.subject, reason=Gap.SCRAPE_FAILED, text="no replica answers")
    tier = replace(tier, results=tuple(gone if a is fired else a for a in tier.results))
    (found,) = [finding for finding in tier.active if finding.verdict.rule == "PrefixHitDivergence"]
    assert found.silent is not None
    (tile,) = (number for number in compare_with_plan(tier) if number.row.key == "prefix_hit_ratio")
    assert tile.state[0] == found.finding.worst.status
    assert "No verdict now: scrape failed: no replica answers." in read(with_tiers(tier)).text


def unseen() -> TierStatus:
    replicas = (replica("new", "n-1", last_seen=None),)
    return TierStatus(context=load_bins.build_tier_context("new", None), recent=None, replicas=replicas)


def young() -> TierStatus:
    tier = unplanned_tier()
    return replace(tier, recent=replace(tier.recent, start=tier.recent.end - 40.0))


@pytest.mark.parametrize(
    ("tiers", "status", "words"),
    [
        ((fine_tier("quiet"),), Status.OK, ("✓ 1 tier as planned", "quiet ✓ as planned")),
        ((unseen(),), Status.UNKNOWN, ("No verdict yet", "new ? no verdict yet", "no data in the last 5 minutes")),
        ((), Status.UNKNOWN, ("Nothing is watched", "Name a tier with its targets in the configuration")),
        ((unplanned_tier(),), Status.OK, ("1 tier without a plan", "not in plan ? not judged", "790 ms 750 ms to 1 s")),
        ((young(),), Status.OK, ("Numbers are of the last 40 s, lines of the last hour.",)),
    ],
    ids=["quiet", "before the first verdict", "no tier", "no plan", "first minutes"],
)
def test_a_page_without_incidents_says_so(
    tiers: tuple[TierStatus, ...], status: Status, words: tuple[str, ...]
) -> None:
    shown = with_tiers(*tiers)
    assert headline(shown).status is status
    text = read(shown).text
    assert [word for word in words if word not in text] == []


DELIVERY = DeliveryHealth(destination="chat", trouble="404", next_at=NOW + 90)


@pytest.mark.parametrize(
    ("health", "words"),
    [
        ({"last_cycle_at": NOW - 61}, "The last cycle ended 1 min ago: this page is that old."),
        ({"history_trouble": "disk full", "unbooked_minutes": 4}, "failed: disk full. Minutes in the buffer: 4."),
        ({"dropped_minutes": 9}, "The history lost 9 replica-minutes."),
        ({"config_trouble": "url: missing"}, "the previous configuration is active: url: missing"),
        ({"gpu_problems": ("GPU 3 fell off the bus",)}, "GPU 3 fell off the bus"),
        ({"store": StoreHealth(place="prom", in_sight={"a": "", "b": "too old"})}, "No data of b: too old"),
        ({"discovery": DiscoveryHealth(trouble="403", age_seconds=70)}, "Pod discovery has failed for 1 min: 403"),
        ({"discovery": DiscoveryHealth(left_out=("x",) * 9)}, "1 more pods are left out; /api/status lists all."),
        ({"forecasting": ForecastHealth(troubles=("h100: died",))}, "No new forecast of h100: died"),
        ({"reporting": ReportHealth(next_at=NOW, trouble="no space")}, "report cannot be written: no space."),
        ({"reporting": ReportHealth(next_at=NOW, deliveries=(DELIVERY,))}, "chat: 404. The next attempt is in 1 min."),
        ({"alertmanagers": (AlertmanagerHealth(alertmanager="am", trouble="refused"),)}, "not delivered: refused"),
        ({"alertmanagers": (AlertmanagerHealth(alertmanager="am", refused=("a label",)),)}, "am rejected an alert: a"),
    ],
)
def test_agent_troubles_stand_at_the_top(health: dict[str, Any], words: str) -> None:
    text = read(replace(agent_status(), health=AgentHealth(**health), simulated="Simulated engines")).text
    assert words in text
    assert text.index("Simulated engines") < text.index("Critical:") < text.index(words) < text.index("Runbook:")


def test_worst_replica_colours_a_number() -> None:
    (kv,) = [row for row in compare_with_plan(cascading_tier()) if row.row.key == "kv_utilization"]
    assert kv.state == (Status.CRITICAL, "critical, certain")
    (down,) = [row for row in compare_with_plan(planned_tier()) if row.row.key == "kv_utilization"]
    assert down.state[0] is Status.OK  # one replica cannot be judged, the others can


def explained_tier() -> TierStatus:
    """Evictions since ten minutes, and the time to first token that they explain since five."""
    tier = planned_tier()
    fired = next(a for a in tier.results if isinstance(a, Verdict) and a.status in FIRING and a.subject.replica is None)
    findings = []
    for rule, minutes in (("KvEviction", 10), ("TtftDivergence", 5)):
        verdict = replace(fired, rule=rule, sentence=f"{rule} is seen", causes=())
        begin = NOW - minutes * 60.0
        change = Transition(t=begin, status=verdict.status, stage=None, certainty=verdict.certainty)
        findings.append(
            Finding(rule=rule, subject=verdict.subject, started_at=begin, worst=verdict, transitions=(change,))
        )
    return replace(tier, results=tuple(finding.worst for finding in findings), findings=tuple(findings))


def test_one_cause_keeps_its_card() -> None:
    tier = explained_tier()
    page = read(with_tiers(tier))
    (active,) = list_active_incidents(tier.active, group_incidents(tier.findings, tier.results))
    assert active.root.verdict.rule == "KvEviction"
    assert [symptom.verdict.rule for symptom in active.symptoms] == ["TtftDivergence"]
    assert page.text.count("Evidence: 2 findings") == 1
    assert page.text.count("Runbook:") == 1
    root, symptom = tier.findings
    ended = replace(tier, findings=(replace(root, ended_at=NOW - 60.0), symptom), results=tier.results[1:])
    (active,) = list_active_incidents(ended.active, group_incidents(ended.findings, ended.results))
    assert (active.root.verdict.rule, active.worst.verdict.rule) == ("KvEviction", "TtftDivergence")
    assert "Evidence: 2 findings" in read(with_tiers(ended)).text


def test_relief_precedes_action_of_the_root() -> None:
    tier = explained_tier()
    root, symptom = tier.findings
    burn = replace(symptom.worst, rule="TtftSloBurn", status=Status.CRITICAL, actions=("Shed load",))
    page = replace(symptom, rule="TtftSloBurn", worst=burn)
    text = read(with_tiers(replace(tier, findings=(root, page), results=(root.worst, burn)))).text
    assert f"At once: Shed load Then: {root.worst.actions[0]} Runbook:" in text
    assert f"Do first: {root.worst.actions[0]}" in read(with_tiers(tier)).text


def test_returned_rule_is_in_later_incident() -> None:
    tier = explained_tier()
    earlier = tuple(replace(one, started_at=NOW - 9000.0, ended_at=NOW - 8000.0) for one in tier.findings)
    known = group_incidents((*tier.findings, *earlier), tier.results)
    (shown,) = list_active_incidents(tier.active, known)
    assert (shown.incident, shown.incident.started_at) == (known[-1], NOW - 600.0)


def test_incident_begins_with_its_earliest_finding() -> None:
    tier = explained_tier()
    root, symptom = tier.findings
    status = with_tiers(replace(tier, findings=(replace(root, started_at=symptom.started_at + 60.0), symptom)))
    line = summarize_tier(status, status.tiers[0])
    assert (line["incident"], line["since"]) == (BY_NAME["KvEviction"].title, symptom.started_at)


def test_plan_for_another_model_is_notice() -> None:
    tier = planned_tier()
    assert tier.context.plan is not None

    def text_with(model: str) -> str:
        replicas = tuple(replace(one, model=model) for one in tier.replicas)
        return read(agent_status(tiers=(replace(tier, replicas=replicas),))).text

    planned = tier.context.plan.model
    for model in (planned, "", f"adapter,{planned}"):
        assert "the plan is for" not in text_with(model)
    count, first = len(tier.replicas), tier.replicas[0].name
    served = f"{count} of {count} replicas, such as {first}, serve acme/giant-405b"
    assert f"the plan is for {planned}, {served}" in text_with("acme/giant-405b")


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Reading(value=0.01, low=0.0, high=0.06, n=68), "up to 6.0% of requests may have missed an objective (68 req"),
        (Reading(value=0.4, low=0.3, high=0.6, n=680), "40.0% of requests miss the 2 s TTFT objective (680 requests"),
        (Reading(value=0.0, low=0.0, high=0.0, n=68), "Impact: on l40s-2"),
    ],
    ids=["perhaps", "surely", "none"],
)
def test_impact_denies_nothing_within_its_bounds(share: Reading, words: str) -> None:
    tier, missed = cascading_tier(), MissedObjective(objective="TTFT", limit_seconds=2.0, share=share)
    idle = IdleReplicas(replicas=0.04, ready=1, needed=1, minimum_warm=0, cost_per_day=4.8, currency="USD")
    results = []
    for result in tier.results:
        fires = isinstance(result, Verdict) and result.status in FIRING
        results.append(replace(result, missed=missed, idle=idle) if fires else result)  # type: ignore[call-arg]
    text = read(agent_status(tiers=(replace(tier, results=tuple(results)),))).text
    assert words in text
    assert "no objective" not in text
    assert "replicas idle" not in text


def test_json_equals_the_page() -> None:
    status = agent_status()
    found = json.loads(json.dumps(status_json(status), allow_nan=False))
    assert found["schema"] == 2
    assert found["verdict"]["text"] == headline(status).text
    for tier, told in zip(status.tiers, found["tiers"], strict=True):
        findings = tier.active
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
    assert ttft["window_seconds"] == 300.0
    assert {alert["severity"] for alert in found["alerts"]} == {"critical", "warning"}
    assert {incident["root"] for incident in found["incidents"]} >= {"KvCacheCascade", "PrefixHitDivergence"}


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


# ---- in a real browser, from the real server under its own content security policy ----


@pytest.mark.slow
def test_browser_shows_tiers_and_charts(tmp_path: Path) -> None:
    server = WebServer(Web.model_construct(listen="127.0.0.1:0"), agent_status, lambda: None)
    server.start()
    page = browse(tmp_path, "--window-size=1280,1600", "--dump-dom", server.url)
    server.stop()
    for tier in agent_status().tiers:
        assert f"{tier.name}</h2>" in page
    assert page.count("<svg") >= 4


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [0, 8])
@pytest.mark.parametrize("width", [390, 760, 1000, 1280])
def test_nothing_sticks_out_at_any_width(tmp_path: Path, width: int, tiers: int) -> None:
    page = render_page(fleet_status(tiers) if tiers else agent_status(), paused=tiers > 0).decode()
    widest, window, _ = measure_page(page, tmp_path, width)
    assert window == width
    assert widest <= width


@pytest.mark.slow
def test_forty_folded_tiers_fit_one_screen(tmp_path: Path) -> None:
    widest, _, height = measure_page(render_page(fleet_status()).decode(), tmp_path, 1280, 900)
    assert widest == 1280
    assert height <= 900
