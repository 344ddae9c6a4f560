"""Files of engine tables: what a row may say, and what is told of a file that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from rules.engines import table
from rules.engines.registry import ENGINES
from rules.engines.table import LabelAggregation, load_engine_table
from rules.tables import read_table

FOLDER = Path(table.__file__).parent
TOY: dict[str, Any] = {
    "name": "toy",
    "generation": "v1",
    "title": "Toy",
    "signatures": ["toy_running"],
    "rows": [
        {"family": "requests_arrived", "source": "toy_total", "where": {"path": "generating"}},
        {"family": "kv_utilization", "source": "toy_kv", "across": "mean"},
    ],
    "patterns": {"generating": "/a|/b"},
}


def load(monkeypatch: pytest.MonkeyPatch, **keys: Any) -> table.EngineTable:
    document = TOY | keys
    monkeypatch.setattr(table, "read_table", lambda package, name: {**document, "rows": [*document["rows"]]})
    return load_engine_table("toy")


def test_every_file_belongs_to_an_engine() -> None:
    named = {read_table("rules.engines", path.stem).get("name") for path in FOLDER.glob("*.toml")}
    assert named == {engine.name for engine in ENGINES} | {None}
    assert len(list(FOLDER.glob("*.toml"))) == len(ENGINES) + len({"kvbm", "lmcache"})


def test_a_condition_may_be_a_named_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = load(monkeypatch).rows[0]
    assert [arrived.reads({"path": path}) for path in ("/a", "/b", "/c", "generating")] == [True, True, False, False]


def test_mean_kv_utilization_brings_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(row.family, row.source, row.across) for row in load(monkeypatch).rows[1:]]
    assert rows == [
        ("kv_utilization", "toy_kv", LabelAggregation.MEAN),
        ("kv_utilization_max", "toy_kv", LabelAggregation.MAX),
    ]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rows": [{"family": "requests_arrived", "sorce": "x"}]}, "sorce"),
        ({"rows": [{"family": "requests_arrived", "source": "x", "across": "median"}]}, "median"),
        ({"rows": [{"family": "no_family", "source": "x"}]}, "no_family"),
        ({"sinatures": []}, "sinatures"),
    ],
)
def test_wrong_table_names_file_and_word(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"rules/engines/toy\.toml: .*{words}"):
        load(monkeypatch, **keys)
