from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import SHARED
from result_files import explain_refusal, read_document, read_results

from agent.benchmarks.run_model import BenchmarkRun

EXCERPT = SHARED / "bench" / "aiperf" / "doc_excerpt_profile_export_aiperf.json"


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


def read(tmp_path: Path, **changed: Any) -> BenchmarkRun:
    return read_document(tmp_path, {**EXPORT, **changed})


def refusal(tmp_path: Path, **changed: Any) -> str:
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
    one = read(tmp_path, input_config={**CONFIG, **config}, run_info=run_info, request_throughput=rps)
    assert (one.loop, one.point.requested_rps) == (loop, requested)
    assert one.point.concurrency == pytest.approx(concurrency)


def test_unsteady_load_is_said(tmp_path: Path) -> None:
    assert any("tells neither rate nor concurrency" in text for text in read(tmp_path, input_config=None).remarks)
    replayed = read(tmp_path, input_config={"phases": [{"name": "profiling", "type": "fixed_schedule"}]})
    assert "arrivals were of pattern fixed_schedule, not a steady rate" in replayed.remarks


def test_error_counts_are_added_up(tmp_path: Path) -> None:
    kinds = [{"error_details": {"code": 500}, "count": 30}, {"error_details": {"code": 429}, "count": 20}]
    said = "50 of 2050 requests failed or were under way at the end, and are not in the latencies"
    assert said in read(tmp_path, error_summary=kinds).remarks
    assert said in read(tmp_path, error_summary=kinds[:1], error_request_count=metric("requests", 50.0)).remarks


def test_wrong_exports_name_their_place(tmp_path: Path) -> None:
    assert refusal(tmp_path, was_cancelled=True) == "is of a run that was cancelled"
    nobody = {"request_count": metric("requests", 0.0), "error_summary": [{"count": 12}]}
    assert refusal(tmp_path, **nobody) == "is of a failed run: none of 12 requests succeeded"
    assert refusal(tmp_path, request_throughput=None) == "has a wrong value: request_throughput.avg: is missing"
    fraction = refusal(tmp_path, request_count=metric("requests", 1.5))
    assert fraction == "has a wrong value: request_count.avg: input should be a valid integer"
    assert refusal(tmp_path, start_time="noon").startswith("has a wrong value: start_time: ")
    assert refusal(tmp_path, error_summary={"a": 1}) == "has a wrong value: error_summary: input should be a valid list"


def test_documented_excerpt_tells_no_load() -> None:
    if not EXCERPT.is_file():
        pytest.skip(f"no {EXCERPT}: the sample reports are not part of the project")
    (one,) = read_results(EXCERPT)
    assert (one.loop, one.point.completed_rps, one.point.requests) == (None, 1.45, 20)
    assert one.point.concurrency == pytest.approx(1.45 * 2.62071)
    assert one.point.ttft_p99_seconds is None
