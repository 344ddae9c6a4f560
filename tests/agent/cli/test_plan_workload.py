"""`sizewatch plan workload`: what it prints from a history, and the files of the workload of a recording."""

import json
import math
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recorded
from recorded import read_recorded
from report_samples import HOUR
from test_history_commands import configured, recent

from agent.benchmarks.formats import NAMES
from agent.cli import main
from agent.config.files import load_plan
from exporters.documents.plan_files import LOAD_GENERATORS, WARM_UP, workload_files
from exporters.documents.plan_show import workload_text
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import BenchmarkWorkload, derive_benchmark
from rules.telemetry.signals import Gap, Missing

SMALL = str(recorded.PLANS / "cpu-small.yaml")


def ask(*words: str) -> int:
    return main.main(["plan", "workload", *words])


@cache
def workload_of_prefix() -> tuple[ProductionSummary, BenchmarkWorkload]:
    seen = read_recorded("prefix", load_plan(Path(SMALL)))
    workload = derive_benchmark(seen, 60)
    assert isinstance(workload, BenchmarkWorkload), workload
    return seen, workload


def written(tool: str = "vllm-bench", model: str = "small-llama") -> dict[str, str]:
    return workload_files(workload_of_prefix()[1], tool, model, "head")


def requests_of(files: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [json.loads(line) for line in text.splitlines()]
        for name, text in files.items()
        if name.endswith(".jsonl")
    }


def test_every_result_format_has_its_load_generator() -> None:
    """But SGLang's own: vLLM's loads its engines as well. inference-perf replays no trace, AIConfigurator loads nothing."""
    assert set(LOAD_GENERATORS) == set(NAMES) - {"sglang-bench", "inference-perf", "aiconfigurator"}


@pytest.mark.parametrize("tool", LOAD_GENERATORS)
def test_script_finds_its_files(tool: str) -> None:
    files = written(tool)
    script = files["run.sh"]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert set(re.findall(r"requests_[\w.]+\.jsonl", script)) == set(files) - {"run.sh"}


def test_loads_share_only_first_blocks() -> None:
    seen: set[int] = set()
    files = written()
    loads = requests_of(files)
    block = int(re.findall(r"--timed-trace-chunk-hash-size (\d+)", files["run.sh"])[0])
    assert len(loads["requests_warm_up.jsonl"]) == WARM_UP
    firsts = set(range(20))
    for lines in loads.values():
        for one in lines:
            # GuideLLM refuses any other number of blocks.
            assert len(one["hash_ids"]) == math.ceil(one["input_length"] / block)
            own = [number for number in one["hash_ids"] if number not in firsts]
            assert own
            assert not seen & set(own)
            seen.update(own)
            shared = one["hash_ids"][: -len(own)]
            assert shared == list(range(len(shared)))


def test_last_block_of_a_prompt_is_own() -> None:
    found = BenchmarkWorkload(
        prompts=(5, 16, 32, 33, 200),
        generations=(1, 1, 1, 1, 1),
        block_tokens=16,
        shared_blocks=2,
        prefix_hit_ratio=Missing(gap=Gap.NOT_EXPOSED),
        loads=(1.0,),
        remarks=(),
    )
    lines = requests_of(workload_files(found, "aiperf", "m", ""))["requests_r1.jsonl"]
    shared = {one["input_length"]: sum(number < 2 for number in one["hash_ids"]) for one in lines}
    assert shared == {5: 0, 16: 0, 32: 1, 33: 2, 200: 2}
    assert found.shared_ratio == (16 + 32 + 32) / 286


def test_every_load_has_all_lengths_reordered() -> None:
    loads = [
        [one["input_length"] for one in lines]
        for name, lines in sorted(requests_of(written()).items())
        if "warm_up" not in name
    ]
    assert len(loads) > 3
    assert len({tuple(sorted(lengths)) for lengths in loads}) == 1
    assert len({tuple(lengths) for lengths in loads}) == len(loads)


def test_the_text_tells_the_shared_prefix() -> None:
    text = " ".join(workload_text("cpu-small", *workload_of_prefix()).split())
    assert "prefix hits 47.2%; written as 320 common first tokens, 47." in text


def test_model_name_stays_in_its_place() -> None:
    script = written(model='x}"; touch /tmp/owned; "$(id)`id`\nid')["run.sh"]
    assert '"${MODEL:=x____touch_/tmp/owned_____id__id__id}"' in script


def test_present_hour_counts_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    present = [replace(one, start=one.start + HOUR, end=one.end + HOUR) for one in recent(2)]
    config = configured(tmp_path, present)
    assert ask("-c", config, "--since", "1h", "--out", str(tmp_path / "bench")) == 0
    assert capsys.readouterr().out.startswith("t: 2 h observed")
    assert (tmp_path / "bench" / "run.sh").read_text().startswith("#!/bin/sh")
