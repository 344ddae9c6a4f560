"""Thresholds in the wrong unit, and those that only look so."""

from __future__ import annotations

from pathlib import Path

import pytest
from linted import DCGM, VLLM, VLLM_V0, found, kinds_and_fixes, linted

KV = "vllm:kv_cache_usage_perc"
TTFT = "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"
ITL = "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"
SHARE = "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))"
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"


@pytest.mark.parametrize(
    ("expression", "kind", "fix"),
    [
        (f"{KV} > 90", "range", f"{KV} > 0.9"),
        (f"max by (instance) (avg_over_time({KV}[10m])) >= 95", "range", None),
        (f"85 < {KV}", "range", f"{KV} > 0.85"),
        (f"{KV} > 1", "range", ""),
        (f"100 * {KV} > 250", "range", ""),
        (f"{KV} * 100 > 0.9", "range", f"{KV} * 100 > 90"),
        (f"{SHARE} < 30", "range", f"{SHARE} < 0.3"),
        (f"1 - {KV} < 10", "range", f"1 - {KV} < 0.1"),
        ("DCGM_FI_DEV_GPU_UTIL > 0.9", "range", "DCGM_FI_DEV_GPU_UTIL > 90"),
        ("avg(DCGM_FI_DEV_GPU_UTIL) < 0.3", "range", "avg(DCGM_FI_DEV_GPU_UTIL) < 30"),
        ("DCGM_FI_DEV_GPU_UTIL / 100 > 90", "range", "DCGM_FI_DEV_GPU_UTIL / 100 > 0.9"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE < 20", "range", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE < 0.2"),
        (f"{TTFT} > 2000", "unit", f"{TTFT} > 2"),
        (f"{ITL} > 100", "unit", f"{ITL} > 0.1"),
        (f"{TTFT} * 1000 / 1000 > 1500", "unit", None),
        (
            "rate(vllm:e2e_request_latency_seconds_sum[5m]) / rate(vllm:e2e_request_latency_seconds_count[5m]) > 30000",
            "unit",
            "rate(vllm:e2e_request_latency_seconds_sum[5m]) / rate(vllm:e2e_request_latency_seconds_count[5m]) > 30",
        ),
        (f"{USED} / {FREE} > 0.9", "not-a-share", f"{USED} / ({USED} + {FREE} + DCGM_FI_DEV_FB_RESERVED)"),
        (f"{USED} / ({USED} + {FREE}) > 90", "range", f"{USED} / ({USED} + {FREE}) > 0.9"),
        (f"{USED} > 90", "range", f"{USED} / ({USED} + {FREE} + DCGM_FI_DEV_FB_RESERVED) > 0.9"),
        (f"({KV} > 95) or {KV} > 0.9", "range", f"{KV} > 0.95"),
        (f"({KV} or {KV}) > 90", "range", f"({KV} or {KV}) > 0.9"),
        (f"{USED} > 85899345920", "unit", f"{USED} > 81920"),
        ("DCGM_FI_DEV_POWER_USAGE > 650000", "unit", "DCGM_FI_DEV_POWER_USAGE > 650"),
        (
            "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) > 650",
            "unit",
            "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) > 650000",
        ),
        ("sizewatch_kv_utilization_ratio > 80", "range", "sizewatch_kv_utilization_ratio > 0.8"),
        ("vllm:lora_requests_info > 4", "unit", ""),
    ],
)
def test_a_number_in_the_wrong_unit_is_found_with_the_right_one(
    expression: str, kind: str, fix: str | None, tmp_path: Path
) -> None:
    ((found_kind, found_fix),) = kinds_and_fixes(tmp_path, expression, VLLM, DCGM)
    assert found_kind == kind
    assert fix is None or found_fix == fix


@pytest.mark.parametrize(
    "expression",
    [
        f"{KV} > 0.9",
        f"{KV} >= 1",
        f"100 * {KV} > 90",
        f"{KV} * 100 >= 100",
        f"1 - {KV} < 0.1",
        f"{SHARE} < 0.3",
        f"{SHARE} * 100 < 30",
        "vllm:num_requests_waiting > 90",
        "DCGM_FI_DEV_GPU_UTIL > 90",
        "DCGM_FI_DEV_GPU_UTIL < 1",
        "DCGM_FI_DEV_GPU_UTIL > 0",
        "DCGM_FI_DEV_GPU_UTIL >= 100",
        f"{TTFT} > 120",
        f"{TTFT} * 1000 > 2000",
        f"{ITL} > 5",
        f"{USED} > 100",
        f"{FREE} < 90",
        f"{USED} * 1024 * 1024 > 85899345920",
        f"{USED} / 1024 > 80",
        f"{USED} / ({USED} + {FREE}) > 0.9",
        f"100 * {USED} / ({USED} + {FREE}) > 90",
        "sum(DCGM_FI_DEV_POWER_USAGE) > 650000",
        "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000 > 650",
        "time() - vllm:lora_requests_info > 600",
        "sum(rate(vllm:request_success_total[5m])) / sum(rate(vllm:request_success_total[5m] offset 1h)) > 2",
        "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[1h])) > 2",
        f"count({KV} > 0.9) > 3",
        "histogram_quantile(0.99, sum by (le) (rate(workqueue_queue_duration_seconds_bucket[5m]))) > 3600",
        f"sum({KV} > bool 0.9) > 3",
    ],
)
def test_a_number_that_can_be_meant_is_not_reported(expression: str, tmp_path: Path) -> None:
    assert found(tmp_path, expression, VLLM, DCGM) == ()


def test_the_unit_of_a_recorded_name_is_that_of_what_it_records(tmp_path: Path) -> None:
    rules = ({"record": "model:hits", "expr": SHARE}, {"record": "model:full", "expr": "model:hits"})
    assert [one.kind for one in linted(tmp_path, *rules, {"alert": "A", "expr": "model:full < 20"}).findings] == [
        "range"
    ]
    assert linted(tmp_path, *rules, {"alert": "A", "expr": "model:full < 0.2"}).findings == ()


def test_names_that_record_each_other_end(tmp_path: Path) -> None:
    rules = ({"record": "a:b", "expr": "b:a"}, {"record": "b:a", "expr": "a:b"})
    assert linted(tmp_path, *rules, {"alert": "A", "expr": "a:b > 90"}).findings == ()


def test_a_quantile_is_never_above_the_last_edge_of_the_page(tmp_path: Path) -> None:
    (one,) = found(tmp_path, f"{TTFT} > 10", VLLM_V0)
    assert one.kind == "range"
    assert "last bucket edge" in one.text
    assert 'vllm:time_to_first_token_seconds_bucket{le="10.0"}' in one.fix
    assert found(tmp_path, f"{TTFT} > 10", VLLM) == ()
    assert found(tmp_path, f"{TTFT} >= 10", VLLM_V0) == ()
    assert "always" in found(tmp_path, f"{TTFT} < 11", VLLM_V0)[0].text


def test_microseconds_of_triton_are_told_from_seconds(tmp_path: Path) -> None:
    mean = "rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])"
    assert kinds_and_fixes(tmp_path, f"{mean} > 2", "made-triton") == [("unit", f"{mean} > 2e+06")]
    assert found(tmp_path, f"{mean} > 2000000", "made-triton") == ()
    assert found(tmp_path, f"{mean} / 1000000 > 2", "made-triton") == ()
