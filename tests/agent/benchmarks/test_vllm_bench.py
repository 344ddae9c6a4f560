from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from result_files import explain_refusal, read_document, read_results

from agent.benchmarks.run_model import BenchmarkRun
from rules.plan.schema import Provenance

BENCH = TESTS / "bench"

# The keys a run without any option writes: no P50, no e2e, only P99 of ttft, tpot and itl.
PLAIN: dict[str, Any] = {
    "date": "20260102-030405",
    "backend": "vllm",
    "model_id": "llama",
    "tokenizer_id": "llama",
    "num_prompts": 2000,
    "request_rate": 10.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 202.0,
    "completed": 2000,
    "failed": 0,
    "total_input_tokens": 400000,
    "total_output_tokens": 100000,
    "request_throughput": 9.9,
    "request_goodput": None,
    "output_throughput": 495.0,
    "total_token_throughput": 2475.0,
    "mean_ttft_ms": 60.0,
    "median_ttft_ms": 50.0,
    "std_ttft_ms": 5.0,
    "p99_ttft_ms": 150.0,
    "mean_tpot_ms": 11.0,
    "median_tpot_ms": 10.0,
    "p99_tpot_ms": 20.0,
    "mean_itl_ms": 11.0,
    "median_itl_ms": 9.0,
    "p99_itl_ms": 40.0,
}
CLOSED = {"request_rate": "inf", "max_concurrency": 8}


def read(tmp_path: Path, document: Mapping[str, Any], **more: Any) -> BenchmarkRun:
    return read_document(tmp_path, {**document, **more})


def refusal(tmp_path: Path, **more: Any) -> str:
    return explain_refusal(tmp_path, {**PLAIN, **more})


def test_undated_run_has_no_time(tmp_path: Path) -> None:
    undated = read(tmp_path, PLAIN, date=None)
    assert (undated.started_at, undated.ended_at, undated.remarks) == (None, None, [])


def test_infinite_rate_is_closed_or_a_burst(tmp_path: Path) -> None:
    one = read(tmp_path, PLAIN, **CLOSED)
    assert (one.loop, one.point.concurrency, one.point.requested_rps) == ("closed", 8.0, None)
    one = read(tmp_path, PLAIN, request_rate="inf")
    assert (one.loop, one.point.concurrency, one.point.requested_rps) == (None, None, None)
    assert (one.point.completed_rps, one.point.output_tokens_per_second) == (9.9, 495.0)
    assert one.point.ttft_p99_seconds is one.point.tpot_p50_seconds is one.point.itl_p99_seconds is None
    assert "2000 requests were sent as fast as possible" in one.remarks[0]
    assert read(tmp_path, PLAIN, request_rate="inf", max_concurrency=2000).loop is None
    alone = {"max_concurrency": 1, "completed": 1, "total_output_tokens": 50, "request_throughput": 1.5}
    assert read(tmp_path, PLAIN, request_rate="inf", **alone).loop == "closed"


def test_old_key_changes_nothing(tmp_path: Path) -> None:
    old = {key: value for key, value in PLAIN.items() if key != "request_goodput"}
    assert read(tmp_path, {**old, "request_goodput:": 8.5}) == read(tmp_path, PLAIN)


def test_unmeasured_percentiles_stay_empty(tmp_path: Path) -> None:
    odd = {key: value for key, value in PLAIN.items() if not key.startswith("p99_")}
    point = read(tmp_path, {**odd, "p99.9_ttft_ms": 400.0, "p95_ttft_ms": 100.0, "p90_itl_ms": 9.0}).point
    assert (point.ttft_p50_seconds, point.ttft_p99_seconds, point.itl_p99_seconds) == (0.05, None, None)
    point = read(tmp_path, PLAIN, median_tpot_ms=0.0, p99_tpot_ms=0.0, median_ttft_ms=0, p99_ttft_ms=0).point
    assert point.tpot_p50_seconds is point.tpot_p99_seconds is point.ttft_p50_seconds is point.ttft_p99_seconds is None


def test_concurrency_is_of_the_mean_latency(tmp_path: Path) -> None:
    with_mean = read(tmp_path, PLAIN, mean_e2el_ms=600.0, max_concurrent_requests=53)
    assert with_mean.point.concurrency == pytest.approx(9.9 * 0.6)
    from_array = read(tmp_path, PLAIN, latencies=[0.5, 0.7, 0.0], max_concurrent_requests=53)
    assert from_array.point.concurrency == pytest.approx(9.9 * 0.6)
    assert read(tmp_path, PLAIN, max_concurrent_requests=53).point.concurrency is None


def test_short_run_is_not_censored(tmp_path: Path) -> None:
    # 40 requests at 3 rps are sent in 13.3 s; the last answer takes 1.5 s more, so 2.7 rps are completed.
    short = {
        "request_rate": 3.0,
        "completed": 40,
        "duration": 14.8,
        "request_throughput": 2.7,
        "total_output_tokens": 2000,
    }
    one = read(tmp_path, PLAIN, **short, latencies=[1.4, 1.5])
    assert not one.point.censored
    assert any(text.startswith("completed 2.7 of 3 requested rps; the generator kept up") for text in one.remarks)
    untold = read(tmp_path, PLAIN, **short)
    assert not untold.point.censored
    assert any(text.endswith("the file does not show whether the generator was the limit") for text in untold.remarks)


def test_slow_generator_censors_the_point(tmp_path: Path) -> None:
    # 2000 requests in 250 s, of which no answer took more than 2 s: at most 8.06 rps were sent.
    slow = {"duration": 250.0, "request_throughput": 8.0, "latencies": [2.0, 1.0]}
    one = read(tmp_path, PLAIN, **slow)
    assert one.point.censored
    assert "the generator sent 8.065 of 10 requested rps: the server is at least this bad" in one.remarks
    # A server that is behind answers late: the same duration with answers that took 60 s is no fault of the generator.
    assert not read(tmp_path, PLAIN, **{**slow, "latencies": [60.0, *[0.6] * 99]}).point.censored
    slow = read(tmp_path, PLAIN, start_times=[1000.0 + second for second in range(100)])
    assert slow.point.censored
    assert "the generator sent 1.01 of 10 requested rps: the server is at least this bad" in slow.remarks
    assert not read(tmp_path, PLAIN, start_times=[1000.0 + tenth / 10 for tenth in range(100)]).point.censored


def test_start_burst_of_closed_loops_is_said(tmp_path: Path) -> None:
    plain = read(tmp_path, PLAIN, **CLOSED, completed=799, total_output_tokens=40_000)
    assert "closed loop: TTFT P99 is that of the start burst, 8 of 799 requests" in plain.remarks
    many = read(tmp_path, PLAIN, **CLOSED, completed=800, total_output_tokens=40_000)
    assert not any("burst" in text for text in many.remarks)


@pytest.mark.parametrize(
    ("requests", "share"),
    [(16, "of 85%"), (298, "of 5%"), (458, "of 1%"), (459, "below 1%"), (999, "below 1%"), (1000, "")],
)
def test_too_few_requests_are_said(tmp_path: Path, requests: int, share: str) -> None:
    found = [text for text in read(tmp_path, PLAIN, completed=requests, num_prompts=requests).remarks if "P99" in text]
    text = f"P99 of {requests} requests rests on the slowest few: the true P99 is above all of them with a probability"
    assert found == ([f"{text} {share}"] if share else [])


def test_impossible_runs_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, completed=0, failed=2000) == "is of a failed run: none of 2000 requests succeeded"
    assert refusal(tmp_path, completed=900, failed=1100) == "is of a failed run: 1100 of 2000 requests failed"
    assert refusal(tmp_path, ramp_up_strategy="linear").startswith("ramps its rate up")
    wrong = "has a wrong value: "
    assert refusal(tmp_path, completed=None) == wrong + "completed: input should be a valid integer"
    assert refusal(tmp_path, request_throughput="9.9") == wrong + "request_throughput: input should be a valid number"
    assert refusal(tmp_path, p99_ttft_ms=float("inf")) == wrong + "ttft.p99: input should be a finite number"
    negative = refusal(tmp_path, p99_ttft_ms=-1)
    assert negative == wrong + "ttft.p99: input should be greater than or equal to 0, which cannot be"
    assert refusal(tmp_path, total_input_tokens=1e308).startswith(wrong + "total_input_tokens: ")
    assert refusal(tmp_path, completed=1.5) == wrong + "completed: input should be a valid integer"
    assert refusal(tmp_path, request_rate="fast") == wrong + "request_rate: input should be a valid number"
    assert refusal(tmp_path, date="yesterday").startswith(wrong + "date: ")
    assert refusal(tmp_path, date="19600101-120000").startswith(wrong + "date: ")
    assert read(tmp_path, PLAIN, date="20261120-181609", duration=4_294_967_296).started_at is None
    assert refusal(tmp_path, start_times=[1, None]) == wrong + "start_times[1]: input should be a valid number"
    seconds_as_milliseconds = refusal(tmp_path, p99_tpot_ms=61_000.0)
    assert (
        seconds_as_milliseconds
        == "does not make a point of a curve: tpot_p99_seconds: must be at most 60 (seconds: 61 ms are written 0.061)"
    )


def test_missing_failed_count_is_worked_out(tmp_path: Path) -> None:
    old = {key: value for key, value in PLAIN.items() if key != "failed"}
    assert (
        "20 of 2000 requests failed or were under way at the end, and are not in the latencies"
        in read(tmp_path, old, completed=1980).remarks
    )


def test_open_sweeps_are_never_censored() -> None:
    for folder in ("vllm-cpu-open", "vllm-cpu-cached"):
        for path in sorted((BENCH / folder).glob("bench_r*.json")):
            (one,) = read_results(path)
            assert one.loop == "open"
            assert one.point.completed_rps < (one.point.requested_rps or 0)
            assert not one.point.censored
    # 300 requests, completed in 38.04 s, that took 0.641 s each: 5.05 in the system, and a peak of 20.
    (r8,) = read_results(BENCH / "vllm-cpu-open" / "bench_r8.json")
    assert r8.point.concurrency == pytest.approx(300 / 38.041365 * 0.64093889, rel=1e-4)


def test_detailed_run_gives_its_rate() -> None:
    (one,) = read_results(BENCH / "vllm-cpu" / "bench_rate3_detailed.json")
    assert one.point.completed_rps == pytest.approx(2.776, abs=0.001)
    assert not one.point.censored


def test_metadata_tells_release_and_limits(tmp_path: Path) -> None:
    told = {"vllm_version": "0.32.0", "tp": "4", "pp_size": 2, "dp": "1", "max_num_seqs": "256"}
    setup = read(tmp_path, PLAIN, **told).setup
    assert setup == Provenance(
        engine_version="0.32.0", tensor_parallel=4, pipeline_parallel=2, data_parallel=1, max_num_seqs=256
    )
    assert read(tmp_path, PLAIN, tp="four", max_num_seqs=0, version="a b").setup == Provenance()
