"""The files in grafana/: for import, for file provisioning and for Kubernetes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from panels import list_panels
from paths import ROOT

from exporters.docs.generated_files import ARTEFACTS
from exporters.grafana.dashboard_json import dashboard_json
from exporters.grafana.files import DASHBOARDS, DATASOURCE_UID, FILES, FOLDER


def written(path: str) -> str:
    return (ROOT / "grafana" / path).read_text(encoding="utf-8")


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
def test_a_file_is_right_for_import_and_for_provisioning(dashboard: Any) -> None:
    """Import asks for nothing, provisioning fills nothing in: the data source is a variable, the database id is Grafana's."""
    model = json.loads(written(f"dashboards/{dashboard.uid}.json"))
    assert model == dashboard_json(dashboard)
    assert model["uid"] == dashboard.uid
    assert {"id", "__inputs", "__requires", "__elements"} & set(model) == set()
    source = model["templating"]["list"][0]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    asking = [*model["annotations"]["list"], *model["templating"]["list"][1:]]
    asking += [panel for panel in list_panels(model) if panel["type"] != "row"]
    assert {json.dumps(one["datasource"]) for one in asking} == {'{"type": "prometheus", "uid": "${datasource}"}'}
    assert set(re.findall(r'"uid": "([^"]+)"', json.dumps(model))) == {dashboard.uid, "${datasource}"}


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
