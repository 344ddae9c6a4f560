"""A store that answers wrongly, partly, late or without end: nothing of it becomes data, and each trouble has its kind."""

import base64
import gzip
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_store import (
    JSON,
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
from peers import peer_fields
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
        made.act = lambda handler: give(handler, vector())
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


# ---- how a store is asked: its form, who we say we are, what is kept secret ----


CANARY = "c4n4ry-s3cret"


def asking(server: Server, **options: Any) -> StoreApi:
    given: dict[str, Any] = {"url": server.url, "timeout_seconds": 20.0, **options}
    return StoreApi(StoreConfig(**peer_fields(**given)))


def written(folder: Path, text: str, name: str = "secret") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("base", ["", "/prometheus", "/select/0/prometheus/"])
def test_query_is_posted_with_timeout(server: Server, base: str) -> None:
    long = "up or " * 5000 + "up"
    api = asking(server, url=f"{server.url}{base}")
    api.query(long, 1.5)
    path, headers, form = server.asked[0]
    assert path == f"{base.rstrip('/')}/api/v1/query"
    assert api.place == f"{server.url}{base.rstrip('/')}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["User-Agent"] == "sizewatch"
    assert (form["query"], form["time"], form["timeout"]) == ([long], ["1.500"], ["20.000"])
    assert not {"X-Scope-OrgID", "Authorization"} & set(headers)


def test_the_tenant_and_further_headers_are_sent(server: Server, tmp_path: Path) -> None:
    key = written(tmp_path, f"{CANARY}\n")
    asking(server, org_id="team-a|team-b", header_files={"X-Api-Key": key}).query("up", 1.0)
    headers = server.asked[-1][1]
    assert (headers["X-Scope-OrgID"], headers["X-Api-Key"]) == ("team-a|team-b", CANARY)


def test_new_token_is_used_next_query(server: Server, tmp_path: Path) -> None:
    path = written(tmp_path, "old")
    now = 1000.0

    def wants_new(handler: Handler) -> None:
        allowed = handler.headers["Authorization"] == f"Bearer {CANARY}"
        give(handler, vector() if allowed else b"", 200 if allowed else 401)

    server.act = wants_new
    api = StoreApi(StoreConfig(**peer_fields(url=server.url, bearer_token_file=path)), lambda: now)
    for _ in range(3):
        with pytest.raises(StoreError, match="wants credentials") as raised:
            api.query("up", 1.0)
        assert raised.value.kind is StoreErrorKind.CREDENTIALS
    assert len(server.asked) == 1
    Path(path).write_text(CANARY)
    os.utime(path, ns=(1, 1))
    now += 60.0
    assert api.query("up", 1.0) == ()
    assert len(server.asked) == 2


@pytest.mark.parametrize("content", [b"", b"a\nb", b"\xff" + CANARY.encode()])
def test_unusable_token_is_credentials_error(server: Server, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    for options in ({"bearer_token_file": str(path)}, {"header_files": {"X-Key": str(path)}}):
        with pytest.raises(StoreError, match=str(path)) as raised:
            asking(server, **options).query("up", 1.0)
        assert raised.value.kind is StoreErrorKind.CREDENTIALS
        assert CANARY not in str(raised.value)
    assert server.asked == []


def repeats(handler: Handler) -> None:
    """A proxy that quotes what it was sent."""
    sent = "; ".join(f"{name}: {text}" for name, text in handler.headers.items())
    give(handler, vector(warnings=[sent]) if handler.path.endswith("range") else _error(sent), 200)


def _error(text: str) -> bytes:
    return b'{"status":"error","error":"' + text.replace('"', "'").encode() + b'"}'


def test_repeated_secret_stays_out_of_messages(server: Server, tmp_path: Path) -> None:
    server.act = repeats
    file, basic = written(tmp_path, CANARY), base64.b64encode(f"u:{CANARY}".encode()).decode()
    for options in (
        {"bearer_token_file": file},
        {"username": "u", "password_file": file},
        {"header_files": {"X-Api-Key": file}},
    ):
        api = asking(server, **options)
        for ask in (lambda api=api: api.query("up", 1.0), lambda api=api: api.query_range("up", 1.0, 2.0, 1.0)):
            with pytest.raises(StoreError) as raised:
                ask()
            assert CANARY not in f"{raised.value} {raised.value!r} {raised.value.text}"
            assert basic not in str(raised.value)
        assert CANARY not in repr(api) + repr(api.store)
