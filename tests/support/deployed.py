"""What deploy/ installs, as objects: from the files, through kubectl where there is one, through the chart where Go is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT
from waiting import CEILING_SECONDS

CHART = ROOT / "deploy" / "chart" / "sizewatch"
KUBERNETES = ROOT / "deploy" / "kubernetes"
CRDS = ROOT.parent / "shared" / "infra" / "k8s" / "crds"

Json = dict[str, Any]
Key = tuple[str, str]

BASE_OBJECTS = sorted(path for path in KUBERNETES.glob("base/*/*.yaml") if path.name != "kustomization.yaml")
BASES, COMPONENTS, OVERLAYS = (
    sorted(str(path.relative_to(KUBERNETES)) for path in (KUBERNETES / kind).iterdir())
    for kind in ("base", "components", "overlays")
)
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def _defaults(values: Json, schema: Json, prefix: str = "") -> Json:
    found = {}
    for name, one in schema["properties"].items():
        if "properties" in one:
            found |= _defaults(values[name], one, f"{prefix}{name}.")
        elif name != "global":
            found[prefix + name] = values[name]
    return found


DEFAULTS = _defaults(VALUES, SCHEMA)
"""Default values of the chart by path, such as node.enabled."""


def documents(text: str) -> list[Json]:
    # By the parser in C where this platform has it: these files are ours, and many.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one]


def key(one: Json) -> Key:
    return one["kind"], one["metadata"]["name"]


def base(name: str) -> dict[Key, Json]:
    """The objects of a base, as its files have them."""
    files = (path for path in BASE_OBJECTS if path.parent == KUBERNETES / "base" / name)
    return {key(one): one for path in files for one in documents(path.read_text(encoding="utf-8"))}


def built(folder: Path) -> dict[Key, Json]:
    """What `kubectl apply -k` would send."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not here: that the kustomizations build was NOT checked")
    found = subprocess.run(
        [program, "kustomize", folder], capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )
    assert found.returncode == 0, found.stderr
    return {key(one): one for one in documents(found.stdout)}


def overlay(name: str) -> dict[Key, Json]:
    return built(KUBERNETES / "overlays" / name)


def with_components(tmp_path: Path, name: str, *components: str) -> dict[Key, Json]:
    """An overlay of our own, as an operator makes one beside a checkout."""
    folders = ("deploy", "rules/prometheus", "grafana/kubernetes")
    for folder in folders:
        if not (tmp_path / folder).exists():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    own = tmp_path / "own"
    own.mkdir(exist_ok=True)
    told = {
        "resources": [f"../deploy/kubernetes/overlays/{name}"],
        "components": [f"../deploy/kubernetes/components/{one}" for one in components],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    return built(own)


def pod(one: Json) -> Json | None:
    """The pod that a workload makes."""
    template = one.get("spec", {}).get("template", {}) if isinstance(one.get("spec"), dict) else {}
    spec: Json | None = template.get("spec")
    return spec


def pods(objects: dict[Key, Json]) -> dict[Key, Json]:
    return {name: spec for name, one in objects.items() if (spec := pod(one)) is not None}


def containers(spec: Json) -> Iterator[Json]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field, ())


RENDER = r"""
import json, re, sys, tempfile
from pathlib import Path
import go_template

root, given = json.loads(sys.stdin.read())
folder = Path(root, "templates")
with tempfile.NamedTemporaryFile("w") as file:
    for path in sorted(one for one in folder.iterdir() if one.suffix != ".tpl"):
        text = (folder / "_helpers.tpl").read_text() + path.read_text()
        # Helm's .Files is an object, here it is a mapping.
        Path(file.name).write_text(re.sub(r"(\$?\.Files)\.Get", r"index \1", text))
        print("---\n# " + path.name)
        print(go_template.render(Path(file.name), given).decode())
"""


def chart(changes: Json | None = None, namespace: str = "sizewatch") -> str:
    """Return the chart's templates, rendered by Go's text/template with Helm's usual functions; a key of `changes` is a path."""
    pytest.importorskip(
        "go_template", reason="py-go-template is not installed: that the chart's templates render was NOT checked"
    )
    plan = yaml.safe_load((KUBERNETES / "base/shared/plan.yaml").read_text(encoding="utf-8"))["data"]["plan.yaml"]
    values = {**deepcopy(VALUES), "plan": plan}
    for path, changed in (changes or {}).items():
        *folders, last = path.split(".")
        place = values
        for folder in folders:
            place = place[folder]
        place[last] = changed
    files = {f"files/{path.name}": path.read_text(encoding="utf-8") for path in CHART.glob("files/*")}
    given = {"Values": values, "Release": {"Namespace": namespace, "Name": "release"}, "Files": files}
    found = render(given)
    assert found.returncode == 0, found.stderr + found.stdout[-2000:]
    return found.stdout


def render(given: Json) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # In a process of its own: the library ends it where a template is wrong.
        [sys.executable, "-c", RENDER],
        input=json.dumps([str(CHART), given]),
        capture_output=True,
        text=True,
        timeout=CEILING_SECONDS,
        check=False,
    )


def charted(changes: Json | None = None, namespace: str = "sizewatch") -> dict[Key, Json]:
    """Its objects, without the notes for people."""
    parts = chart(changes, namespace).split("---\n# ")
    texts = (part.split("\n", 1)[1] for part in parts if part and not part.startswith("NOTES.txt"))
    return {key(one): one for text in texts for one in documents(text)}
