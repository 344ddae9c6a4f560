"""What we are made of: every distribution that runs is pinned, its licence is known, and the bill of materials lists it."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from paths import ROOT
from tools import run_words

sys.path.append(str(ROOT / "deploy"))
import audit
import sbom

COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def locked() -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==([\w.+!]+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def test_running_parts_are_locked() -> None:
    pinned = locked()
    running = {name: installed.version for name, (installed, _) in sbom.needed().items() if name != "sizewatch"}
    assert len(running) > 30
    assert {name: version for name, version in running.items() if pinned.get(name) != version} == {}


def test_licences_are_known_and_not_copyleft() -> None:
    licences = {name: sbom.licence(installed) for name, (installed, _) in sbom.needed().items()}
    assert [name for name, text in licences.items() if not text] == []
    assert {name: text for name, text in licences.items() if COPYLEFT.search(text)} == {}


def test_sbom_is_complete_and_reproducible() -> None:
    words = [sys.executable, "deploy/sbom.py"]
    first, second = (run_words(words, check=True, text=False).stdout for _ in range(2))
    assert first == second
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "1.5",
        "sizewatch",
    )
    listed = {one["name"]: one for one in bill["components"]}
    assert listed.keys() == sbom.needed().keys() - {"sizewatch"}
    assert all(one["purl"] == f"pkg:pypi/{name}@{one['version']}" and one["licenses"] for name, one in listed.items())
    refs = {one["bom-ref"] for one in (*bill["components"], bill["metadata"]["component"])}
    assert {ref for edge in bill["dependencies"] for ref in (edge["ref"], *edge["dependsOn"])} <= refs


FINE_PART = {"name": "six", "version": "1.17.0", "vulns": []}
SKIPPED = {"name": "pyyaml", "skip_reason": "Dependency not found on PyPI and could not be audited: pyyaml (6.0.3)"}
HOLE = {"id": "GHSA-x", "fix_versions": ["2.33"], "aliases": ["CVE-2026-1"], "description": "long"}
HOLED = {"name": "requests", "version": "2.32", "vulns": [HOLE]}


@pytest.mark.parametrize(
    ("parts", "trouble", "strict", "lenient", "said"),
    [
        ((FINE_PART,), "", 0, 0, "1 of 1 parts audited, 0 known holes"),
        ((FINE_PART, HOLED), "", 1, 1, "requests 2.32: GHSA-x, mended in 2.33"),
        ((HOLED, SKIPPED), "", 1, 1, "1 of 2 parts audited, 1 known holes"),
        ((FINE_PART, SKIPPED), "", 3, 0, f"NOT AUDITED: 1 parts, the first: {SKIPPED['skip_reason']}"),
        ((), "no answer within 120 s", 3, 0, "NOT AUDITED: no answer within 120 s"),
    ],
)
def test_audit_fails_on_holes_and_reports_skips(
    parts: tuple[Any, ...], trouble: str, strict: int, lenient: int, said: str
) -> None:
    told = audit.told
    lines, code = told(parts, trouble, False)
    assert said in lines
    assert code == strict
    assert told(parts, trouble, True) == (lines, lenient)


def test_accepted_hole_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "NO_DANGER", {"CVE-2026-1": "we send no such header"})
    assert audit.told((HOLED,), "", False) == (["1 of 1 parts audited, 0 known holes"], 0)


@pytest.mark.parametrize(
    ("program", "said"),
    [("echo '{}'", "pip-audit ended with 0"), ("echo no route >&2; exit 1", "no route"), (None, "is not installed")],
)
def test_audit_without_answer_says_why(program: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pip-audit"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    parts, trouble = audit.asked(str(path))
    assert parts == ()
    assert said in trouble


def test_ci_builds_sbom_and_audits() -> None:
    words = ["make", "--dry-run", "test"]
    plain = {key: value for key, value in os.environ.items() if key != "CI"}
    in_ci, here = (run_words(words, env=env, check=True).stdout for env in (plain | {"CI": "true"}, plain))
    assert "deploy/sbom.py" in in_ci
    assert "deploy/audit.py build/audit/bin/pip-audit --lenient" in in_ci
    assert "deploy/audit.py" not in here
