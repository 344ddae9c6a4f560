"""A store that answers wrongly, partly, late or without end: nothing of it becomes data, and each trouble has its kind."""

import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_store import (
    SERIES,
    Handler,
    Server,
    cuts_off,
    drips,
    give,
    hangs,
    hangs_up,
    matrix,
    never_ends,
    serving,
    vector,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import CEILING_SECONDS

from agent.config.store import StoreConfig
from agent.prometheus.answers import InstantSample, MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi

MOST_BYTES = 20_000
UP = {"metric": {"__name__": "up"}, "value": [5, "1"]}
K = StoreErrorKind


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def api_of(server: Server, **options: Any) -> StoreApi:
    given: dict[str, Any] = {
        "timeout_seconds": CEILING_SECONDS,
        "max_bytes": MOST_BYTES,
        "most_samples": 100,
        **options,
    }
    return StoreApi(StoreConfig(url=server.url).model_copy(update=given))


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


def series(*samples: list[object], **labels: str) -> dict[str, object]:
    return {"metric": labels, "values": list(samples)}


BOMB = gzip.compress(b"[" + b" " * 5_000_000 + b"]")
"""Of 5 kB: how large it is shows only when it is unpacked."""


def bombs(handler: Handler) -> None:
    give(handler, BOMB, Content_Encoding="gzip")


NO_JSON, NO_SERIES = "something else than JSON", "a series that is not written"
TOO_MANY = "query processing would load too many samples into memory"
HISTOGRAM = {"metric": {}, "histograms": [[1, {"count": "1"}]]}

WRONG: list[tuple[str, tuple[bytes, ...]]] = [
    (NO_JSON, (b"[" * 10_000, b"\xff\xfe", matrix(series([10**400, "1"])), matrix(series([math.nan, "1"])))),
    (NO_JSON, (matrix(series([1, "1"])).replace(b"[1,", b"[1e999,"), matrix(series([1, "1"], a="\ud800")))),
    ("JSON that is not Prometheus'", (b"[]",)),
    ("no matrix of samples", (b'{"status":"success"}', vector(UP))),
    (NO_SERIES, (matrix(1), matrix({"metric": {}}), matrix({"metric": {"a": 1}, "values": []}))),
    (NO_SERIES, tuple(matrix(series(sample)) for sample in ([1, "x"], [1, 2], [1], [True, "1"]))),
    ("two values of one series at one time", (matrix(series([2, "1"], [2, "3"])),)),
    ("sent a series twice", (matrix(series([1, "1"], a="b"), series([2, "3"], a="b")),)),
    ("native histograms", (matrix(HISTOGRAM),)),
]

ANSWERS: list[tuple[bytes, int, str, StoreErrorKind, str]] = [
    (b"<html>login</html>", 200, "text/html", K.WRONG_ANSWER, NO_JSON),
    *((body, 200, "application/json", K.WRONG_ANSWER, words) for words, bodies in WRONG for body in bodies),
    (matrix(series(*([t, "1"] for t in range(101)))), 200, "application/json", K.TOO_MUCH, "more than 100 samples"),
    (b'{"status":"error"}', 200, "application/json", K.REFUSED, "its log has the reason"),
    (matrix()[:-1] + b',"warnings":["no store"]}', 200, "application/json", K.PARTIAL, "with a warning"),
    (matrix()[:-1] + b',"warnings":"x"}', 200, "application/json", K.PARTIAL, "with a warning"),
    (matrix(SERIES)[:-1] + b',"isPartial":true}', 200, "application/json", K.PARTIAL, "isPartial"),
    (b" " * 30_000, 200, "application/json", K.TOO_MUCH, "more than 20000 bytes"),
    (matrix(SERIES), 503, "application/json", K.AWAY, "answered 503"),
    (b"boom", 500, "text/plain", K.AWAY, "answered 500$"),
    (b"<html>", 502, "text/html", K.AWAY, "answered 502$"),
    (b"<html>", 504, "text/html", K.SLOW, "answered 504$"),
    (b"", 429, "text/plain", K.SLOW, "answered 429$"),
    (b"", 413, "text/plain", K.TOO_MUCH, "answered 413$"),
    (b"", 401, "application/json", K.CREDENTIALS, "set bearer_token_file, basic_auth or org_id"),
    (b'{"error":"no"}', 401, "application/json", K.CREDENTIALS, "answered 401, wants credentials"),
    (b"", 403, "application/json", K.CREDENTIALS, "answered 403, wants credentials"),
    (b"", 404, "text/plain", K.WRONG_ANSWER, "is this the address of a Prometheus server"),
]

ERRORS: list[tuple[str, str, int, StoreErrorKind, str]] = [
    ("bad_data", "parse\nerror", 400, K.REFUSED, r"refused the query \(400\); its log"),
    ("execution", "found duplicate series", 422, K.REFUSED, r"refused the query \(422\)"),
    ("execution", TOO_MANY, 422, K.TOO_MUCH, "too many samples"),
    ("bad_data", "exceeded maximum resolution of 11,000 points", 400, K.TOO_MUCH, "maximum resolution"),
    ("execution", "the query exceeded (err-mimir-max-chunks-per-query)", 422, K.TOO_MUCH, "mimir"),
    ("execution", "receive series from Addr: x: away", 422, K.PARTIAL, "receive series from"),
    ("503", "cannot fetch from 1 vmstorage nodes", 503, K.PARTIAL, "vmstorage nodes"),
    ("timeout", "query timed out", 503, K.SLOW, "query timed out"),
    ("internal", "block is broken", 500, K.AWAY, r"refused the query \(500\)"),
]


def redirects(handler: Handler) -> None:
    give(handler, b"", 307, Location="http://u:secret@127.0.0.1:1/x")


def is_not_packed(handler: Handler) -> None:
    give(handler, matrix(), Content_Encoding="gzip")


USELESS = [
    *((lambda h, a=answer: give(h, *a[:3]), *answer[3:]) for answer in ANSWERS),
    *((lambda h, a=answer: give(h, error(*a[:2]), a[2]), *answer[3:]) for answer in ERRORS),
    (redirects, K.WRONG_ANSWER, "redirects; that is not"),
    (bombs, K.TOO_MUCH, "more than 20000 bytes"),
    (is_not_packed, K.AWAY, "does not unpack"),
    (cuts_off, K.AWAY, "ended the connection in the middle"),
    (hangs_up, K.AWAY, "the connection ended"),
    (hangs, K.SLOW, "gave no complete answer within 0.5 s"),
    (drips, K.SLOW, "gave no complete answer within 0.5 s"),
    (never_ends, K.TOO_MUCH, "more than 20000 bytes"),
]


@pytest.mark.parametrize(("act", "kind", "words"), USELESS)
def test_useless_answer_has_kind_and_sentence(server: Server, act: Any, kind: StoreErrorKind, words: str) -> None:
    server.act = act
    api = api_of(server, **({"timeout_seconds": 0.5} if "0.5 s" in words else {}))
    with pytest.raises(StoreError, match=words) as raised:
        api.query_samples('{__name__="x"}', 0.5, 200.0)
    api.close()
    assert raised.value.kind is kind
    text = str(raised.value)
    assert text.startswith(f"{server.url}: ")
    assert text.count(server.url) == 1
    assert "\n" not in text
    assert "secret" not in text
    assert len(text) < 500
    assert api.counts.troubles[kind] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (matrix(), "no vector of samples"),
        (vector({"metric": {}, "value": [1, "1", 2]}), "a series that is not written"),
        (vector({"metric": {}, "value": []}), "a series that is not written"),
        (vector({"metric": {}, "values": [[1, "1"], [2, "1"]]}), "a series that is not written"),
        (vector({"metric": {}, "histogram": [1, {}]}), "native histograms"),
        (vector(*({"metric": {"a": str(n)}, "value": [1, "1"]} for n in range(101))), "more than 100 samples"),
        (vector(UP, warnings=["remote read failed"]), "with a warning"),
        (b'{"status":"success","data":{"resultType":"string","result":[1,"x"]}}', "no vector of samples"),
    ],
)
def test_a_useless_instant_is_refused_as_well(server: Server, body: bytes, words: str) -> None:
    server.act = lambda handler: give(handler, body)
    with pytest.raises(StoreError, match=words):
        api_of(server).query("up", 5.0)


ONE = (InstantSample({"__name__": "up"}, 1.0),)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (vector(UP, infos=["metric might not be a counter"], warnings=[]), ONE),
        (vector({"metric": {}, "value": [1, "NaN"]}), ()),
        (matrix(series([1, "NaN"]), series(a="b")), ()),
        # Samples are deduplicated, and cut to the span.
        (
            matrix(series([1, "0"], [2, "1"], [2, "1"], [3, "NaN"], [4, "+Inf"], [5, "9"])),
            (MatrixSeries({}, (2.0, 4.0), (1.0, math.inf)),),
        ),
    ],
    ids=["infos", "NaN", "empty series", "samples"],
)
def test_answer_becomes_samples(server: Server, body: bytes, expected: tuple[object, ...]) -> None:
    server.act = lambda handler: give(handler, body)
    api = api_of(server)
    assert (api.query("up", 5.0) if b'"vector"' in body else api.query_samples("x", 1.0, 4.0)) == expected


def test_partial_answer_needs_permission(server: Server) -> None:
    server.act = lambda handler: give(handler, vector(UP, isPartial=True, warnings=["no store"]))
    api = api_of(server, partial_answers="take")
    assert api.query("up", 5.0) == (InstantSample({"__name__": "up"}, 1.0),)
    assert "partial_response" not in server.asked[0][2]
    with pytest.raises(StoreError):
        api_of(server).query("up", 5.0)
    assert server.asked[1][2]["partial_response"] == ["false"]
    assert server.asked[1][2]["deny_partial_response"] == ["1"]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {"metric": st.dictionaries(st.sampled_from(["__name__", "a"]), st.text(max_size=2) | st.integers(), max_size=2)},
    optional={
        "value": JSON,
        "values": st.lists(st.tuples(st.floats(0, 9), st.floats().map(str) | st.text(max_size=3)).map(list)),
        "histograms": JSON,
    },
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    result=st.lists(ENTRIES | JSON, max_size=4) | JSON,
    kind=st.sampled_from(["vector", "matrix", "scalar"]) | JSON,
    further=st.dictionaries(st.sampled_from(["warnings", "isPartial", "status", "error", "errorType"]), JSON),
)
def test_any_answer_is_samples_or_error(server: Server, result: Any, kind: Any, further: Any) -> None:
    body = {"status": "success", "data": {"resultType": kind, "result": result}, **further}
    server.act = lambda handler: give(handler, json.dumps(body).encode())
    api = api_of(server)
    outcomes: list[object] = []
    for ask in (lambda: api.query("x", 5.0), lambda: api.query_samples("x", 0.0, 9.0)):
        try:
            outcomes.append(ask())
        except StoreError as error:
            outcomes.append(error.text)
    api.close()
    assert len(outcomes) == 2
    for outcome in outcomes:
        for one in outcome if isinstance(outcome, tuple) else ():
            values = one.values if isinstance(one, MatrixSeries) else (one.value,)
            assert values
            assert not any(map(math.isnan, values))
