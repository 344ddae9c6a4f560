from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import SHARED
from result_files import explain_refusal, read_document, read_results

from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError

SWEEPS = SHARED / "bench" / "inference-perf"


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


def sweep(name: str) -> tuple[BenchmarkRun, ...]:
    folder = SWEEPS / name / "results"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: the H100 sweeps are not part of the project")
    return tuple(one for path in sorted(folder.glob("stage_*_lifecycle_metrics.json")) for one in read_results(path))


# Capacity in completed rps, TTFT P99 before and after the knee, TPOT P50 at 1 rps in ms, censored stages: PEERS 3.3.
FOUND = {
    "vllm": ((101, 103.1), 0.18, 3.2, 3.47, [4, 5, 6]),
    "vllm+chunking_and_prefix_caching": ((170, 173), 0.455, 1.89, 3.47, [5, 6]),
    "vllm+quantization": ((171.5, 172.5), 0.23, 1.90, 3.44, [5, 6]),
    "vllm+eagle": ((67, 68.1), 0.07, 1.35, 5.78, [5, 6]),
}


@pytest.mark.parametrize("name", FOUND)
def test_h100_sweeps_have_their_known_capacities(name: str) -> None:
    (least, most), before, after, tpot, censored = FOUND[name]
    stages = sweep(name)
    assert [number for number, one in enumerate(stages) if one.point.censored] == censored
    points = [one.point for one in stages]
    assert all(least <= points[number].completed_rps <= most for number in censored)
    ttft = [point.ttft_p99_seconds or 0 for point in points]
    knee = next(number for number, value in enumerate(ttft) if value > 1)
    assert ttft[knee - 1] == pytest.approx(before, abs=0.005)
    assert ttft[knee] == pytest.approx(after, abs=0.01)
    assert (points[0].tpot_p50_seconds or 0) * 1000 == pytest.approx(tpot, abs=0.005)
    assert all(not one.point.censored or "server is at least this bad" in one.remarks[0] for one in stages)


def test_real_server_files_are_refused() -> None:
    for path in sorted((SWEEPS / "vllm" / "results").glob("*_prometheus_metrics.json")):
        with pytest.raises(BenchmarkError, match="is the server's side or"):
            read_results(path)
    if not SWEEPS.is_dir():
        pytest.skip(f"no {SWEEPS}: the H100 sweeps are not part of the project")
    with pytest.raises(BenchmarkError, match="a summary of stages"):
        read_results(SWEEPS / "vllm" / "results" / "summary_lifecycle_metrics.json")
