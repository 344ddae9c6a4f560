"""The forecast on the status page and as metrics: what stands is shown, what does not has no number."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from forecast_samples import DAY_MINUTES, NOW, question, series
from status_samples import agent_status, planned_tier

from agent.forecasting.tier_forecast import TierForecast
from exporters.metrics.exposition import render
from exporters.metrics.self_metrics import OWN, RECOMMENDED, REPORT_UP
from exporters.status.page import render_page
from exporters.status.records import AgentHealth, AgentStatus, ForecastHealth, ForecastStatus
from exporters.status.status_json import status_json
from exporters.status.tier_overview import overview_text
from forecast.capacity.cold_start import ColdStart, LeadSource
from rules.confidence import Certainty
from rules.replicas.starts import StartQuantiles, Timing
from rules.verdicts.projection import ForecastPoint
from rules.verdicts.verdict import Status, Verdict

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


def test_the_section_says_what_is_wanted_and_why(told: ForecastStatus) -> None:
    page = text(status(told))
    recommended = told.recommended
    assert recommended is not None
    assert "Demand now 11.5 rps work of 8.5 rps; forecast one lead ago 11 rps, 95 % up to 12.5 rps" in page
    assert "Forecast in 140 s 12 rps 95 % up to 13.5 rps, 99 % up to 14.5 rps" in page
    assert f"Replicas recommended {recommended} 3 ready, 3 minimum warm, start {recommended - 3} now" in page
    assert "Cold start P95 140 s from the request to Ready, 23 starts known" in page
    assert "Within the 95 % quantile 95.1% 95.1% of 1000 past targets at or below their 95% quantile" in page
    assert "Error / naive error 0.62 0.62 of same as now over 1000 targets" in page
    assert f"Lead: {COLD.sentence}." in page
    assert "by sizewatch (" in page
    assert told.prewarm is not None
    assert told.prewarm.worth is not None
    assert told.prewarm.worth.sentence in page
    assert "ecommended by" not in page
    decision = told.decision
    assert decision is not None
    assert f"{decision.sentence}. Lead: {COLD.sentence}." in page
    (line,) = status_json(status(told))["overview"]
    assert (line["recommended"], line["decision"]) == (recommended, decision.sentence)
    assert f"{line['tier']}: {decision.sentence}" in overview_text(status_json(status(told)))
    assert re.search(
        r"Warm from \(replicas\), UTC, until \d\d:\d\d tomorrow, enough with 99% certainty: \d\d:\d\d \d+", page
    )


def judged(told: ForecastStatus, error_ratio: float, covered: int) -> str:
    """The page while `ForecastDegraded` fires for such a forecast."""
    assert told.forecast is not None
    made = replace(told.forecast.projection, error_ratio=error_ratio, covered=covered, forecasts=1000)
    shown = status(replace(told, forecast=replace(told.forecast, projection=made)))
    fired = next(one for one in shown.tiers[0].results if isinstance(one, Verdict))
    bad = replace(fired, rule="ForecastDegraded", status=Status.WARNING, certainty=Certainty.LIKELY)
    return text(replace(shown, tiers=(replace(shown.tiers[0], results=(bad,)),)))


def test_the_verdict_on_a_forecast_stands_at_the_number_that_misses_its_limit(told: ForecastStatus) -> None:
    warned = "◆ likely: Forecast accuracy degraded"
    page = judged(told, 1.13, 976)
    assert "at or below their 95% quantile ✓ holds" in page
    assert f"1.13 of same as now over 1000 targets; the naive method was as good {warned}" in page
    page = judged(told, 0.62, 500)
    assert f"at or below their 95% quantile {warned}" in page
    assert f"of same as now over 1000 targets {warned}" not in page


def test_what_is_missing_is_said_and_not_shown_as_zero(told: ForecastStatus) -> None:
    assert told.prewarm is not None
    gone = replace(
        told,
        forecast=None,
        prewarm=replace(told.prewarm, recommendation=None, reason="nothing was seen of the tier for 10 minutes"),
        cold_start=None,
        now_rps=None,
        at_lead=None,
        for_now=None,
        now_requests=None,
        requests_at_lead=None,
        requests_for_now=None,
        minimum_warm=None,
        gap="the forecast of 12 min ago is outlived",
        trouble="the forecasting process died: killed by SIGKILL",
    )
    page = text(status(gone))
    assert "Demand now not known" in page
    assert "Forecast none the forecast of 12 min ago is outlived" in page
    assert "Replicas recommended none nothing was seen of the tier for 10 minutes; 3 ready" in page
    assert "Cold start P95 not known no start was seen, and the plan has no cold_start_seconds" in page
    assert "No newer forecast: the forecasting process died: killed by SIGKILL." in page
    # What the last week would have cost is as true as before.
    assert {name.partition("{")[0] for name in samples(status(gone))} == WORTH
    assert status_json(status(gone))["tiers"][0]["forecast"]["recommended_replicas"] is None


def test_where_nothing_is_forecast_one_line_says_why() -> None:
    page = text(status(ForecastStatus(gap="not exposed: this agent keeps no history")))
    assert "Forecast: not exposed: this agent keeps no history" in page
    assert "Replicas recommended" not in page
    assert "Forecast:" not in text(status(None))


def test_the_gauges_are_there_while_the_forecast_stands(told: ForecastStatus) -> None:
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


def test_a_recommendation_that_is_withdrawn_takes_its_gauge_with_it(told: ForecastStatus) -> None:
    assert told.prewarm is not None
    outlived = replace(told, prewarm=replace(told.prewarm, recommendation=None), minimum_warm=None)
    found = samples(status(outlived))
    assert not [name for name in found if "replicas" in name]
    assert [name for name in found if "forecast_requests" in name]


def test_a_cold_start_that_only_the_plan_knows_is_no_measurement(told: ForecastStatus) -> None:
    planned = replace(COLD, source=LeadSource.PLAN, timing=None, known=())
    found = samples(status(replace(told, cold_start=planned)))
    assert not [name for name in found if "cold_start_measured" in name]
    assert "Cold start, planned 140 s the plan's, no start seen" in text(status(replace(told, cold_start=planned)))


def test_the_tile_says_which_quantile_and_which_part_it_is_of(told: ForecastStatus) -> None:
    few = replace(COLD, p95_seconds=80.0, source=LeadSource.PARTLY, timing=Timing.PROCESS)
    page = text(status(replace(told, cold_start=few)))
    assert "Cold start slowest 80 s at least, measured in part, 2 starts known" in page


def test_trouble_with_forecasts_is_a_notice_of_the_page(told: ForecastStatus) -> None:
    page = text(status(told, forecasting=ForecastHealth(troubles=("h100: the forecast failed: MemoryError",))))
    assert "No new forecast of h100: the forecast failed: MemoryError" in page
