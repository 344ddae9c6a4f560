"""Telemetry from a real Prometheus that holds recordings and GPU samples at the times they were scraped."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import recorded
from prometheus_server import Line, prometheus, recorded_lines
from telemetry_samples import page_samples, pages_of, ratio, run, stored

from agent.benchmarks.points import BenchmarkMeasurement, Setup
from agent.benchmarks.telemetry import open_telemetry
from agent.benchmarks.telemetry_series import BenchmarkSeries, group_by_target
from agent.errors import BenchmarkError

SERVER = pytest.mark.server

PREFIX = {"cpu-small-0": {"instance": "10.0.0.5:8000", "job": "vllm"}}
SPECULATING = {"cpu-small-0": {"instance": "10.0.0.9:8000", "job": "vllm"}}
ON_AMD = {"cpu-small-0": {"instance": "10.0.2.1:8000", "job": "vllm"}}
ROUTED = {
    f"cpu-small-{n}": {"instance": f"10.0.1.{n}:8000", "job": "vllm", "namespace": "bench", "pod": f"vllm-{n}"}
    for n in range(3)
}


def span(
    name: str, first: int, last: int, file: str = "metrics.jsonl.gz", requests: int | None = None
) -> BenchmarkMeasurement:
    """A run between two scrapes of a recording."""
    with gzip.open(recorded.folder(name) / file, "rt") as lines:
        times = [json.loads(line)["t"] for line in lines]
    return run(requests=requests, started_at=times[first], ended_at=times[last])


def gpus(measured: BenchmarkMeasurement, exporter: str, pod: str, *levels: float) -> Iterator[Line]:
    """A dcgm-exporter's samples around a run: a GPU for each level, all idle outside of it."""
    assert measured.started_at is not None
    assert measured.ended_at is not None
    for step in range(-2, int((measured.ended_at - measured.started_at) / 15) + 3):
        t = measured.started_at + 15 * step
        for gpu, level in enumerate(levels):
            value = level if measured.started_at < t <= measured.ended_at else 0.0
            labels = {
                "gpu": str(gpu),
                "UUID": f"GPU-{exporter}-{gpu}",
                "modelName": "NVIDIA H100 80GB HBM3",
                "instance": exporter,
            }
            kube = {"exported_pod": pod, "pod": "dcgm-x"} if pod else {}
            yield "DCGM_FI_PROF_GR_ENGINE_ACTIVE", tuple(sorted({**labels, **kube, "job": "dcgm"}.items())), value, t
            yield "DCGM_FI_DEV_GPU_UTIL", tuple(sorted({**labels, **kube, "job": "dcgm"}.items())), 100.0, t


def amd_gpu(measured: BenchmarkMeasurement, instance: str, level: float) -> Iterator[Line]:
    """An AMD device-metrics-exporter's sample every 10 s of a run, with a prefix that an operator chose."""
    assert measured.started_at is not None
    assert measured.ended_at is not None
    labels = {"gpu_id": "0", "serial_number": "M1", "card_model": "MI300X", "instance": instance, "job": "amd"}
    for step in range(int((measured.ended_at - measured.started_at) / 10) + 1):
        yield "amd_gpu_gfx_activity", tuple(sorted(labels.items())), level, measured.started_at + 10 * step


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lines = [
        *recorded_lines(recorded.folder("prefix"), PREFIX),
        *recorded_lines(recorded.folder("specdecode"), SPECULATING, rename={"vllm:": "vllm_"}),
        *recorded_lines(recorded.folder("routing"), ROUTED),
        *gpus(span("prefix", 10, 40), "10.0.0.5:9400", "", 0.8, 0.6),
        *gpus(span("prefix", 10, 40), "10.0.0.7:9400", "", 0.1),
        *recorded_lines(recorded.folder("lora"), ON_AMD),
        *amd_gpu(span("lora", 5, 30), "10.0.2.1:5000", 75.0),
        *gpus(span("specdecode", 5, 30), "10.0.0.9:9400", "", 0.8, 0.0),
        *gpus(span("routing", 5, 25, "cpu-small-1.jsonl.gz"), "10.0.1.1:9400", "vllm-1", 0.5, 0.7),
        *gpus(span("routing", 5, 25, "cpu-small-1.jsonl.gz"), "10.0.1.2:9400", "vllm-2", 0.9),
    ]
    with prometheus(tmp_path_factory.mktemp("prometheus"), lines) as url:
        yield url


@SERVER
@pytest.mark.parametrize(("first", "last"), [(10, 40), (0, 50), (3, 9)])
def test_a_server_says_what_its_pages_say(server: str, first: int, last: int) -> None:
    measured = span("prefix", first, last)
    with stored(page_samples(pages_of("prefix"), PREFIX["cpu-small-0"])) as address:
        of_pages = open_telemetry(address).read_run(measured)
    of_server = open_telemetry(server).read_run(measured)
    assert of_pages.values.keys() == {"prefix_hit_ratio", "eviction_rate", "kv_utilization"}
    for name, level in of_pages.values.items():
        assert of_server.values[name] == pytest.approx(level)
    assert of_server.setup == of_pages.setup == Setup(kv_tokens=32_768)


@SERVER
def test_a_server_contradicts_a_clients_ttft(server: str) -> None:
    measured = span("prefix", 10, 40, requests=310)
    point = measured.point.model_copy(update={"ttft_p50_seconds": 13.0, "ttft_p99_seconds": 14.0})
    remarks = open_telemetry(server).read_run(replace(measured, point=point)).remarks
    (remark,) = [text for text in remarks if text.startswith("TTFT")]
    assert remark.startswith("TTFT P50 is 13 s at the client and ")


@SERVER
def test_the_gpus_of_the_engines_host_give_the_utilization(server: str) -> None:
    found = open_telemetry(server).read_run(span("prefix", 10, 40))
    assert found.gpu_utilization_kind == "gr_engine_active"
    assert found.values["gpu_utilization"] == pytest.approx((0.8 + 0.6) / 2, abs=0.01)
    assert "gpu_utilization is the mean of the 2 GPUs of 10.0.0.5" in found.remarks


@SERVER
def test_a_host_with_idle_gpus_tells_nothing_before_a_person_names_the_replicas(server: str) -> None:
    measured = span("specdecode", 5, 30)
    found = open_telemetry(server).read_run(measured)
    assert "gpu_utilization" not in found.values
    assert any("1 of 2 GPUs of 10.0.0.9 idled" in remark for remark in found.remarks)
    # The matchers must fit the engine's series and the GPUs' alike.
    named = open_telemetry(server, selector='{instance=~"10.0.0.9:8000|10.0.0.9:9400"}').read_run(measured)
    assert named.values["gpu_utilization"] == pytest.approx(0.4, abs=0.01)


@SERVER
def test_the_gpus_of_the_replicas_pod_are_its_own(server: str) -> None:
    measured = span("routing", 5, 25, "cpu-small-1.jsonl.gz")
    # The exporter's own pod is another than the one that its GPUs belong to.
    found = open_telemetry(server, selector='{pod=~"vllm-1|dcgm-x"}').read_run(measured)
    assert found.values["gpu_utilization"] == pytest.approx(0.6, abs=0.01)
    assert "gpu_utilization is the mean of the 2 GPUs of pod vllm-1" in found.remarks


@SERVER
def test_an_amd_gpu_is_told_in_its_own_kind(server: str) -> None:
    found = open_telemetry(server).read_run(span("lora", 5, 30))
    assert found.gpu_utilization_kind == "amd_gfx"
    assert found.values["gpu_utilization"] == pytest.approx(0.75)


@SERVER
def test_gpu_samples_too_far_apart_for_the_run_are_not_its_own(server: str) -> None:
    found = open_telemetry(server).read_run(span("prefix", 11, 15))
    assert "prefix_hit_ratio" in found.values
    assert "gpu_utilization" not in found.values
    assert any("too far apart" in remark for remark in found.remarks)


@SERVER
def test_names_with_underscores_are_the_same_engine(server: str) -> None:
    measured = span("specdecode", 5, 30)
    with stored(page_samples(pages_of("specdecode"), SPECULATING["cpu-small-0"])) as address:
        of_pages = open_telemetry(address).read_run(measured)
    of_server = open_telemetry(server).read_run(measured)
    assert 0 < of_pages.values["speculative_acceptance"] < 1
    assert of_server.values["speculative_acceptance"] == pytest.approx(of_pages.values["speculative_acceptance"])


@SERVER
def test_several_replicas_with_traffic_are_named_to_choose_from(server: str) -> None:
    measured = span("routing", 5, 25, "cpu-small-1.jsonl.gz")
    with pytest.raises(BenchmarkError) as raised:
        open_telemetry(server).read_run(measured)
    text = str(raised.value)
    assert "3 replicas served requests in 2026-11-20" in text
    assert '{instance="10.0.1.2:8000",job="vllm",namespace="bench",pod="vllm-2"}' in text
    assert "--telemetry-selector" in text


@SERVER
@pytest.mark.parametrize(
    "selector",
    [
        '{instance="10.0.1.2:8000"}',
        'pod="vllm-2"',
        '{instance="10.0.1.2:8000",job="vllm",namespace="bench",pod="vllm-2"}',
    ],
)
def test_a_selector_names_one_replica(server: str, selector: str) -> None:
    pages = pages_of("routing", "cpu-small-2.jsonl.gz")
    lookups = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    found = open_telemetry(server, selector=selector).read_run(span("routing", 5, 25, "cpu-small-2.jsonl.gz"))
    assert found.values["prefix_hit_ratio"] == pytest.approx(ratio(pages[5][1], pages[25][1], *lookups))


@SERVER
def test_a_span_without_samples_is_named_in_utc(server: str) -> None:
    measured = span("prefix", 10, 40)
    assert measured.started_at is not None
    assert measured.ended_at is not None
    later = run(started_at=measured.started_at + 7200, ended_at=measured.ended_at + 7200)
    with pytest.raises(BenchmarkError, match=r"no samples of an engine from 2026-11-20 20:45:54 to 20:48:24 UTC"):
        open_telemetry(server).read_run(later)


@SERVER
def test_a_selector_that_promql_cannot_read_is_told_with_where_the_reason_is(server: str) -> None:
    with pytest.raises(BenchmarkError, match=r"refused the query \(400\); its log has the reason"):
        open_telemetry(server, selector="{instance=").read_run(span("prefix", 10, 40))


@SERVER
def test_a_run_that_the_server_saw_in_part_gets_nothing(server: str) -> None:
    measured = span("prefix", 0, 20)
    assert measured.started_at is not None
    partly = run(started_at=measured.started_at - 100, ended_at=measured.started_at + 100)
    found = open_telemetry(server, selector='{instance="10.0.0.5:8000"}').read_run(partly)
    assert found.values == {}
    assert "covers 50% of this run" in found.remarks[0]


def test_labels_that_the_server_renamed_are_the_pages_again() -> None:
    given = BenchmarkSeries("x", (("engine", "prod"), ("exported_engine", "1"), ("instance", "a:1")), ())
    (target, (series,)), *_ = group_by_target([given]).items()
    assert target == (("instance", "a:1"),)
    assert series.labels == (("engine", "1"), ("instance", "a:1"))


def test_a_run_without_times_asks_nothing() -> None:
    found = open_telemetry("http://127.0.0.1:1").read_run(run(requests=1))
    assert "does not tell when" in found.remarks[0]


def test_times_that_are_no_seconds_ask_nothing(tmp_path: Path) -> None:
    found = open_telemetry("http://127.0.0.1:1").read_run(run(started_at=0.0, ended_at=1795200000.0))
    assert "lasted 20778 days" in found.remarks[0]
