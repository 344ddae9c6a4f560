"""The bill of materials of what is installed here to run sizewatch: CycloneDX 1.5 as JSON, from the distributions' own metadata.

Owns the walk from sizewatch to everything it needs at run time, and how each is written down. It asks nobody: no network, and no
library but `packaging`, which the lock has.

    .venv/bin/python deploy/sbom.py > sbom.cdx.json
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "sizewatch"
PROJECT = Path(__file__).parent.parent / "pyproject.toml"
SPDX = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


def needed(name: str = ROOT, extras: frozenset[str] = frozenset()) -> dict[str, tuple[Distribution, tuple[str, ...]]]:
    """Every distribution that `name` needs on this platform, itself among them, with what each needs, by canonical name.

    Raises PackageNotFoundError where one is not installed: then this is no place to list them.
    """
    found: dict[str, tuple[Distribution, tuple[str, ...]]] = {}
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        one, extra = waiting.pop()
        if one in found:
            continue
        installed = distribution(one)
        wanted = tuple(_wanted(installed, extra))
        found[one] = (installed, tuple(sorted({each for each, _ in wanted})))
        waiting += wanted
    return found


def declared() -> tuple[str, ...]:
    """What pyproject.toml says we need, with every extra: an installation for development remembers what it said then."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    ours = [text for name, texts in extras.items() if name != "all" for text in texts]
    return (*project["dependencies"], *ours)


def _wanted(installed: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    is_ours = canonicalize_name(installed.name) == ROOT
    for text in declared() if is_ours else installed.requires or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield canonicalize_name(one.name), frozenset(one.extras)


def licence(installed: Distribution) -> str:
    """An SPDX expression where the distribution gives one, else its classifier, its own words or the title of
    its licence's text; "" where it has none."""
    meta = installed.metadata
    said = meta.get("License-Expression") or ""
    classified = [
        text.rpartition(" :: ")[2] for text in meta.get_all("Classifier") or () if text.startswith("License ::")
    ]
    own = (meta.get("License") or "").strip()
    return said or ", ".join(classified) or (own if "\n" not in own and len(own) < 80 else "") or _first_line(installed)


def _first_line(installed: Distribution) -> str:
    """The title of the licence's own text."""
    for file in installed.files or ():
        if file.name.upper().startswith("LICEN"):
            return next((line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()), "")
    return ""


def component(name: str, installed: Distribution) -> dict[str, Any]:
    """One entry of the bill."""
    purl = f"pkg:pypi/{name}@{installed.version}"
    said = licence(installed)
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": installed.version,
        "purl": purl,
    }
    if said:
        is_spdx = installed.metadata.get("License-Expression") is not None and SPDX.fullmatch(said)
        entry["licenses"] = [{"expression": said} if is_spdx else {"license": {"name": said}}]
    return entry


def bill() -> dict[str, Any]:
    """The whole document. The same installation gives the same bill."""
    found = needed()
    parts = {name: component(name, installed) for name, (installed, _) in sorted(found.items())}
    top = {**parts.pop(ROOT), "type": "application"}
    refs = {name: entry["bom-ref"] for name, entry in {**parts, ROOT: top}.items()}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(sorted(refs.values())))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": top},
        "components": list(parts.values()),
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[each] for each in wanted]}
            for name, (_, wanted) in sorted(found.items())
        ],
    }


if __name__ == "__main__":
    try:
        json.dump(bill(), sys.stdout, indent=2)
        print()
    except PackageNotFoundError as missing:
        sys.exit(
            f"deploy/sbom.py: {missing.name} is not installed here; run make first, and this with .venv/bin/python"
        )
