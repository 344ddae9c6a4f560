"""A plan skeleton from what runs: real pages behind a real server, and what is left for people to fill in."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from hostile_store import Handler, give, serving
from paths import TESTS

from agent.cli import main
from agent.config.files import load_plan
from agent.errors import ConfigError

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
