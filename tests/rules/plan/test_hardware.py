"""GPUs of a plan: names, formats, links, memory and Little's law, with what must stay quiet."""

from typing import Any

import pytest
from making import plan_document

from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.gpus import engine_kv_tokens, find_product, needed_format, planned_kv_tokens
from rules.plan.schema import Architecture, InvalidPlanError, Plan, parse_plan, plan_version

H200: dict[str, Any] = {"product": "NVIDIA H200", "per_replica": 8}


def found(path: str, overrides: dict[str, Any] | None = None, **parts: Any) -> list[PlanWarning]:
    tier = {"model": "m", "engine": "vllm", "gpu": {**H200, "interconnect": "nvlink"}, **parts}
    tier.setdefault("slo", {"ttft_p99_seconds": 2})
    plan = parse_plan({"schema": 1, "tiers": {"t": tier}})
    warnings = check_plan(plan, CATALOGUE, {"t": overrides or {}})
    return [one for one in warnings if one.path == f"tiers.t.{path}"]


A100, V100, MI250 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "AMD Instinct MI250X"


@pytest.mark.parametrize(
    ("product", "precision", "severity", "instead"),
    [
        (A100, {"weights": "fp8"}, "warning", "INT8"),
        (V100, {"weights": "fp8-w8a8"}, "warning", "FP16"),
        (MI250, {"weights": "fp8"}, "warning", "INT8"),
        # Weights that are unpacked save memory: a note.
        ("NVIDIA H200", {"weights": "mxfp4"}, "info", "FP8"),
        # Other formats and unknown GPUs stay quiet.
        ("NVIDIA L4", {"weights": "fp8"}, "", ""),
        ("AMD Instinct MI300X", {"weights": "fp8"}, "", ""),
        (A100, {"weights": "int8"}, "", ""),
        (A100, {"weights": "fp8-w8a16"}, "", ""),
        (A100, {"weights": "bf16", "kv": "fp8"}, "", ""),
        (A100, None, "", ""),
        ("a GPU of tomorrow", {"weights": "fp8"}, "", ""),
    ],
)
def test_uncomputed_weights_are_told(
    product: str, precision: dict[str, str] | None, severity: str, instead: str
) -> None:
    gpu = {"product": product, "per_replica": 1}
    told = found("precision.weights", gpu=gpu, precision=precision)
    assert [one.severity for one in told] == [severity] * bool(severity)
    for one in told:
        assert severity == "info" or f"has no hardware path on {product}: weights run converted" in one.text
        assert one.text.endswith(f"; build {instead} weights for this GPU (guide 9.5)")
    moved, a100 = {"QuantizationMismatch": {"fp8": 8.0}}, {"product": A100, "per_replica": 1}
    assert found("precision.weights", moved, gpu=a100, precision={"weights": "fp8"}) == []


@pytest.mark.parametrize(
    ("gpu", "severity", "words"),
    [
        ({"per_replica": 4, "interconnect": "pcie"}, "warning", "8 to 38 %"),
        ({"per_replica": 3, "interconnect": "none"}, "warning", "8 to 38 %"),
        ({"per_replica": 8}, "info", "is not in the plan; tensor parallelism over 8 GPUs requires NVLink"),
        ({"per_replica": 8, "pipeline_parallel": 2}, "info", "tensor parallelism over 4 GPUs"),
        ({"per_replica": 4, "interconnect": "NVLink 4"}, "info", "nvlink 4 is no known link"),
        # A narrow or linked one is quiet.
        ({"per_replica": 2, "interconnect": "pcie"}, "", ""),
        ({"per_replica": 2}, "", ""),
        ({"per_replica": 1}, "", ""),
        ({"per_replica": 8, "interconnect": "pcie", "tensor_parallel": 2}, "", ""),
        ({"per_replica": 8, "pipeline_parallel": 4}, "", ""),
        ({"per_replica": 8, "interconnect": "nvlink"}, "", ""),
        ({"per_replica": 8, "interconnect": "xGMI"}, "", ""),
    ],
)
def test_wide_tensor_parallelism_needs_nvlink(gpu: dict[str, Any], severity: str, words: str) -> None:
    told = found("gpu.interconnect", gpu={"product": "NVIDIA H200", **gpu})
    assert [(one.severity, words in one.text) for one in told] == [(severity, True)] * bool(severity)


POINT: dict[str, Any] = {"ttft_p50_seconds": 0.5, "tpot_p50_seconds": 0.02, "requests": 300}
LENGTHS = {"generation_tokens": {"mean": 226}}


def gaps(concurrency: float | None, measured: dict[str, str] | None = None, **more: Any) -> list[str]:
    """Sentences about Little's law. A request takes 0.5 + 0.02 x 225 = 5 s, so 10 rps hold 50 at once."""
    points = [
        {**POINT, "completed_rps": 5, "ttft_p99_seconds": 1, "concurrency": concurrency and concurrency / 2, **more},
        {**POINT, "completed_rps": 10, "ttft_p99_seconds": 2, "concurrency": concurrency, **more},
    ]
    curve = {"points": points, "measured": measured}
    findings = found("curve.points", workload=LENGTHS, curve=curve)
    return [f"{finding.severity}: {finding.text}" for finding in findings if "Little" in finding.text]


LITTLES = "info: completed_rps x time in system is {} times the concurrency (Little's law), more than 2 x apart"


@pytest.mark.parametrize(
    ("concurrency", "more", "words"),
    [
        (120, {}, LITTLES.format("0.417")),
        (20, {}, LITTLES.format("2.5")),
        # Within twice it is quiet, and so is what depends on the numbers, or lacks one.
        (26, {}, ""),
        (48, {}, ""),
        (100, {}, ""),
        (None, {}, ""),
        (120, {"measured": {"concurrency": "littles_law"}}, ""),
        (120, {"ttft_p50_seconds": None}, ""),
        (120, {"tpot_p50_seconds": None}, ""),
    ],
)
def test_unexplained_concurrency_is_told(concurrency: float | None, more: dict[str, Any], words: str) -> None:
    told = gaps(concurrency, **more)
    assert [words in one for one in told] == [True] * bool(words)


@pytest.mark.parametrize(
    ("printed", "capability"),
    [
        ("NVIDIA A100-SXM4-80GB", 8.0),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 8.0),
        ("NVIDIA A10", 8.6),
        ("NVIDIA A10G", 8.6),
        ("Tesla V100-SXM2-16GB", 7.0),
        ("Tesla T4", 7.5),
        ("Quadro RTX 6000", 7.5),
        ("NVIDIA RTX 6000 Ada Generation", 8.9),
        ("NVIDIA RTX A6000", 8.6),
        ("NVIDIA L4", 8.9),
        ("NVIDIA L40S", 8.9),
        ("NVIDIA GeForce RTX 4090", 8.9),
        ("NVIDIA H100 80GB HBM3", 9.0),
        ("NVIDIA H200", 9.0),
        ("NVIDIA GH200 480GB", 9.0),
        ("NVIDIA B200", 10.0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12.0),
        # An unknown one is not guessed.
        *((unknown, None) for unknown in ("CPU", "A1000", "NVIDIA H1000", "NVIDIA Z99", "", "NVIDIA")),
    ],
)
def test_gpu_is_known_by_nvml_name(printed: str, capability: float | None) -> None:
    assert getattr(find_product(printed), "capability", None) == capability


@pytest.mark.parametrize(
    ("printed", "fp8", "fp4"),
    [
        ("AMD Instinct MI250X", False, False),
        ("AMD Instinct MI300X", True, False),
        ("AMD_Instinct_MI300X_OAM", True, False),
        ("AMD Instinct MI325X", True, False),
        ("AMD Instinct MI355X", True, True),
    ],
)
def test_amd_gpus_are_known_by_their_formats(printed: str, fp8: bool, fp4: bool) -> None:
    found = find_product(printed)
    assert (found.computes("fp8", 8.9), found.computes("fp4", 10.0)) == (fp8, fp4)
    assert found.computes("bf16", 8.0)


@pytest.mark.parametrize(
    ("written", "needs"),
    [
        ("fp8", "fp8"),
        ("FP8_E4M3", "fp8"),
        ("w8a8-fp8", "fp8"),
        ("fp8-w8a8", "fp8"),
        ("fp8_e5m2", "fp8"),
        ("int8", "int8"),
        ("w8a8-int8", "int8"),
        ("nvfp4", "fp4"),
        ("mxfp4", "fp4"),
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("awq-int4", ""),
        ("gptq-int8", ""),
        ("fp8-w8a16", ""),
        ("auto", ""),
        ("w8a8", None),
        ("ternary", None),
    ],
)
def test_format_needs_its_multiplications(written: str, needs: str | None) -> None:
    assert needed_format(written) == needs


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


BLOCKS = {"num_gpu_blocks": "30000", "block_size": "16"}


@pytest.mark.parametrize(
    ("facts", "attention", "tokens"),
    [
        (BLOCKS, None, 480_000),  # vLLM before 0.32
        ({"kv_cache_size_tokens": "32768", "num_gpu_blocks": "256", "block_size": "128"}, None, 32_768),
        (BLOCKS | {"data_parallel_ranks": "4"}, None, 1_920_000),
        ({"kv_tokens": "3072", "num_gpu_blocks": "3072", "block_size": "1"}, None, 3072),  # SGLang
        ({"num_gpu_blocks": "None", "block_size": "16"}, None, None),
        ({"num_gpu_blocks": "0", "block_size": "16"}, None, None),
        ({}, None, None),
        # Blocks of a hybrid model are no tokens.
        (BLOCKS, "hybrid", None),
        (BLOCKS | {"kv_cache_size_tokens": "240000"}, "hybrid", 240_000),
        ({"kv_tokens": "240000"}, "hybrid", 240_000),
        (BLOCKS, "latent", 480_000),
        (BLOCKS, "", 480_000),
    ],
)
def test_engine_tokens_come_from_its_page(facts: dict[str, str], attention: str | None, tokens: int | None) -> None:
    architecture = None
    if attention is not None:
        architecture = Architecture.model_validate({"attention": attention} if attention else {})
    assert engine_kv_tokens(facts, architecture) == tokens


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
