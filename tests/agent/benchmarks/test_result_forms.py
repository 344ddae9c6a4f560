"""Forms of known tools that one tool wrote at different times, and runs that are no measurement by their own mark."""

import json
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from result_files import read_results, write_document

from agent.benchmarks.formats import read_all_results
from agent.errors import BenchmarkError, NotAResultError

FORMS = TESTS / "bench" / "forms"


def load(name: str) -> Any:
    return json.loads((FORMS / name).read_text(encoding="utf-8"))


def test_sglang_writes_a_load_a_line() -> None:
    runs = read_results(FORMS / "sglang_bench.jsonl")
    assert [run.point.requested_rps for run in runs] == [1, 2, 4]
    assert {(run.tool, run.loop) for run in runs} == {("sglang-bench", "open")}
    assert runs[0].point.concurrency == pytest.approx(0.97 * 9.0)
    assert (runs[0].point.e2e_p99_seconds, runs[0].generation_tokens.mean) == (20.0, 500.0)


def test_sglang_tells_server_failures_and_rate(tmp_path: Path) -> None:
    line = json.loads((FORMS / "sglang_bench.jsonl").read_text(encoding="utf-8").splitlines()[0])
    server = {"model_path": "meta/m", "version": "0.5.2", "tp_size": 4, "max_running_requests": 64}
    errors = ["", "timeout", *("" for _ in range(299))]
    closed = line | {"request_rate": float("inf"), "max_concurrency": 9, "server_info": server, "errors": errors}
    (run,) = read_results(write_document(tmp_path, closed))
    assert (run.loop, run.point.concurrency, run.model) == ("closed", 9, "meta/m")
    assert (run.setup.engine_version, run.setup.tensor_parallel, run.setup.max_num_seqs) == ("0.5.2", 4, 64)
    assert "1 of 301 requests failed or were under way at the end, and are not in the latencies" in run.remarks
    (traced,) = read_results(write_document(tmp_path, line | {"request_rate": "trace"}))
    assert traced.loop is None
    with pytest.raises(NotAResultError, match=r"rps x 9 s are not the reported 174 requests at once"):
        read_results(write_document(tmp_path, line | {"concurrency": 174.0}))


def test_sweep_summary_is_a_load_a_run(tmp_path: Path) -> None:
    runs = read_results(FORMS / "sweep_summary.json")
    assert [run.point.concurrency for run in runs] == [16, 32, 64]
    assert [run.location.rpartition(": ")[2] for run in runs] == ["run 1", "run 2", "run 3"]
    with pytest.raises(BenchmarkError, match="holds no benchmark"):
        read_results(write_document(tmp_path, []))
    with pytest.raises(NotAResultError, match="run 2: holds no object"):
        read_results(write_document(tmp_path, [load("sweep_run.json"), 3]))


def test_warm_up_run_is_left_out(tmp_path: Path) -> None:
    path = write_document(tmp_path, [load("sweep_warmup.json"), load("sweep_run.json")])
    (run,), (left_out,) = read_all_results((path,))
    assert run.point.ttft_p99_seconds == pytest.approx(0.140)
    assert str(left_out).startswith(f"{path}: run 1: is a warm-up run (")
    with pytest.raises(NotAResultError, match=r"sweep_warmup.json: is a warm-up run \(run_number -1\)"):
        read_results(FORMS / "sweep_warmup.json")
