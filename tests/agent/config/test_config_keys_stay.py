"""Keys of the configuration that a released version knew: none disappears without a word on what took its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, TESTS

from agent.config.load import parse_config
from agent.errors import ConfigError

KNOWN = TESTS / "history_formats" / "config-keys.txt"
"""The dotted path of one key a line; to be added to, never taken from."""


def keys(schema: Mapping[str, Any], part: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield the dotted path of every key below a part of the schema; list items and map values add nothing to a path."""
    inner = (*part.get("anyOf", ()), part.get("items"), part.get("additionalProperties"))
    for one in (part, *(one for one in inner if isinstance(one, dict))):
        if "$ref" in one:
            yield from keys(schema, schema["$defs"][one["$ref"].rpartition("/")[2]], place)
        elif one is not part:
            yield from keys(schema, one, place)
    for name, value in part.get("properties", {}).items():
        yield f"{place}{name}"
        yield from keys(schema, value, f"{place}{name}.")


def test_no_key_that_a_version_knew_is_gone() -> None:
    """Who renames or removes one refuses the old name with a hint (`agent.config.values`), and tests that here."""
    schema = json.loads((ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8"))
    now, known = set(keys(schema, schema)), set(KNOWN.read_text(encoding="utf-8").split())
    assert known - now == set()
    assert {"role", "targets", "data_dir", "web.listen"} <= known


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
