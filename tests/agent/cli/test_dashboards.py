"""Dashboards as Grafana takes them: layout, ids, units, words, limits, variables, links; and the files made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from panels import list_panels

from exporters.grafana import plan_panels
from exporters.grafana.dashboard_json import COLUMNS, dashboard_json
from exporters.grafana.files import DASHBOARDS
from exporters.grafana.queries import COST_UID, FORECAST_UID, REPLICA_UID, TIER_UID, TIERS
from exporters.grafana.records import MONEY, Dashboard, Panel, PanelType, ThresholdStep
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Severity

MODELS: dict[str, dict[str, Any]] = {one.uid: dashboard_json(one) for one in DASHBOARDS}
EVERY = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)

OWN_STEPS = {0.0, 1.0, 2.0, 3.0, 4.0, 120.0}
"""Limits that no rule has: states, promises (a share of 1), counts of what should not be, the age of a turn."""


def panels(dashboard: Dashboard) -> Iterator[Panel]:
    return (panel for section in dashboard.sections for panel in section.panels)


def drawn(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [one for one in list_panels(MODELS[dashboard.uid]) if one["type"] != "row"]


def steps(panel: Panel) -> Iterator[ThresholdStep]:
    yield from panel.steps
    for query in panel.queries:
        yield from query.steps


def test_the_six_dashboards_have_their_uids_for_good() -> None:
    """Links, alerts and bookmarks hold them: a change here breaks other people's."""
    assert list(MODELS) == [
        "sizewatch-fleet",
        "sizewatch-tier",
        "sizewatch-replica",
        "sizewatch-cost",
        "sizewatch-forecast",
        "sizewatch-itself",
    ]
    assert all(len(uid) <= 40 for uid in MODELS)


@EVERY
def test_ids_are_unique_and_no_panel_lies_on_another_or_beside_the_grid(dashboard: Dashboard) -> None:
    model = MODELS[dashboard.uid]
    everything = list_panels(model)
    assert len({one["id"] for one in everything}) == len(everything)
    # A folded row has a place of its own for its panels: what follows moves down when it is opened.
    for group in (model["panels"], *(one["panels"] for one in model["panels"] if one.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for one in group:
            place = one["gridPos"]
            assert place["x"] + place["w"] <= COLUMNS
            cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, one["title"]
            taken |= cells


def test_what_an_operator_reads_of_a_tier_is_open_and_the_rest_loads_when_asked_for() -> None:
    rows = [one for one in MODELS["sizewatch-tier"]["panels"] if one["type"] == "row"]
    assert all(one["collapsed"] is bool(one["panels"]) for one in rows)
    assert [one["title"] for one in rows if not one["collapsed"]] == [
        "Now",
        "Requests: rate, errors, duration",
        "Saturation and the KV cache",
        "Lengths",
    ]
    assert len([one for one in MODELS["sizewatch-tier"]["panels"] if one["type"] != "row"]) == 20


@EVERY
def test_money_has_the_unit_of_its_currency_wherever_it_is_drawn(dashboard: Dashboard) -> None:
    for panel, model in zip(panels(dashboard), drawn(dashboard), strict=True):
        overrides = model["fieldConfig"]["overrides"]
        units = {
            one["matcher"]["options"]: one["properties"][0]["value"]
            for one in overrides
            if one["matcher"]["id"] == "byRegexp"
        }
        if panel.unit == MONEY:
            assert units["/\\bUSD$/"] == "currencyUSD"
            assert all(query.legend.endswith("{{currency}}") for query in panel.queries), panel.title
        else:
            assert units == {}
        if any(query.unit == MONEY for query in panel.queries):
            assert ("currency", "Currency") in panel.rows


@EVERY
def test_every_panel_has_title_unit_and_description_and_every_query_a_legend(dashboard: Dashboard) -> None:
    for panel, model in zip(panels(dashboard), drawn(dashboard), strict=True):
        assert model["title"]
        assert len(model["description"]) > 20, panel.title
        assert model["description"].split("\n\n")[0].endswith("."), panel.title
        assert model["fieldConfig"]["defaults"]["unit"], panel.title
        assert all(query.legend and query.unit for query in panel.queries), panel.title
        assert len({query.legend for query in panel.queries}) == len(panel.queries), panel.title


@EVERY
def test_no_title_stands_twice_in_a_dashboard(dashboard: Dashboard) -> None:
    titles = [panel.title for panel in panels(dashboard)]
    assert sorted(titles) == sorted(set(titles))


@EVERY
def test_the_schema_is_one_that_every_grafana_from_10_on_takes(dashboard: Dashboard) -> None:
    model = MODELS[dashboard.uid]
    assert 39 <= model["schemaVersion"] <= 42
    assert (model["uid"], model["tags"], model["timezone"]) == (dashboard.uid, ["sizewatch"], "utc")
    assert "id" not in model


@EVERY
def test_a_query_asks_the_chosen_data_source_and_rates_use_its_window(dashboard: Dashboard) -> None:
    text = json.dumps(MODELS[dashboard.uid])
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {dashboard.uid, "${datasource}"}
    assert MODELS[dashboard.uid]["templating"]["list"][0]["type"] == "datasource"
    for panel in panels(dashboard):
        for query in panel.queries:
            assert set(re.findall(r"\[([^\]]+)\]", query.expr)) <= {"$__rate_interval"}, panel.title
            assert ("rate(" in query.expr or "increase(" in query.expr) == ("[" in query.expr)


def test_variables_narrow_from_cluster_and_model_to_tier_and_replica() -> None:
    named = {uid: [one["name"] for one in model["templating"]["list"]] for uid, model in MODELS.items()}
    assert named[REPLICA_UID] == ["datasource", "cluster", "model", "tier", "replica"]
    assert named[TIER_UID] == named[COST_UID] == named[FORECAST_UID] == ["datasource", "cluster", "model", "tier"]
    for uid, model in MODELS.items():
        for place, one in enumerate(model["templating"]["list"][1:]):
            used = set(re.findall(r"\$(\w+)", one["query"]["query"]))
            assert used <= set(named[uid][1 : place + 1]), one["name"]
            # All of a label that nobody may have must match what has none.
            assert one["name"] not in ("cluster", "model", "replica", "instance") or one["allValue"] == ".*"
            assert one["refresh"] == 2


@EVERY
def test_every_variable_that_a_dashboard_uses_is_one_of_its_own_or_grafanas(dashboard: Dashboard) -> None:
    own = {one["name"] for one in MODELS[dashboard.uid]["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(MODELS[dashboard.uid]["panels"])))
    assert used <= own | {"__rate_interval", "__data", "__url_time_range"}


@EVERY
def test_limits_are_the_catalogues(dashboard: Dashboard) -> None:
    """A limit that is written down anew somewhere would not follow a change of the catalogue."""
    for panel in panels(dashboard):
        for step in steps(panel):
            if step.rule:
                assert step.value == BY_NAME[step.rule].thresholds[step.key].value
            else:
                assert step.value is None or step.value in OWN_STEPS, panel.title


@EVERY
def test_limits_reach_grafana_in_order_and_the_description_names_their_rules(dashboard: Dashboard) -> None:
    for panel, model in zip(panels(dashboard), drawn(dashboard), strict=True):
        given = model["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert given == [{"value": step.value, "color": step.colour} for step in panel.steps]
        values = [one["value"] for one in given]
        assert values[0] is None
        assert values[1:] == sorted(values[1:]), panel.title
        for step in panel.steps:
            assert not step.rule or f"{step.rule} {step.key.replace('_', ' ')} {step.value:g}" in model["description"]


def test_some_limits_are_drawn() -> None:
    """The tests above would hold for dashboards without any."""
    rules = {step.rule for dashboard in DASHBOARDS for panel in panels(dashboard) for step in steps(panel)}
    assert {"KvEviction", "KvCacheNearCeiling", "UtilizationTrap", "ForecastDegraded", "GpuMemoryLow"} <= rules


@EVERY
def test_what_a_line_is_filled_down_to_is_another_line_of_the_panel(dashboard: Dashboard) -> None:
    bands = 0
    for panel in panels(dashboard):
        for query in panel.queries:
            bands += bool(query.down_to)
            assert not query.down_to or query.down_to in {other.legend for other in panel.queries}
    assert bands or dashboard.uid not in (TIER_UID, FORECAST_UID)


@EVERY
def test_links_lead_to_dashboards_that_exist_and_to_columns_that_are_there(dashboard: Dashboard) -> None:
    (link,) = MODELS[dashboard.uid]["links"]
    assert (link["tags"], link["includeVars"], link["keepTime"]) == (["sizewatch"], True, True)
    for panel in panels(dashboard):
        columns = {title for _, title in panel.rows} | {query.legend for query in panel.queries}
        for title, _, address in panel.links:
            assert title in columns
            assert address.startswith("https://") or address.split("/d/")[1].partition("?")[0] in MODELS
            assert set(re.findall(r"__data\.fields\.(\w+)", address)) <= columns


@EVERY
def test_a_tables_columns_have_their_titles_and_looks(dashboard: Dashboard) -> None:
    for panel, model in zip(panels(dashboard), drawn(dashboard), strict=True):
        if panel.kind is not PanelType.TABLE:
            continue
        merge, organize = model["transformations"]
        renamed = organize["options"]["renameByName"]
        assert merge["id"] == "merge"
        assert [renamed[f"Value #{target['refId']}"] for target in model["targets"]] == [
            q.legend for q in panel.queries
        ]
        assert {one["matcher"]["options"] for one in model["fieldConfig"]["overrides"]} <= set(renamed.values())
        assert all(target["instant"] and target["format"] == "table" for target in model["targets"])


def test_marks_are_incidents_and_restarts_on_all_dashboards_about_tiers() -> None:
    for uid, model in MODELS.items():
        marks = {one["name"]: one["expr"] for one in model["annotations"]["list"]}
        assert list(marks) == (
            [] if uid == "sizewatch-itself" else ["Incidents: page", "Incidents: ticket", "Restarts"]
        )
        for severity in ("page", "ticket"):
            assert uid == "sizewatch-itself" or f'loudness="{severity}"' in marks[f"Incidents: {severity}"]


def test_findings_for_the_report_colour_no_tier_and_are_not_counted() -> None:
    notes = {rule.name for rule in RULES if rule.loudness is Severity.REPORT}
    (left_out,) = re.findall(r'sizewatch_verdict\{[^}]*rule!~"([^"]*)"', plan_panels.worst_verdict(TIERS))
    assert set(left_out.split("|")) == notes
    assert 'loudness!="report"' in plan_panels.incident_count(TIERS)
