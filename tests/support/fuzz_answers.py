"""Fuzz targets that read what servers and clients send: a store, Kubernetes, the kubelet, and requests to our own port."""

from __future__ import annotations

import json
import math
import socket
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kube_standin
from fuzz_documents import JSON_WORDS
from fuzz_pages import HERE, check_snapshot, check_window, engine_pages
from fuzz_target import Target, bounded_words, sound
from gpu_page import DCGM_PAGE

from agent.alerting.webhook import PayloadError, TokenBucket, WebhookReceiver, read
from agent.benchmarks import telemetry_series as telemetry
from agent.benchmarks.telemetry_series import group_by_target, replica
from agent.config.discovery import PodTier
from agent.config.files import load_plan
from agent.config.load import parse_config
from agent.fleet.agent_series import AgentPages
from agent.fleet.engine_series import EnginePages, GpuPages
from agent.fleet.engine_sums import ReleaseGroup, part_sums, replica_windows
from agent.fleet.sums import COUNTED, GROUP, LEVEL_NAMES, LEVELS, PART, SUMS, WHAT, group_sums, replica_parts
from agent.http_server.credentials import Authenticator
from agent.http_server.options import WEBHOOK, WebOptions
from agent.http_server.probes import TurnProgress
from agent.http_server.server import WebServer
from agent.kubernetes.api import _event
from agent.kubernetes.discovery import describe_excluded_pods, discover
from agent.kubernetes.pod_gpus import _devices
from agent.kubernetes.pod_tier import TierCandidates
from agent.kubernetes.pods import pod_of
from agent.prometheus.answers import MatrixSeries, matrix, parse_answer, vector
from agent.scrape.exposition import SeriesReader
from exporters.metrics import names
from rules.engines.registry import ENGINES
from rules.gpu_sources.registry import EXPORTERS

NOW = 1_800_000_000.0
TOKEN = "a-token-of-the-webhook"


def run_store(data: bytes) -> None:
    """The first byte chooses what the answer is taken for."""
    kind, given = (data[:1] or b"\0")[0] % 8, parse_answer("http://store:9090", data[1:])
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
    _READ[kind - 1](several)


def _read_engines(several: tuple[MatrixSeries, ...]) -> None:
    for page in EnginePages("instance").pages(several):
        if page.snapshot is not None:
            check_snapshot(page.snapshot)


def _read_own(several: tuple[MatrixSeries, ...]) -> None:
    for page in AgentPages().pages(several):
        assert math.isfinite(page.t)
        if page.snapshot is not None:
            sound(page.snapshot.counters, "counter")
            sound(page.snapshot.gauges, "gauge")


def _read_sums(several: tuple[MatrixSeries, ...]) -> None:
    for parts in group_sums(several, NOW, NOW + 60).values():
        for part in parts:
            sound(part.window.counters, "increase of")


def _read_gpus(several: tuple[MatrixSeries, ...]) -> None:
    for exporter in EXPORTERS:
        for page in EnginePages("instance", gpus=GpuPages(exporter, "instance")).pages(several):
            for readout in page.gpus:
                sound(readout.counters, "counter")
                assert all(map(math.isfinite, readout.gauges.values())), f"gauges {dict(readout.gauges)}"


def _read_engine_sums(several: tuple[MatrixSeries, ...]) -> None:
    times = (NOW, NOW + 60)
    parts = [
        ReleaseGroup(key=f"{place}", engine=one, repeated=False, members=("a:1", "b:1"))
        for place, one in enumerate(ENGINES)
    ]
    for found in part_sums(several, parts, times).values():
        if found is not None:
            sound(found.window.counters, "increase of")
    for part in parts:
        families = frozenset(row.family for row in part.engine.rows)
        for window in replica_windows(several, part, families, "instance", times).values():
            sound(window.counters, "increase of")


def _read_replica_sums(several: tuple[MatrixSeries, ...]) -> None:
    for by_family in replica_parts(several, NOW, NOW + 60).values():
        for family, parts in by_family.items():
            assert all(0 <= count < math.inf for part in parts for count in part.counts), f"increase of {family}"


def _read_telemetry(several: tuple[MatrixSeries, ...]) -> None:
    """As a benchmark's run is looked up: every series needs a name."""
    named = [
        telemetry.BenchmarkSeries(
            one.labels["__name__"],
            tuple(sorted((name, text) for name, text in one.labels.items() if name != "__name__")),
            tuple(zip(one.times, one.values, strict=True)),
        )
        for one in several
        if "__name__" in one.labels
    ]
    for target, of_it in group_by_target(named).items():
        found = replica(target, of_it, ENGINES)
        for window in found.windows if found is not None else ():
            check_window(window)


_READ = (*(_read_engines, _read_own, _read_sums, _read_gpus, _read_engine_sums, _read_replica_sums, _read_telemetry),)


def run_webhook(data: bytes) -> None:
    alerts, own, _ = read(data, NOW)
    assert own >= 0
    for one in alerts:
        bounded_words((one.name, one.summary, *(f"{key}={value[:900]}" for key, value in one.labels)))
        assert 0 < one.started_at < math.inf
        assert one.ended_at is None or one.ended_at >= one.started_at


@cache
def _server() -> tuple[WebServer, WebhookReceiver]:
    from status_samples import agent_status

    receiver, status = WebhookReceiver(Authenticator((TOKEN,)), bucket=TokenBucket(1e9, 1e9)), agent_status()
    server = WebServer(WebOptions(port=0, timeout_seconds=2.0), lambda: status, TurnProgress)
    server.receive(receiver)
    reports = Path(tempfile.mkdtemp())
    (reports / "2026-01-05").mkdir()
    for name in ("report.html", "report.json"):
        (reports / "2026-01-05" / name).write_text("{}", encoding="utf-8")
    server.serve_reports(reports)
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
    """Events of a watch, one a line."""
    pods = [one for line in data.split(b"\n") if (one := pod_of(_event(line)["object"])) is not None]
    for pod in pods:
        bounded_words(
            (pod.name, pod.namespace, pod.node, pod.address, *pod.labels, *pod.labels.values(), *pod.own.values())
        )
    for known in _known():
        bounded_words(describe_excluded_pods(discover(pods, _keys(), known)))


@cache
def _known() -> tuple[TierCandidates, ...]:
    """Nothing; a plan and the node's GPU; the configuration's own entries."""
    tiers = load_plan(HERE / "plans" / "cpu-small.yaml").tiers
    models = {"uid-llm-a-1": ("org/small-llama",), "uid-llm-a-2": ()}
    entry = PodTier.model_validate({"tier": "cpu-small", "labels": {"app": "vllm"}, "namespaces": ["llm"]})
    return (
        TierCandidates(),
        TierCandidates(tiers=tiers, products=("NVIDIA-CPU",), models=models),
        TierCandidates(tiers=tiers, entries=(entry,)),
        TierCandidates(tiers=tiers, products=("NVIDIA-H100",)),
    )


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
    yield from _sums(series)
    yield b"\x07" + _success("matrix", series)
    yield b"\x04" + _success("matrix", [up, *_gpu_series()])
    yield b"\x00" + _success("vector", [{"metric": {"a": "b"}, "value": [NOW, "1.5"]}])
    yield b"\x00" + _success("scalar", [NOW, "2"])
    yield b"\x00" + json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode()
    yield b"\x00" + json.dumps({"status": "success", "warnings": ["w"], "data": {}}).encode()


def _gpu_series() -> Iterator[dict[str, Any]]:
    for page in (
        DCGM_PAGE.encode(),
        *(path.read_bytes() for path in sorted((HERE / "gpu_exporter_pages").glob("*.prom"))),
    ):
        found = SeriesReader(lambda name: True).read(page)
        for place, (one, value) in enumerate(zip(found.series, found.values, strict=True)):
            if place % 3 == 0:
                metric = {"__name__": one.name, **dict(one.labels), "instance": "a:1"}
                yield {"metric": metric, "values": [[NOW, str(value)], [NOW + 15, str(value + 1)]]}


def _sums(series: list[dict[str, Any]]) -> Iterator[bytes]:
    """As a fleet's turn is answered: sums over a group's replicas, with how many of them have each series."""
    own = []
    for what, value in ((SUMS, 9), ("counted", 2)):
        own += [
            {
                "metric": {**one["metric"], GROUP: f"{place % 4}", WHAT: what},
                "values": [[NOW, "2"], [NOW + 60, f"{value}"]],
            }
            for place, one in enumerate(series)
        ]
    yield b"\x05" + _success("matrix", own[:160])
    engine = next(place for place, one in enumerate(ENGINES) if one.name == "vllm")
    named = [{**one, "metric": {**one["metric"], GROUP: f"{engine}"}} for one in own]
    yield b"\x05" + _success("matrix", named[:240])
    stems = (
        "requests_finished_total",
        "preemptions_total",
        "ttft_seconds_bucket",
        "ttft_seconds_sum",
        "restarts_total",
    )
    families = [
        {
            "metric": {"__name__": name, PART: f"{lot}.{what}", names.REPLICA: "r", **({"le": edge} if edge else {})},
            "values": [[NOW, "1"], [NOW + 60, f"{value}"]],
        }
        for name in (*(names.PREFIX + stem for stem in stems), *sorted(LEVEL_NAMES)[:3])
        for what in (SUMS, COUNTED, *LEVELS)
        for lot in ("0.0", "0.1", "1.0")
        for edge, value in ((("0.5", 3), ("+Inf", 5)) if name.endswith("_bucket") else (("", 4),))
    ]
    yield b"\x03" + _success("matrix", families)
    yield b"\x06" + _success("matrix", [one for one in families if "ttft" in one["metric"]["__name__"]][:6])


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
    for path in (
        b"/",
        b"/api/status",
        b"/readyz",
        b"/reports/",
        b"/reports/latest/report.html",
        b"/reports/2026-01-05/",
    ):
        yield b"GET " + path + b' HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: W/"a"\r\nConnection: close\r\n\r\n'
    yield b"HEAD /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    for length in (9_999_999, 70_000, len(body)):
        yield head.encode() + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%b" % (length, body)
    yield b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip;q=0, *;q=0.5\r\n\r\n"
    for host in (b"", b"Host: a\r\nHost: a\r\n", b"Host : a\r\n", b"Host: [::1]:9095\r\n"):
        yield b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n"
    yield b"GET /?a=%00&b=%ff HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"


def _events() -> Iterator[bytes]:
    one = kube_standin.pod("a-1", annotations={"sizewatch.io/scrape": "true", "sizewatch.io/tier": "t"}, restarts=1)
    yield json.dumps({"type": "ADDED", "object": one}).encode()
    group = {f"leaderworkerset.sigs.k8s.io/{name}": text for name, text in (("name", "a"), ("worker-index", "1"))}
    several = (
        kube_standin.pod("a-1", became_ready=1_700_000_900.0),
        kube_standin.pod(
            "a-2", ports=(("metrics", 1), ("other", 9)), ready=False, labels={"sizewatch.io/tier": "cpu-small"}
        ),
        kube_standin.pod("a-3", address=None, labels=group),
        kube_standin.pod("a-4", labels={**group, "leaderworkerset.sigs.k8s.io/group-index": "0"}, phase="Pending"),
        kube_standin.pod(
            "a-5", hostNetwork=True, ports=(), annotations={"sizewatch.io/port": "9", "sizewatch.io/path": "/m"}
        ),
        kube_standin.pod(
            "a-6", address="::1", gpus=0, annotations={"sizewatch.io/scrape": "true", "sizewatch.io/pool": "decode"}
        ),
    )
    yield b"\n".join(json.dumps({"type": "ADDED", "object": pod}).encode() for pod in several)
    yield from (json.dumps({"type": "MODIFIED", "object": pod}).encode() for pod in several)
    yield json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def pod_resources_seeds() -> Iterator[bytes]:
    device = _field(1, b"nvidia.com/gpu") + _field(2, b"GPU-1") + _field(2, b"GPU-2")
    claim = _field(2, b"c") + _field(4, _field(2, b"gpu.nvidia.com") + _field(3, b"p") + _field(4, b"gpu-0"))
    container = _field(1, b"engine") + _field(2, device) + _field(5, claim)
    yield _field(1, _field(1, b"pod") + _field(2, b"llm") + _field(3, container)) + b"\x18\x01\x21" + b"\0" * 8


HTTP_WORDS = (
    *(b"Host: a\r\n", b"Host : a\r\n", b" :", b"Accept-Encoding: gzip;q=0\r\n", b";q=0.5", b", *", b"HTTP/1.0\r\n"),
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
        reads=(
            *(
                "agent.prometheus.answers",
                "agent.fleet.engine_series",
                "agent.fleet.engine_sums",
                "agent.fleet.engine_series",
            ),
            *("agent.fleet.agent_columns", "agent.fleet.agent_series", "agent.fleet.sums"),
            "agent.benchmarks.telemetry_series",
        ),
    ),
    Target(
        name="webhook",
        run=run_webhook,
        seeds=_webhooks,
        declared=(PayloadError,),
        words=JSON_WORDS,
        reads=("agent.alerting.webhook",),
    ),
    Target(
        name="request",
        run=run_request,
        seeds=_requests,
        words=HTTP_WORDS,
        reads=(
            *("agent.http_server.server", "agent.http_server.connections", "agent.http_server.request_head"),
            "agent.alerting.webhook",
        ),
    ),
    Target(
        name="kubernetes",
        run=run_kubernetes,
        seeds=_events,
        words=JSON_WORDS,
        reads=("agent.kubernetes.pods", "agent.kubernetes.discovery", "agent.kubernetes.pod_tier"),
    ),
    Target(
        name="pod_resources",
        run=run_pod_resources,
        seeds=pod_resources_seeds,
        declared=(ValueError, IndexError),
        words=(b"\xff" * 9 + b"\x01", b"\x0a\x00", b"\x80" * 12, b"\x0a\xff\xff\xff\xff\x0f"),
        reads=("agent.kubernetes.pod_gpus",),
    ),
)
