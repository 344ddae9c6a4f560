"""Fuzz targets that read what servers and clients send: a store, Kubernetes, the kubelet, and requests to our own port."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import kube_standin
from fuzz_documents import JSON_WORDS
from fuzz_pages import check_snapshot, engine_pages
from fuzz_target import Target, bounded_words, sound

from agent.alerting.payload import BadPayload, read
from agent.alerting.receiver import Receiver, TokenBucket
from agent.collect.exposition import SeriesReader
from agent.config import parse_config
from agent.kubernetes.api import _event
from agent.kubernetes.discovery import discover, told
from agent.kubernetes.pod_resources import _devices
from agent.kubernetes.pods import pod_of
from agent.kubernetes.tiers import Known
from agent.store.answers import RawSeries, answer, matrix, vector
from agent.store.engine_pages import EnginePages
from agent.store.own_pages import OwnPages
from agent.store.sums_found import group_sums
from agent.web import WebServer
from agent.web_config import WEBHOOK, WebOptions
from agent.web_credentials import Gate
from exporters import names

NOW = 1_800_000_000.0
TOKEN = "a-token-of-the-webhook"


def run_store(data: bytes) -> None:
    """The first byte chooses what the answer is taken for."""
    kind, given = (data[:1] or b"\0")[0] % 4, answer("http://store:9090", data[1:])
    if given.error is not None:
        bounded_words((given.error, given.error_type))
        return
    if kind == 0:
        assert all(one.value == one.value for one in vector(given, 10_000))
        return
    several = matrix(given, 10_000)
    for one in several:
        assert len(one.times) == len(one.values) > 0
        assert all(a < b for a, b in zip(one.times, one.times[1:], strict=False)), "times do not rise"
    (_read_engines, _read_own, _read_sums)[kind - 1](several)


def _read_engines(several: tuple[RawSeries, ...]) -> None:
    for page in EnginePages("instance").pages(several):
        if page.snapshot is not None:
            check_snapshot(page.snapshot)


def _read_own(several: tuple[RawSeries, ...]) -> None:
    for page in OwnPages().pages(several):
        assert math.isfinite(page.t)
        if page.snapshot is not None:
            sound(page.snapshot.counters, "counter")
            sound(page.snapshot.gauges, "gauge")


def _read_sums(several: tuple[RawSeries, ...]) -> None:
    for parts in group_sums(several, NOW, NOW + 60).values():
        for part in parts:
            sound(part.window.counters, "increase of")


def run_webhook(data: bytes) -> None:
    alerts, own = read(data, NOW)
    assert own >= 0
    for one in alerts:
        bounded_words((one.name, one.summary, *(f"{key}={value[:900]}" for key, value in one.labels)))
        assert 0 < one.started_at < math.inf
        assert one.ended_at is None or one.ended_at >= one.started_at


@cache
def _server() -> tuple[WebServer, Receiver]:
    receiver = Receiver(Gate((TOKEN,)), bucket=TokenBucket(1e9, 1e9))
    server = WebServer(WebOptions(port=0, timeout_seconds=2.0), lambda: None)
    server.receive(receiver)
    server.start()
    return server, receiver


def close() -> None:
    """Ends the server, where one was needed: its threads would keep the process."""
    if _server.cache_info().currsize:
        _server()[0].stop()
        _server.cache_clear()


def asked(request: bytes) -> bytes:
    """All that the server says to these bytes, the last it will get."""
    with socket.create_connection(("127.0.0.1", _server()[0].port), timeout=5.0) as sock:
        try:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65_536), b""))
        except TimeoutError:
            raise AssertionError("no answer within 5 s") from None
        except OSError:
            # Refused before it was read to its end.
            return b""


def run_request(data: bytes) -> None:
    said = asked(data)
    assert not said.startswith(b"HTTP/1.1 500"), "an error of ours"
    assert not said or said.startswith(b"HTTP/1."), f"no HTTP: {said[:40]!r}"
    assert b"Traceback" not in said
    assert asked(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 "), "it no longer answers"
    waiting = _server()[1].waiting()
    assert not waiting or not said or b" 200 OK" in said, "a refused request left an alert"


def run_kubernetes(data: bytes) -> None:
    event = _event(data)
    pod = pod_of(event["object"])
    if pod is None:
        return
    bounded_words(
        (pod.name, pod.namespace, pod.node, pod.address, *pod.labels, *pod.labels.values(), *pod.own.values())
    )
    bounded_words(told(discover([pod], _keys(), Known(tiers=None, entries=(), products=(), models={}))))


@cache
def _keys() -> Any:
    given: Mapping[str, Any] = {"discovery": {"kubernetes": {"node": "gpu-1"}}}
    return parse_config(given, environment={}).discovery.kubernetes


def run_pod_resources(data: bytes) -> None:
    for one in _devices(data):
        bounded_words((one.namespace, one.pod, one.container, one.resource, *one.ids))


def _matrices() -> Iterator[bytes]:
    page = SeriesReader(lambda name: True).read(engine_pages()[4])
    series = [
        {
            "metric": {"__name__": one.name, "instance": "a:1", "job": "vllm", **dict(one.labels)},
            "values": [[NOW, str(value)], [NOW + 15, str(value + 1)]],
        }
        for one, value in zip(page.series, page.values, strict=True)
    ][:120]
    up = {"metric": {"__name__": "up", "instance": "a:1", "job": "vllm"}, "values": [[NOW, "1"], [NOW + 15, "1"]]}
    yield b"\x01" + _success("matrix", [up, *series])
    replica = {names.TIER: "t", names.REPLICA: "r", names.POOL: "mixed", "instance": "agent:1"}
    wanted = [names.TARGET_UP.name, names.TARGET_SEEN.name, *(metric.name for metric in names.FAMILY.values())]
    own = [
        {"metric": {"__name__": name, **replica}, "values": [[NOW, "1"], [NOW + 15, "2"], [NOW + 30, "NaN"]]}
        for name in wanted[:60]
    ]
    own.append({"metric": {"__name__": names.REPLICA_INFO.name, **replica, names.MODEL: "m"}, "values": [[NOW, "1"]]})
    yield b"\x02" + _success("matrix", own)
    yield b"\x03" + _success("matrix", [])
    yield b"\x00" + _success("vector", [{"metric": {"a": "b"}, "value": [NOW, "1.5"]}])
    yield b"\x00" + _success("scalar", [NOW, "2"])
    yield b"\x00" + json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode()
    yield b"\x00" + json.dumps({"status": "success", "warnings": ["w"], "data": {}}).encode()


def _success(kind: str, result: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


ALERT = {
    "status": "resolved",
    "labels": {"alertname": "Q", "tier": "gold"},
    "annotations": {"summary": "m1 has 9 waiting"},
    "startsAt": "2026-09-21T14:10:26.258Z",
    "endsAt": "0001-01-01T00:00:00Z",
}


def _webhooks() -> Iterator[bytes]:
    yield json.dumps({"version": "4", "alerts": [ALERT]}).encode()
    yield json.dumps({"version": "4", "alerts": [ALERT | {"status": "firing"}, ALERT], "receiver": "x"}).encode()


def _requests() -> Iterator[bytes]:
    body = next(_webhooks())
    head = f"POST {WEBHOOK} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    yield head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    yield head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    yield b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n"
    yield b"GET /?a=%00&b=%ff HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"


def _events() -> Iterator[bytes]:
    one = kube_standin.pod("a-1", annotations={"sizewatch.io/scrape": "true", "sizewatch.io/tier": "t"}, restarts=1)
    yield json.dumps({"type": "ADDED", "object": one}).encode()
    yield json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _pod_resources() -> Iterator[bytes]:
    device = _field(1, b"nvidia.com/gpu") + _field(2, b"GPU-1") + _field(2, b"GPU-2")
    claim = _field(2, b"c") + _field(4, _field(2, b"gpu.nvidia.com") + _field(3, b"p") + _field(4, b"gpu-0"))
    container = _field(1, b"engine") + _field(2, device) + _field(5, claim)
    yield _field(1, _field(1, b"pod") + _field(2, b"llm") + _field(3, container)) + b"\x18\x01\x21" + b"\0" * 8


HTTP_WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: \xb2\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"ffffffffffffffff\r\n",
        b"-1\r\n",
        b"HTTP/9.9",
        b"\0",
    ),
    *(
        b"//",
        b"/../",
        b"%2e%2e/",
        b"http://b/",
        b"*",
        b"\xff",
        b"A: " + b"B" * 9000 + b"\r\n",
        b"CONNECT ",
        b"/reports/",
    ),
    *(
        b"Content-Encoding: gzip\r\n",
        b"Range: bytes=0-\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
        b"Host: b\r\n",
    ),
)

TARGETS = (
    Target(
        name="store",
        run=run_store,
        seeds=_matrices,
        words=(
            *JSON_WORDS,
            b'"NaN"',
            b'"+Inf"',
            b'"-1"',
            b'"le"',
            b'"histogram"',
            b"__name__",
            b'"1e999"',
            b'"isPartial":1',
        ),
    ),
    Target(name="webhook", run=run_webhook, seeds=_webhooks, declared=(BadPayload,), words=JSON_WORDS),
    Target(name="request", run=run_request, seeds=_requests, words=HTTP_WORDS),
    Target(name="kubernetes", run=run_kubernetes, seeds=_events, words=JSON_WORDS),
    Target(
        name="pod_resources",
        run=run_pod_resources,
        seeds=_pod_resources,
        declared=(ValueError, IndexError),
        words=(b"\xff" * 9 + b"\x01", b"\x0a\x00", b"\x80" * 12, b"\x0a\xff\xff\xff\xff\x0f"),
    ),
)
