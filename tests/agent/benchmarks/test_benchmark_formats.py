import copy
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from golden_text import check_golden
from paths import TESTS
from result_files import describe_variants, predicted_row, read_results, refusal, write_document
from test_tool_reports import EXPORT, benchmark, report, stage

from agent.benchmarks.formats import NAMES, VllmRun, read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError, NotAResultError

BENCH = TESTS / "bench"
FORMS = BENCH / "forms"
RUN = BENCH / "vllm-cpu" / "bench_c04.json"

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

# The document of each format that its own tests change.
SAMPLES: dict[str, Any] = {
    "vllm-bench": PLAIN,
    "sglang-bench": json.loads((FORMS / "sglang_bench.jsonl").read_text(encoding="utf-8").splitlines()[0]),
    "inference-perf": stage(),
    "guidellm": report(benchmark()),
    "aiperf": EXPORT,
    "aiconfigurator": predicted_row(),
}
READINGS = json.loads((BENCH / "readings.json").read_text(encoding="utf-8"))
"""What each format's sample gives, worked out by hand from its units: seconds, requests per second, unix seconds."""


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "result.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("tool", NAMES)
def test_every_format_reads_its_sample(tmp_path: Path, tool: str) -> None:
    (run,) = read_results(written(tmp_path, json.dumps(SAMPLES[tool])))
    wanted, record = READINGS[tool], run.model_dump(mode="json", exclude_none=True)
    assert run.source == str(tmp_path / "result.json")
    assert record.pop("point") == pytest.approx(wanted.pop("point"))
    assert {key: record.get(key) for key in wanted} == wanted


def test_content_tells_the_format(tmp_path: Path) -> None:
    path = tmp_path / "stage_0_lifecycle_metrics.yaml"
    path.write_text(RUN.read_text(encoding="utf-8"), encoding="utf-8")
    assert isinstance(read_results(path)[0], VllmRun)
    warm_up = path.rename(tmp_path / "warm-up_c04.json")
    assert refusal(warm_up) == "is a warm-up run (by its file name)"


@pytest.mark.parametrize("content", ["{}", '{"backend": "vllm"}', '{"benchmarks": []}'])
def test_unknown_object_names_the_tools(tmp_path: Path, content: str) -> None:
    said = f"is no benchmark result that sizewatch reads ({', '.join(SAMPLES)})"
    assert refusal(written(tmp_path, content)) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("[1, 2]", "holds no object of keys and values"),
        ("just words", "is no JSON"),
        ('{"a": 1', "is no valid JSON (Expecting ',' delimiter: line 1 column 8 (char 7)): was it cut off?"),
        ('{\n"a" 1}', "is no valid JSON (Expecting ':' delimiter: line 2 column 5 (char 6)): was it cut off?"),
        ('{"a": 1}\n{"b": ', "is no valid JSON (Expecting value: line 2 column 7 (char 15)): was it cut off?"),
        ('{"a": 1}\n[2]', "holds no object of keys and values"),
        ('{"a": 1} 2', "holds no object of keys and values"),
        (b"\xff\xfe{}", "is no text in UTF-8"),
    ],
)
def test_undecodable_file_gets_one_sentence(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert refusal(written(tmp_path, content)) == said


def test_unreadable_file_gets_its_reason(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "[" * 100_000)).startswith("is no valid JSON (maximum recursion depth exceeded")
    assert refusal(tmp_path / "none.json") == "cannot be read: No such file or directory"
    assert refusal(tmp_path) == "is a folder"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "is empty"


def test_every_bad_file_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("cut.json", "words.json", "none.json")]
    paths[0].write_text('{"a": ')
    paths[1].write_text("words")
    with pytest.raises(BenchmarkError, match=r"cut.json: is no valid JSON .*; \S*/none.json: cannot be read"):
        read_all_results((RUN, *paths))
    with pytest.raises(NotAResultError, match=rf"words.json: is no JSON; {tmp_path}: is a folder"):
        read_all_results((paths[1], tmp_path))


def test_marks_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    text = json.dumps(SAMPLES["vllm-bench"])
    pretty = json.dumps(SAMPLES["vllm-bench"], indent=1)
    found = read_results(written(tmp_path, f"\ufeff\n{text}\n\n{pretty}{text}\n"))
    lines = [f"line {number}" for number in (2, 4, 4 + pretty.count("\n"))]
    assert [run.location.rpartition(": ")[2] for run in found] == lines


def test_foreign_lines_leave_the_others(tmp_path: Path) -> None:
    lines = [json.dumps(document) for document in (PLAIN, {"a": 1}, {**PLAIN, "model_id": "b"}, {"a": 2}, {})]
    runs, (error,) = read_all_results((written(tmp_path, "\n".join(lines)),))
    assert [run.model for run in runs] == ["llama", "b"]
    assert str(error).startswith(f"{tmp_path}/result.json: line 2: is no benchmark result")
    assert str(error).endswith(", nor are 2 others of this file")


NUMBERS = (-1, 0, 1e-320, 1e308, 10**400, 1.5, float("nan"), float("inf"), -float("inf"))
WRONG: tuple[Any, ...] = (None, "", "text", True, [], [[]], {}, {"unit": 3}, *NUMBERS)


def spoilt(sample: Any, chance: random.Random) -> Any:
    """The document with one value gone or replaced by something that does not belong there."""
    document = copy.deepcopy(sample)
    here: Any = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = chance.choice(keys)
        if isinstance(here[key], dict | list) and here[key] and chance.random() < 0.8:
            here = here[key]
            continue
        if chance.random() < 0.2:
            del here[key]
        else:
            here[key] = chance.choice(WRONG)
        return document


def truncated(sample: Any, chance: random.Random) -> str:
    text = json.dumps(sample)
    return text[: chance.randrange(len(text))]


MUTATIONS: dict[str, Callable[[Any, random.Random], str]] = {
    "spoilt": lambda sample, chance: json.dumps(spoilt(sample, chance)),
    "spoilt twice": lambda sample, chance: json.dumps(spoilt(spoilt(sample, chance), chance)),
    "truncated": truncated,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", SAMPLES)
def test_spoilt_file_gives_runs_or_one_sentence(tmp_path: Path, name: str, mutation: str) -> None:
    chance = random.Random(f"{name} {mutation}")
    refusals, results = [], []
    for _ in range(150):
        path = written(tmp_path, MUTATIONS[mutation](SAMPLES[name], chance))
        try:
            results.append(read_results(path))
        except BenchmarkError as error:
            refusals.append(str(error))
    assert refusals
    assert [text for text in refusals if not text.startswith(f"{path}: ") or "\n" in text] == []
    assert results or mutation == "truncated"
    assert all(runs and all(isinstance(run, BenchmarkRun) for run in runs) for runs in results)


# ---- forms that one tool wrote at different times, and runs that are no measurement ----


def load(name: str) -> Any:
    return json.loads((FORMS / name).read_text(encoding="utf-8"))


def test_sglang_and_sweeps_read_as_the_golden(tmp_path: Path) -> None:
    first, *_ = lines = [json.loads(line) for line in (FORMS / "sglang_bench.jsonl").read_text("utf-8").splitlines()]
    server = {"model_path": "meta/m", "version": "0.5.2", "tp_size": 4, "max_running_requests": 64}
    closed = {"request_rate": float("inf"), "max_concurrency": 9, "server_info": server}
    documents = {
        "a load a line": lines,
        "server and failures": first | closed | {"errors": ["", "timeout", *[""] * 299]},
        "replayed arrivals": first | {"request_rate": "trace"},
        "more at once than the load has": first | {"concurrency": 174.0},
        "sweep has a load a run": load("sweep_summary.json"),
        "empty sweep": [],
        "run that is no object": [load("sweep_run.json"), 3],
        "warm-up run": load("sweep_warmup.json"),
        "warm-up by its label": load("sweep_run.json") | {"label": "warmup"},
        "warm-up by its name": load("sweep_run.json") | {"_benchmark_name": "warm up"},
        "warm-up by its tag": load("sweep_run.json") | {"tag": "Warm-up_c16"},
        "label of a measured run": load("sweep_run.json") | {"label": "after warmup", "tag": "warmups=10", "warmup": 5},
        "warm-up run of a sweep": [load("sweep_warmup.json"), load("sweep_run.json")],
    }
    check_golden(__file__, "sglang_runs.txt", describe_variants(tmp_path, first, documents))
    of_lines = read_results(FORMS / "sglang_bench.jsonl")
    assert [run.point for run in of_lines] == [run.point for run in read_results(write_document(tmp_path, lines))]


# ---- vLLM ----

CLOSED = {"request_rate": "inf", "max_concurrency": 8}
# 40 requests at 3 rps are sent in 13.3 s; the last answer takes 1.5 s more, so 2.7 rps are completed.
SHORT = {"request_rate": 3.0, "completed": 40, "duration": 14.8, "request_throughput": 2.7}
# 2000 requests in 250 s, of which no answer took more than 2 s: at most 8.06 rps were sent.
SLOW = {"duration": 250.0, "request_throughput": 8.0}
SLOWEST = {"request_throughput": 4.66e-7, "output_throughput": 2.33e-5}
METADATA = {"vllm_version": "0.32.0", "tp": "4", "pp_size": 2, "dp": "1", "max_num_seqs": "256"}
ALONE = {"max_concurrency": 1, "completed": 1, "request_throughput": 1.5}
UNMEASURED = {"p99.9_ttft_ms": 400.0, "p95_ttft_ms": 100.0, "p90_itl_ms": 9.0}
ZEROS = dict.fromkeys(("median_tpot_ms", "p99_tpot_ms", "median_ttft_ms", "p99_ttft_ms"), 0.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "undated run has no time": {"date": None},
    "infinite rate with a limit is a closed loop": CLOSED,
    "infinite rate is a burst": {"request_rate": "inf"},
    "as many clients as requests are a burst": {"request_rate": "inf", "max_concurrency": 2000},
    "one request of one client is a closed loop": {"request_rate": "inf", **ALONE},
    "zero is no percentile": ZEROS,
    "concurrency is of the mean latency": {"mean_e2el_ms": 600.0, "max_concurrent_requests": 53},
    "concurrency is of the latencies": {"latencies": [0.5, 0.7, 0.0], "max_concurrent_requests": 53},
    "largest concurrency is no mean": {"max_concurrent_requests": 53},
    "short run is not censored": {**SHORT, "latencies": [1.4, 1.5]},
    "short run without latencies is not censored": SHORT,
    "slow generator censors the point": {**SLOW, "latencies": [2.0, 1.0]},
    "late answers are no fault of the generator": {**SLOW, "latencies": [60.0, *[0.6] * 99]},
    "late starts censor the point": {"start_times": [1000.0 + second for second in range(100)]},
    "starts in time do not": {"start_times": [1000.0 + tenth / 10 for tenth in range(100)]},
    "start burst is the P99 of 799 requests": {**CLOSED, "completed": 799},
    "start burst is not the P99 of 800": {**CLOSED, "completed": 800},
    **{f"{count} requests": {"completed": count, "num_prompts": count} for count in (16, 298, 458, 459, 999, 1000)},
    "no request succeeded": {"completed": 0, "failed": 2000},
    "most requests failed": {"completed": 900, "failed": 1100},
    "half failed": {"completed": 1000, "failed": 1000},
    "few failed": {"completed": 1900, "failed": 100},
    "rate that ramps up": {"ramp_up_strategy": "linear"},
    "no count": {"completed": None},
    "rate as text": {"request_throughput": "9.9"},
    "infinite P99": {"p99_ttft_ms": float("inf")},
    "negative P99": {"p99_ttft_ms": -1},
    "more tokens than anything has": {"total_input_tokens": 1e308},
    "half a request": {"completed": 1.5},
    "unknown rate": {"request_rate": "fast"},
    "date without digits": {"date": "yesterday"},
    "date before computers": {"date": "19600101-120000"},
    "longer than the time until then": {"date": "20261120-181609", "duration": 4_294_967_296, **SLOWEST},
    "start without a time": {"start_times": [1, None]},
    "seconds as milliseconds": {"p99_tpot_ms": 61_000.0},
    "metadata has release and limits": METADATA,
    "setup of a sweep": {"tensor_parallel_size": 4, "data_parallel_size": 2},
    "all of a data set": {"num_prompts": -1},
    "more than were sent": {"num_prompts": 1900},
    "more tokens than requests have": {"output_throughput": 1600.0},
    "fewer tokens than requests have": {"output_throughput": 160.0},
    "rate above requests over time": {"request_throughput": 18.0},
    "rate of twice as many as was asked for": {"request_rate": 5.0},
    "answers in one piece": {"mean_tpot_ms": 0.05, "median_tpot_ms": 0.05, "p99_tpot_ms": 0.1},
    "token of a minute": {"mean_tpot_ms": 11_000.0, "median_tpot_ms": 10_000.0, "p99_tpot_ms": 20_000.0},
    "half above all gaps": {"median_itl_ms": 50.0},
    "median after the last token": {"median_ttft_ms": 100.0, "median_e2el_ms": 60.0},
    "unreadable metadata is left out": {"tp": "four", "max_num_seqs": 0, "version": "a b"},
}


def vllm_run(changed: Mapping[str, Any]) -> dict[str, Any]:
    """The plain run with these keys. With another count it is as long, and has the tokens, that fit the count."""
    run = {**PLAIN, **changed}
    if isinstance(count := changed.get("completed"), int):
        run |= {"duration": count / run["request_throughput"], "output_throughput": 50 * run["request_throughput"]}
        run |= {"total_input_tokens": 200 * count, "total_output_tokens": 50 * count, **changed}
    return run


def test_vllm_runs_read_as_the_golden(tmp_path: Path) -> None:
    documents = {name: vllm_run(changed) for name, changed in VARIANTS.items()}
    timeless = {key: value for key, value in PLAIN.items() if not key.startswith("p99_")}
    documents["other percentiles are no P99"] = {**timeless, **UNMEASURED}
    uncounted = {key: value for key, value in PLAIN.items() if key != "failed"}
    documents["missing count of failures is worked out"] = {
        **uncounted,
        "completed": 1980,
        "total_output_tokens": 99_000,
    }
    check_golden(__file__, "vllm_runs.txt", describe_variants(tmp_path, PLAIN, documents))


def test_open_sweeps_are_never_censored() -> None:
    for folder in ("vllm-cpu-open", "vllm-cpu-cached"):
        for path in sorted((BENCH / folder).glob("bench_r*.json")):
            (run,) = read_results(path)
            assert (run.loop, run.point.censored) == ("open", False)
            assert run.point.completed_rps < (run.point.requested_rps or 0)
    # 300 requests, completed in 38.04 s, that took 0.641 s each: 5.05 in the system, and a peak of 20.
    (busiest,) = read_results(BENCH / "vllm-cpu-open" / "bench_r8.json")
    assert busiest.point.concurrency == pytest.approx(300 / 38.041365 * 0.64093889, rel=1e-4)
    (detailed,) = read_results(BENCH / "vllm-cpu" / "bench_rate3_detailed.json")
    assert (detailed.point.completed_rps, detailed.point.censored) == (pytest.approx(2.776, abs=0.001), False)
