"""Objects that the chart installs, rendered by helm."""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from paths import ROOT
from tools import run_words, tool

CHART = ROOT / "deploy" / "chart" / "sizewatch"
PLAN = ROOT / "examples" / "fleet" / "plan.yaml"

Json = dict[str, Any]
Key = tuple[str, str]

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def documents(text: str) -> list[Json]:
    # By the parser in C where this platform has it: these files are ours, and many.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document]


def run_helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_words([tool("helm"), *words])


@cache
def render(
    *settings: str, release: str = "sizewatch", namespace: str = "watching", files: tuple[Path, ...] = ()
) -> str:
    """Return what `helm install` would send, with settings such as `node.enabled=false`, and its notes."""
    words: list[str | Path] = ["--set-file", f"plan={PLAN}", "--namespace", namespace]
    for setting in settings:
        words += ["--set-json", setting]
    for file in files:
        words += ["--values", file]
    rendered = run_helm("install", release, CHART, "--dry-run=client", "--output", "json", *words)
    assert rendered.returncode == 0, rendered.stderr
    return rendered.stdout


def chart(*settings: str, release: str = "sizewatch", files: tuple[Path, ...] = ()) -> dict[Key, Json]:
    """Return the objects of a release by kind and name."""
    manifest = json.loads(render(*settings, release=release, files=files))["manifest"]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents(manifest)}


def notes(*settings: str) -> str:
    """Return what `helm install` prints for people."""
    text: str = json.loads(render(*settings))["info"]["notes"]
    return text


def pods(objects: dict[Key, Json]) -> dict[Key, Json]:
    """Return the specs of the pods that workloads make."""
    workloads = {key: document["spec"] for key, document in objects.items() if "template" in document.get("spec", {})}
    return {key: spec["template"]["spec"] for key, spec in workloads.items()}


def containers(spec: Json) -> Iterator[Json]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field, ())
