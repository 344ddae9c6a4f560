"""The forecast on the status page and as metrics: what stands is shown, what does not has no number.

One demand, one count: table, gauge, JSON, page and `prewarm` name the replicas of one decision.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from forecast_samples import DAY_MINUTES, NOW, question, series
from golden_text import check_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reader import PageReader
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
    assert told.prewarm is not None
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
