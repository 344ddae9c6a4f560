"""The store's client against a real Prometheus and a real VictoriaMetrics that hold the same samples."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_store import give, serving, vector
from prometheus_server import Sample, prometheus_with_blocks, steady, victoria_metrics
from waiting import StandingClock

from agent.config.store import StoreConfig
from agent.prometheus.answers import InstantSample, MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from exporters.render.safe_text import one_line

pytestmark = pytest.mark.server

T = 1_760_000_000.0
ODD = 'say "hi"\\n\n→ ok'
"""A label's text with all that must be escaped somewhere on its way."""


def samples() -> Iterator[Sample]:
    for replica, rise in (("a", 3.0), ("b", 5.0)):
        yield from steady("requests_total", {"replica": replica}, T, 4000, 15.0, rise)
    yield from (("exact", {}, T + at, value) for at, value in ((0.0, 1.0), (1.234, 2.0), (7.5, 3.0), (9.999, 4.0)))
    yield from (("odd", {"text": ODD}, T, math.inf), ("exact", {}, T + 5.0, math.nan))


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("store")
    if request.param == "prometheus":
        with prometheus_with_blocks(folder, samples()) as url:
            yield url
    else:
        with victoria_metrics(folder) as store:
            store.write(samples())
            yield store.url


@pytest.fixture
def api(url: str) -> Iterator[StoreApi]:
    made = StoreApi(StoreConfig(url=url))
    yield made
    made.close()


def test_instant_query_gives_labelled_values(api: StoreApi) -> None:
    found = api.query("requests_total", T + 30)
    assert sorted(found, key=lambda one: one.value) == [
        InstantSample({"__name__": "requests_total", "replica": "a"}, 6.0),
        InstantSample({"__name__": "requests_total", "replica": "b"}, 10.0),
    ]
    assert api.query("sum(requests_total)", T + 30) == (InstantSample({}, 16.0),)
    assert api.query("odd", T) == (InstantSample({"__name__": "odd", "text": one_line(ODD)}, math.inf),)
    assert api.counts.queries == 3
    assert api.counts.bytes > 100
    assert api.counts.seconds > 0


def test_absent_series_gives_empty_answer(api: StoreApi) -> None:
    assert api.query("nobody", T) == ()
    assert api.query_samples("nobody", T - 10, T) == ()
    assert api.query_range("nobody", T, T + 60, 15) == ()
    assert api.query("requests_total - requests_total / (requests_total * 0)", T) == ()


def test_raw_samples_keep_their_times(api: StoreApi) -> None:
    assert api.query_samples("exact", T, T + 9.999) == (
        MatrixSeries({"__name__": "exact"}, (T + 1.234, T + 7.5, T + 9.999), (2.0, 3.0, 4.0)),
    )
    assert api.query_samples("exact", T - 0.001, T + 1.233) == (MatrixSeries({"__name__": "exact"}, (T,), (1.0,)),)
    assert api.query_samples("exact", T, T + 1) == ()


@pytest.mark.parametrize("count", [3, 200])
def test_grid_begins_at_start(api: StoreApi, count: int) -> None:
    start, step = T + 7.25, 15.0
    found = api.query_range("requests_total", start, start + (count - 0.5) * step, step)
    assert {one.labels["replica"] for one in found} == {"a", "b"}
    for one in found:
        assert one.times == tuple(start + place * step for place in range(count))
    of_a = next(one for one in found if one.labels["replica"] == "a")
    assert of_a.values == tuple(3.0 * place for place in range(count))


def test_too_many_samples_are_refused(url: str) -> None:
    api = StoreApi(StoreConfig(url=url, most_samples=1000))
    for ask in (
        lambda: api.query_samples("requests_total", T, T + 4000 * 15),
        lambda: api.query_range("requests_total", T, T + 2999 * 15, 15.0),
    ):
        with pytest.raises(StoreError, match="more than 1000 samples") as raised:
            ask()
        assert raised.value.kind is StoreErrorKind.TOO_MUCH
    api.close()


@pytest.mark.parametrize("query", ["sum(", "x[", 'x{a=~"("}'])
def test_bad_query_is_refused_by_status(api: StoreApi, query: str) -> None:
    with pytest.raises(StoreError) as raised:
        api.query(query, T)
    assert raised.value.kind is StoreErrorKind.REFUSED
    assert raised.value.place == api.place
    assert "\n" not in str(raised.value)
    # The query is at fault, not the store.
    assert api.query("vector(1)", T)


def test_store_limit_is_too_much(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path, "-search.maxSamplesPerQuery=1000") as store:
        store.write(samples())
        api = StoreApi(StoreConfig(url=store.url))
        with pytest.raises(StoreError) as raised:
            api.query("sum(increase(requests_total[14h]))", T + 50_000)
        assert raised.value.kind is StoreErrorKind.TOO_MUCH
        api.close()


def test_newest_samples_are_seen(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path, "-search.latencyOffset=30s") as store:
        now = round(time.time())
        store.write(steady("fresh", {}, now - 5, 6, 1.0, 1.0))
        api = StoreApi(StoreConfig(url=store.url))
        assert api.query("fresh", now) == (InstantSample({"__name__": "fresh"}, 5.0),)
        assert api.query_samples("fresh", now - 2, now)[0].times == (now - 1, now)
        assert api.query_range("fresh", now - 60, now, 60.0)[0].values == (5.0,)
        api.close()


def test_stopped_store_is_paused_until_next_cycle(tmp_path: Path) -> None:
    clock = StandingClock(1000.0)
    with victoria_metrics(tmp_path) as store:
        store.write(steady("x", {}, T, 2, 1.0, 1.0))
        api = StoreApi(StoreConfig(url=store.url), clock)
        assert api.query("x", T + 1)
        store.stop()
        for _ in range(5):
            with pytest.raises(StoreError, match="connection refused") as raised:
                api.query("x", T + 1)
            assert raised.value.kind is StoreErrorKind.AWAY
        assert "not asked again for 27 s" in str(raised.value)
        assert api.counts.queries == 2
        assert api.counts.troubles[StoreErrorKind.AWAY] == 5
        store.start()
        clock.now += 60
        assert api.query("x", T + 1) == (InstantSample({"__name__": "x"}, 1.0),)
        api.close()


SLOW = b'{"status":"error","errorType":"timeout","error":"query timed out"}'


def test_store_is_paused_until_it_answers() -> None:
    clock = StandingClock(1000.0)
    with serving() as server:
        api = StoreApi(StoreConfig(url=server.url), clock)

        def ask(answer: tuple[Any, ...] | None) -> str:
            """The trouble of a query."""
            server.act = lambda handler: give(handler, *(answer or (vector(),)))
            try:
                assert api.query("x", T) == ()
            except StoreError as error:
                return error.text
            return ""

        # A single slow query pauses nothing, two in a row do.
        for _ in range(3):
            assert ask((SLOW, 503)) != ""
            assert ask(None) == ""
        asked = len(server.asked)
        for _ in range(4):
            assert "query timed out" in ask((SLOW, 503))
        assert len(server.asked) == asked + 2
        clock.now += 60
        assert ask(None) == ""
        for _ in range(3):
            ask((b"", 502, "text/plain"))
            assert ask(None) == "answered 502 (not asked again for 27 s)"
            clock.now += 30
            assert ask(None) == ""
        api.close()


def test_absent_store_is_asked_every_second_cycle() -> None:
    clock = StandingClock(1000.0)
    api = StoreApi(StoreConfig(url="http://127.0.0.1:1"), clock)
    asked = []
    for _ in range(20):
        with pytest.raises(StoreError):
            api.query("x", T)
        asked.append(api.counts.queries)
        clock.now += 60
    assert asked == [1, 2, *(n for n in range(3, 12) for _ in range(2))]
