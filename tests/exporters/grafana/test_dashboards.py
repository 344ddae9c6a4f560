"""Dashboards as Grafana takes them: layout, ids, units, words, limits, variables, links; and the files made of them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from paths import ROOT
from promql import list_panels
from pydantic import ValidationError

from exporters.docs.reference_pages import ARTEFACTS
from exporters.grafana.dashboards import (
    CERTAIN_VERDICTS,
    COLUMNS,
    DASHBOARDS,
    FILES,
    INCIDENT_COUNT,
    LOOKS,
    Dashboard,
    dashboard_json,
    promql_of,
)
from exporters.report.guide_tables import QUESTIONS
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Severity

DOCS = ROOT / "docs" / "dashboards.md"
MODELS: dict[str, dict[str, Any]] = {dashboard.uid: dashboard_json(dashboard) for dashboard in DASHBOARDS}
WHY = "grafana-foundation-sdk 0.0.21 is not installed: that Grafana's models keep every key was NOT checked"
# The classic schema is what every Grafana from 10 on takes; the models recommend the next one.
classic = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2")
EVERY = pytest.mark.parametrize("uid", MODELS)


def drawn(uid: str) -> list[dict[str, Any]]:
    return [panel for panel in list_panels(MODELS[uid]) if panel["type"] != "row"]


def test_uids_stay_and_panels_are_few() -> None:
    """Links, alerts and bookmarks hold the uids: a change here breaks other people's."""
    assert list(MODELS) == ["sizewatch-fleet", "sizewatch-tier", "sizewatch-forecast", "sizewatch-itself"]
    titles = [panel["title"] for uid in MODELS for panel in drawn(uid)]
    assert len(titles) == len(set(titles)) <= 80


@EVERY
def test_ids_are_unique_and_panels_apart(uid: str) -> None:
    panels = list_panels(MODELS[uid])
    assert len({panel["id"] for panel in panels}) == len(panels)
    # A folded row has a place of its own for its panels: what follows moves down when it is opened.
    for group in (MODELS[uid]["panels"], *(row["panels"] for row in MODELS[uid]["panels"] if row.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in group:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= COLUMNS
            cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells


def test_rows_for_operators_are_open() -> None:
    rows = [panel for panel in MODELS["sizewatch-tier"]["panels"] if panel["type"] == "row"]
    assert all(row["collapsed"] is bool(row["panels"]) for row in rows)
    assert [row["title"] for row in rows if not row["collapsed"]] == [
        "Now",
        "Requests: rate, errors, duration",
        "Saturation and lengths",
    ]


@EVERY
def test_panels_have_words_legends_and_currency(uid: str) -> None:
    for panel in drawn(uid):
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert panel["description"].split("\n\n")[0].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        if panel["type"] != "table":
            assert len(set(legends)) == len(legends), panel["title"]
            assert all(legends), panel["title"]
        if panel["type"] != "table" and panel["fieldConfig"]["defaults"]["unit"] == "locale":
            assert all(legend.endswith("{{currency}}") for legend in legends), panel["title"]


@EVERY
def test_grafana_from_10_takes_the_model(uid: str) -> None:
    """Import asks for nothing, provisioning fills nothing in: the data source is a variable, the database id is Grafana's."""
    model = MODELS[uid]
    assert 39 <= model["schemaVersion"] <= 42
    assert (model["uid"], model["tags"], model["timezone"]) == (uid, ["sizewatch"], "utc")
    assert {"id", "__inputs", "__requires", "__elements"} & set(model) == set()
    assert model["templating"]["list"][0]["type"] == "datasource"
    assert set(re.findall(r'"uid": "([^"]+)"', json.dumps(model))) == {uid, "${datasource}"}
    for panel in drawn(uid):
        for target in panel["targets"]:
            assert set(re.findall(r"\[([^\]]+)\]", target["expr"])) <= {"$__rate_interval"}, panel["title"]


def test_variables_narrow_from_cluster_to_replica() -> None:
    named = {uid: [each["name"] for each in model["templating"]["list"]] for uid, model in MODELS.items()}
    assert named["sizewatch-tier"] == ["datasource", "cluster", "model", "tier", "replica"]
    assert named["sizewatch-fleet"] == named["sizewatch-forecast"] == ["datasource", "cluster", "model", "tier"]
    for uid, model in MODELS.items():
        for place, variable in enumerate(model["templating"]["list"][1:]):
            assert set(re.findall(r"\$(\w+)", variable["query"]["query"])) <= set(named[uid][1 : place + 1])
            # All of a label that nobody may have must match what has none.
            assert variable["name"] == "tier" or variable["allValue"] == ".*"
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(model["panels"])))
        assert used <= {*named[uid], "__rate_interval", "__data", "__url_time_range"}


@pytest.mark.parametrize("name", [name for name, look in LOOKS.items() if look.limits])
def test_panels_draw_limits_of_the_catalogue(name: str) -> None:
    limits, steps = LOOKS[name].limits, LOOKS[name].list_steps()
    assert steps[0][0] is None
    assert [value for value, _ in steps[1:]] == sorted(BY_NAME[rule].thresholds[key].value for rule, key, _ in limits)
    given = [{"value": value, "color": colour} for value, colour in steps]
    texts = [
        panel["description"]
        for uid in MODELS
        for panel in drawn(uid)
        if panel["fieldConfig"]["defaults"]["thresholds"]["steps"] == given
    ]
    assert any(all(rule in text for rule, _, _ in limits) for text in texts), name


def test_band_reaches_down_to_the_plan() -> None:
    bands = 0
    for uid in MODELS:
        for panel in drawn(uid):
            down = [
                each["value"]
                for override in panel["fieldConfig"]["overrides"]
                for each in override["properties"]
                if each["id"] == "custom.fillBelowTo"
            ]
            bands += len(down)
            assert set(down) <= {target["legendFormat"] for target in panel["targets"]}, panel["title"]
    assert bands >= 5


@EVERY
def test_columns_have_titles_and_valid_links(uid: str) -> None:
    (link,) = MODELS[uid]["links"]
    assert (link["tags"], link["includeVars"], link["keepTime"]) == (["sizewatch"], True, True)
    for panel in drawn(uid):
        if panel["type"] != "table":
            continue
        merge, organize = panel["transformations"]
        titles = set(organize["options"]["renameByName"].values())
        assert merge["id"] == "merge"
        assert all(target["instant"] and target["format"] == "table" for target in panel["targets"])
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in titles
            for address in (each["value"][0]["url"] for each in override["properties"] if each["id"] == "links"):
                assert address.startswith("https://") or address.split("/d/")[1].partition("?")[0] in MODELS
                assert set(re.findall(r"__data\.fields\.(\w+)", address)) <= titles


def test_tier_dashboards_mark_incidents_and_restarts() -> None:
    for uid, model in MODELS.items():
        marks = {mark["name"]: mark["expr"] for mark in model["annotations"]["list"]}
        expected = [] if uid == "sizewatch-itself" else ["Incidents: critical", "Incidents: warning", "Restarts"]
        assert list(marks) == expected
        for severity in ("critical", "warning"):
            assert not marks or f'severity="{severity}"' in marks[f"Incidents: {severity}"]


def test_report_findings_are_not_counted() -> None:
    notes = {rule.name for rule in RULES if rule.severity is Severity.REPORT}
    (left_out,) = re.findall(r'sizewatch_verdict\{[^}]*rule!~"([^"]*)"', CERTAIN_VERDICTS)
    assert set(left_out.split("|")) == notes
    assert 'severity!="info"' in INCIDENT_COUNT


@pytest.mark.parametrize("expression", ["gauge('no_such_family')", "of_teir(PLAN_PEAK)", "quantile(0.5"])
def test_an_expression_that_says_nothing_is_refused(expression: str) -> None:
    with pytest.raises(Exception, match=r"no_such_family|of_teir|unexpected"):
        promql_of(expression, "")


def test_misspelt_key_of_panel_is_refused() -> None:
    text = (ROOT / "exporters" / "grafana" / "itself.yaml").read_text(encoding="utf-8")
    with pytest.raises(ValidationError, match="widht"):
        Dashboard.model_validate(yaml.safe_load(text.replace("width:", "widht:", 1)))


def test_files_are_rendered_and_fit_kubernetes() -> None:
    assert set(FILES) <= set(ARTEFACTS)
    for uid, model in MODELS.items():
        text = (ROOT / "deploy/chart/sizewatch/files" / f"{uid}.json").read_text(encoding="utf-8")
        assert json.loads(text) == model
        # What etcd takes is 1 MiB; what `kubectl apply` can note beside it 256 KiB.
        assert len(text.encode()) < 250_000


def test_provisioning_names_folder_and_data_source() -> None:
    folder = ROOT / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources/sizewatch.yaml").read_text(encoding="utf-8"))["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/sizewatch.yaml").read_text(encoding="utf-8"))["providers"]
    assert (source["type"], source["url"]) == ("prometheus", "$SIZEWATCH_PROMETHEUS_URL")
    assert (provider["folder"], provider["type"]) == ("sizewatch", "file")


def list_leaves(node: Any, place: str = "") -> Iterator[str]:
    """List every value with its place, and the place of each object and list."""
    yield place
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from list_leaves(value, f"{place}/{key}")
    else:
        yield f"{place}: {node!r}"


def round_trip(model: dict[str, Any]) -> Any:
    """Return a dashboard as Grafana's own models hold it: a misspelt key is dropped there."""
    pytest.importorskip("grafana_foundation_sdk", reason=WHY)
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(model)))))


@classic
@EVERY
def test_nothing_is_dropped_or_changed(uid: str) -> None:
    """That defaults are added is well."""
    assert set(list_leaves(MODELS[uid])) <= set(list_leaves(round_trip(MODELS[uid])))


@classic
def test_a_misspelt_key_would_be_found() -> None:
    model = dashboard_json(DASHBOARDS[0])
    panel = next(one for one in model["panels"] if one["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["unti"] = panel["fieldConfig"]["defaults"].pop("unit")
    assert set(list_leaves(model)) - set(list_leaves(round_trip(model)))


ANSWERS = {
    "efficiency": ("forecast", "Generated tokens per second and GPU"),
    "contract": ("fleet", "TTFT and TPOT P99 by what is promised"),
    "unit": ("tier", "Used now"),
    "dollar": ("forecast", "Cost per million generated tokens"),
    "useful": ("tier", "Requests that did not end by themselves"),
    "bound": ("forecast", "Share of a request's time in prefill"),
    "memory": ("forecast", "Generated tokens per second and GiB of GPU memory"),
    "representative": ("tier", "Findings now"),
    "fairly": ("tier", "Prompt and output length"),
}
"""Dashboard and title of the panel that answers a question of the guide's 8.4."""


def test_each_question_has_a_panel() -> None:
    assert list(QUESTIONS) == list(ANSWERS)
    shown = {(uid.removeprefix("sizewatch-"), panel["title"]) for uid in MODELS for panel in drawn(uid)}
    assert set(ANSWERS.values()) <= shown


def test_docs_have_every_dashboards_picture() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for uid in MODELS:
        picture = f"images/dashboard-{uid.removeprefix('sizewatch-')}.webp"
        assert f'src="{picture}"' in text, uid
        assert (DOCS.parent / picture).stat().st_size > 20_000
