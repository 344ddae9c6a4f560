"""The forecast on the status page and as metrics: what stands is shown, what does not has no number.

One demand, one count: table, gauge, JSON, page and `prewarm` name the replicas of one decision.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from forecast_samples import DAY_MINUTES, NOW, question, series
from hypothesis import given, settings
from hypothesis import strategies as st
from status_samples import agent_status, fine_tier, planned_tier

from agent.forecasting.tier_forecast import TierForecast
from exporters.documents.forecast import Prewarm, Recommendation
from exporters.metrics.exposition import render
from exporters.metrics.names import OWN, RECOMMENDED, REPORT_UP
from exporters.status.page import render_page, status_json
from exporters.status.records import AgentHealth, AgentStatus, ForecastHealth, ForecastStatus
from exporters.status.tier_overview import overview_text
from forecast.capacity.cold_start import ColdStart, LeadSource
from forecast.capacity.prewarm import Prewarmer
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import Margin, replica_count
from rules.replicas.starts import StartQuantiles, Timing
from rules.verdicts.context import ForecastPoint

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
    assert result.forecast is not None
    projection = replace(
        result.forecast.projection, covered=951, forecasts=1000, error_ratio=0.62, naive="same as now", compared=1000
    )
    return ForecastStatus(
        forecast=replace(result.forecast, projection=projection),
        prewarm=result.prewarm,
        cold_start=COLD,
        ready=3,
        now_rps=11.5,
        at_lead=ForecastPoint(t=NOW + 140.0, q50=12.0, q95=13.5, q99=14.5),
        for_now=ForecastPoint(t=NOW, q50=11.0, q95=12.5, q99=13.0),
        now_requests=8.5,
        requests_at_lead=ForecastPoint(t=NOW + 140.0, q50=9.0, q95=10.5, q99=11.5),
        requests_for_now=ForecastPoint(t=NOW, q50=8.0, q95=9.5, q99=10.0),
        minimum_warm=3,
    )


def status(forecast: ForecastStatus | None, **health: Any) -> AgentStatus:
    tier = replace(planned_tier(), forecast=forecast)
    return replace(agent_status(), now=NOW, tiers=(tier,), health=AgentHealth(**health))


def text(shown: AgentStatus) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", render_page(shown).decode())))


WORTH = {"sizewatch_prewarm_replica_seconds", "sizewatch_prewarm_violation_seconds"}


def samples(shown: AgentStatus) -> dict[str, float]:
    """What the page of metrics says of forecasts, by series."""
    names = {metric.name for metric in OWN[OWN.index(RECOMMENDED) : OWN.index(REPORT_UP)]}
    lines = [line for line in render(shown, "")[0].decode().splitlines() if re.split(r"[{ ]", line)[0] in names]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_section_states_decision_and_reasons(told: ForecastStatus) -> None:
    page = text(status(told))
    recommended = told.recommended
    assert recommended is not None
    assert re.search(r"Demand now 11.5 rps, 12 rps at \d\d:\d\d UTC \(95 % up to 13.5 rps\)", page)
    assert "95.1% of 1000 past targets at or below their 95% quantile" in page
    assert "error 0.62 of same as now over 1000 targets" in page
    assert f"Cold start: {COLD.sentence}." in page
    assert told.prewarm is not None
    assert told.prewarm.worth is not None
    assert told.prewarm.worth.sentence in page
    assert "ecommended by" not in page
    decision = told.decision
    assert decision is not None
    assert f"{decision.sentence}. Lead: {COLD.sentence}." in page
    assert f"start {recommended - 3} now" in page
    (line,) = status_json(status(told))["overview"]
    assert (line["recommended"], line["decision"]) == (recommended, decision.sentence)
    assert f"{line['tier']}: {decision.sentence}" in overview_text(status_json(status(told)))


def test_missing_forecast_is_no_zero(told: ForecastStatus) -> None:
    assert told.prewarm is not None
    gone = ForecastStatus(
        prewarm=replace(told.prewarm, recommendation=None, reason="nothing was seen of the tier for 10 minutes"),
        ready=told.ready,
        gap="the forecast of 12 min ago is outlived",
        trouble="the forecasting process died: killed by SIGKILL",
    )
    page = text(status(gone))
    assert "No replica count: nothing was seen of the tier for 10 minutes." in page
    assert "Demand now" not in page
    assert "Cold start" not in page.partition("Forecast")[2].partition("Replica ")[0]
    assert "No newer forecast: the forecasting process died: killed by SIGKILL." in page
    # What the last week would have cost is as true as before.
    assert {name.partition("{")[0] for name in samples(status(gone))} == WORTH
    assert status_json(status(gone))["tiers"][0]["forecast"]["recommended"] is None


def test_absent_forecast_has_one_line() -> None:
    page = text(status(ForecastStatus(gap="not exposed: this agent keeps no history")))
    assert "No replica count: not exposed: this agent keeps no history." in page
    assert "Demand now" not in page
    assert "No replica count" not in text(status(None))


def test_valid_forecast_has_its_gauges(told: ForecastStatus) -> None:
    health = ForecastHealth(runs=7, failures={"died": 2}, last_seconds=0.25, memory_bytes=180_000_000)
    found = samples(status(told, forecasting=health))
    tier = 'tier="h100-llama70b-fp8"'
    assert told.forecast is not None
    assert told.recommended is not None
    assert told.prewarm is not None
    assert told.prewarm.worth is not None
    expected = {
        f"sizewatch_recommended_replicas{{{tier}}}": float(told.recommended),
        f"sizewatch_minimum_warm_replicas{{{tier}}}": 3.0,
        f'sizewatch_forecast_requests_per_second{{quantile="0.5",{tier}}}': 9.0,
        f'sizewatch_forecast_requests_per_second{{quantile="0.95",{tier}}}': 10.5,
        f'sizewatch_forecast_requests_per_second{{quantile="0.99",{tier}}}': 11.5,
        f'sizewatch_forecast_for_now_requests_per_second{{quantile="0.5",{tier}}}': 8.0,
        f'sizewatch_forecast_work_per_second{{quantile="0.5",{tier}}}': 12.0,
        f"sizewatch_demand_work_per_second{{{tier}}}": 11.5,
        f"sizewatch_forecast_lead_seconds{{{tier}}}": 140.0,
        f"sizewatch_forecast_coverage_ratio{{{tier}}}": 0.951,
        f"sizewatch_forecast_error_ratio{{{tier}}}": 0.62,
        f'sizewatch_cold_start_measured_seconds{{quantile="0.5",{tier},timing="pod"}}': 110.0,
        f'sizewatch_cold_start_measured_seconds{{quantile="0.95",{tier},timing="pod"}}': 140.0,
        f'sizewatch_cold_start_measured_seconds{{quantile="0.95",{tier},timing="process"}}': 80.0,
        f'sizewatch_cold_starts_measured{{{tier},timing="pod"}}': 23.0,
        f'sizewatch_cold_starts_measured{{{tier},timing="process"}}': 2.0,
        **{
            f'sizewatch_prewarm_{what}{{strategy="{one.name}",{tier}}}': seconds
            for one in told.prewarm.worth.strategies
            for what, seconds in (
                ("replica_seconds", 3600.0 * one.replica_hours),
                ("violation_seconds", 60.0 * one.violation_minutes),
            )
        },
        'sizewatch_forecast_failures_total{kind="died"}': 2.0,
    }
    assert expected.items() <= found.items()
    weights = [value for name, value in found.items() if name.startswith("sizewatch_forecast_weight")]
    assert sum(weights) == pytest.approx(1.0)


def test_withdrawn_recommendation_removes_its_gauge(told: ForecastStatus) -> None:
    assert told.prewarm is not None
    outlived = replace(told, prewarm=replace(told.prewarm, recommendation=None), minimum_warm=None)
    found = samples(status(outlived))
    assert not [name for name in found if "replicas" in name]
    assert [name for name in found if "forecast_requests" in name]


def test_planned_cold_start_is_no_measurement(told: ForecastStatus) -> None:
    planned = replace(COLD, source=LeadSource.PLAN, timing=None, known=())
    found = samples(status(replace(told, cold_start=planned)))
    assert not [name for name in found if "cold_start_measured" in name]


MARGIN = Margin(target_utilization=0.9, survives_loss_from=4)


def decide(demand: float, usable: float) -> Recommendation:
    """The recommendation for what arrives now, as the forecaster makes it."""
    capacity = stated_capacity(usable, "stated")
    decision = Prewarmer(minimum=1, hold=1, margin=MARGIN).step(None, demand, capacity)
    counted = replica_count(demand, capacity, MARGIN, minimum=1)
    return Recommendation(
        made_at=NOW,
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
