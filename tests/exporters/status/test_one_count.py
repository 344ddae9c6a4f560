"""One demand, one count: table, gauge, JSON, page and `prewarm` name the replicas of one decision."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from status_samples import NOW, agent_status, fine_tier

from exporters.documents.forecast import Prewarm, Recommendation
from exporters.metrics import exposition
from exporters.status.page import render_page, status_json
from exporters.status.records import ForecastStatus
from exporters.status.tier_overview import overview_text
from forecast.capacity.prewarm import Prewarmer
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import Margin, replica_count

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
    status = agent_status(tiers=(fine_tier("one", forecast=forecast),))
    # What `prewarm` prints is made of the history by the same method.
    printed = wanted.with_present(ready, is_burning=is_burning)
    needed = replica_count(demand, stated_capacity(usable, "stated"), MARGIN, minimum=1).replicas
    assert wanted.replicas == needed, "whatif and report count so"
    assert printed.replicas == (max(needed, ready) if is_burning else needed)
    page, told = render_page(status).decode(), status_json(status)
    (gauge,) = (
        line
        for line in exposition.render(status, "text/plain")[0].decode().splitlines()
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
