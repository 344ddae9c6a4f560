"""The dashboards through Grafana's own models and back: a misspelt key would be dropped there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from exporters.grafana.dashboards import DASHBOARDS, dashboard_json

WHY = "grafana-foundation-sdk 0.0.21 is not installed: that Grafana's models keep every key was NOT checked"
# The classic schema is what every Grafana from 10 on takes; the models recommend the next one.
pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")

sdk = pytest.importorskip("grafana_foundation_sdk", reason=WHY)


def dropped(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """What was lost or changed on the way; that defaults were added is well."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from dropped(value, theirs[key], f"{place}/{key}") if key in theirs else [f"{place}/{key}: dropped"]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for n, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from dropped(one, other, f"{place}/{n}")
    elif ours != theirs:
        yield f"{place}: {ours!r} became {theirs!r}"


def round_trip(model: dict[str, Any]) -> Any:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(model)))))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_nothing_is_dropped_or_changed(dashboard: Any) -> None:
    model = dashboard_json(dashboard)
    assert list(dropped(model, round_trip(model))) == []


def test_a_misspelt_key_would_be_found() -> None:
    model = dashboard_json(DASHBOARDS[0])
    panel = next(one for one in model["panels"] if one["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["unti"] = panel["fieldConfig"]["defaults"].pop("unit")
    assert any("unti: dropped" in one for one in dropped(model, round_trip(model)))
