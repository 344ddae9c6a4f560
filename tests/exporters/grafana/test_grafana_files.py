"""The files in grafana/: for file provisioning, for upload by hand, for Kubernetes, and alerts that Grafana evaluates."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from paths import ROOT
from promql_parser import parse

from exporters.docs.generated_files import ARTEFACTS
from exporters.grafana.dashboard_json import dashboard_json, list_panels
from exporters.grafana.files import DASHBOARDS, DATASOURCE_UID, FILES, FIRES, FOLDER, FOUND, INPUT, QUERY, uid
from exporters.prometheus_rules.alerts import alert_groups

ALERTS = [(group, row) for group in alert_groups() for row in group.rows]


def written(path: str) -> str:
    return (ROOT / "grafana" / path).read_text(encoding="utf-8")


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load(written("provisioning/alerting/sizewatch.yaml"))["groups"]
        for rule in group["rules"]
    ]


def test_every_file_is_one_that_render_keeps_and_no_other_lies_there() -> None:
    assert set(FILES) <= set(ARTEFACTS)
    by_hand = {"README.md", "look"}
    there = {
        p
        for p in (ROOT / "grafana").rglob("*")
        if p.is_file() and p.relative_to(ROOT / "grafana").parts[0] not in by_hand
    }
    assert {str(path.relative_to(ROOT)) for path in there} == set(FILES)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_the_variant_for_upload_asks_for_its_data_source_and_is_otherwise_the_same(dashboard: Any) -> None:
    upload = json.loads(written(f"upload/{dashboard.uid}.json"))
    (asked,) = upload.pop("__inputs")
    assert (asked["name"], asked["type"], asked["pluginId"]) == (INPUT, "datasource", "prometheus")
    assert upload.pop("__elements") == {}
    required = {one["id"] for one in upload.pop("__requires")}
    assert required == {"grafana", "prometheus"} | {one["type"] for one in list_panels(upload)} - {"row"}
    assert set(re.findall(r'"uid": "([^"]+)"', json.dumps(upload))) == {dashboard.uid, f"${{{INPUT}}}"}
    plain = json.loads(written(f"dashboards/{dashboard.uid}.json"))
    assert plain == dashboard_json(dashboard)
    assert "__inputs" not in plain
    del plain["templating"]["list"][0]
    assert "datasource" not in set(re.findall(r"\$\{?(\w+)", json.dumps(upload)))
    text = json.dumps(plain).replace("${datasource:queryparam}&", "").replace("${datasource}", f"${{{INPUT}}}")
    assert json.loads(text) == upload


def test_config_maps_hold_the_dashboards_and_the_label_that_the_sidecar_looks_for() -> None:
    maps = list(yaml.safe_load_all(written("kubernetes/dashboards.yaml")))
    assert len(maps) == len(DASHBOARDS)
    for one, dashboard in zip(maps, DASHBOARDS, strict=True):
        assert (one["apiVersion"], one["kind"]) == ("v1", "ConfigMap")
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = one["data"].items()
        assert name == f"{dashboard.uid}.json"
        assert json.loads(text) == dashboard_json(dashboard)
        # What etcd takes is 1 MiB; what `kubectl apply` can note beside it 256 KiB.
        assert len(text.encode()) < 250_000


def test_provisioning_names_one_data_source_and_one_folder() -> None:
    (source,) = yaml.safe_load(written("provisioning/datasources/sizewatch.yaml"))["datasources"]
    assert (source["uid"], source["type"], source["url"]) == (DATASOURCE_UID, "prometheus", "$SIZEWATCH_PROMETHEUS_URL")
    (provider,) = yaml.safe_load(written("provisioning/dashboards/sizewatch.yaml"))["providers"]
    assert (provider["folder"], provider["type"]) == (FOLDER, "file")


def test_grafana_evaluates_every_alert_that_prometheus_would_with_its_times_and_labels() -> None:
    groups = yaml.safe_load(written("provisioning/alerting/sizewatch.yaml"))["groups"]
    assert [group["name"] for group in groups] == [group.name for group in alert_groups()]
    assert all(
        group["folder"] == FOLDER and int(group["interval"][:-1]) % 10 == 0
        for group in groups
        if group["interval"].endswith("s")
    )
    found = rules()
    assert len(found) == len(ALERTS) > 40
    for rule, (_, alert) in zip(found, ALERTS, strict=True):
        assert rule["data"][0]["model"]["expr"] == alert.expr
        assert rule["labels"] == dict(alert.labels)
        # The address of the status page needs a query, which Grafana's annotations have not.
        assert set(rule["annotations"]) == {name for name, _ in alert.annotations} - {"status_url"}
        assert rule["title"].startswith(alert.name)


def test_a_rule_fires_by_any_answer_and_is_well_without_one() -> None:
    for rule in rules():
        asked, found, fires = rule["data"]
        assert (asked["refId"], found["refId"], fires["refId"]) == (QUERY, FOUND, FIRES)
        assert rule["condition"] == FIRES
        assert asked["datasourceUid"] == DATASOURCE_UID
        assert {found["datasourceUid"], fires["datasourceUid"]} == {"__expr__"}
        assert parse(asked["model"]["expr"])
        assert (asked["model"]["instant"], asked["model"]["range"]) == (True, False)
        assert found["model"]["expression"].startswith(f"is_number(${QUERY})")
        assert fires["model"]["expression"] == FOUND
        assert (rule["noDataState"], rule["execErrState"]) == ("OK", "Error")


def test_titles_and_uids_of_rules_are_their_own_and_lead_to_a_panel() -> None:
    found = rules()
    assert len({rule["title"] for rule in found}) == len({rule["uid"] for rule in found}) == len(found)
    panels = {one.uid: {p["id"] for p in dashboard_json(one)["panels"] if p["type"] == "table"} for one in DASHBOARDS}
    for rule in found:
        assert rule["uid"] == uid(rule["title"])
        assert len(rule["uid"]) <= 40
        assert rule["panelId"] in panels[rule["dashboardUid"]]


def test_words_need_nothing_that_grafanas_templates_cannot_do() -> None:
    """They cannot query, and their $value is a text; the number of a query is in $values."""
    for rule in rules():
        for text in rule["annotations"].values():
            templates = re.findall(r"\{\{(.*?)\}\}", text)
            assert not [
                one for one in templates if "query }}" in one or "printf" in one or re.search(r"\$value\b", one)
            ]
