"""Rows of an instant vector: the same as from JSON objects, whatever the form of the response."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.fleet.agent_series import AgentPages
from agent.prometheus.answers import MatrixSeries, StoreError, matrix, parse_answer, vector
from agent.prometheus.rows import MOST_KINDS, RangeParser, RowParser, Rows

T = 1_790_000_000.0


def entry(value: Any = "1", t: Any = 1_790_000_000, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [t, value]}


def body(*entries: Any, compact: bool = True, **more: Any) -> bytes:
    found = {"status": "success", "data": {"resultType": "vector", "result": list(entries)}, **more}
    return json.dumps(found, separators=(",", ":") if compact else None, ensure_ascii=False).encode()


USUAL = (
    entry("5", __name__="a_total", pool="mixed", replica="r1"),
    entry("+Inf", __name__="b_bucket", le="+Inf", replica="r1"),
    entry("NaN", __name__="c", replica="r1"),
    entry("7e-3", __name__="a_total", pool="mixed", replica="r2"),
)


def numbers(rows: Rows) -> list[tuple[str, list[tuple[dict[str, str], float]]]]:
    return [(name, [(dict(kind.labels), value) for kind, value in row]) for name, row in rows.by_name.items()]


def by_objects(text: bytes) -> list[tuple[str, list[tuple[dict[str, str], float]]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for one in vector(parse_answer("store", text), 100):
        labels = {label: value for label, value in one.labels.items() if label != "replica"}
        found.setdefault(one.labels.get("replica", ""), []).append((labels, one.value))
    return list(found.items())


def test_the_usual_form_is_cut() -> None:
    parser = RowParser("replica")
    for _ in range(2):
        given = parser.parse("store", body(*USUAL))
        assert isinstance(given.data, Rows)
        assert numbers(parser.rows(given, 100)) == by_objects(body(*USUAL))
    assert len(given.data.kinds) == 3
    (first, *_), (second,) = given.data.by_name.values()
    assert first[0] is second[0]


@pytest.mark.parametrize(
    "text",
    [
        body(),
        body(*USUAL, compact=False),
        body(*USUAL, entry("2", __name__="d")),
        body(*USUAL, entry("2", __name__="d", replica="r1", shard="x")),
        body(*USUAL, entry("2", replica="r1")),
        body(*USUAL, entry("2", t=1_790_000_001.5, __name__="d", replica="r1")),
        body(*USUAL, entry("2", __name__="d", replica='r"1')),
        body(*USUAL, entry("2", __name__="d", replica="r\\n1")),
        body(*USUAL, entry("2", __name__="d", le="},{", replica="ä")),
        body(*USUAL, entry("2", __name__="d", le="\x7f", replica="r1")),
        body(*USUAL, entry("2", __name__="d", le='"},"value":[1,"', replica="r1")),
        body(*USUAL).replace(b"]}}", b'],"result":[]}}'),
        body(*USUAL).replace(b"]}}", b'],"result" :[]}}'),
        body(*USUAL, entry("NaN", __name__="d", replica="r3")),
        body(*USUAL).replace(b"1790000000", b"9" * 400),
    ],
)
def test_another_form_gives_the_same(text: bytes) -> None:
    parser = RowParser("replica")
    assert numbers(parser.rows(parser.parse("store", text), 100)) == by_objects(text)


@pytest.mark.parametrize(
    "text",
    [
        body(*USUAL)[:-30],
        body(*USUAL).replace(b'"]},{', b'"]};{', 1),
        body(*USUAL).replace(b'"7e-3"', b'"seven"'),
        body(*USUAL).replace(b'"7e-3"', b'"\f7e-3"'),
        body(*USUAL).replace(b'"7e-3"', b'"7e-3\v"'),
        body(*USUAL).replace(b"1790000000", b"soon"),
        body(*USUAL).replace(b"1790000000", b"null"),
        body(*USUAL).replace(b"1790000000", b"true"),
        body(*USUAL).replace(b"1790000000", b"[" * 5000),
        body(*USUAL).replace(b'"pool":"mixed"', b'"pool":' + b"[" * 5000),
        body(*USUAL).replace(b"[1790000000,", b",1790000000,"),
        body(*USUAL).replace(b'"pool":"mixed"', b'"pool":1'),
        body(*USUAL).replace(b'"r2"', b'"r\n2"'),
        body(*USUAL, USUAL[0]),
        body(*USUAL, *[entry("NaN", __name__="d", replica="r3")] * 2),
        body(*USUAL).replace(b'"vector"', b'"matrix"'),
    ],
)
def test_what_is_no_vector_is_an_error_as_ever(text: bytes) -> None:
    parser = RowParser("replica")
    with pytest.raises(StoreError) as expected:
        vector(parse_answer("store", text), 100)
    with pytest.raises(StoreError) as found:
        parser.rows(parser.parse("store", text), 100)
    assert (found.value.kind, found.value.text) == (expected.value.kind, expected.value.text)


def test_limits_and_warnings_count() -> None:
    parser = RowParser("replica")
    with pytest.raises(StoreError, match="more than 3 samples"):
        parser.rows(parser.parse("store", body(*USUAL)), 3)
    assert "block 7 is gone" in parser.parse("store", body(*USUAL, warnings=["block 7 is gone"])).partial


def replica_entries(replica: str, finished: float) -> list[dict[str, Any]]:
    labels = {"pool": "mixed", "replica": replica}
    return [
        entry("1", __name__="sizewatch_target_up", **labels),
        entry(str(T - 3.0), __name__="sizewatch_target_last_success_timestamp_seconds", **labels),
        entry("1", __name__="sizewatch_replica_info", engine="vllm", engine_version="0.32.0", **labels),
        entry(str(finished), __name__="sizewatch_requests_finished_total", **labels),
        entry(str(finished), __name__="sizewatch_ttft_seconds_bucket", le="+Inf", **labels),
        entry("1", __name__="sizewatch_ttft_seconds_bucket", le="0.25", **labels),
        entry("0.5", __name__="sizewatch_ttft_seconds_sum", **labels),
    ]


@pytest.mark.parametrize("pools", [("mixed", "mixed"), ("decode", "prefill")])
def test_pages_of_rows_are_those_of_series(pools: tuple[str, str]) -> None:
    several = [one for name in ("r1", "r2", "r3") for one in replica_entries(name, float(name[1:]) * 3.0)]
    several[3]["metric"]["pool"], several[10]["metric"]["pool"] = pools
    # A replica that is down, and one without an agent.
    several += [entry("0", __name__="sizewatch_target_up", pool="mixed", replica="r4")]
    several += [entry("2", __name__="sizewatch_requests_finished_total", pool="mixed", replica="r5")]
    # Sums over replicas that keep the name of their metric.
    several += [entry("1", __name__="sizewatch_target_up", pool="mixed")]
    several += [entry(str(T - 3.0), __name__="sizewatch_target_last_success_timestamp_seconds", pool="mixed")]
    text = body(*several)
    parser = RowParser("replica")
    rows = parser.rows(parser.parse("store", text), 100)
    series = [MatrixSeries(one.labels, (T,), (one.value,)) for one in vector(parse_answer("store", text), 100)]
    found = list(AgentPages().row_pages(rows, T))
    assert found == list(AgentPages().pages(series))
    assert {page.replica for page in found} == {"r1", "r2", "r3", "r4"}


def matrix_body(*entries: tuple[list[list[Any]], dict[str, str]], compact: bool = True) -> bytes:
    result = [{"metric": labels, "values": values} for values, labels in entries]
    found = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(found, separators=(",", ":") if compact else None).encode()


SUMS = (
    ([[60, "1"], [120.5, "2"]], {"__name__": "a_total"}),
    ([[60, "0"], [120.5, "+Inf"]], {"__name__": "a_bucket", "le": "+Inf"}),
)


@pytest.mark.parametrize("count", ["-1", "+Inf", "-Inf"])
def test_a_page_has_no_histogram_with_an_impossible_count(count: str) -> None:
    several = [
        *replica_entries("r1", 3.0),
        *(
            entry(n, __name__="sizewatch_e2e_seconds_bucket", le=le, pool="mixed", replica="r1")
            for le, n in (("1", count), ("+Inf", "2"))
        ),
    ]
    parser = RowParser("replica")
    (page,) = AgentPages().row_pages(parser.rows(parser.parse("store", body(*several)), 100), T)
    assert page.snapshot is not None
    assert "e2e_seconds" not in page.snapshot.histograms
    assert page.snapshot.counters


def test_a_range_of_the_usual_form_is_cut_and_shares_its_labels() -> None:
    parser = RangeParser()
    first, again = (parser.series(parser.parse("store", matrix_body(*SUMS)), 4) for _ in range(2))
    assert first == again == matrix(parse_answer("store", matrix_body(*SUMS)), 4)
    assert first[0].labels is again[0].labels
    with pytest.raises(StoreError, match="more than 3 samples"):
        parser.series(parser.parse("store", matrix_body(*SUMS)), 3)


@pytest.mark.parametrize(
    "text",
    [
        matrix_body(),
        matrix_body(*SUMS, compact=False),
        matrix_body(*SUMS, ([[60, "1"]], {"__name__": "b"})),
        matrix_body(*SUMS, ([[120.5, "1"]], {"__name__": "b"})),
        matrix_body(*SUMS, ([[60, "1"], [120.5, "NaN"]], {"__name__": "b"})),
        matrix_body(*SUMS, ([[60, "1"], [120.5, "1"]], {})),
        matrix_body(*SUMS, ([[60, "1"], [120.5, "1"]], {"__name__": 'b"],[120.5,"'})),
        matrix_body(([[120, "1"], [60, "1"]], {"__name__": "b"})),
        matrix_body(SUMS[0], SUMS[0]),
        matrix_body(*SUMS)[:-9],
        matrix_body(*SUMS).replace(b"120.5", b"soon"),
        matrix_body(*SUMS).replace(b"120.5", b"[]"),
        matrix_body(*SUMS).replace(b'"__name__":', b'"__name__":' + b"[" * 5000),
        matrix_body(*SUMS).replace(b"[120.5,", b"[120.5,,"),
        matrix_body(*SUMS).replace(b"[[60", b"60"),
        matrix_body(*SUMS).replace(b'"2"', b'"two"'),
    ],
)
def test_a_range_of_another_form_gives_the_same(text: bytes) -> None:
    parser = RangeParser()

    def told(read: Callable[[], tuple[MatrixSeries, ...]]) -> object:
        try:
            return read()
        except StoreError as error:
            return error.kind, error.text

    found = told(lambda: parser.series(parser.parse("store", text), 100))
    assert found == told(lambda: matrix(parse_answer("store", text), 100))


def test_a_cache_of_many_labels_is_emptied() -> None:
    parser = RangeParser()
    many = matrix_body(*(([[60, "1"]], {"__name__": "a", "replica": str(n)}) for n in range(MOST_KINDS + 1)))
    series = parser.series(parser.parse("store", many), 10_000)
    assert series == matrix(parse_answer("store", many), 10_000)
    assert parser.series(parser.parse("store", many), 10_000)[0].labels is not series[0].labels


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A response with a few bytes replaced, inserted or removed, or a piece of it repeated elsewhere."""
    text = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at, end = (draw(st.integers(0, len(text))) for _ in range(2))
        piece = draw(st.binary(max_size=3) | st.text('"{}[]:,\\ \v\f.0123456789eE+-NaInf', max_size=4).map(str.encode))
        text[at : at + draw(st.integers(0, 4))] = text[at:end][:200] if draw(st.booleans()) else piece
    return bytes(text)


def outcome(read: Callable[[], Any]) -> str:
    try:
        return repr(read())
    except StoreError as error:
        return str(error)


@settings(max_examples=300)
@given(damaged(body(*USUAL)))
def test_a_damaged_response_gives_what_its_objects_give(text: bytes) -> None:
    parser = RowParser("replica")
    assert outcome(lambda: numbers(parser.rows(parser.parse("store", text), 100))) == outcome(lambda: by_objects(text))


@settings(max_examples=300)
@given(damaged(matrix_body(*SUMS)))
def test_a_damaged_range_gives_what_its_objects_give(text: bytes) -> None:
    parser = RangeParser()

    def listed(found: tuple[MatrixSeries, ...]) -> list[tuple[Any, ...]]:
        return [(dict(one.labels), tuple(one.times), tuple(one.values)) for one in found]

    cut = outcome(lambda: listed(parser.series(parser.parse("store", text), 100)))
    assert cut == outcome(lambda: listed(matrix(parse_answer("store", text), 100)))
