"""Reports of AIPerf, GuideLLM and inference-perf: the load of each run, what is said of it, and runs that are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import SHARED
from result_files import explain_refusal, read_document, read_results, write_document

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError

# ---- AIPerf ----

SHARED_BENCH = SHARED / "bench"
REAL = pytest.mark.skipif(not SHARED_BENCH.is_dir(), reason="the sample reports are not part of the project")
EXCERPT = SHARED_BENCH / "aiperf" / "doc_excerpt_profile_export_aiperf.json"


def metric(unit: str, average: float, p99: float | None = None) -> dict[str, Any]:
    spread = {} if p99 is None else {"p50": average, "p95": p99, "p99": p99, "max": p99, "count": 2000}
    return {"unit": unit, "avg": average, **spread}


# Keys and units as docs/reference/json-export-schema.md and src/aiperf/common/models/export_models.py have them.
EXPORT: dict[str, Any] = {
    "schema_version": "1.3",
    "aiperf_version": "0.5.0",
    "request_throughput": metric("requests/sec", 9.9),
    "request_latency": metric("ms", 500.0, 900.0),
    "request_count": metric("requests", 2000.0),
    "time_to_first_token": metric("ms", 50.0, 150.0),
    "inter_token_latency": metric("ms", 10.0, 20.0),
    "inter_chunk_latency": metric("ms", 9.0, 40.0),
    "output_token_throughput": metric("tokens/sec", 495.0),
    "input_sequence_length": metric("tokens", 200.0, 220.0),
    "output_sequence_length": metric("tokens", 50.0, 60.0),
    "benchmark_duration": metric("sec", 202.0),
    "was_cancelled": False,
    "error_summary": [],
    "start_time": "2026-06-17T16:08:57.250000",
    "end_time": "2026-06-17T16:12:19.250000",
    "input_config": {
        "endpoint": {"type": "chat", "model_names": ["llama"]},
        "loadgen": {"concurrency": None, "request_rate": 10.0},
    },
}


def read_export(tmp_path: Path, **changed: Any) -> BenchmarkRun:
    return read_document(tmp_path, {**EXPORT, **changed})


def refuse_export(tmp_path: Path, **changed: Any) -> str:
    return explain_refusal(tmp_path, {**EXPORT, **changed})


CONFIG = {"endpoint": {"model_names": ["llama"]}}


@pytest.mark.parametrize(
    ("config", "run_info", "loop", "requested", "concurrency"),
    [
        ({"loadgen": {"concurrency": 32, "request_rate": None}}, {}, "closed", None, 32.0),
        ({"loadgen": {"concurrency": 32, "request_rate": 10.0}}, {}, "open", 10.0, 4.95),
        ({"phases": [{"name": "profiling", "type": "concurrency", "concurrency": 32}]}, {}, "closed", None, 32.0),
        ({"phases": [{"name": "profiling", "type": "poisson", "rate": 10.0}]}, {}, "open", 10.0, 4.95),
        (
            {"phases": [{"kind": "warmup", "concurrency": 4}, {"kind": "profiling", "concurrency": 32}]},
            {},
            "closed",
            None,
            32.0,
        ),
        ({"phases": [{"name": "warmup", "concurrency": 4}]}, {}, None, None, 4.95),
        ({"phases": {"warmup": {}, "profiling": {"concurrency": 32}}}, {}, "closed", None, 32.0),
        ({}, {"variation_values": {"phases.profiling.concurrency": 40}}, "closed", None, 40.0),
        ({}, {"variation_values": {"phases.profiling.rate": 10.0}}, "open", 10.0, 4.95),
        ({"phases": [{"name": "profiling", "type": "fixed_schedule"}]}, {}, None, None, 4.95),
        ({}, {}, None, None, 4.95),
    ],
)
def test_every_generation_tells_its_load(
    tmp_path: Path,
    config: Mapping[str, Any],
    run_info: Mapping[str, Any],
    loop: str | None,
    requested: float | None,
    concurrency: float,
) -> None:
    rps = metric("requests/sec", concurrency / 0.5)
    one = read_export(tmp_path, input_config={**CONFIG, **config}, run_info=run_info, request_throughput=rps)
    assert (one.loop, one.point.requested_rps) == (loop, requested)
    assert one.point.concurrency == pytest.approx(concurrency)


def test_unsteady_load_is_said(tmp_path: Path) -> None:
    assert any(
        "tells neither rate nor concurrency" in text for text in read_export(tmp_path, input_config=None).remarks
    )
    replayed = read_export(tmp_path, input_config={"phases": [{"name": "profiling", "type": "fixed_schedule"}]})
    assert "arrivals were of pattern fixed_schedule, not a steady rate" in replayed.remarks


def test_error_counts_are_added_up(tmp_path: Path) -> None:
    kinds = [{"error_details": {"code": 500}, "count": 30}, {"error_details": {"code": 429}, "count": 20}]
    said = "50 of 2050 requests failed or were under way at the end, and are not in the latencies"
    assert said in read_export(tmp_path, error_summary=kinds).remarks
    assert said in read_export(tmp_path, error_summary=kinds[:1], error_request_count=metric("requests", 50.0)).remarks


def test_wrong_exports_name_their_place(tmp_path: Path) -> None:
    assert refuse_export(tmp_path, was_cancelled=True) == "is of a run that was cancelled"
    nobody = {"request_count": metric("requests", 0.0), "error_summary": [{"count": 12}]}
    assert refuse_export(tmp_path, **nobody) == "is of a failed run: none of 12 requests succeeded"
    assert refuse_export(tmp_path, request_throughput=None) == "has a wrong value: request_throughput.avg: is missing"
    fraction = refuse_export(tmp_path, request_count=metric("requests", 1.5))
    assert fraction == "has a wrong value: request_count.avg: input should be a valid integer"
    assert refuse_export(tmp_path, start_time="noon").startswith("has a wrong value: start_time: ")
    assert (
        refuse_export(tmp_path, error_summary={"a": 1})
        == "has a wrong value: error_summary: input should be a valid list"
    )


@REAL
def test_documented_excerpt_tells_no_load() -> None:
    (one,) = read_results(EXCERPT)
    assert (one.loop, one.point.completed_rps, one.point.requests) == (None, 1.45, 20)
    assert one.point.concurrency == pytest.approx(1.45 * 2.62071)
    assert one.point.ttft_p99_seconds is None


# ---- GuideLLM ----

OLD = SHARED_BENCH / "guidellm" / "example_output" / "benchmarks_v0.3.json"
NEW = SHARED_BENCH / "llm-d-benchmark" / "tests" / "fixtures" / "guidellm_report_v2.json"


def statistics(mean: float, p99: float) -> dict[str, Any]:
    found = {
        "mean": mean,
        "median": mean,
        "max": p99,
        "count": 600,
        "percentiles": {"p50": mean, "p95": p99, "p99": p99},
    }
    return {"successful": found, "errored": {"mean": 0.0}, "incomplete": {"mean": 0.0}, "total": found}


def metrics(**changed: Any) -> dict[str, Any]:
    return {
        "requests_per_second": statistics(9.9, 11_244.0),
        "request_concurrency": statistics(22.8, 33.0),
        "request_latency": statistics(2.3, 2.4),
        "prompt_token_count": statistics(120.0, 127.0),
        "output_token_count": statistics(128.0, 128.0),
        "time_to_first_token_ms": statistics(1006.0, 1019.0),
        "time_per_output_token_ms": statistics(18.2, 18.6),
        "inter_token_latency_ms": statistics(10.4, 10.6),
        "output_tokens_per_second": statistics(1251.0, 838_860.8),
        **changed,
    }


def benchmark(
    strategy: Mapping[str, Any] | None = None, totals: Mapping[str, int] | None = None, **changed: Any
) -> Any:
    """One benchmark as GuideLLM from 0.4 on writes it."""
    counts = {"successful": 1200, "errored": 0, "incomplete": 0, "total": 1200, **(totals or {})}
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy or {"type_": "constant", "rate": 10.0}, "backend": {"model": "qwen"}},
        "metrics": metrics(request_totals=counts, **changed),
        "start_time": 1000.0,
        "end_time": 1122.0,
        "duration": 122.0,
    }


def report(*benchmarks: Any) -> dict[str, Any]:
    return {"metadata": {"version": 2, "guidellm_version": "0.8.0"}, "benchmarks": benchmarks}


def read_report(tmp_path: Path, *benchmarks: Any) -> tuple[BenchmarkRun, ...]:
    return read_results(write_document(tmp_path, report(*benchmarks)))


def refuse_report(tmp_path: Path, *benchmarks: Any) -> str:
    return explain_refusal(tmp_path, report(*benchmarks))


@pytest.mark.parametrize(
    ("strategy", "loop", "requested", "concurrency"),
    [
        ({"type_": "constant", "rate": 10.0}, "open", 10.0, 22.77),
        ({"type_": "poisson", "rate": 10.0, "max_concurrency": 10240}, "open", 10.0, 22.77),
        ({"type_": "concurrent", "streams": 24}, "closed", None, 24.0),
        ({"kind": "concurrent", "streams": 24}, "closed", None, 24.0),
        ({"type_": "synchronous"}, "closed", None, 1.0),
        ({"type_": "throughput", "max_concurrency": 64}, "closed", None, 64.0),
        ({"type_": "throughput", "max_concurrency": None}, None, None, None),
        ({"type_": "replay"}, None, None, 22.77),
    ],
)
def test_the_strategy_tells_the_loop(
    tmp_path: Path, strategy: Mapping[str, Any], loop: str | None, requested: float | None, concurrency: float | None
) -> None:
    rps = statistics((concurrency or 22.77) / 2.3, 11_244.0)
    (one,) = read_report(tmp_path, benchmark(strategy, requests_per_second=rps))
    assert (one.loop, one.point.requested_rps) == (loop, requested)
    assert one.point.concurrency == (None if concurrency is None else pytest.approx(concurrency))
    said = "arrivals were of strategy replay, not a steady rate" in one.remarks
    assert said == (strategy == {"type_": "replay"})


def test_sweep_is_a_load_a_benchmark(tmp_path: Path) -> None:
    full = {"type_": "throughput", "max_concurrency": 512}
    single = benchmark({"type_": "synchronous"}, requests_per_second=statistics(0.43, 0.44))
    found = read_report(tmp_path, single, benchmark(full), benchmark())
    assert [run.location.rpartition(": ")[2] for run in found] == [f"benchmarks[{n}]" for n in range(3)]
    assert [one.loop for one in found] == [None, None, "open"]
    one, full_load, _ = found
    assert one.point.ttft_p99_seconds == 1.019
    assert "one client at a time, the lowest load of a sweep whose others are open loops" in one.remarks
    assert (full_load.point.ttft_p99_seconds, full_load.point.completed_rps) == (None, 9.9)


def test_many_cut_off_requests_refuse_the_run(tmp_path: Path) -> None:
    (one,) = read_report(tmp_path, benchmark(totals={"incomplete": 23, "errored": 2}))
    assert "25 of 1225 requests failed or were under way at the end, and are not in the latencies" in one.remarks
    cancelled = benchmark(totals={"successful": 10, "incomplete": 11})
    assert refuse_report(tmp_path, cancelled) == "is of a failed run: 11 of 21 requests were cut off"
    failed = benchmark(totals={"successful": 0, "errored": 30})
    found, others = read_all_results((write_document(tmp_path, report(benchmark(), failed)),))
    assert (len(found), [str(each.path).rpartition(": ")[2] for each in others]) == (1, ["benchmarks[1]"])
    assert others[0].text == "is of a failed run: none of 30 requests succeeded"


def test_slow_generator_censors_the_point(tmp_path: Path) -> None:
    # 1200 requests in 122 s with answers of at most 2.4 s: at least 119.6 s of sending, 10.03 rps.
    assert not read_report(tmp_path, benchmark())[0].point.censored
    slow = {**benchmark(), "duration": 140.0}
    assert read_report(tmp_path, slow)[0].point.censored
    # Stopped by the clock, so that no answer was waited for: 1023 in 122 s are 8.4 rps.
    assert read_report(tmp_path, benchmark(totals={"successful": 1000, "incomplete": 23}))[0].point.censored


def test_negative_times_leave_a_benchmark_out(tmp_path: Path) -> None:
    # GuideLLM issue 216: an overloaded server, and times to a first token that never came.
    negative = benchmark(time_to_first_token_ms=statistics(-1.7e12, 89_488.0))
    path = write_document(tmp_path, {"benchmarks": [benchmark(), negative]})
    (kept,), (left_out,) = read_all_results((path,))
    assert kept.location.endswith(": benchmarks[0]")
    assert left_out.text == (
        "has a wrong value: metrics.time_to_first_token_ms.successful.mean: "
        "input should be greater than or equal to 0, which cannot be"
    )
    late = benchmark(time_to_first_token_ms=statistics(1006.0, 89_488.0))
    assert "TTFT P99 89.49 s is above E2E P99 2.4 s, which cannot be" in refuse_report(tmp_path, late)


def test_impossible_values_name_their_place(tmp_path: Path) -> None:
    no_rate = benchmark({"type_": "constant"})
    assert refuse_report(tmp_path, no_rate) == "has a strategy without its rate"
    text = benchmark(request_latency="2.3 s")
    assert read_report(tmp_path, text)[0].point.e2e_p99_seconds is None
    slow = benchmark(time_to_first_token_ms=statistics(1000.0, 4e6), request_latency=statistics(2.3, 4100.0))
    assert "ttft_p99_seconds: must be at most 3600" in refuse_report(tmp_path, slow)
    assert "valid dictionary" in refuse_report(tmp_path, 7)
    milliseconds = refuse_report(tmp_path, benchmark() | {"start_time": 1.7e12, "end_time": 1.7e12 + 1e5})
    assert milliseconds == "has a wrong value: start_time: input should be less than or equal to 253402300799"
    assert refuse_report(tmp_path) == "holds no benchmark"


@REAL
def test_real_report_of_0_3_is_read() -> None:
    (one,) = read_results(OLD)
    assert (one.loop, one.model, one.point.requests, one.point.censored) == ("open", "Qwen/Qwen3-0.6B", 586, False)
    assert one.point.completed_rps == pytest.approx(9.7778, abs=1e-4)
    assert one.point.concurrency == pytest.approx(22.7831, abs=1e-4)
    # (2330.1 - 1006.2) / 127 = 10.42 ms, and not its time_per_output_token_ms of 10.34 (by 128 tokens).
    assert one.point.tpot_p50_seconds == pytest.approx(0.010425, abs=1e-6)
    assert one.started_at == pytest.approx(1758664746.13, abs=0.01)
    assert one.ended_at == pytest.approx(1758664806.14, abs=0.01)
    assert "23 of 609 requests failed or were under way at the end, and are not in the latencies" in one.remarks


@REAL
def test_real_report_of_version_2_is_read() -> None:
    first, second = read_results(NEW)
    assert [run.location.rpartition(": ")[2] for run in (first, second)] == ["benchmarks[0]", "benchmarks[1]"]
    assert first.model == "e2e-mock-model"
    assert (first.point.requested_rps, second.point.requested_rps) == (2.0, 4.0)
    assert first.point.tpot_p50_seconds == pytest.approx(0.001046, abs=1e-6)
    # Two requests at 2 a second, sent 5 s apart, and answered in 20 ms.
    assert first.point.censored


# ---- inference-perf ----

SWEEPS = SHARED_BENCH / "inference-perf"


def summary(median: float, p99: float, **more: float) -> dict[str, float]:
    return {"mean": median, "min": 0.0, "median": median, "p95": p99, "p99": p99, "max": p99, **more}


def stage(load: Mapping[str, Any] | None = None, **successes: Any) -> dict[str, Any]:
    latency = {
        "request_latency": summary(0.5, 0.9),
        "normalized_time_per_output_token": summary(0.05, 0.06),
        "time_per_output_token": summary(0.0093, 0.0095),
        "time_to_first_token": summary(0.03, 0.2),
        "inter_token_latency": summary(0.00004, 0.049),
    }
    throughput = {"requests_per_sec": 99.0, "output_tokens_per_sec": 6000.0}
    lengths = {"prompt_len": summary(204.0, 212.0), "output_len": summary(62.0, 66.0)}
    rates = {"count": 6000, "send_duration": 60.0, "requested_rate": 100.0, "achieved_rate": 100.0}
    return {
        "load_summary": {**rates, **(load or {})},
        "successes": {"count": 6000, "latency": latency, "throughput": throughput, **lengths, **successes},
        "failures": {"count": 0, "request_latency": None, "prompt_len": None},
    }


def test_median_gap_near_zero_is_an_artefact(tmp_path: Path) -> None:
    said = "several tokens came in one chunk, so ITL counts gaps of nearly 0 s: compare TPOT"
    assert read_document(tmp_path, stage()).remarks == [said]
    document = stage()
    document["successes"]["latency"]["inter_token_latency"] = summary(0.0, 0.049)
    assert read_document(tmp_path, document).remarks == [said]
    document["successes"]["latency"]["inter_token_latency"] = summary(0.009, 0.049)
    assert read_document(tmp_path, document).remarks == []


@pytest.mark.parametrize(("achieved", "censored"), [(97.9, True), (98.0, False), (101.0, False)])
def test_slow_generator_censors_the_stage(tmp_path: Path, achieved: float, censored: bool) -> None:
    one = read_document(tmp_path, stage({"achieved_rate": achieved}))
    assert one.point.censored is censored
    said = "the generator sent 97.9 of 100 requested rps: the server is at least this bad"
    assert (said in one.remarks) is censored


def test_concurrency_is_a_closed_loop(tmp_path: Path) -> None:
    one = read_document(tmp_path, stage({"concurrency": 64, "requested_rate": 6000.0, "achieved_rate": 99.0}))
    assert (one.loop, one.point.concurrency, one.point.requested_rps, one.point.censored) == ("closed", 64, None, False)
    assert "closed loop: TTFT P99 is that of the start burst, 64 of 6000 requests" in one.remarks


def test_server_token_counts_give_prefix_hits(tmp_path: Path) -> None:
    usage = {"total": 1_200_000.0, "cached": 300_000.0, "uncached": 900_000.0, **summary(200.0, 220.0)}
    one = read_document(tmp_path, stage(prompt_tokens=usage, output_tokens={"total": 1.0}))
    assert one.prompt_tokens.p50 == 200.0
    assert one.generation_tokens.p50 == 62.0
    assert one.point.prefix_hit_ratio == 0.25
    silent = {"total": 1_200_000.0, "cached": 0.0, "uncached": 1_200_000.0, **summary(200.0, 220.0)}
    assert read_document(tmp_path, stage(prompt_tokens=silent)).point.prefix_hit_ratio is None


def test_unstreamed_answers_have_their_latency_only(tmp_path: Path) -> None:
    document = stage()
    for metric in ("time_to_first_token", "time_per_output_token", "inter_token_latency"):
        document["successes"]["latency"][metric] = None
    point = read_document(tmp_path, document).point
    assert point.ttft_p99_seconds is point.tpot_p50_seconds is point.itl_p99_seconds is None
    assert point.concurrency == 49.5


def test_refused_stages_name_their_reason(tmp_path: Path) -> None:
    server = {"load_summary": {}, "successes": {"count": 10938, "rate": 91.0, "queue_len": {"mean": 0}}, "failures": {}}
    assert explain_refusal(tmp_path, server).startswith("is the server's side or a summary")
    averaged = stage()
    averaged["load_summary"] = {"count": 38717, "schedule_delay": None}
    assert explain_refusal(tmp_path, averaged).startswith("is the server's side or a summary")
    failed = {**stage(count=0), "failures": {"count": 7}}
    assert explain_refusal(tmp_path, failed) == "is of a failed run: none of 7 requests succeeded"
    no_rate = stage(throughput={"requests_per_sec": None})
    assert (
        explain_refusal(tmp_path, no_rate)
        == "has a wrong value: successes.throughput.requests_per_sec: input should be a valid number"
    )
    wrong = stage(throughput=[])
    assert explain_refusal(tmp_path, wrong) == "has a wrong value: successes.throughput.requests_per_sec: is missing"
    idle = stage(throughput={"requests_per_sec": 0.0})
    assert explain_refusal(tmp_path, idle) == "does not make a point of a curve: completed_rps: must be greater than 0"


# Capacity in completed rps, TTFT P99 before and after the knee, TPOT P50 at 1 rps in ms, censored stages: PEERS 3.3.
FOUND = {
    "vllm": ((101, 103.1), 0.18, 3.2, 3.47, [4, 5, 6]),
    "vllm+chunking_and_prefix_caching": ((170, 173), 0.455, 1.89, 3.47, [5, 6]),
    "vllm+quantization": ((171.5, 172.5), 0.23, 1.90, 3.44, [5, 6]),
    "vllm+eagle": ((67, 68.1), 0.07, 1.35, 5.78, [5, 6]),
}


@REAL
@pytest.mark.parametrize("name", FOUND)
def test_h100_sweeps_have_their_known_capacities(name: str) -> None:
    (least, most), before, after, tpot, censored = FOUND[name]
    files = sorted((SWEEPS / name / "results").glob("stage_*_lifecycle_metrics.json"))
    stages = [run for path in files for run in read_results(path)]
    assert [number for number, one in enumerate(stages) if one.point.censored] == censored
    points = [one.point for one in stages]
    assert all(least <= points[number].completed_rps <= most for number in censored)
    ttft = [point.ttft_p99_seconds or 0 for point in points]
    knee = next(number for number, value in enumerate(ttft) if value > 1)
    assert ttft[knee - 1] == pytest.approx(before, abs=0.005)
    assert ttft[knee] == pytest.approx(after, abs=0.01)
    assert (points[0].tpot_p50_seconds or 0) * 1000 == pytest.approx(tpot, abs=0.005)
    assert all(not one.point.censored or "server is at least this bad" in one.remarks[0] for one in stages)


@REAL
def test_real_server_files_are_refused() -> None:
    for path in sorted((SWEEPS / "vllm" / "results").glob("*_prometheus_metrics.json")):
        with pytest.raises(BenchmarkError, match="is the server's side or"):
            read_results(path)
    with pytest.raises(BenchmarkError, match="a summary of stages"):
        read_results(SWEEPS / "vllm" / "results" / "summary_lifecycle_metrics.json")
