"""Reports of AIPerf, GuideLLM, inference-perf and AIConfigurator: the load of each run, remarks, and refused runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from golden_text import check_golden
from paths import SHARED
from result_files import describe_variants, predicted_row, read_results, refusal, write_table

from agent.benchmarks.aiconfigurator import select_configuration
from agent.benchmarks.curves import curve_of, differences
from agent.errors import BenchmarkError, ConfigError
from rules.plan.schema import TierPlan

# ---- AIPerf ----

SHARED_BENCH = SHARED / "bench"
REAL = pytest.mark.skipif(not SHARED_BENCH.is_dir(), reason="the sample reports are not part of the project")


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


METRICS = tuple(name for name, block in EXPORT.items() if isinstance(block, dict) and "unit" in block)
NAMED = {"endpoint": {"model_names": ["llama"]}}
TWICE = {
    "request_throughput": metric("requests/sec", 64.0),
    "output_token_throughput": metric("tokens/sec", 3200.0),
    "benchmark_duration": metric("sec", 31.25),
}
FAILED = [{"error_details": {"code": 500}, "count": 30}, {"error_details": {"code": 429}, "count": 20}]


def phases(*phases: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a run with these phases, which has 32 requests at once as its clients or by Little's law."""
    return {"input_config": {**NAMED, "phases": phases}, **TWICE}


def values(**profiling: Any) -> dict[str, Any]:
    """Keys of a run of a sweep, whose load stands with the run."""
    varied = {f"phases.profiling.{key}": value for key, value in profiling.items()}
    return {"input_config": NAMED, "run_info": {"variation_values": varied}, **TWICE}


EXPORTS: dict[str, dict[str, Any]] = {
    "closed loop": {"input_config": {**NAMED, "loadgen": {"concurrency": 32, "request_rate": None}}, **TWICE},
    "open loop with a limit": {
        "input_config": {**NAMED, "loadgen": {"concurrency": 32, "request_rate": 128.0}},
        **TWICE,
    },
    "phase of a concurrency": phases({"name": "profiling", "type": "concurrency", "concurrency": 32}),
    "phase of a rate": phases({"name": "profiling", "type": "poisson", "rate": 64.0}),
    "phases by kind": phases({"kind": "warmup", "concurrency": 4}, {"kind": "profiling", "concurrency": 32}),
    "warm-up alone": phases({"name": "warmup", "concurrency": 4}),
    "phases by name": {"input_config": {**NAMED, "phases": {"warmup": {}, "profiling": {"concurrency": 32}}}, **TWICE},
    "varied concurrency": values(concurrency=32),
    "varied rate": values(rate=64.0),
    "replayed arrivals": phases({"name": "profiling", "type": "fixed_schedule"}),
    "no load": values(),
    "GenAI-Perf": {
        "input_config": {"model_names": ["llama"], "perf_analyzer": {"stimulus": {"concurrency": 32}}},
        **TWICE,
    },
    "GenAI-Perf of a rate": {"input_config": {"perf_analyzer": {"stimulus": {"request_rate": 64.0}}}, **TWICE},
    "older GenAI-Perf": {"input_config": {"model": ["llama"], "concurrency": 32, "request_rate": None}, **TWICE},
    "first release": {**dict.fromkeys(METRICS), "records": {name: EXPORT[name] for name in METRICS}},
    "requests a minute": {"request_throughput": metric("requests/min", 594.0)},
    "duration in minutes": {"benchmark_duration": metric("min", 3.4)},
    "throughput by another name": {"request_throughput": metric("requests/s", 9.9)},
    "warm-up by its tag": {"tag": "warmup"},
    "other unit": {"time_to_first_token": metric("us", 50.0, 150.0)},
    "no configuration": {"input_config": None},
    "errors of two kinds are added up": {"error_summary": FAILED},
    "count of errors comes first": {"error_summary": FAILED[:1], "error_request_count": metric("requests", 50.0)},
    "cancelled": {"was_cancelled": True},
    "no request succeeded": {"request_count": metric("requests", 0.0), "error_summary": [{"count": 12}]},
    "no rate": {"request_throughput": None},
    "half a request": {"request_count": metric("requests", 1.5)},
    "no time of day": {"start_time": "noon"},
    "errors without a list": {"error_summary": {"a": 1}},
}


def test_aiperf_exports_read_as_the_golden(tmp_path: Path) -> None:
    documents = {name: {**EXPORT, **changed} for name, changed in EXPORTS.items()}
    check_golden(__file__, "aiperf_exports.txt", describe_variants(tmp_path, EXPORT, documents))


# ---- GuideLLM ----

OLD = SHARED_BENCH / "guidellm" / "example_output" / "benchmarks_v0.3.json"


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
    counts = {"successful": 1200, "errored": 0, "incomplete": 0, **(totals or {})}
    counts = {"total": sum(counts.values()), **counts}
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


def of_strategy(strategy: Mapping[str, Any], concurrency: float = 22.77, **totals: int) -> dict[str, Any]:
    """A report of a load whose rate fits so many requests at once."""
    rps = concurrency / 2.3
    rates = {"requests_per_second": statistics(rps, 11_244.0), "output_tokens_per_second": statistics(128 * rps, 1e6)}
    return report({**benchmark(strategy, totals, **rates), "duration": 1200 / rps})


(SINGLE,) = of_strategy({"type_": "synchronous"}, 1.0)["benchmarks"]
NEGATIVE = benchmark(time_to_first_token_ms=statistics(-1.7e12, 89_488.0))
UNSORTED = {"mean": 1006.0, "median": 1006.0, "percentiles": {"p90": 1100.0, "p99": 1019.0}}
SLOW = {"time_to_first_token_ms": statistics(1000.0, 4e6), "request_latency": statistics(2.3, 4100.0)}
REPORTS: dict[str, dict[str, Any]] = {
    "poisson is an open loop": of_strategy({"type_": "poisson", "rate": 10.0, "max_concurrency": 10240}),
    "concurrent is a closed loop": of_strategy({"type_": "concurrent", "streams": 24}, 24.0),
    "strategy by kind": of_strategy({"kind": "concurrent", "streams": 24}, 24.0),
    "synchronous is one client": of_strategy({"type_": "synchronous"}, 1.0),
    "throughput with a limit is a closed loop": of_strategy({"type_": "throughput", "max_concurrency": 64}, 64.0),
    "throughput without a limit is a burst": of_strategy({"type_": "throughput", "max_concurrency": None}),
    "replay is no steady rate": of_strategy({"type_": "replay"}),
    "sweep": report(SINGLE, benchmark({"type_": "throughput", "max_concurrency": 512}), benchmark()),
    "few cut off": report(benchmark(totals={"incomplete": 23, "errored": 2})),
    "most cut off": report(benchmark(totals={"successful": 10, "incomplete": 11})),
    "one of two failed": report(benchmark(), benchmark(totals={"successful": 0, "errored": 30})),
    # 1200 requests in 122 s with answers of at most 2.4 s: at least 119.6 s of sending, 10.03 rps. In 140 s: 8.7 rps.
    "slow generator censors the point": report({**benchmark(), "duration": 140.0}),
    # Stopped by the clock, so that no answer was waited for: 1023 in 122 s are 8.4 rps.
    "stopped generator censors the point": report(benchmark(totals={"successful": 1000, "incomplete": 23})),
    # GuideLLM issue 216: an overloaded server, and times to a first token that never came.
    "negative times leave a benchmark out": report(benchmark(), NEGATIVE),
    "first token after the last": report(benchmark(time_to_first_token_ms=statistics(1006.0, 89_488.0))),
    "percentiles that fall": report(benchmark(time_to_first_token_ms={"successful": UNSORTED})),
    "minimum above the mean": report(benchmark(request_latency={"successful": {"mean": 2.3, "min": 2.5}})),
    "half of them unaccounted for": report(benchmark(totals={"successful": 900, "total": 1800})),
    "more clients than requests at once": of_strategy({"type_": "concurrent", "streams": 64}, 24.0, incomplete=15),
    "clients that a quarter may have held": of_strategy({"type_": "concurrent", "streams": 64}, 24.0, incomplete=16),
    "no rate": report(benchmark({"type_": "constant"})),
    "latency as text": report(benchmark(request_latency="2.3 s")),
    "more than an hour": report({**benchmark(**SLOW), "duration": None}),
    "longer than the run": report(benchmark(**SLOW)),
    "no object": report(7),
    "milliseconds of the day": report(benchmark() | {"start_time": 1.7e12, "end_time": 1.7e12 + 1e5}),
    "no benchmark": report(),
}


def test_guidellm_reports_read_as_the_golden(tmp_path: Path) -> None:
    check_golden(__file__, "guidellm_reports.txt", describe_variants(tmp_path, report(benchmark()), REPORTS))


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


def with_latency(**changed: Any) -> dict[str, Any]:
    document = stage()
    document["successes"]["latency"] |= changed
    return document


USED = {"total": 1_200_000.0, "cached": 300_000.0, "uncached": 900_000.0, **summary(200.0, 220.0)}
UNUSED = {**USED, "cached": 0.0, "uncached": 1_200_000.0}
SERVER = {"count": 10938, "rate": 91.0, "queue_len": {"mean": 0}}
STREAMED = ("time_to_first_token", "time_per_output_token", "inter_token_latency")
STAGES: dict[str, dict[str, Any]] = {
    "median gap of zero is an artefact": with_latency(inter_token_latency=summary(0.0, 0.049)),
    "median gap like TPOT is none": with_latency(inter_token_latency=summary(0.009, 0.049)),
    "slow generator censors the stage": stage({"achieved_rate": 97.9}),
    "generator at its limit does not": stage({"achieved_rate": 98.0}),
    "fast generator does not": stage({"achieved_rate": 101.0}),
    "concurrency is a closed loop": stage({"concurrency": 64, "requested_rate": 6000.0, "achieved_rate": 99.0}),
    "token counts of the server": stage(prompt_tokens=USED, output_tokens={"total": 1.0}),
    "no hit is not told": stage(prompt_tokens=UNUSED),
    "unstreamed answers have their latency only": with_latency(**dict.fromkeys(STREAMED)),
    "side of the server": {"load_summary": {}, "successes": SERVER, "failures": {}},
    "average of stages": {**stage(), "load_summary": {"count": 38717, "schedule_delay": None}},
    "other count than the load's": stage({"count": 6100}),
    "more completed than was asked for": stage({"requested_rate": 50.0, "achieved_rate": None}),
    "no request succeeded": {**stage(count=0), "failures": {"count": 7}},
    "no rate": stage(throughput={"requests_per_sec": None}),
    "no throughput": stage(throughput=[]),
    "nothing completed": stage(throughput={"requests_per_sec": 0.0}),
}


def test_inference_perf_stages_read_as_the_golden(tmp_path: Path) -> None:
    check_golden(__file__, "inference_perf_stages.txt", describe_variants(tmp_path, stage(), STAGES))


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


# ---- AIConfigurator's tables: rows of the public columns, whose numbers obey Little's law ----


AGG = predicted_row()
NAME = "vllm 0.24.0, h200_sxm, tp2pp1dp1etp1ep1, gemm fp8_block, kvcache fp8, fmha bfloat16, moe fp8, comm half"


def test_row_is_a_load_of_one_replica(tmp_path: Path) -> None:
    (run,) = read_results(write_table(tmp_path, [predicted_row(16, prefix=250)]))
    assert (run.origin, run.loop, run.model) == ("predicted", "closed", "org/m-70b")
    assert run.configuration == f"{NAME}, isl 1000, osl 101, prefix 250"
    # 16 requests of 0.18 s + 100 x 0.0216 s are 6.838 rps; means are never a P99.
    assert run.point.model_dump(exclude_none=True) == {
        "completed_rps": pytest.approx(6.838, abs=0.001),
        "concurrency": 16,
        "censored": False,
        "ttft_p50_seconds": pytest.approx(0.18),
        "tpot_p50_seconds": pytest.approx(0.0216),
        "output_tokens_per_second": pytest.approx(690.6, abs=0.1),
        "prompt_tokens_mean": 1000.0,
        "prefix_hit_ratio": 0.25,
    }
    assert run.setup.model_dump(exclude_none=True) == {
        "engine_version": "0.24.0",
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "data_parallel": 1,
    }
    assert any("predicted means of TTFT and TPOT stand as their P50" in text for text in run.remarks)


def test_older_table_lacks_request_latency(tmp_path: Path) -> None:
    older = {key: value for key, value in AGG.items() if key not in ("request_latency", "cp", "power_w")}
    (run,) = read_results(write_table(tmp_path, [older]))
    assert run.latency.mean == pytest.approx(float(AGG["request_latency"]) / 1000)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"(p)tp": 1, "(d)tp": 2}, "has the column (p)tp; a curve is of whole requests on one replica (agg)"),
        ({"phase": "decode"}, "has the column phase; a curve is of whole requests"),
        ({"ttft": "much"}, "has a wrong value: ttft.mean: input should be a valid number"),
        ({"tpot": -1}, "has a wrong value: tpot.mean: input should be greater than or equal to 0, which cannot be"),
        ({"seq/s": ""}, "has a wrong value: seq_per_s: input should be a valid number"),
        ({"seq/s": 0}, "does not make a point of a curve: completed_rps: must be greater than 0"),
        ({"seq/s": 99.0}, "tells what excludes each other: 99 rps x 2.18 s are 215.8 requests at once"),
        ({"tpot": 23.56}, "has a TPOT that does not fit: TTFT + TPOT x (osl - 1) is 2.476 s, request_latency 2.18 s"),
    ],
)
def test_row_without_a_place_is_named(columns: dict[str, object], said: str, tmp_path: Path) -> None:
    row = {**predicted_row(4), "ttft": 120.0, "tpot": 20.6, "request_latency": 2180.0, "seq/s": 1.835, **columns}
    assert refusal(write_table(tmp_path, [row])).startswith(said)


HEAD = ",".join(AGG)
REFUSED: dict[str, str] = {
    "isl,osl,concurrency,tokens/s/gpu\n1,2,3,4\n": "is no JSON",
    f"{HEAD}\n": "holds no benchmark",
    f"{HEAD}\norg/m-70b,1000\n": "has a wrong value: seq_per_s",
    f'{HEAD}\n"never closed\n': "is no valid CSV (Error tokenizing data.",
    f"{HEAD}\n{HEAD},1,2\n": "is no valid CSV (a row has more fields than the header)",
}
"""Other tables and broken ones, and why they are refused."""


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=REFUSED.values())
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pareto.csv"
    path.write_text(text)
    assert refusal(path).startswith(said)


def test_several_configurations_need_a_choice(tmp_path: Path) -> None:
    rows = [predicted_row(load, tensor=tensor) for tensor in (1, 2) for load in (4, 8)]
    runs = read_results(write_table(tmp_path, [*rows, predicted_row(8, tensor=2, kvcache="bfloat16")]))
    with pytest.raises(BenchmarkError) as caught:
        select_configuration(runs, "")
    assert str(caught.value) == (
        f"{tmp_path / 'pareto.csv'}: 3 configurations fit, and a curve is of one: choose with --configuration PARTS: "
        "tp1pp1dp1etp1ep1, kvcache fp8; tp2pp1dp1etp1ep1, kvcache fp8; tp2pp1dp1etp1ep1, kvcache bfloat16"
    )
    with pytest.raises(BenchmarkError, match="2 configurations fit"):
        select_configuration(runs, "tp2pp1")
    with pytest.raises(BenchmarkError, match="no configuration fits"):
        select_configuration(runs, "tp16")
    assert {run.setup.tensor_parallel for run in select_configuration(runs, "tp1pp1")} == {1}
    assert len(select_configuration(runs, "tp2pp1dp1etp1ep1, kvcache bfloat16")) == 1


def test_load_given_twice_keeps_its_best(tmp_path: Path) -> None:
    slower = {**predicted_row(8, ttft=300.0), "ctx_tokens": 8000}
    runs = read_results(write_table(tmp_path, [predicted_row(4), slower, predicted_row(8)]))
    points = curve_of(select_configuration(runs, "")).curve.points
    assert [(point.concurrency, point.ttft_p50_seconds) for point in points] == [(4, 0.12), (8, 0.14)]


def test_measured_and_predicted_never_mix(tmp_path: Path) -> None:
    measured = {"request_throughput": 9.0, "completed": 900, "model_id": "m-70b", "backend": "vllm"}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({**measured, "max_concurrency": 4, "request_rate": "inf"}))
    runs = [*read_results(path), *read_results(write_table(tmp_path, [AGG]))]
    with pytest.raises(BenchmarkError, match=r"is of origin measured, .*line 2 predicted: a curve is of one origin"):
        curve_of(select_configuration(runs, ""))
    with pytest.raises(ConfigError, match="no file has configurations"):
        select_configuration(runs[:1], "tp2")


def test_another_setup_than_the_tier_is_refused(tmp_path: Path) -> None:
    imported = curve_of(read_results(write_table(tmp_path, [AGG])))
    tier = {
        "model": "m-70b",
        "engine": "vllm",
        "slo": {"ttft_p99_seconds": 2.0},
        "gpu": {"product": "NVIDIA H200", "per_replica": 2},
    }
    assert differences(imported, TierPlan.model_validate(tier)) == []
    other = {**tier, "engine": "sglang", "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 4}}
    assert [difference[1:] for difference in differences(imported, TierPlan.model_validate(other))] == [
        ("the engine vllm", "engine is sglang"),
        ("the GPU h200_sxm", "gpu.product is NVIDIA H100 80GB HBM3"),
        ("2 x GPU", "gpu.per_replica is 4"),
        ("a tensor parallel degree of 2", "gpu has a degree of 4"),
    ]
