from typing import Any

import pytest
from making import plan_document
from paths import SHARED

from agent.scrape.scrapers import PageReader
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.gpus import engine_kv_tokens, planned_kv_tokens
from rules.plan.schema import Architecture, InvalidPlanError, Plan, parse_plan, plan_version


def plan_of(architecture: dict[str, Any] | None = None, **parts: Any) -> Plan:
    tier = {
        "model": "llama-3-70b",
        "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 4, "interconnect": "nvlink"},
        "workload": {"prompt_tokens": {"p95": 8000}},
        "operating_point": {"c_max": 50, "usable_rps": 20},
        "architecture": architecture,
        **parts,
    }
    return parse_plan(plan_document(**tier))


def told(plan: Plan) -> list[tuple[str, str]]:
    found = check_plan(plan, CATALOGUE)
    return [(one.severity, one.text) for one in found if one.path.startswith("tiers.t.architecture")]


def test_engine_tokens_must_hold_planned_load() -> None:
    assert planned_kv_tokens(plan_of().tiers["t"]) == (400_000, "C_max 50 x P95 prompt 8000")
    assert told(plan_of()) == []
    assert told(plan_of({"kv_tokens": 400_000})) == []
    ((severity, text),) = told(plan_of({"kv_tokens": 399_999}))
    assert severity == "warning"
    assert text.startswith(
        "the KV cache holds 399,999 tokens; the planned load, C_max 50 x P95 prompt 8000, needs 400,000"
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"workload": {"prompt_tokens": {"p50": 900}}},
        {"operating_point": None},
        {"operating_point": {"usable_rps": 20}},
        {"pools": ["prefill", "decode"]},
    ],
)
def test_without_a_planned_load_nothing_is_short(parts: dict[str, Any]) -> None:
    plan = plan_of({"kv_tokens": 1}, **parts)
    assert planned_kv_tokens(plan.tiers["t"]) is None
    assert told(plan) == []


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({"num_gpu_blocks": "27000", "block_size": "16"}, 432_000),  # vLLM before 0.32
        ({"kv_cache_size_tokens": "32768", "num_gpu_blocks": "256", "block_size": "128"}, 32_768),
        ({"kv_tokens": "3072", "num_gpu_blocks": "3072", "block_size": "1"}, 3072),  # SGLang
        ({"num_gpu_blocks": "None", "block_size": "16"}, None),
        ({"num_gpu_blocks": "0", "block_size": "16"}, None),
        ({}, None),
    ],
)
def test_engine_tokens_come_from_its_page(facts: dict[str, str], tokens: int | None) -> None:
    assert engine_kv_tokens(facts) == tokens


def test_hybrid_blocks_are_not_tokens() -> None:
    blocks = {"num_gpu_blocks": "30000", "block_size": "16"}
    hybrid, latent = (Architecture.model_validate({"attention": kind}) for kind in ("hybrid", "latent"))
    assert engine_kv_tokens(blocks, hybrid) is None
    assert engine_kv_tokens(blocks | {"kv_cache_size_tokens": "240000"}, hybrid) == 240_000
    assert engine_kv_tokens({"kv_tokens": "240000"}, hybrid) == 240_000
    assert engine_kv_tokens(blocks, latent) == engine_kv_tokens(blocks, Architecture.model_validate({})) == 480_000


@pytest.mark.skipif(not (SHARED / "pages").is_dir(), reason="no shared pages beside the checkout")
def test_pages_of_engines_tell_their_tokens() -> None:
    pages = {"real/kv_cascade_startup.prom": 8192, "real/sglang_startup.prom": 3072, "real/startup.prom": 32_768}
    for name, tokens in pages.items():
        page = PageReader().read((SHARED / "pages" / name).read_bytes(), 1.8e9)
        assert engine_kv_tokens(page.facts) == tokens, name


def test_wrong_degrees_are_refused() -> None:
    with pytest.raises(InvalidPlanError) as refused:
        plan_of(gpu={"product": "NVIDIA H100 80GB HBM3", "per_replica": 4, "tensor_parallel": 3})
    assert refused.value.problems == (
        "tiers.t.gpu.per_replica: must be a multiple of tensor_parallel x pipeline_parallel (3), but is 4",
    )


def test_planner_keys_keep_the_version() -> None:
    planner = plan_of({"layers": 80, "kv_heads": 8, "weight_bytes": 15_000_000_000, "attention": "hybrid"})
    assert told(planner) == []
    assert plan_version(planner.tiers["t"]) == plan_version(plan_of({"kv_tokens": 500_000}).tiers["t"])
