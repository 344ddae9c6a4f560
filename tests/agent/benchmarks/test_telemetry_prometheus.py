"""Telemetry from a real Prometheus that holds recordings and GPU samples at the times they were scraped."""

import gzip
import json
from collections.abc import Iterator

import pytest
import recorded
from prometheus_server import Line, prometheus, recorded_lines
from telemetry_samples import found_in, page_samples, pages_of, ratio, run, store_source
from telemetry_samples import value as page_value

from agent.benchmarks.run_model import BenchmarkRun
from agent.benchmarks.telemetry import read_run
from agent.prometheus.answers import StoreError

SERVER = pytest.mark.server

DONE = "vllm:request_success_total"

PREFIX = {"cpu-small-0": {"instance": "10.0.0.5:8000", "job": "vllm"}}
SPECULATING = {"cpu-small-0": {"instance": "10.0.0.9:8000", "job": "vllm"}}
ROUTED = {
    f"cpu-small-{n}": {"instance": f"10.0.1.{n}:8000", "job": "vllm", "namespace": "bench", "pod": f"vllm-{n}"}
    for n in range(3)
}


def span(name: str, first: int, last: int, file: str = "metrics.jsonl.gz", requests: int | None = None) -> BenchmarkRun:
    """A run between two scrapes of a recording."""
    with gzip.open(recorded.folder(name) / file, "rt") as lines:
        times = [json.loads(line)["t"] for line in lines]
    return run(requests=requests, started_at=times[first], ended_at=times[last])


def gpus(measured: BenchmarkRun, exporter: str, pod: str, *levels: float) -> Iterator[Line]:
    """A dcgm-exporter's samples around a run: a GPU for each level, all idle outside of it."""
    assert measured.started_at is not None
    assert measured.ended_at is not None
    for step in range(-2, int((measured.ended_at - measured.started_at) / 15) + 3):
        t = measured.started_at + 15 * step
        for gpu, level in enumerate(levels):
            value = level + step / 1000 if measured.started_at < t <= measured.ended_at else 0.0
            labels = {
                "gpu": str(gpu),
                "UUID": f"GPU-{exporter}-{gpu}",
                "modelName": "NVIDIA H100 80GB HBM3",
                "instance": exporter,
            }
            kube = {"exported_pod": pod, "pod": "dcgm-x"}
            yield "DCGM_FI_PROF_GR_ENGINE_ACTIVE", tuple(sorted({**labels, **kube, "job": "dcgm"}.items())), value, t
            yield "DCGM_FI_DEV_GPU_UTIL", tuple(sorted({**labels, **kube, "job": "dcgm"}.items())), 100.0, t


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    routed = span("routing", 5, 25, "cpu-small-1.jsonl.gz")
    lines = [
        *recorded_lines(recorded.folder("prefix"), PREFIX),
        *recorded_lines(recorded.folder("specdecode"), SPECULATING, rename={"vllm:": "vllm_"}),
        *recorded_lines(recorded.folder("routing"), ROUTED),
        *gpus(routed, "10.0.1.1:9400", "vllm-1", 0.5, 0.7),
        *gpus(routed, "10.0.1.2:9400", "vllm-2", 0.9),
    ]
    with prometheus(tmp_path_factory.mktemp("prometheus"), lines) as url:
        yield url


def counted(measured: BenchmarkRun, pages: list[tuple[float, str]]) -> BenchmarkRun:
    """The run with as many requests as its engine finished."""
    inside = [page for t, page in pages if (measured.started_at or 0) <= t <= (measured.ended_at or 0)]
    finished = page_value(inside[-1], DONE) - page_value(inside[0], DONE)
    point = measured.point.model_copy(update={"requests": round(finished)})
    return measured.model_copy(update={"point": point})


@SERVER
@pytest.mark.parametrize(("first", "last"), [(10, 40), (0, 50), (3, 9)])
def test_server_equals_its_pages(server: str, first: int, last: int) -> None:
    measured = counted(span("prefix", first, last), pages_of("prefix"))
    of_pages = found_in(page_samples(pages_of("prefix"), PREFIX["cpu-small-0"]), measured)
    of_server = read_run(measured, store_source(server, selector='instance="10.0.0.5:8000"'))
    assert of_pages.values.keys() == {"prefix_hit_ratio", "eviction_rate", "kv_utilization"}
    for name, level in of_pages.values.items():
        assert of_server.values[name] == pytest.approx(level)


@SERVER
def test_gpus_of_a_pod_are_its_own(server: str) -> None:
    # The exporter's own pod is another than the one that its GPUs belong to.
    measured = counted(span("routing", 5, 25, "cpu-small-1.jsonl.gz"), pages_of("routing", "cpu-small-1.jsonl.gz"))
    source = store_source(server, selector='pod="vllm-1"', replica_label="pod", gpus={"selector": 'job="dcgm"'})
    found = read_run(measured, source)
    assert found.values["gpu_utilization"] == pytest.approx(0.6, abs=0.02)
    assert found.gpu_utilization_kind == "gr_engine_active"


@SERVER
def test_names_with_underscores_are_one_engine(server: str) -> None:
    measured = counted(span("specdecode", 5, 30), pages_of("specdecode"))
    of_pages = found_in(page_samples(pages_of("specdecode"), SPECULATING["cpu-small-0"]), measured)
    of_server = read_run(measured, store_source(server, selector='instance="10.0.0.9:8000"'))
    assert 0 < of_pages.values["speculative_acceptance"] < 1
    assert of_server.values["speculative_acceptance"] == pytest.approx(of_pages.values["speculative_acceptance"])


@SERVER
@pytest.mark.parametrize("selector", ['instance="10.0.1.2:8000"', 'pod="vllm-2"'])
def test_a_selector_names_one_replica(server: str, selector: str) -> None:
    pages = pages_of("routing", "cpu-small-2.jsonl.gz")
    measured = counted(span("routing", 5, 25, "cpu-small-2.jsonl.gz"), pages)
    lookups = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    found = read_run(measured, store_source(server, selector=selector))
    assert found.values["prefix_hit_ratio"] == pytest.approx(ratio(pages[5][1], pages[25][1], *lookups))


@SERVER
def test_refused_selector_is_told(server: str) -> None:
    with pytest.raises(StoreError, match=r"refused the query"):
        read_run(span("prefix", 10, 40), store_source(server, selector='job=~"("'))
