"""The dashboards, in the order in which they are read.

A new dashboard is a module of its own and a row here.
"""

from __future__ import annotations

from exporters.grafana.cost_dashboard import COST
from exporters.grafana.fleet_dashboard import FLEET
from exporters.grafana.forecast_dashboard import FORECAST
from exporters.grafana.records import Dashboard
from exporters.grafana.replica_dashboard import REPLICA_DASHBOARD
from exporters.grafana.self_monitoring_dashboard import ITSELF
from exporters.grafana.tier_dashboard import TIER

DASHBOARDS: tuple[Dashboard, ...] = (FLEET, TIER, REPLICA_DASHBOARD, COST, FORECAST, ITSELF)
