"""The dashboard Forecast and pre-warming: what is expected for a tier, how good that was, what should be started.

Owns the order of its panels. Another panel is a function of `forecast_panels` and an entry here.
"""

from __future__ import annotations

from exporters.grafana import forecast_panels as panels
from exporters.grafana import plan_panels
from exporters.grafana.queries import TIER as W
from exporters.grafana.records import Dashboard, Section
from exporters.grafana.templating import ABOUT_A_TIER, FORECAST_UID, marks

FORECAST = Dashboard(
    uid=FORECAST_UID,
    title="sizewatch: Forecast and pre-warming",
    description="What demand is expected at the end of a cold start, was it right before, and how many replicas that asks for.",
    since="2d",
    variables=ABOUT_A_TIER,
    marks=marks(W),
    sections=(
        Section(title="Ahead", panels=(panels.demand(W, 24), panels.replicas(W), plan_panels.load(W))),
        Section(
            title="Was it right",
            panels=(panels.demand_comparison(W), panels.coverage(W), panels.error(W), panels.weights(W), panels.age(W)),
        ),
        Section(title="How long a replica takes", panels=(panels.lead(W), panels.starts(W))),
        Section(title="What it was worth", panels=(panels.worth(W), panels.short_of_capacity(W))),
    ),
)
