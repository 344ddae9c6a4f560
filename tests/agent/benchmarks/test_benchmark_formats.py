import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import SHARED, TESTS
from predicted_samples import predicted_row
from result_files import read_results

from agent.benchmarks.formats import NAMES, read_all_results
from agent.benchmarks.run_model import BenchmarkRun
from agent.errors import BenchmarkError, NotAResultError

BENCH = TESTS / "bench"
RUN = BENCH / "vllm-cpu" / "bench_c04.json"
SHARED_BENCH = SHARED / "bench"

STATISTICS = {"successful": {"mean": 9.0, "median": 9.0, "max": 12.0, "percentiles": {"p95": 11.0, "p99": 12.0}}}
TIMES = {"mean": 0.05, "median": 0.05, "p95": 0.08, "p99": 0.09, "max": 0.1}

# The smallest document of each format, so that every format is tried without the files of others.
SAMPLES: dict[str, dict[str, Any]] = {
    "vllm-bench": json.loads(RUN.read_text(encoding="utf-8")),
    "sglang-bench": json.loads((BENCH / "forms" / "sglang_bench.jsonl").read_text(encoding="utf-8").splitlines()[0]),
    "inference-perf": {
        "load_summary": {"count": 100, "requested_rate": 10.0, "achieved_rate": 10.0, "send_duration": 10.0},
        "successes": {
            "count": 100,
            "latency": dict.fromkeys(("request_latency", "time_to_first_token", "time_per_output_token"), TIMES),
            "throughput": {"requests_per_sec": 9.9, "output_tokens_per_sec": 99.0},
            "prompt_len": TIMES,
        },
        "failures": {"count": 0},
    },
    "guidellm": {
        "metadata": {"version": 2, "guidellm_version": "0.8.0"},
        "benchmarks": [
            {
                "config": {"strategy": {"type_": "constant", "rate": 9.5}, "backend": {"model": "m"}},
                "metrics": {
                    "request_totals": {"successful": 100, "errored": 1, "incomplete": 2},
                    **dict.fromkeys(("requests_per_second", "time_to_first_token_ms", "request_latency"), STATISTICS),
                },
                "start_time": 1000.0,
                "end_time": 1012.0,
                "duration": 12.0,
            }
        ],
    },
    "aiperf": {
        "schema_version": "1.5",
        "request_throughput": {"unit": "requests/sec", "avg": 9.9},
        "request_count": {"unit": "requests", "avg": 100.0},
        "time_to_first_token": {"unit": "ms", "p50": 50.0, "p99": 90.0},
        "request_latency": {"unit": "ms", "avg": 500.0, "max": 900.0, "count": 100},
        "error_summary": [{"count": 2}],
        "was_cancelled": False,
        "start_time": "2026-06-17T16:08:57",
        "input_config": {"phases": [{"name": "profiling", "type": "concurrency", "concurrency": 4}]},
    },
    "aiconfigurator": predicted_row(),
}


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


def test_every_format_reads_its_sample(tmp_path: Path) -> None:
    assert set(SAMPLES) == set(NAMES)
    for name, sample in SAMPLES.items():
        path = written(tmp_path, json.dumps(sample))
        assert [one.tool for one in read_results(path)] == [name]


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


def test_results_of_other_tools_are_refused() -> None:
    if not SHARED_BENCH.is_dir():
        pytest.skip(f"no {SHARED_BENCH}: the sample reports are not part of the project")
    others = [
        *SHARED_BENCH.rglob("br_v0_*.yaml"),
        *SHARED_BENCH.rglob("simulator-*.json*"),
        *SHARED_BENCH.rglob("manifests.yaml"),
    ]
    assert len(others) == 11
    for path in others:
        assert "is no" in refusal(path)
