"""What we are made of: every distribution that runs is pinned, its licence is known, and the bill of materials lists it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


@cache
def sbom() -> Any:
    spec = spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked() -> dict[str, str]:
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")
    ]
    found = [Requirement(line) for line in lines]
    assert all(re.fullmatch(r"==[\w.+!]+", str(one.specifier)) for one in found), "not every line pins one version"
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}


def test_everything_that_runs_is_in_the_lock_in_the_version_that_is_installed() -> None:
    pinned = locked()
    running = {name: installed.version for name, (installed, _) in sbom().needed().items() if name != "sizewatch"}
    assert len(running) > 30
    assert {name: version for name, version in running.items() if pinned.get(name) != version} == {}


def test_what_is_imported_at_run_time_is_declared() -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in sbom().declared()}
    assert {"requests", "cheroot", "pyyaml", "pydantic", "jinja2", "apprise"} <= declared


def test_every_licence_is_known_and_none_reaches_over_to_us() -> None:
    licences = {name: sbom().licence(installed) for name, (installed, _) in sbom().needed().items()}
    assert [name for name, text in licences.items() if not text] == []
    assert {name: text for name, text in licences.items() if COPYLEFT.search(text)} == {}


def test_the_bill_of_materials_lists_all_of_it_and_is_the_same_each_time() -> None:
    words = [sys.executable, "deploy/sbom.py"]
    first, second = (
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout for _ in range(2)
    )
    assert first == second
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "1.5",
        "sizewatch",
    )
    listed = {one["name"]: one for one in bill["components"]}
    assert listed.keys() == sbom().needed().keys() - {"sizewatch"}
    assert all(one["purl"] == f"pkg:pypi/{name}@{one['version']}" and one["licenses"] for name, one in listed.items())
    refs = {one["bom-ref"] for one in (*bill["components"], bill["metadata"]["component"])}
    assert {ref for edge in bill["dependencies"] for ref in (edge["ref"], *edge["dependsOn"])} <= refs
