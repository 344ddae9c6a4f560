"""`sizewatch plan workload`: what it prints and writes, from a recording and from a history."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from report_samples import HOUR, TIER, book, hours, plan

from agent.benchmarks.formats import NAMES
from agent.cli import main
from agent.history.store import HistoryStore
from exporters.documents.plan_files import LOAD_GENERATORS, WARM_UP, workload_files
from rules.resize.workload import BenchmarkLoad, BenchmarkWorkload
from rules.telemetry.signals import Gap, Missing

SMALL = str(recorded.PLANS / "cpu-small.yaml")
PREFIX = ("--recording", str(recorded.folder("prefix")), "--plan", SMALL)


def ask(*words: str) -> int:
    return main.main(["plan", "workload", *words])


def written(folder: Path, *words: str) -> dict[str, str]:
    assert ask(*PREFIX, "--requests", "60", "--out", str(folder), *words) == 0
    return {path.name: path.read_text() for path in folder.iterdir()}


def requests_of(files: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [json.loads(line) for line in text.splitlines()]
        for name, text in files.items()
        if name.endswith(".jsonl")
    }


def test_every_result_format_has_its_load_generator() -> None:
    """But SGLang's own: `vllm bench serve` loads its engines as well."""
    assert set(LOAD_GENERATORS) == set(NAMES) - {"sglang-bench"}


@pytest.mark.parametrize("tool", LOAD_GENERATORS)
@pytest.mark.parametrize("loop", ["open", "closed"])
def test_the_script_is_a_shell_script_that_finds_its_files(tmp_path: Path, tool: str, loop: str) -> None:
    files = written(tmp_path, "--tool", tool, "--loop", loop)
    assert subprocess.run(["sh", "-n", str(tmp_path / "run.sh")], check=False).returncode == 0
    script = files["run.sh"]
    assert set(re.findall(r"requests_[\w.]+\.jsonl", script)) == set(files) - {"run.sh"}


def test_prompts_share_only_their_first_blocks_and_no_load_warms_the_cache_for_another(tmp_path: Path) -> None:
    seen: set[int] = set()
    loads = requests_of(written(tmp_path))
    block = int(re.findall(r"--timed-trace-chunk-hash-size (\d+)", (tmp_path / "run.sh").read_text())[0])
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


def test_the_last_block_of_a_prompt_is_its_own() -> None:
    found = BenchmarkWorkload(
        prompts=(5, 16, 32, 33, 200),
        generations=(1, 1, 1, 1, 1),
        block_tokens=16,
        shared_blocks=2,
        prefix_hit_ratio=Missing(gap=Gap.NOT_EXPOSED),
        loads=(BenchmarkLoad(rps=1.0, clients=1, origin="average"),),
        remarks=(),
    )
    lines = requests_of(workload_files(found, "aiperf", "m", "", closed=False))["requests_r1.jsonl"]
    shared = {one["input_length"]: sum(number < 2 for number in one["hash_ids"]) for one in lines}
    assert shared == {5: 0, 16: 0, 32: 1, 33: 2, 200: 2}
    assert found.shared_ratio == (16 + 32 + 32) / 286


def test_every_load_has_all_lengths_in_another_order(tmp_path: Path) -> None:
    loads = [
        [one["input_length"] for one in lines]
        for name, lines in sorted(requests_of(written(tmp_path)).items())
        if "warm_up" not in name
    ]
    assert len(loads) > 3
    assert len({tuple(sorted(lengths)) for lengths in loads}) == 1
    assert len({tuple(lengths) for lengths in loads}) == len(loads)


def test_inference_perf_gets_the_shape_of_the_lengths_and_a_seed_for_each_load(tmp_path: Path) -> None:
    script = written(tmp_path, "--tool", "inference-perf")["run.sh"]
    loads = [yaml.safe_load(text) for text in re.findall(r"<<END\n(.*?)END\n", script, re.DOTALL)]
    shared = [load["data"]["shared_prefix"] for load in loads]
    assert {one["system_prompt_len"] for one in shared} == {320}
    assert len({one["seed"] for one in shared}) == len(loads) > 3
    for one, load in zip(shared, loads, strict=True):
        assert one["question_len"]["min"] <= one["question_len"]["mean"] <= one["question_len"]["max"]
        (stage,) = load["load"]["stages"]
        assert one["num_prompts_per_group"] >= stage["rate"] * stage["duration"] >= 50


def test_the_text_tells_what_is_not_exposed(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(*PREFIX) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "prefix hits 47.2%; written as 320 common first tokens, 47.3% of all" in text
    assert "which prompts share a prefix is not exposed" in text


def test_a_model_name_cannot_leave_its_place_in_the_script(tmp_path: Path) -> None:
    document = yaml.safe_load(Path(SMALL).read_text())
    document["tiers"]["cpu-small"]["model"] = 'x}"; touch /tmp/owned; "$(id)`id`\nid'
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(document))
    folder = str(recorded.folder("prefix"))
    assert ask("--recording", folder, "--plan", str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "out")) == 0
    script = (tmp_path / "out" / "run.sh").read_text()
    assert '"${MODEL:=x____touch_/tmp/owned_____id__id__id}"' in script


def test_from_a_history_the_present_hour_counts_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": TIER}}))
    config = {"plan": "plan.yaml", "data_dir": str(tmp_path), "targets": [{"tier": "t", "url": "http://127.0.0.1:9"}]}
    (tmp_path / "sizewatch.yaml").write_text(yaml.safe_dump(config))
    begin = time.time() // HOUR * HOUR
    with HistoryStore(tmp_path / "history.db") as store:
        several = hours(2)
        shift = begin - HOUR - several[0].start
        moved = [replace(one, start=one.start + shift, end=one.end + shift) for one in several]
        book(store, plan("t", **{key: TIER.get(key) for key in TIER}), moved, "t")
    assert ask("-c", str(tmp_path / "sizewatch.yaml"), "--since", "1h") == 0
    assert capsys.readouterr().out.startswith("t: 2 h observed")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*PREFIX, "--top", "0"), 2, "must be from 1e-09 to 1e+07"),
        ((*PREFIX, "--requests", "0"), 2, "0 is not in the range 1<=x<=100000"),
        ((*PREFIX, "--tier", "other"), 2, "there is no tier other; there are cpu-small"),
        (("--recording", str(recorded.folder("mixed_tier"))), 2, "there is no tier"),
        (("--recording", str(recorded.folder("llamacpp"))), 3, "the engine counts no requests"),
    ],
)
def test_what_cannot_be_asked_is_said(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(*words) == code
    assert said in capsys.readouterr().err


def test_an_empty_recording_gives_no_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = {"file": "metrics.jsonl.gz", "tier": "t", "replica": "r", "engine": "vllm"}
    (tmp_path / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "empty", "targets": [target]}))
    (tmp_path / "metrics.jsonl.gz").write_bytes(b"")
    assert ask("--recording", str(tmp_path)) == 3
    assert "nothing was seen" in capsys.readouterr().err
