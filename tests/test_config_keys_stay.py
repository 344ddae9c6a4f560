"""Keys of the configuration that a released version knew: none disappears without a word on what took its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.config import parse_config
from agent.errors import ConfigError

ROOT = Path(__file__).parent.parent
KNOWN = Path(__file__).parent / "history_formats" / "config-keys.txt"
"""One key a line, by the place in the schema; to be added to, never taken from."""


def keys(schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, part in schema.get("$defs", {}).items():
        yield from keys(part, name)
    for name in schema.get("properties", {}):
        yield f"{place}.{name}"


def test_no_key_that_a_version_knew_is_gone() -> None:
    """Who renames or removes one refuses the old name with a hint (`agent.config_problems`), and tests that here."""
    schema = json.loads((ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8"))
    now, known = set(keys(schema)), set(KNOWN.read_text(encoding="utf-8").split())
    assert known - now == set()
    assert {".role", ".targets", ".data_dir", "Web.listen"} <= known


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"datadir": "/x"}, "datadir: is not a key of the configuration; did you mean data_dir?"),
        ({"quantum_mode": True}, "quantum_mode: is not a key of the configuration"),
    ],
)
def test_a_key_of_another_version_is_refused_by_its_name(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"targets": [], **given}, folder=tmp_path, plan=None)
    assert told in str(refused.value)
