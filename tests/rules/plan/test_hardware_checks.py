"""Remarks on the planned GPUs and on Little's law, with what must stay quiet (guide 5.6, 8.4, 9.1, 9.5)."""

from typing import Any

import pytest

from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.schema import parse_plan

H200: dict[str, Any] = {"product": "NVIDIA H200", "per_replica": 8}


def found(path: str, overrides: dict[str, Any] | None = None, **parts: Any) -> list[PlanWarning]:
    tier = {"model": "m", "engine": "vllm", "gpu": {**H200, "interconnect": "nvlink"}, **parts}
    tier.setdefault("slo", {"ttft_p99_seconds": 2})
    plan = parse_plan({"schema": 1, "tiers": {"t": tier}})
    warnings = check_plan(plan, CATALOGUE, {"t": overrides or {}})
    return [one for one in warnings if one.path == f"tiers.t.{path}"]


@pytest.mark.parametrize(
    ("product", "weights", "instead"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp8", "INT8"),
        ("Tesla V100-SXM2-32GB", "fp8-w8a8", "FP16"),
        ("AMD Instinct MI250X", "fp8", "INT8"),
    ],
)
def test_uncomputed_weights_are_told(product: str, weights: str, instead: str) -> None:
    gpu = {"product": product, "per_replica": 1}
    (told,) = found("precision.weights", gpu=gpu, precision={"weights": weights})
    assert told.severity == "warning"
    assert f"{weights} has no hardware path on {product}: weights run converted" in told.text
    assert told.text.endswith(f"; build {instead} weights for this GPU (guide 9.5)")


@pytest.mark.parametrize(
    ("product", "precision"),
    [
        ("NVIDIA L4", {"weights": "fp8"}),
        ("AMD Instinct MI300X", {"weights": "fp8"}),
        ("NVIDIA A100-SXM4-80GB", {"weights": "int8"}),
        ("NVIDIA A100-SXM4-80GB", {"weights": "fp8-w8a16"}),
        ("NVIDIA A100-SXM4-80GB", {"weights": "bf16", "kv": "fp8"}),
        ("NVIDIA A100-SXM4-80GB", None),
        ("a GPU of tomorrow", {"weights": "fp8"}),
    ],
)
def test_other_formats_and_unknown_gpus_stay_quiet(product: str, precision: dict[str, str] | None) -> None:
    assert found("precision.weights", gpu={"product": product, "per_replica": 1}, precision=precision) == []


def test_unpacked_weights_are_a_note() -> None:
    (told,) = found("precision.weights", precision={"weights": "mxfp4"})
    assert (told.severity, told.text.endswith("; build FP8 weights for this GPU (guide 9.5)")) == ("info", True)
    a100 = {"gpu": {"product": "NVIDIA A100-SXM4-80GB", "per_replica": 1}, "precision": {"weights": "fp8"}}
    assert found("precision.weights", {"QuantizationMismatch": {"fp8": 8.0}}, **a100) == []


@pytest.mark.parametrize(
    ("gpu", "severity", "words"),
    [
        ({"per_replica": 4, "interconnect": "pcie"}, "warning", "8 to 38 %"),
        ({"per_replica": 3, "interconnect": "none"}, "warning", "8 to 38 %"),
        ({"per_replica": 8}, "info", "is not in the plan; tensor parallelism over 8 GPUs requires NVLink"),
        ({"per_replica": 8, "pipeline_parallel": 2}, "info", "tensor parallelism over 4 GPUs"),
        ({"per_replica": 4, "interconnect": "NVLink 4"}, "info", "nvlink 4 is no known link"),
    ],
)
def test_wide_tensor_parallelism_needs_nvlink(gpu: dict[str, Any], severity: str, words: str) -> None:
    (told,) = found("gpu.interconnect", gpu={"product": "NVIDIA H200", **gpu})
    assert (told.severity, words in told.text) == (severity, True)


@pytest.mark.parametrize(
    "gpu",
    [
        {"per_replica": 2, "interconnect": "pcie"},
        {"per_replica": 2},
        {"per_replica": 1},
        {"per_replica": 8, "interconnect": "pcie", "tensor_parallel": 2},
        {"per_replica": 8, "pipeline_parallel": 4},
        {"per_replica": 8, "interconnect": "nvlink"},
        {"per_replica": 8, "interconnect": "xGMI"},
    ],
)
def test_linked_tensor_parallelism_is_quiet(gpu: dict[str, Any]) -> None:
    assert found("gpu.interconnect", gpu={"product": "NVIDIA H200", **gpu}) == []


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


def test_unexplained_concurrency_is_told_both_ways() -> None:
    (high,) = gaps(120)
    assert high == (
        "info: completed_rps x time in system is 0.417 times the concurrency (Little's law), more than 2 x apart: the test's "
        "inputs are not production's (guide 8.4): check its lengths, arrivals and concurrency"
    )
    (low,) = gaps(20)
    assert "info: completed_rps x time in system is 2.5 times the concurrency" in low


@pytest.mark.parametrize("concurrency", [26, 48, 100])
def test_concurrency_within_twice_is_quiet(concurrency: float) -> None:
    assert gaps(concurrency) == []


def test_dependent_numbers_compare_no_concurrency() -> None:
    assert gaps(None) == []
    assert gaps(120, {"concurrency": "littles_law"}) == []
    assert gaps(120, ttft_p50_seconds=None) == []
    assert gaps(120, tpot_p50_seconds=None) == []
