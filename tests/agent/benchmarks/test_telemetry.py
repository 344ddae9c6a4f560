"""Telemetry of runs over the samples of recordings and real sweeps, against pages read by hand and their clients."""

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import recorded
from hostile_store import JSON, Server, give, matrix, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_server import Sample, prometheus_with_blocks
from result_files import read_results
from telemetry_samples import (
    BENCH,
    found_in,
    page_samples,
    pages_of,
    ratio,
    recorded_samples,
    run,
    store_source,
    stored,
    sweep_samples,
)
from telemetry_samples import value as page_value

from agent.benchmarks.run_model import BenchmarkRun
from agent.benchmarks.telemetry import TelemetrySource, observe, open_source, read_run
from agent.config.load import LoadedConfig, parse_config
from agent.errors import BenchmarkError, SizewatchError
from agent.history.store import HistoryStore
from agent.prometheus.answers import StoreError
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.telemetry.gpu_windows import diff_readouts
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window, minute_of, sum_windows

HITS, LOOKUPS = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
HERE = {"instance": "10.0.0.5:8000"}


def ended_in(name: str, start: float, end: float) -> int:
    """How many requests the clients saw end in a span."""
    rows = recorded.requests(name)
    return sum(not row["error"] and start < float(row["t_start"]) + float(row["e2e"]) <= end for row in rows)


def test_run_equals_its_pages() -> None:
    pages = pages_of("prefix")
    (start, first), (end, last) = pages[10], pages[40]
    told = found_in(
        page_samples(pages, HERE), run(requests=ended_in("prefix", start, end), started_at=start, ended_at=end)
    )
    levels = [(t, page_value(page, "vllm:kv_cache_usage_perc")) for t, page in pages[10:41]]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(levels))
    assert told.values["prefix_hit_ratio"] == pytest.approx(ratio(first, last, HITS, LOOKUPS))
    assert told.values["kv_utilization"] == pytest.approx(area / (end - start))
    assert told.values["eviction_rate"] == 0.0
    assert told.remarks == []
    # Scrapes that are further apart give no level.
    sparse, end = pages[::24], pages[::24][-1][0]
    measured = run(requests=ended_in("prefix", pages[0][0], end), started_at=pages[0][0], ended_at=end)
    told = found_in(page_samples(sparse, HERE), measured)
    assert "prefix_hit_ratio" in told.values
    assert "kv_utilization" not in told.values


@pytest.mark.parametrize(
    ("name", "first", "last", "shift", "text"),
    [
        ("steady", 0, 0, (-300, 200), "the store http://memory.example covers 40% of this run, 2026-11-20"),
        ("restart", 0, -1, (0, 0), "of this run, 2026-11-20"),
        ("steady", 5, -5, (0, 0), "the result file has 9: its telemetry is not of this run alone"),
    ],
    ids=["uncovered", "silent for a third", "other traffic"],
)
def test_run_not_seen_alone_gets_nothing(
    name: str, first: int, last: int, shift: tuple[float, float], text: str
) -> None:
    pages = pages_of(name)
    start, end = pages[first][0] + shift[0], pages[last][0] + shift[1]
    told = found_in(page_samples(pages, HERE), run(requests=9, started_at=start, ended_at=end))
    assert told.values == {}
    assert text in told.remarks[0]


def test_idle_engine_has_no_requests() -> None:
    page = pages_of("steady")[20][1]
    pages = [(1000.0 + 5 * place, page) for place in range(10)]
    told = found_in(page_samples(pages, HERE), run(started_at=1000.0, ended_at=1045.0))
    assert told.values == {}
    assert told.remarks == [
        "the store http://memory.example has no request of this run, 1970-01-01 00:16:40 to 00:17:25 UTC: do its times fit?"
    ]


@pytest.mark.parametrize("times", [{}, {"ended_at": 5.0}])
def test_run_without_times_asks_nothing(times: dict[str, float]) -> None:
    told = read_run(run(requests=1, **times), store_source("http://127.0.0.1:1"))
    assert told.remarks == ["the result file does not tell when this run was: it has no telemetry"]


def test_two_busy_replicas_are_named() -> None:
    pages = pages_of("steady")
    both = [
        *page_samples(pages, {"instance": "a:8000", "job": "x"}),
        *page_samples(pages, {"instance": "b:8000", "job": "y"}),
    ]
    measured = run(requests=9, started_at=pages[5][0], ended_at=pages[-5][0])
    with pytest.raises(BenchmarkError, match=r"2 replicas served requests from 2026-11-20 .*: a:8000, b:8000; "):
        found_in(both, measured)
    with stored(both) as address:
        told = read_run(measured, store_source(address, selector='job="y"'))
    assert "its telemetry is not of this run alone" in told.remarks[0]


def test_own_values_of_a_file_stay() -> None:
    (own,) = read_results(BENCH / "vllm-cpu-cached" / "bench_r6.json")
    known = own.model_copy(update={"point": own.point.model_copy(update={"prefix_hit_ratio": 0.5})})
    with stored(sweep_samples(BENCH / "vllm-cpu-cached")) as address:
        kind = observe([own, known], store_source(address))
    assert own.point.prefix_hit_ratio == pytest.approx(19648 / 24643)
    assert known.point.prefix_hit_ratio == 0.5
    assert kind is None


def minutes(source: TelemetrySource, start: float, end: float) -> Iterator[Window]:
    """The minutes of a replica's windows, each with a GPU that is used by 70 %."""
    (windows,) = source.replicas(start, end).values()
    several: dict[float, list[Window]] = defaultdict(list)
    for window in windows:
        several[minute_of(window)].append(window)
    for begin, parts in several.items():
        before, after = (
            GpuReadout(gpu="0", product="A", t=t, counters={}, gauges={"gpu_gr_engine_active": 0.7})
            for t in (begin, begin + 10)
        )
        gpu = diff_readouts(before, after)
        assert gpu is not None
        yield sum_windows([*parts, gpu])


def history_source(folder: Path) -> TelemetrySource:
    config = parse_config({"targets": [{"url": "http://a:1/metrics", "tier": "t"}], "data_dir": str(folder)})
    return open_source(LoadedConfig(path=Path("test"), config=config, plan=None, warnings=()), "t")


def test_history_and_store_agree(tmp_path: Path) -> None:
    pages = pages_of("overload")
    start, end = pages[0][0] + 60, pages[-1][0] - 60
    measured = run(requests=ended_in("overload", start, end), started_at=start, ended_at=end)
    with stored(page_samples(pages, HERE)) as address:
        source = store_source(address)
        of_store = read_run(measured, source)
        booked = [
            ClosedMinute(tier="t", plan_version="", slice=bin_window(window, None, "r"))
            for window in minutes(source, start, end)
        ]
    history = history_source(tmp_path)
    with HistoryStore(tmp_path / "history.db") as store:
        store.book(booked)
    told = read_run(measured, history)
    assert history.name == f"sizewatch's own history {tmp_path / 'history.db'}"
    assert told.gpu_utilization_kind == "gr_engine_active"
    assert told.values.pop("gpu_utilization") == pytest.approx(0.7)
    assert told.values.keys() == of_store.values.keys()
    for name, level in of_store.values.items():
        assert told.values[name] == pytest.approx(level, rel=0.1, abs=0.01)
    later = measured.model_copy(update={"started_at": end + 86_400, "ended_at": end + 86_460})
    assert "has no request of this run" in read_run(later, history).remarks[0]
    short = measured.model_copy(update={"started_at": start, "ended_at": start + 100})
    assert not {"kv_utilization", "gpu_utilization"} & read_run(short, history).values.keys()


def test_missing_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(SizewatchError, match=r"history\.db: does not exist"):
        read_run(run(requests=1, started_at=10.0, ended_at=20.0), history_source(tmp_path))


@pytest.fixture
def hostile() -> Iterator[Server]:
    with serving() as made:
        yield made


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
def test_any_store_answer_ends_in_words(hostile: Server, result: Any, requests: int | None) -> None:
    hostile.act = lambda handler: give(handler, matrix(*result))
    measured = run(requests=requests, started_at=1795197600.0, ended_at=1795197660.0)
    with suppress(SizewatchError):
        told = read_run(measured, store_source(hostile.url))
        assert told.values or told.remarks


# ---- from a real Prometheus that holds recordings and GPU samples at the times they were scraped ----

SERVER = pytest.mark.server

DONE = "vllm:request_success_total"

STORED = {
    "prefix": {"instance": "10.0.0.5:8000", "job": "vllm"},
    "specdecode": {"instance": "10.0.0.9:8000", "job": "vllm"},
}
"""Labels of an engine's series; those of specdecode are written with underscores."""
LEVELS = {"prefix_hit_ratio", "eviction_rate", "kv_utilization"}
ROUTED = {
    f"cpu-small-{n}": {"instance": f"10.0.1.{n}:8000", "job": "vllm", "namespace": "bench", "pod": f"vllm-{n}"}
    for n in range(3)
}


def span(name: str, first: int, last: int, file: str = "metrics.jsonl.gz", requests: int | None = None) -> BenchmarkRun:
    """A run between two scrapes of a recording."""
    with gzip.open(recorded.folder(name) / file, "rt") as lines:
        times = [json.loads(line)["t"] for line in lines]
    return run(requests=requests, started_at=times[first], ended_at=times[last])


def gpus(measured: BenchmarkRun, exporter: str, pod: str, *levels: float) -> Iterator[Sample]:
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
            labels |= {"exported_pod": pod, "pod": "dcgm-x", "job": "dcgm"}
            yield "DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, t, value
            yield "DCGM_FI_DEV_GPU_UTIL", labels, t, 100.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    routed = span("routing", 5, 25, "cpu-small-1.jsonl.gz")
    samples = [
        *recorded_samples("prefix", {"cpu-small-0": STORED["prefix"]}),
        *recorded_samples("specdecode", {"cpu-small-0": STORED["specdecode"]}, "vllm_"),
        *recorded_samples("routing", ROUTED),
        *gpus(routed, "10.0.1.1:9400", "vllm-1", 0.5, 0.7),
        *gpus(routed, "10.0.1.2:9400", "vllm-2", 0.9),
    ]
    with prometheus_with_blocks(tmp_path_factory.mktemp("prometheus"), samples) as url:
        yield url


def counted(measured: BenchmarkRun, pages: list[tuple[float, str]]) -> BenchmarkRun:
    """The run with as many requests as its engine finished."""
    inside = [page for t, page in pages if (measured.started_at or 0) <= t <= (measured.ended_at or 0)]
    finished = page_value(inside[-1], DONE) - page_value(inside[0], DONE)
    point = measured.point.model_copy(update={"requests": round(finished)})
    return measured.model_copy(update={"point": point})


@SERVER
@pytest.mark.parametrize(
    ("name", "first", "last", "levels"),
    [
        ("prefix", 10, 40, LEVELS),
        ("prefix", 0, 50, LEVELS),
        ("prefix", 3, 9, LEVELS),
        ("specdecode", 5, 30, {*LEVELS, "speculative_acceptance"}),
    ],
)
def test_server_equals_its_pages(server: str, name: str, first: int, last: int, levels: set[str]) -> None:
    measured = counted(span(name, first, last), pages_of(name))
    of_pages = found_in(page_samples(pages_of(name), STORED[name]), measured)
    of_server = read_run(measured, store_source(server, selector=f'instance="{STORED[name]["instance"]}"'))
    assert of_pages.values.keys() == levels
    assert of_server.values == {level: pytest.approx(value) for level, value in of_pages.values.items()}


@SERVER
def test_gpus_of_a_pod_are_its_own(server: str) -> None:
    # The exporter's own pod is another than the one that its GPUs belong to.
    measured = counted(span("routing", 5, 25, "cpu-small-1.jsonl.gz"), pages_of("routing", "cpu-small-1.jsonl.gz"))
    source = store_source(server, selector='pod="vllm-1"', replica_label="pod", gpus={"selector": 'job="dcgm"'})
    found = read_run(measured, source)
    assert found.values["gpu_utilization"] == pytest.approx(0.6, abs=0.02)
    assert found.gpu_utilization_kind == "gr_engine_active"


@SERVER
def test_refused_selector_is_told(server: str) -> None:
    with pytest.raises(StoreError, match=r"refused the query"):
        read_run(span("prefix", 10, 40), store_source(server, selector='job=~"("'))
