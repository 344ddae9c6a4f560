"""Files of engine tables: what a row may say, and what is told of a file that is wrong."""

from typing import Any

import pytest

from rules.engines import registry
from rules.engines.registry import ENGINES, LabelAggregation, load_engine_tables
from rules.tables import read_tables

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


def load(monkeypatch: pytest.MonkeyPatch, **keys: Any) -> registry.EngineTable:
    document = TOY | keys
    more = {"rows": [{"family": "preemptions", "source": "cache_evicted_total"}]}
    monkeypatch.setattr(registry, "read_tables", lambda package: {"toy": {**document}, "toy_cache": more})
    (engine,) = load_engine_tables()
    return engine


def test_every_file_belongs_to_an_engine() -> None:
    tables = read_tables("rules.engines")
    named = {(keys.get("name"), keys.get("generation")) for keys in tables.values()}
    assert named == {(engine.name, engine.generation) for engine in ENGINES} | {(None, None)}
    assert len(tables) == len(ENGINES) + len({"kvbm", "lmcache"})


def test_what_carries_engines_is_asked_last() -> None:
    carriers = [engine.name for engine in ENGINES if engine.carries_engines]
    assert [engine.name for engine in ENGINES[-len(carriers) :]] == carriers
    assert {*carriers} == {"dynamo", "triton"}


def test_a_table_includes_rows_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, include=["toy_cache"]).rows[-1].source == "cache_evicted_total"


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
        ({"rows": [{"family": "requests_arrived", "sorce": "x"}]}, "row requests_arrived = None: .*sorce"),
        ({"rows": [{"family": "requests_arrived", "source": "x", "across": "median"}]}, "row .* = x: 'median'"),
        ({"rows": [{"family": "no_family", "source": "x"}]}, "row no_family = x: no_family is no family"),
        ({"rows": [{"family": "requests_arrived", "source": "x", "where": {"a": "o(k"}}]}, "row .* = x: missing"),
        ({"sinatures": []}, "sinatures"),
        ({"include": ["no_file"]}, "no_file"),
    ],
)
def test_wrong_table_names_file_and_word(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"rules/engines/toy\.toml: .*{words}"):
        load(monkeypatch, **keys)
