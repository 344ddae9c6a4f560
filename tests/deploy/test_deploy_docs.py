"""Examples of the pages on Kubernetes build and load, and the names in them exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml
from deployed import (
    COMPONENTS,
    DEFAULTS,
    KUBERNETES,
    OVERLAYS,
    SCHEMA,
    built,
    containers,
    pods,
)
from paths import ROOT

from agent.config.load import parse_config
from agent.version import VERSION

NAMES = ("install-kubernetes", "kubernetes-gpus", "kubernetes-security")
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
PAGE = "\n".join(PAGES.values())
BLOCKS = [yaml.safe_load(one) for one in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)]


def block(*keys: str) -> dict[str, object]:
    (found,) = (one for one in BLOCKS if set(one) >= set(keys))
    return dict(found)


def beside(tmp_path: Path, told: dict[str, object]) -> Path:
    """A folder of an operator's own beside a checkout."""
    for folder in ("deploy/kubernetes", "rules/prometheus", "grafana/kubernetes"):
        shutil.copytree(ROOT / folder, tmp_path / "sizewatch" / folder)
    own = tmp_path / "fleet"
    own.mkdir()
    (own / "kustomization.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    return own


def test_the_overlay_of_the_first_ten_minutes_builds_and_does_what_it_says(tmp_path: Path) -> None:
    own = beside(tmp_path, block("configMapGenerator"))
    (own / "plan.yaml").write_text("schema: 1\ntiers: {}\n", encoding="utf-8")
    found = built(own)
    images = {one["image"] for spec in pods(found).values() for one in containers(spec)}
    assert images == {f"registry.example/llm/{name}:{VERSION}" for name in ("sizewatch", "sizewatch-node")}
    assert found["ConfigMap", "sizewatch-plan"]["data"] == {"plan.yaml": "schema: 1\ntiers: {}\n"}
    labelled = {kind for (kind, _), one in found.items() if one["metadata"].get("labels", {}).get("release")}
    assert labelled == {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


def test_the_sidecars_example_builds(tmp_path: Path) -> None:
    told = block("components")
    own = beside(tmp_path, told)
    shutil.copy(KUBERNETES / "overlays/sidecar/engine.yaml", own / "engine.yaml")
    (spec,) = pods(built(own)).values()
    assert [one["name"] for one in containers(spec)] == ["sizewatch", "vllm"]


def test_the_values_shown_are_values_of_the_chart() -> None:
    jsonschema.validate(block("image", "node"), SCHEMA)
    for path in re.findall(r"`((?:node|fleet|web|networkPolicy)(?:\.\w+)?)(?:: [^`]+)?`", PAGE):
        assert any(f"{one}.".startswith(f"{path}.") for one in DEFAULTS), path


@pytest.mark.parametrize("key", ["store", "gpus"])
def test_the_parts_of_a_configuration_shown_are_keys_of_the_program(key: str, tmp_path: Path) -> None:
    role = {"store": "fleet", "gpus": "node"}[key]
    loaded = parse_config({**block(key), "role": role}, folder=tmp_path, environment={})
    assert getattr(loaded, key) != getattr(parse_config({"role": "node"}, folder=tmp_path, environment={}), key)


def test_every_overlay_and_component_on_the_page_exists() -> None:
    named = set(re.findall(r"`((?:overlays|components)/[\w-]+)`", PAGE))
    assert named <= {*OVERLAYS, *COMPONENTS}
