"""The dashboards, in the order in which they are read.

A new dashboard is a module of its own and a row here.
"""

from __future__ import annotations

from exporters.dashboards.cost import COST
from exporters.dashboards.fleet import FLEET
from exporters.dashboards.forecast import FORECAST
from exporters.dashboards.itself import ITSELF
from exporters.dashboards.panels import Dashboard
from exporters.dashboards.replica import REPLICA_DASHBOARD
from exporters.dashboards.tier import TIER

DASHBOARDS: tuple[Dashboard, ...] = (FLEET, TIER, REPLICA_DASHBOARD, COST, FORECAST, ITSELF)
