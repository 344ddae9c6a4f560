import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from result_files import predicted_row, read_results, write_document
from test_tool_reports import EXPORT, REAL, SHARED_BENCH, benchmark, report, stage
from test_vllm_bench import PLAIN

from agent.benchmarks.formats import NAMES, read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError, NotAResultError

BENCH = TESTS / "bench"
FORMS = BENCH / "forms"
RUN = BENCH / "vllm-cpu" / "bench_c04.json"

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


def refusal(path: Path) -> str:
    with pytest.raises(BenchmarkError) as caught:
        read_results(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return caught.value.text


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "result.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("tool", NAMES)
def test_every_format_reads_its_sample(tmp_path: Path, tool: str) -> None:
    (run,) = read_results(written(tmp_path, json.dumps(SAMPLES[tool])))
    wanted, record = READINGS[tool], run.model_dump(mode="json", exclude_none=True)
    assert (run.tool, run.source) == (tool, str(tmp_path / "result.json"))
    assert record.pop("point") == pytest.approx(wanted.pop("point"))
    assert {key: record.get(key) for key in wanted} == wanted


def test_content_tells_the_format(tmp_path: Path) -> None:
    path = tmp_path / "stage_0_lifecycle_metrics.yaml"
    path.write_text(RUN.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_results(path)[0].tool == "vllm-bench"


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
        ('{"a": 1}\n{"b": ', "is no valid JSON (Expecting value: line 1 column 7 (char 6)): was it cut off?"),
        ('{"a": 1}\n[2]', "holds no object of keys and values"),
        ('{"a": 1} 2', "is no valid JSON (Extra data: line 1 column 10 (char 9)): was it cut off?"),
        (b"\xff\xfe{}", "is no JSON"),
    ],
)
def test_undecodable_file_gets_one_sentence(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert refusal(written(tmp_path, content)) == said


def test_unreadable_file_gets_its_reason(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "[" * 100_000)).startswith("is no valid JSON (maximum recursion depth exceeded")
    assert refusal(tmp_path / "none.json") == "cannot be read: No such file or directory"
    assert refusal(tmp_path) == "is a folder"


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
    found = read_results(written(tmp_path, f"\ufeff\n{text}\n\n{text}\n"))
    assert [run.location.rpartition(": ")[2] for run in found] == ["line 2", "line 4"]


WRONG: tuple[Any, ...] = (
    None,
    "",
    "text",
    True,
    [],
    [[]],
    {},
    {"unit": 3},
    -1,
    0,
    1e-320,
    1e308,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
)


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


def outcome(path: Path) -> str:
    """Whether a file was read or refused; anything else that rises fails the test."""
    try:
        found = read_results(path)
    except BenchmarkError as error:
        sentence = str(error)
    else:
        assert found
        assert all(isinstance(one, BenchmarkRun) for one in found)
        return "read"
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return "refused"


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("name", SAMPLES)
def test_spoilt_file_gives_runs_or_one_sentence(tmp_path: Path, name: str, mutation: str) -> None:
    chance = random.Random(f"{name} {mutation}")
    outcomes = set()
    for _ in range(150):
        path = written(tmp_path, MUTATIONS[mutation](SAMPLES[name], chance))
        outcomes.add(outcome(path))
    assert "refused" in outcomes
    assert "read" in outcomes or mutation == "truncated"


@REAL
def test_results_of_other_tools_are_refused() -> None:
    others = [
        *SHARED_BENCH.rglob("br_v0_*.yaml"),
        *SHARED_BENCH.rglob("simulator-*.json*"),
        *SHARED_BENCH.rglob("manifests.yaml"),
    ]
    assert len(others) == 11
    for path in others:
        assert "is no" in refusal(path)


# ---- forms that one tool wrote at different times, and runs that are no measurement ----


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
