"""Telemetry of a benchmark from a Prometheus-compatible server: its samples, or one sentence that says what is wrong.

What a server can answer wrongly is in test_store_answers.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_store import SERIES, Server, give, hangs, matrix, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from telemetry_samples import run

from agent.benchmarks.telemetry import open_telemetry
from agent.benchmarks.telemetry_series import BenchmarkSeries, PrometheusApi
from agent.errors import BenchmarkError


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def ask(url: str, token_file: str | None = None) -> tuple[BenchmarkSeries, ...]:
    api = PrometheusApi(url, bearer_token_file=token_file, timeout_seconds=0.5, max_bytes=20_000)
    try:
        return api.raw('{__name__="x"}', 100.0, 160.25)
    finally:
        api.close()


def test_samples_come_back_with_their_times_labels_and_values(server: Server) -> None:
    server.act = lambda handler: give(
        handler, matrix({**SERIES, "values": [[100.0, "1"], [101.5, "2"], [103, "+Inf"], [104, "NaN"]]})
    )
    assert ask(server.url) == (
        BenchmarkSeries("vllm:x", (("instance", "a:1"),), ((101.5, 2.0), (103.0, float("inf")))),
    )
    path, _, form = server.asked[0]
    assert path == "/api/v1/query"
    assert form["query"] == ['{__name__="x"}[60250ms]']
    assert form["time"] == ["160.250"]


def test_a_path_before_the_api_is_kept(server: Server) -> None:
    ask(f"{server.url}/prometheus/")
    assert server.asked[0][0] == "/prometheus/api/v1/query"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda h: give(h, b"<html>login</html>", kind="text/html"), "answered something else than JSON"),
        (lambda h: give(h, matrix({"metric": {}, "values": [[101, "1"]]})), "a series without a name"),
        (
            lambda h: give(h, b'{"status":"error","error":"parse\\nerror"}', 400),
            r"refused the query \(400\); its log has the reason",
        ),
        (lambda h: give(h, b"", 401), "give --bearer-token-file"),
        (lambda h: give(h, b"", 404, "text/plain"), "is this the address of a Prometheus server"),
        (
            lambda h: give(h, b"", 302, Location="http://u:secret@127.0.0.1:1/x"),
            "redirects; that is not followed",
        ),
        (lambda h: give(h, b" " * 30_000), "more than 20000 bytes: narrow it with --telemetry-selector"),
        (hangs, "within 0.5 s"),
    ],
)
def test_a_useless_answer_ends_in_one_sentence_with_the_address(server: Server, act: Any, reason: str) -> None:
    server.act = act
    with pytest.raises(BenchmarkError, match=reason) as raised:
        ask(server.url)
    text = str(raised.value)
    assert text.startswith(f"{server.url}: ")
    assert text.count(server.url) == 1
    assert "\n" not in text
    assert "secret" not in text


def test_nobody_there_is_said(server: Server) -> None:
    with pytest.raises(BenchmarkError, match="connection refused"):
        ask("http://127.0.0.1:1")


def test_the_token_goes_into_the_header_and_into_no_message(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    server.act = lambda handler: give(handler, b"no", 403)
    with pytest.raises(BenchmarkError) as raised:
        ask(server.url, str(token))
    assert server.asked[0][1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"a\nb", b"\xff"])
def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path, content: bytes) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(BenchmarkError, match="token: "):
        ask("http://127.0.0.1:1", str(token))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:pw@host/", "must hold no user or password"),
        ("http://host/?query=x", "without a query"),
        ("ftp://host/", "must begin with http"),
        ("http://", "names no host"),
        ("http://host:port/", "is no address"),
        ("http://[::1/", "is no address"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(BenchmarkError, match=reason) as raised:
        open_telemetry(url)
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize("selector", ['{a="\n"}', "x" * 3000])
def test_a_selector_that_no_query_can_hold_is_refused(selector: str) -> None:
    with pytest.raises(BenchmarkError, match="selector"):
        open_telemetry("http://127.0.0.1:1", selector=selector)


def test_an_empty_answer_names_the_span_in_utc(server: Server) -> None:
    with pytest.raises(BenchmarkError, match="no samples of an engine from 2026-11-20 18:00:00 to 18:01:00 UTC"):
        open_telemetry(server.url).read_run(run(started_at=1795197600.0, ended_at=1795197660.0))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["vllm:num_requests_running", "vllm:request_success_total", "vllm:prefix_cache_hits_total", "up"]
)
SAMPLES = st.lists(
    st.tuples(st.floats(1795197500, 1795197700), st.floats().map(str) | st.text(max_size=3)).map(list), max_size=6
)
ENTRIES = st.fixed_dictionaries(
    {
        "metric": st.fixed_dictionaries(
            {"__name__": NAMES, "engine": st.sampled_from("01"), "instance": st.text(max_size=2)}
        ),
        "values": SAMPLES,
    }
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(result=st.lists(ENTRIES | JSON, max_size=5), requests=st.none() | st.integers(1, 100))
def test_whatever_comes_back_ends_in_an_answer_or_a_bad_benchmark(
    server: Server, result: Any, requests: int | None
) -> None:
    server.act = lambda handler: give(handler, matrix(*result))
    told: tuple[str, ...] = ()
    telemetry = open_telemetry(server.url)
    try:
        found = telemetry.read_run(run(requests=requests, started_at=1795197600.0, ended_at=1795197660.0))
        told = (*found.values, *found.remarks)
    except BenchmarkError as error:
        told = (error.text,)
    finally:
        telemetry.close()
    assert told
