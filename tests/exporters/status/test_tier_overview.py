"""States of tiers, the overview of the fleet, tiles that agree with the findings of their tier, and its forecast."""

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from forecast_samples import DAY_MINUTES, question, series
from forecast_samples import NOW as FORECAST_NOW
from golden_text import check_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reader import PageReader
from status_samples import NOW, agent_status, cascading_tier, fine_tier, fleet_status, log_normal, planned_tier

from agent.forecasting.tier_forecast import TierForecast
from exporters.documents.forecast import Prewarm, Recommendation
from exporters.metrics.exposition import render
from exporters.metrics.names import OWN, RECOMMENDED, REPORT_UP
from exporters.status.page import TIERS_OPEN, render_page, status_json
from exporters.status.plan_comparison import ROWS, PlanComparison, compare_with_plan, judge_number
from exporters.status.records import AgentHealth, AgentStatus, ForecastHealth, ForecastStatus, TierStatus
from exporters.status.tier_overview import (
    describe_state,
    headline,
    numbers_text,
    overview_text,
    summarize_tier,
    worst_first,
)
from forecast.capacity.cold_start import ColdStart, LeadSource
from forecast.capacity.prewarm import Prewarmer
from rules.catalogue.registry import RULES
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import LEARNING_SECONDS
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import Margin, replica_count
from rules.replicas.starts import StartQuantiles, Timing
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import ForecastPoint
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, Finding, IdleReplicas, Status, Subject, Unknown, Verdict, step_rule_state

TIER = "h100-llama70b-fp8"


def firing(rule: str, status: Status = Status.CRITICAL, **changes: Any) -> Verdict:
    pattern = next(one for one in planned_tier().results if isinstance(one, Verdict))
    usual = {"certainty": Certainty.CERTAIN, "subject": Subject(tier=TIER)}
    return replace(pattern, rule=rule, status=status, **(usual | changes))


def tile(tier: TierStatus, key: str) -> PlanComparison:
    (found,) = [one for one in compare_with_plan(tier) if one.row.key == key]
    return found


def test_note_of_removed_rule_breaks_nothing() -> None:
    """The history may hold findings of rules that are gone."""
    tier = cascading_tier()
    finding = next(one for one in tier.findings if one.ended_at is None)
    change = replace(finding.transitions[0], certainty=Certainty.LIKELY)
    worst = replace(finding.worst, rule="GoneRule", certainty=Certainty.LIKELY)
    gone = replace(finding, rule="GoneRule", worst=worst, transitions=(change,))
    text = render_page(agent_status(tiers=(replace(tier, findings=(gone,), results=()),))).decode()
    assert "GoneRule" in text


LIKELY, CERTAIN = Certainty.LIKELY, Certainty.CERTAIN
Judged = tuple[Status, Certainty]


def overloaded(*history: Judged) -> TierStatus:
    """A tier whose SLO burn and cascade of stage 4 had these verdicts, the last one now, and whose queue grows."""
    base = fine_tier(TIER)
    replica = base.replicas[0].name
    subjects = {"TtftSloBurn": None, "QueueGrowing": None, "KvCacheCascade": replica}
    results, findings = [], []
    for rule, name in subjects.items():
        state = None
        for number, (status, certainty) in enumerate(history):
            ago = 15.0 * (len(history) - number)
            stage = 4 if rule == "KvCacheCascade" and status in FIRING else None
            changes = {"certainty": certainty, "t": NOW - ago, "stage": stage}
            verdict = firing(rule, status, subject=Subject(tier=TIER, replica=name), **changes)
            state, ended = step_rule_state(state, verdict)
            findings += [one for one in ended if isinstance(one, Finding)]
        results.append(state.result)
        findings += [state.finding] if state.finding is not None else []
    calm = tuple(one for one in base.results if one.rule not in subjects)
    hit = history[-1][0] in FIRING
    gauges = {"requests_running": 60.0, "requests_waiting": 58.0, "kv_utilization": 0.97}
    first = replace(base.replicas[0], gauges=gauges, cascade_stage=4) if hit else base.replicas[0]
    return replace(base, results=(*calm, *results), findings=tuple(findings), replicas=(first, *base.replicas[1:]))


def shown(tier: TierStatus) -> str:
    """The body of the page, without the style sheet."""
    return render_page(agent_status(tiers=(tier,))).decode().partition("</style>")[2]


def surfaces(tier: TierStatus) -> dict[str, str]:
    """The severity of the tier on every surface."""
    status = agent_status(tiers=(tier,))
    (line,), told = [summarize_tier(status, tier)], status_json(status)
    return {
        "headline": str(headline(status).status),
        "verdict": told["verdict"]["status"],
        "tier": line["tone"],
        "json": told["tiers"][0]["status"],
        "tile": str(tile(tier, "ttft_p99_seconds").state[0]),
        "rate": str(tile(tier, "completed_rps_per_replica").state[0]),
        "row": "".join(re.findall(r'sign (\w+)"><b aria-hidden="true">.</b> (?:likely, )?cascade', shown(tier))),
    }


def test_likely_finding_is_likely_on_every_surface() -> None:
    for observed in (None, 60.0):
        tier = replace(overloaded((Status.CRITICAL, LIKELY)), observed_seconds=observed)
        assert set(surfaces(tier).values()) == {"note"}
        status = agent_status(tiers=(tier,))
        line = summarize_tier(status, tier)
        assert (line["words"], line["certainty"], line["incidents"]) == ("likely: TTFT SLO burn", "likely", 0)
        assert headline(status).text == "1 tier with a likely finding"
        assert tile(tier, "ttft_p99_seconds").state == ("note", "likely: TTFT SLO burn")
        page = shown(tier)
        assert "critical" not in page
        assert "likely, cascade 4: user-visible" in page
        assert f"KV cache cascade on {tier.replicas[0].name}: " in page
        assert "as planned" not in page
        assert "learning" not in page
        assert numbers_text(tier).count(tier.active[0].verdict.sentence) == 3, "the first view names three findings"
        told = status_json(status)["tiers"][0]
        assert {one["severity"] for one in told["verdicts"] if one["rule"] == "TtftSloBurn"} == {"likely"}


@pytest.mark.parametrize("after", [(), ((Status.CRITICAL, LIKELY),)], ids=["certain", "likely again"])
def test_certain_finding_is_critical_until_its_end(after: tuple[Judged, ...]) -> None:
    tier = overloaded((Status.CRITICAL, LIKELY), (Status.CRITICAL, CERTAIN), *after)
    assert set(surfaces(tier).values()) == {"critical"}
    assert tile(tier, "ttft_p99_seconds").state == (Status.CRITICAL, "critical, certain")
    page = shown(tier)
    assert "as planned" not in page
    assert "likely" not in page
    told = status_json(agent_status(tiers=(tier,)))["tiers"][0]
    assert {one["severity"] for one in told["verdicts"] if not one["note"]} == {"critical, certain"}


def test_likely_critical_leaves_a_certain_warning() -> None:
    tier = overloaded((Status.WARNING, CERTAIN), (Status.CRITICAL, LIKELY))
    assert set(surfaces(tier).values()) == {"warning"}
    assert not re.search(r"critical(, certain)?</span>|(sign|incident|top) critical", shown(tier))


def test_ended_finding_is_planned_everywhere() -> None:
    for certainty in (CERTAIN, LIKELY):
        tier = overloaded((Status.CRITICAL, certainty), (Status.OK, CERTAIN))
        found = surfaces(tier)
        assert found.pop("row") == ""
        assert set(found.values()) == {"ok"}
        assert describe_state(tier).words == "as planned"


def test_likely_note_of_report_is_no_state() -> None:
    assert describe_state(overloaded((Status.WARNING, LIKELY))).words == "likely: TTFT SLO burn"
    for rule in ("UtilizationTrap", "KvCacheUnderused"):
        note = firing(rule, Status.CRITICAL, certainty=LIKELY)
        assert describe_state(fine_tier(TIER, results=(note,))).words == "as planned"


def test_likely_tier_stands_between_incident_and_calm() -> None:
    likely = replace(overloaded((Status.CRITICAL, LIKELY)), context=replace(fine_tier("z").context, name="z"))
    tiers = (fine_tier("a"), likely, overloaded((Status.WARNING, CERTAIN)))
    assert [one.name for one in worst_first(agent_status(tiers=tiers))] == [TIER, "z", "a"]


@pytest.mark.parametrize("certainty", [LIKELY, CERTAIN])
@pytest.mark.parametrize(
    "rule", ["TtftSloBurn", "QueueGrowing", "KvCacheCascade", "EngineStalled", "LoadBeyondBenchmark"]
)
def test_overload_leaves_no_number_as_planned(rule: str, certainty: Certainty) -> None:
    """KV use, hits and cost of an overloaded tier are those of the overload."""
    calm = fine_tier(TIER)
    planned = {one.row.key for one in compare_with_plan(calm) if one.state[1] == "as planned"}
    assert {"completed_rps_per_replica", "cost_per_million_tokens"} <= planned
    fired = fine_tier(TIER, results=(*calm.results, firing(rule, Status.WARNING, certainty=certainty)))
    assert "as planned" not in {one.state[1] for one in compare_with_plan(fired)}
    calmer = fine_tier(TIER, results=(*calm.results, firing("PrefixHitLow", Status.WARNING)))
    assert "as planned" in {one.state[1] for one in compare_with_plan(calmer)}


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if rule.signal in {row.key for row in ROWS} - {"e2e_p99_seconds"}],
    ids=lambda r: r.name,
)
def test_alerting_rule_colours_its_tile(rule: Any) -> None:
    tier = fine_tier(TIER)
    calm = (one for one in tier.results if one.rule != rule.name)
    fired = fine_tier(TIER, results=(*calm, firing(rule.name)))
    tone, words = tile(fired, rule.signal).state
    if rule.severity is Severity.REPORT:
        assert tone != Status.CRITICAL
    else:
        assert (tone, words) == (Status.CRITICAL, "critical, certain")


def test_number_beyond_objective_is_not_planned() -> None:
    tier = cascading_tier()
    quiet = replace(tier, findings=(), results=(firing("TtftDivergence", Status.OK, subject=Subject(tier=tier.name)),))
    assert tile(quiet, "ttft_p99_seconds").state == (Status.UNKNOWN, "beyond the SLO, no finding yet")


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (240.0, "learning, 4 of 180 min"),
        (LEARNING_SECONDS, "as planned"),
        (None, "as planned"),
    ],
)
def test_tier_learns_until_observed_long_enough(observed: float | None, words: str) -> None:
    tier = fine_tier("new", observed_seconds=observed)
    assert describe_state(tier).words == words
    assert (describe_state(tier).tone == "note") == words.startswith("learning")
    page = render_page(agent_status(tiers=(tier,))).decode()
    assert words in page
    found = status_json(agent_status(tiers=(tier,)))
    assert found["tiers"][0]["state"] == words
    assert headline(agent_status(tiers=(tier,))).status is (Status.OK if words == "as planned" else Status.UNKNOWN)
    assert describe_state(replace(planned_tier(), observed_seconds=observed)).words == "warning"


def test_overview_has_bound_beyond_largest_bucket() -> None:
    slow = {"ttft_seconds": (log_normal((0.5, math.inf), 100, 5.0, 0.1),)}
    tier = planned_tier()
    line = summarize_tier(agent_status(), replace(tier, recent=replace(tier.recent, histograms=slow)))
    assert line["ttft_p99_seconds"] == 0.5


def test_the_cost_is_coloured_by_the_plan() -> None:
    assert tile(planned_tier(), "cost_per_million_tokens").state == (Status.OK, "as planned")
    cost = tile(planned_tier(), "cost_per_million_tokens")
    assert isinstance(cost.now, Reading)
    dear = replace(cost.planned, value=(cost.now.low or 0.0) / 5)
    assert judge_number(cost.row, cost.now, dear, [], is_overloaded=False) == ("note", "5x the plan")


def test_large_fleet_has_folded_cards() -> None:
    page = render_page(fleet_status()).decode()
    assert page.count('<details class="tier') == 40
    assert page.count(" open id=") == 0
    assert page.count("<article") == 1
    assert page.index("<article") < page.index('<details class="tier critical')
    few = render_page(fleet_status(TIERS_OPEN)).decode()
    assert few.count(" open id=") == TIERS_OPEN
    paused = render_page(fleet_status(), paused=True).decode()
    assert len(re.findall(r"<details[^>]* open", paused)) == page.count("<details")


def test_command_prints_overview_of_the_json() -> None:
    told = json.loads(json.dumps(status_json(fleet_status()), allow_nan=False))
    check_golden(__file__, "overview.txt", overview_text(told))
    with pytest.raises(ValueError, match="no status of a sizewatch of this version"):
        overview_text({"schema": 1})


def with_results(*results: Any) -> TierStatus:
    return fine_tier("fine", results=results)


def unknown(rule: str, reason: Gap = Gap.TOO_FEW_REQUESTS, wait_seconds: float | None = None) -> Unknown:
    return Unknown(t=NOW, rule=rule, subject=Subject(tier="fine"), reason=reason, wait_seconds=wait_seconds)


def test_value_waits_for_its_slowest_rule() -> None:
    fine = firing("KvCacheCascade", Status.OK, subject=Subject(tier="fine", replica="a"))
    near = unknown("KvCacheNearCeiling", wait_seconds=120.0)
    assert tile(with_results(fine, near), "kv_utilization").state == (Status.UNKNOWN, "not judged yet, 2 min")
    assert tile(with_results(near), "kv_utilization").state == (Status.UNKNOWN, "not judged yet, 2 min")
    moment = unknown("KvCacheNearCeiling", wait_seconds=0.001)
    assert tile(with_results(moment), "kv_utilization").state == (Status.UNKNOWN, "not judged yet, 1 s")
    fires = firing("KvCacheCascade", Status.WARNING, subject=Subject(tier="fine", replica="a"))
    assert tile(with_results(fires, near), "kv_utilization").state == (Status.WARNING, "warning, certain")
    for reason in (Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED, Gap.OUTSIDE_BENCHMARK):
        held = tile(with_results(fine, unknown("KvCacheNearCeiling", reason)), "kv_utilization")
        assert held.state[0] is Status.OK, "waiting does not end it"


def test_tier_unseen_since_the_start_is_unknown() -> None:
    changes = {"last_seen": None, "up": False, "misses": 1, "gauges": {}}
    tier = fine_tier("fine")
    unseen = replace(tier, replicas=tuple(replace(replica, **changes) for replica in tier.replicas))
    assert (describe_state(tier).words, describe_state(unseen).words) == ("as planned", "no verdict yet")
    assert "<td>not exposed" not in shown(unseen)


@pytest.mark.parametrize("rule", ["UtilizationTrap", "QueueAlwaysEmpty"])
def test_certain_trap_is_oversized_without_alarm(rule: str) -> None:
    trap = firing(
        rule, Status.WARNING, subject=Subject(tier="fine"), sentence="Fleet utilisation is 11.0% over 7.0 days"
    )
    state = describe_state(with_results(trap))
    assert (state.tone, state.words) == ("note", "oversized: fleet utilisation is 11.0% over 7.0 days")
    status = agent_status(tiers=(with_results(trap),))
    assert (headline(status).status, headline(status).text) == (Status.OK, "1 tier oversized")
    assert all(finding.is_note for finding in status.tiers[0].active)
    (tier,) = status_json(status)["tiers"]
    assert (tier["status"], tier["state"]) == ("ok", state.words)
    needed = IdleReplicas(replicas=0.0, ready=2, needed=2, minimum_warm=0, cost_per_day=None, currency="")
    for changed in ({"certainty": Certainty.LIKELY}, {"rule": "GpuComputeLow"}, {"idle": needed}):
        assert describe_state(with_results(replace(trap, **changed))).words == "as planned", changed


@pytest.mark.parametrize(
    ("part", "name", "key"),
    [
        ("slo", "itl_p99_seconds", "itl_p99_seconds"),
        ("slo", "e2e_p99_seconds", "e2e_p99_seconds"),
        ("cost", "joules_per_generated_token", "energy_per_generated_token"),
    ],
)
def test_optional_number_needs_its_plan(part: str, name: str, key: str) -> None:
    tier = planned_tier()
    plan = tier.context.plan
    assert plan is not None
    for value in (None, 1e-9):
        parts = getattr(plan, part).model_copy(update={name: value})
        planned = replace(tier, context=replace(tier.context, plan=plan.model_copy(update={part: parts})))
        rows = {row.row.key: row for row in compare_with_plan(planned)}
        assert (key in rows) == (value is not None)
        assert list(rows)[:2] == ["ttft_p99_seconds", "tpot_p99_seconds"]
    found = rows[key].planned
    assert found.value == 1e-9


# ---- the forecast on the page and as metrics: one demand, one count on all surfaces ----


COLD = ColdStart(
    p95_seconds=140.0,
    source=LeadSource.MEASURED,
    sentence="23 starts timed from the request for the pod to Ready: P50 110 s, P95 140 s. It is the lead",
    timing=Timing.POD,
    known=(
        StartQuantiles(timing=Timing.POD, count=23, p50_seconds=110.0, p95_seconds=140.0, proven_seconds=140.0),
        StartQuantiles(timing=Timing.PROCESS, count=2, p50_seconds=60.0, p95_seconds=80.0, proven_seconds=80.0),
    ),
)


@pytest.fixture(scope="module")
def told() -> ForecastStatus:
    """As after an answer about four days."""
    asked = question(replica_hour=10.0, currency="USD", lead_source=COLD.sentence)
    result = TierForecast(asked, series(4 * DAY_MINUTES)).respond(asked)
    projection = replace(
        result.forecast.projection, covered=951, forecasts=1000, error_ratio=0.62, naive="same as now", compared=1000
    )
    return ForecastStatus(
        forecast=replace(result.forecast, projection=projection),
        prewarm=result.prewarm,
        cold_start=COLD,
        ready=3,
        now_rps=11.5,
        at_lead=ForecastPoint(t=FORECAST_NOW + 140.0, q50=12.0, q95=13.5, q99=14.5),
        for_now=ForecastPoint(t=FORECAST_NOW, q50=11.0, q95=12.5, q99=13.0),
        now_requests=8.5,
        requests_at_lead=ForecastPoint(t=FORECAST_NOW + 140.0, q50=9.0, q95=10.5, q99=11.5),
        requests_for_now=ForecastPoint(t=FORECAST_NOW, q50=8.0, q95=9.5, q99=10.0),
        minimum_warm=3,
    )


def status(forecast: ForecastStatus | None, **health: Any) -> AgentStatus:
    tier = replace(planned_tier(), forecast=forecast)
    return replace(agent_status(), now=FORECAST_NOW, tiers=(tier,), health=AgentHealth(**health))


def read_forecast(shown: AgentStatus) -> list[str]:
    """Lines of the page's section of the forecast, and the samples of the page of metrics about forecasts."""
    lines = PageReader(render_page(shown).decode()).lines
    section = lines[lines.index("Forecast") :] if "Forecast" in lines else []
    if section:
        section = section[: next(place for place, line in enumerate(section) if line.startswith("Replica "))]
    names = {metric.name for metric in OWN[OWN.index(RECOMMENDED) : OWN.index(REPORT_UP)]}
    for line in render(shown, "")[0].decode().splitlines():
        series, _, value = line.rpartition(" ")
        if re.split(r"[{ ]", line)[0] in names:
            section.append(f"{series} {float(value):.3g}")
    return section


def test_forecasts_read_as_the_golden(told: ForecastStatus) -> None:
    """What stands is shown and exported. What does not has no number; what the last week would have cost stays true."""
    withdrawn = replace(told.prewarm, recommendation=None, reason="nothing was seen of the tier for 10 minutes")
    health = ForecastHealth(runs=7, failures={"died": 2}, last_seconds=0.25, memory_bytes=180_000_000)
    statuses = {
        "valid": status(told, forecasting=health),
        "withdrawn recommendation": status(replace(told, prewarm=withdrawn, minimum_warm=None)),
        "planned cold start": status(
            replace(told, cold_start=replace(COLD, source=LeadSource.PLAN, timing=None, known=()))
        ),
        "outlived": status(
            ForecastStatus(
                prewarm=withdrawn,
                ready=told.ready,
                gap="the forecast of 12 min ago is outlived",
                trouble="the forecasting process died: killed by SIGKILL",
            )
        ),
        "no history": status(ForecastStatus(gap="not exposed: this agent keeps no history")),
        "none": status(None),
    }
    lines = []
    for name, shown in statuses.items():
        lines += [f"---- {name}", *read_forecast(shown)]
    check_golden(__file__, "forecast.txt", "\n".join(lines))
    assert status_json(statuses["outlived"])["tiers"][0]["forecast"]["recommended"] is None


MARGIN = Margin(target_utilization=0.9, survives_loss_from=4)


def decide(demand: float, usable: float) -> Recommendation:
    """The recommendation for what arrives now, as the forecaster makes it."""
    capacity = stated_capacity(usable, "stated")
    decision = Prewarmer(minimum=1, hold=1, margin=MARGIN).step(None, demand, capacity)
    counted = replica_count(demand, capacity, MARGIN, minimum=1)
    return Recommendation(
        made_at=FORECAST_NOW,
        zone="UTC",
        replicas=decision.replicas,
        decided_by=decision.decided_by,
        lead_seconds=120.0,
        lead_source="stated",
        certainty=0.99,
        quantile_rps=None,
        now_rps=demand,
        needed_now=decision.needed_now,
        minimum_warm=1,
        count=counted,
    )


@settings(max_examples=30, deadline=None)
@given(
    demand=st.floats(0.1, 500.0),
    usable=st.floats(0.5, 50.0),
    ready=st.integers(0, 40),
    is_burning=st.booleans(),
)
def test_every_surface_names_the_decided_count(demand: float, usable: float, ready: int, is_burning: bool) -> None:
    wanted = decide(demand, usable)
    report = Prewarm(tier="one", zone="UTC", recommendation=wanted)
    forecast = ForecastStatus(prewarm=report, ready=ready, is_burning=is_burning, now_rps=demand)
    shown = agent_status(tiers=(fine_tier("one", forecast=forecast),))
    # What `prewarm` prints is made of the history by the same method.
    printed = wanted.with_present(ready, is_burning=is_burning)
    needed = replica_count(demand, stated_capacity(usable, "stated"), MARGIN, minimum=1).replicas
    assert wanted.replicas == needed, "whatif and report count so"
    assert printed.replicas == (max(needed, ready) if is_burning else needed)
    page, told = render_page(shown).decode(), status_json(shown)
    (gauge,) = (
        line
        for line in render(shown, "")[0].decode().splitlines()
        if line.startswith("sizewatch_recommended_replicas{")
    )
    assert float(gauge.rpartition(" ")[2]) == printed.replicas
    assert told["overview"][0]["recommended"] == printed.replicas
    assert printed.sentence in overview_text(told)
    assert printed.sentence in page
    assert ("may go" in printed.sentence) == (ready > printed.replicas)


@given(
    demand=st.floats(0.0, 500.0),
    more=st.floats(0.0, 500.0),
    usable=st.floats(0.5, 50.0),
    ready=st.integers(0, 40),
    is_burning=st.booleans(),
)
def test_the_count_never_falls_when_demand_rises(
    demand: float, more: float, usable: float, ready: int, is_burning: bool
) -> None:
    less, higher = (
        decide(rps, usable).with_present(ready, is_burning=is_burning).replicas for rps in (demand, demand + more)
    )
    assert less <= higher
