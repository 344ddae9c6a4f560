"""`sizewatch plan init` and `plan workload`: a plan from what runs, and the load files of what was seen."""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from hostile_store import Handler, give, serving
from paths import TESTS
from recorded import read_recorded
from report_samples import HOUR
from test_history_commands import configured, recent

from agent.benchmarks.formats import NAMES
from agent.cli import main
from agent.config.files import load_plan
from agent.errors import ConfigError
from exporters.documents.plan_files import LOAD_GENERATORS, WARM_UP, workload_files
from exporters.documents.plan_show import workload_text
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import BenchmarkWorkload, derive_benchmark
from rules.telemetry.signals import Gap, Missing

Captured = pytest.CaptureFixture[str]

PAGES = TESTS / "pages"
CARD = {"object": "list", "data": [{"id": "small-llama", "max_model_len": 2048}]}


@contextmanager
def engine(page: str = "steady_after_load.prom", card: object = CARD) -> Iterator[str]:
    """The address of an engine that shows a page of tests/pages and a model card."""
    answers = {"/metrics": (PAGES / page).read_bytes()}
    if card is not None:
        answers["/v1/models"] = card if isinstance(card, bytes) else json.dumps(card).encode()

    def act(handler: Handler) -> None:
        kind = "text/plain; version=0.0.4" if handler.path == "/metrics" else "application/json"
        give(handler, answers.get(handler.path, b""), 200 if handler.path in answers else 404, kind)

    with serving() as server:
        server.act = act
        yield f"{server.url}/metrics"


def skeleton(capsys: Captured, *words: str) -> str:
    assert main.main(["plan", "init", *words]) == 0
    return capsys.readouterr().out


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "plan.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as bad:
        load_plan(file)
    return [problem.partition(": ")[2] for problem in bad.value.problems]


def test_skeleton_names_what_is_left(capsys: Captured, tmp_path: Path) -> None:
    with engine() as url:
        text = skeleton(capsys, url)
    tier = yaml.safe_load(text)["tiers"]["small-llama"]
    assert (tier["model"], tier["engine"]) == ("small-llama", "vllm")
    left = [problem.partition(":")[0] for problem in problems(tmp_path, text)]
    assert left == ["tiers.small-llama.gpu.product", "tiers.small-llama.gpu.per_replica"]
    for key, value in (("product", "CPU"), ("per_replica", "1")):
        text = text.replace(f"{key}:  # FILL IN", f"{key}: {value}  #")
    assert problems(tmp_path, text) == ["tiers.small-llama.slo.ttft_p99_seconds: is missing"]
    assert text.count("ttft_p99_seconds:  # FILL IN") == 1
    file = tmp_path / "plan.yaml"
    file.write_text(text.replace("ttft_p99_seconds:  # FILL IN", "ttft_p99_seconds: 2.0  #"), encoding="utf-8")
    assert load_plan(file).tiers["small-llama"].gpu.product == "CPU"


def test_optional_parts_are_keys_of_the_plan(capsys: Captured, tmp_path: Path) -> None:
    with engine() as url:
        text = skeleton(capsys, url)
    keys = ("precision", "tpot_p99_seconds", "workload", "fleet", "cost", "cold_start_seconds", "guardrails")
    seen = "# since its start this engine saw 81 on average, about 80,"
    assert f"prompt_tokens: {{mean: , p50: , p95: , p99: }}  {seen}" in text
    for key in (*keys, "  prompt_tokens", "  generation_tokens", "  requests_per_second"):
        assert f"# {key}:" in text
        text = text.replace(f"# {key}:", f"{key}:")
    assert not [problem for problem in problems(tmp_path, text) if "unknown" in problem or "no such" in problem]
    assert "# KV cache: " in text
    assert "; context length: 2048 tokens" in text
    assert "max_prompt_tokens: 2048" in text


@pytest.mark.parametrize(
    "card", [None, b"<html>", b"[]", {"data": 7}, {"data": ["x"]}, {"data": [{"max_model_len": "long"}]}]
)
def test_unusable_model_card_costs_context_length_only(capsys: Captured, card: object) -> None:
    with engine(card=card) as url:
        text = skeleton(capsys, url)
    assert yaml.safe_load(text)["tiers"]["small-llama"]["model"] == "small-llama"
    assert "context length" not in text


def changed(folder: Path, old: str, new: str) -> str:
    page = (PAGES / "steady_after_load.prom").read_text(encoding="utf-8")
    (folder / "page").write_text(page.replace(old, new), "utf-8")
    return str(folder / "page")


@pytest.mark.parametrize("name", ["on", "7e3", "a: b", "x # y", "[z]"])
def test_odd_model_name_is_quoted(capsys: Captured, tmp_path: Path, name: str) -> None:
    with engine(page=changed(tmp_path, 'model_name="small-llama"', f'model_name="{name}"')) as url:
        text = skeleton(capsys, url, "--tier", "t")
    assert yaml.safe_load(text)["tiers"]["t"]["model"] == name


@pytest.mark.parametrize("name", ["null", "123", "1e3", "2026-11-20", "off"])
def test_tier_keeps_an_odd_name(capsys: Captured, tmp_path: Path, name: str) -> None:
    with engine(page=changed(tmp_path, "small-llama", name)) as url:
        assert list(yaml.safe_load(skeleton(capsys, url))["tiers"]) == [name]


def test_page_line_end_ends_no_comment(capsys: Captured, tmp_path: Path) -> None:
    page = changed(tmp_path, 'cache_dtype="auto"', 'cache_dtype="fp8\\n    engine: x"')
    with engine(page=page) as one, engine() as two:
        text = skeleton(capsys, one, two)
    assert "the KV cache is fp8\ufffd    engine: x" in text
    assert yaml.safe_load(text)["tiers"]["small-llama"]["engine"] == "vllm"


def test_endpoint_that_is_down_is_left_out(capsys: Captured) -> None:
    with engine() as url:
        assert main.main(["plan", "init", url, "http://127.0.0.1:9/metrics"]) == 0
        out, err = capsys.readouterr()
    assert "instances: 1" in out
    assert err.startswith("sizewatch plan: left out: connect: http://127.0.0.1:9/metrics")
    assert main.main(["plan", "init", "http://127.0.0.1:9/metrics"]) == 2
    assert capsys.readouterr().err.startswith("sizewatch plan: connect: http://127.0.0.1:9/metrics")


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


def test_present_hour_counts_too(tmp_path: Path, capsys: Captured) -> None:
    present = [replace(one, start=one.start + HOUR, end=one.end + HOUR) for one in recent(2)]
    config = configured(tmp_path, present)
    assert ask("-c", config, "--since", "1h", "--out", str(tmp_path / "bench")) == 0
    assert capsys.readouterr().out.startswith("t: 2 h observed")
    assert (tmp_path / "bench" / "run.sh").read_text().startswith("#!/bin/sh")


HYBRID = TESTS / "cases" / "35-hybrid-kv"


@pytest.mark.parametrize("name", ["untold.prom", "untold_block4.prom"])
def test_blocks_of_hybrid_model_tell_no_tokens(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """30,000 blocks of 16 held 240,000 tokens: its groups of layers each take blocks for a token (vLLM 51163)."""
    assert main.main(["plan", "check", str(HYBRID / "plan-big.yaml"), "--page", str(HYBRID / name)]) == 0
    assert "architecture.kv_tokens: not known: the page does not tell them" in capsys.readouterr().out


def test_planned_tokens_stay_where_page_tells_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    told = (HYBRID / "plan-big.yaml").read_text()
    plan.write_text(told.replace("attention: hybrid", "attention: hybrid, kv_tokens: 90000"))
    assert main.main(["plan", "check", str(plan), "--page", str(HYBRID / "untold.prom")]) == 0
    assert "the KV cache holds 90,000 tokens" in capsys.readouterr().out


def test_plan_check_counts_tokens_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.prom"
    told = (HYBRID / "told.prom").read_text()
    page.write_text(told.replace('kv_cache_size_tokens="1250000"', 'kv_cache_size_tokens="90000"'))
    check = ["plan", "check", str(HYBRID / "plan-big.yaml"), "--page"]
    assert main.main([*check, str(page)]) == 0
    assert "the KV cache holds 90,000 tokens; the planned load, " in capsys.readouterr().out
    assert main.main([*check, str(HYBRID / "told.prom")]) == 0
    assert "kv_tokens" not in capsys.readouterr().out
    assert main.main(["plan", "check", str(TESTS / "plans" / "mixed-tier.yaml"), "--page", str(page)]) == 2
    assert "say whose page it is with --tier" in capsys.readouterr().err
