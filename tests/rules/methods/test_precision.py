from __future__ import annotations

from typing import Any

import pytest
from judging_samples import context, each, minute, unknown, verdict
from prose import explain

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Status, Verdict

RULE = "QuantizationMismatch"
A100, L4, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H100 80GB HBM3"


def planned(product: str, weights: str | None = None, kv: str | None = None, **parts: Any) -> TierContext:
    precision = {key: value for key, value in (("weights", weights), ("kv", kv)) if value is not None}
    return context(gpu={"product": product, "per_replica": 1}, precision=precision, **parts)


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_fp8_below_compute_capability_8_9_is_a_mismatch_and_certain() -> None:
    found = verdict(RULE, planned(A100, "fp8"), each(3, minute))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "NVIDIA A100-SXM4-80GB has no hardware path for weights in fp8; they run converted, without the planned speed-up; "
        "compute capability 8.0, 8.9 or more is needed"
    )
    assert (found.observed.value, found.expected.low) == (8.0, 8.9)  # type: ignore[union-attr]
    assert verdict(RULE, planned("NVIDIA RTX A6000", "fp8"), each(3, minute)).status is Status.WARNING


@pytest.mark.parametrize("product", [L4, H100, "NVIDIA B200", "AMD Instinct MI300X"])
def test_fp8_from_8_9_on_and_on_amds_third_generation_is_fine(product: str) -> None:
    found = verdict(RULE, planned(product, "fp8", "fp8"), each(3, minute))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence == f"{product} computes what is planned: weights in fp8, KV cache in fp8"


def test_int8_and_weight_only_formats_run_on_an_a100() -> None:
    for weights in ("int8", "awq-int4", "bf16"):
        assert verdict(RULE, planned(A100, weights), each(3, minute)).status is Status.OK


def test_bf16_on_an_older_gpu_and_fp8_on_an_older_amd_are_mismatches() -> None:
    assert said(verdict(RULE, planned("Tesla T4", "bf16"), each(3, minute))) == (Status.WARNING, Certainty.CERTAIN)
    found = verdict(RULE, planned("AMD Instinct MI250X", "fp8"), each(3, minute))
    assert (
        found.sentence
        == "AMD Instinct MI250X has no hardware path for weights in fp8; they run converted, without the planned speed-up"
    )


def test_a_small_kv_cache_format_saves_memory_all_the_same_so_it_is_only_likely_a_mistake() -> None:
    found = verdict(RULE, planned(A100, "bf16", "fp8"), each(3, minute))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "NVIDIA A100-SXM4-80GB has no hardware path for KV cache in fp8; memory is saved, time is not; "
        "compute capability 8.0, 8.9 or more is needed"
    )
    both = verdict(RULE, planned(A100, "fp8", "fp8"), each(3, minute))
    assert both.certainty is Certainty.CERTAIN
    assert explain(both).count("no hardware path") == 2


def test_four_bit_weights_on_hopper_may_be_meant_for_their_memory() -> None:
    assert said(verdict(RULE, planned(H100, "mxfp4"), each(3, minute))) == (Status.WARNING, Certainty.LIKELY)
    assert verdict(RULE, planned("NVIDIA B200", "nvfp4"), each(3, minute)).status is Status.OK


def test_it_needs_no_telemetry() -> None:
    found = evaluate_rule(BY_NAME[RULE], planned(A100, "fp8"), (), now=0.0)
    assert isinstance(found, Verdict)
    assert found.status is Status.WARNING


def test_before_a_minute_it_says_nothing() -> None:
    assert unknown(RULE, planned(A100, "fp8"), [minute(0, seconds=59.0)]).text == "59 s seen, 60 s are needed"


def test_what_the_tables_or_the_plan_do_not_know_is_not_in_the_plan() -> None:
    for tier, text in (
        (bare("t", None), "the plan has no precision"),
        (context(), "the plan has no precision"),
        (planned(A100), "the plan has no precision"),
        (planned("CPU", "fp8"), "CPU is not in the table of GPUs: what it computes in hardware is not known"),
        (planned(A100, "ternary"), "ternary is no format whose needs are known"),
    ):
        found = unknown(RULE, tier, each(3, minute))
        assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, text)


def test_a_strange_format_hides_no_mismatch() -> None:
    assert verdict(RULE, planned(A100, "fp8", "ternary"), each(3, minute)).status is Status.WARNING


def test_the_configuration_of_a_tier_can_accept_the_format() -> None:
    tier = planned(A100, "fp8", limits={RULE: {"fp8": 8.0}})
    assert verdict(RULE, tier, each(3, minute)).status is Status.OK
