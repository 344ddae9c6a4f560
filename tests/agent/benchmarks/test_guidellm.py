from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import SHARED
from result_files import explain_refusal, read_results, write_document

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun

SHARED_BENCH = SHARED / "bench"
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


def read(tmp_path: Path, *benchmarks: Any) -> tuple[BenchmarkRun, ...]:
    return read_results(write_document(tmp_path, report(*benchmarks)))


def refusal(tmp_path: Path, *benchmarks: Any) -> str:
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
    (one,) = read(tmp_path, benchmark(strategy, requests_per_second=rps))
    assert (one.loop, one.point.requested_rps) == (loop, requested)
    assert one.point.concurrency == (None if concurrency is None else pytest.approx(concurrency))
    said = "arrivals were of strategy replay, not a steady rate" in one.remarks
    assert said == (strategy == {"type_": "replay"})


def test_sweep_is_a_load_a_benchmark(tmp_path: Path) -> None:
    full = {"type_": "throughput", "max_concurrency": 512}
    single = benchmark({"type_": "synchronous"}, requests_per_second=statistics(0.43, 0.44))
    found = read(tmp_path, single, benchmark(full), benchmark())
    assert [run.location.rpartition(": ")[2] for run in found] == [f"benchmarks[{n}]" for n in range(3)]
    assert [one.loop for one in found] == [None, None, "open"]
    one, full_load, _ = found
    assert one.point.ttft_p99_seconds == 1.019
    assert "one client at a time, the lowest load of a sweep whose others are open loops" in one.remarks
    assert (full_load.point.ttft_p99_seconds, full_load.point.completed_rps) == (None, 9.9)


def test_many_cut_off_requests_refuse_the_run(tmp_path: Path) -> None:
    (one,) = read(tmp_path, benchmark(totals={"incomplete": 23, "errored": 2}))
    assert "25 of 1225 requests failed or were under way at the end, and are not in the latencies" in one.remarks
    cancelled = benchmark(totals={"successful": 10, "incomplete": 11})
    assert refusal(tmp_path, cancelled) == "is of a failed run: 11 of 21 requests were cut off"
    failed = benchmark(totals={"successful": 0, "errored": 30})
    found, others = read_all_results((write_document(tmp_path, report(benchmark(), failed)),))
    assert (len(found), [str(each.path).rpartition(": ")[2] for each in others]) == (1, ["benchmarks[1]"])
    assert others[0].text == "is of a failed run: none of 30 requests succeeded"


def test_slow_generator_censors_the_point(tmp_path: Path) -> None:
    # 1200 requests in 122 s with answers of at most 2.4 s: at least 119.6 s of sending, 10.03 rps.
    assert not read(tmp_path, benchmark())[0].point.censored
    slow = {**benchmark(), "duration": 140.0}
    assert read(tmp_path, slow)[0].point.censored
    # Stopped by the clock, so that no answer was waited for: 1023 in 122 s are 8.4 rps.
    assert read(tmp_path, benchmark(totals={"successful": 1000, "incomplete": 23}))[0].point.censored


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
    assert "TTFT P99 89.49 s is above E2E P99 2.4 s, which cannot be" in refusal(tmp_path, late)


def test_impossible_values_name_their_place(tmp_path: Path) -> None:
    no_rate = benchmark({"type_": "constant"})
    assert refusal(tmp_path, no_rate) == "has a strategy without its rate"
    text = benchmark(request_latency="2.3 s")
    assert read(tmp_path, text)[0].point.e2e_p99_seconds is None
    slow = benchmark(time_to_first_token_ms=statistics(1000.0, 4e6), request_latency=statistics(2.3, 4100.0))
    assert "ttft_p99_seconds: must be at most 3600" in refusal(tmp_path, slow)
    assert "valid dictionary" in refusal(tmp_path, 7)
    milliseconds = refusal(tmp_path, benchmark() | {"start_time": 1.7e12, "end_time": 1.7e12 + 1e5})
    assert milliseconds == "has a wrong value: start_time: input should be less than or equal to 253402300799"
    assert refusal(tmp_path) == "holds no benchmark"


def real(path: Path) -> tuple[BenchmarkRun, ...]:
    if not path.is_file():
        pytest.skip(f"no {path}: the sample reports are not part of the project")
    return read_results(path)


def test_real_report_of_0_3_is_read() -> None:
    (one,) = real(OLD)
    assert (one.loop, one.model, one.point.requests, one.point.censored) == ("open", "Qwen/Qwen3-0.6B", 586, False)
    assert one.point.completed_rps == pytest.approx(9.7778, abs=1e-4)
    assert one.point.concurrency == pytest.approx(22.7831, abs=1e-4)
    # (2330.1 - 1006.2) / 127 = 10.42 ms, and not its time_per_output_token_ms of 10.34 (by 128 tokens).
    assert one.point.tpot_p50_seconds == pytest.approx(0.010425, abs=1e-6)
    assert one.started_at == pytest.approx(1758664746.13, abs=0.01)
    assert one.ended_at == pytest.approx(1758664806.14, abs=0.01)
    assert "23 of 609 requests failed or were under way at the end, and are not in the latencies" in one.remarks


def test_real_report_of_version_2_is_read() -> None:
    first, second = real(NEW)
    assert [run.location.rpartition(": ")[2] for run in (first, second)] == ["benchmarks[0]", "benchmarks[1]"]
    assert first.model == "e2e-mock-model"
    assert (first.point.requested_rps, second.point.requested_rps) == (2.0, 4.0)
    assert first.point.tpot_p50_seconds == pytest.approx(0.001046, abs=1e-6)
    # Two requests at 2 a second, sent 5 s apart, and answered in 20 ms.
    assert first.point.censored
