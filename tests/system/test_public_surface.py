"""docs/public-surface.json: what other people's programs may rely on is still there, and new names are listed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from building import build_once
from daemon_runs import at, run_command
from paths import ROOT, TESTS
from test_surfaces_agree import NOW, TIER, slower, surfaces

from agent.cli.main import command_line
from agent.config.load import config_schema
from exporters.docs.reference_pages import RenderInputs, public_surface, surface_text
from exporters.status.page import status_json
from rules.telemetry.families import FAMILIES
from rules.telemetry.signals import SIGNALS

LISTED = json.loads((ROOT / "docs" / "public-surface.json").read_text(encoding="utf-8"))
GONE = {name: version for version, names in LISTED["removed"].items() for name in names}
DATA_KEYS = {one.name for one in (*SIGNALS, *FAMILIES)}
"""Keys of a map by signal or family: its data, no part of the form."""

MAPS = ("weights",)
"""Other keys whose value is a map by names that are data."""

HISTORY_COMMANDS = {
    "check": (),
    "prewarm": ("--tier", TIER),
    "whatif": ("--tier", TIER, "--instances", "13"),
    "timeline": (),
    "forecast": ("--tier", TIER),
    "backtest": ("--tier", TIER),
    "doctor": (),
}
FILE_COMMANDS = {
    "replay": (str(TESTS / "recordings" / "cascade_fast"), "--plan", str(TESTS / "plans" / "cpu-small.yaml")),
    "inspect": (str(TESTS / "pages" / "vllm-0.33.0.prom"),),
}


def json_keys(value: Any, place: str = "") -> Iterator[str]:
    """The dotted path of every key; lists add nothing, and a name that is data is a star."""
    if isinstance(value, list):
        for one in value:
            yield from json_keys(one, place)
    elif isinstance(value, dict):
        for key, below in value.items():
            is_data = key in DATA_KEYS or place.rstrip(".").rpartition(".")[2] in MAPS
            path = f"{place}{'*' if is_data else key}"
            yield path
            yield from json_keys(below, f"{path}.")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys of what each command prints about a fleet whose benchmark production refutes."""
    return build_once(tmp_path_factory, "surface", keys_by_command)


def keys_by_command(folder: Path) -> dict[str, set[str]]:
    told = surfaces(folder, slower).status
    asked = {name: ("-c", str(folder / "sizewatch.yaml"), *words) for name, words in HISTORY_COMMANDS.items()}
    found = {"/api/status": set(json_keys(json.loads(json.dumps(status_json(told)))))}
    for name, words in {**asked, **FILE_COMMANDS}.items():
        with at(NOW):
            _, out, _ = run_command(name, *words, "--format", "json")
        found[name] = set(json_keys(json.loads(out)))
    return found


def inputs() -> RenderInputs:
    return RenderInputs(config_schema=config_schema(), command_line=command_line())


@pytest.mark.parametrize("kind", sorted(set(LISTED) - {"removed", "json"}))
def test_no_released_name_is_gone(kind: str) -> None:
    """Who removes one moves it to `removed`, says so in CHANGELOG.md, and refuses the old name with a hint."""
    assert sorted(set(LISTED[kind]) - set(public_surface(inputs())[kind])) == []


@pytest.mark.parametrize("command", ["/api/status", *HISTORY_COMMANDS, *FILE_COMMANDS])
def test_command_json_keeps_its_keys(documents: dict[str, set[str]], command: str) -> None:
    listed = set(LISTED["json"][command])
    assert sorted(listed - documents[command]) == [], "removed or renamed: programs that read it break"
    assert sorted(documents[command] - listed) == [], "new: add these to docs/public-surface.json"


def test_removed_names_are_in_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0].split(" ")[0]: part for part in changes.split("\n## ")[1:]}
    assert [name for name, version in GONE.items() if f"`{name}`" not in sections.get(version, "")] == []


def test_rendering_adds_names_and_takes_none_away() -> None:
    present = json.dumps({"removed": {"2.0.0": ["old"]}, "rules": ["Renamed"], "json": {"check": ["tiers"]}})
    made = json.loads(surface_text({"rules": ["New", "old"]}, present))
    assert made["rules"] == ["New", "Renamed"]
    assert made["json"] == {"check": ["tiers"]}


def test_keys_below_lists_are_found() -> None:
    listed = set(public_surface(inputs())["configuration"])
    assert {"role", "targets.url", "web.listen", "alerting.alertmanagers.basic_auth.password_file"} <= listed
    assert "tiers.curve.points" in set(public_surface(inputs())["plan"])
