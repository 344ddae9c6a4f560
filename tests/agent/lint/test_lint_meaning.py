"""Expressions that find series and mean something else than their rule says."""

from __future__ import annotations

from pathlib import Path

import pytest
from linted import DCGM, VLLM, found, kinds_and_fixes

DONE = "vllm:request_success_total"
XID = "DCGM_FI_DEV_XID_ERRORS"
COPY = "DCGM_FI_DEV_MEM_COPY_UTIL"
KV = "vllm:kv_cache_usage_perc"
BUCKETS = "rate(vllm:time_to_first_token_seconds_bucket[5m])"
MEMORY = "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)"


@pytest.mark.parametrize(
    ("name", "expression", "kind", "fix"),
    [
        (
            "HighErrorRate",
            f'sum(rate({DONE}{{finished_reason!="stop"}}[5m])) / sum(rate({DONE}[5m])) > 0.05',
            "length-as-error",
            f'{DONE}{{finished_reason=~"abort|error"}}[5m]',
        ),
        (
            "RequestsFailing",
            f'sum(rate({DONE}{{finished_reason=~"length|abort"}}[5m])) > 1',
            "length-as-error",
            f'{DONE}{{finished_reason=~"abort|error"}}[5m]',
        ),
        (
            "LowSuccessRate",
            f'sum(rate({DONE}{{finished_reason="stop"}}[5m])) / sum(rate({DONE}[5m])) < 0.99',
            "length-as-error",
            f'{DONE}{{finished_reason=~"stop|length"}}[5m]',
        ),
        ("GpuXid", f"avg({XID}) > 5", "error-code", f"changes({XID}[5m]) > 0"),
        ("GpuXid", f"{XID} > 5", "error-code", f"changes({XID}[5m]) > 0"),
        ("GpuXid", f"avg_over_time({XID}[10m]) > 5", "error-code", f"changes({XID}[5m]) > 0"),
        ("GPUMemoryUsageHigh", f"{COPY} > 90", "memory-busy", MEMORY),
        (
            "AverageTtft",
            f"avg(histogram_quantile(0.99, sum by (le, instance) ({BUCKETS}))) > 2",
            "averaged",
            f"histogram_quantile(0.99, sum by (le) ({BUCKETS}))",
        ),
        (
            "AverageTtft",
            f"avg by (model_name) (histogram_quantile(0.99, {BUCKETS})) > 2",
            "averaged",
            f"histogram_quantile(0.99, sum by (le, model_name) ({BUCKETS}))",
        ),
        (
            "PrefixHits",
            "avg(rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])) < 0.2",
            "averaged",
            "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))",
        ),
        ("KvFull", f"sum({KV}) > 0.9", "summed", f"avg({KV})"),
        ("KvFull", f"sum by (model_name) ({KV}) > 0.9", "summed", f"avg by (model_name) ({KV})"),
        ("Busy", "sum by (Hostname) (DCGM_FI_DEV_GPU_UTIL) > 90", "summed", "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)"),
    ],
)
def test_a_known_mistake_is_found_with_what_is_meant(
    name: str, expression: str, kind: str, fix: str, tmp_path: Path
) -> None:
    assert kinds_and_fixes(tmp_path, expression, VLLM, DCGM, name=name) == [(kind, fix)]


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("HighErrorRate", f'sum(rate({DONE}{{finished_reason=~"abort|error"}}[5m])) / sum(rate({DONE}[5m])) > 0.05'),
        ("HighErrorRate", f'sum(rate({DONE}{{finished_reason!~"stop|length"}}[5m])) / sum(rate({DONE}[5m])) > 0.05'),
        ("LowSuccessRate", f'sum(rate({DONE}{{finished_reason=~"stop|length"}}[5m])) / sum(rate({DONE}[5m])) < 0.9'),
        ("TruncatedAnswers", f'sum(rate({DONE}{{finished_reason="length"}}[5m])) / sum(rate({DONE}[5m])) > 0.3'),
        ("AnswersNotEnded", f'sum(rate({DONE}{{finished_reason!="stop"}}[5m])) / sum(rate({DONE}[5m])) > 0.3'),
        ("GpuXid", f"{XID} > 0"),
        ("GpuXid", f"{XID} == 79 or {XID} != 0"),
        ("GpuXid", f"changes({XID}[5m]) > 0"),
        ("GpuXid", f"count({XID} > 0) > 2"),
        ("GPUMemoryBandwidthHigh", f"{COPY} > 90"),
        ("GPUBusy", f"{COPY} > 90"),
        ("GPUMemoryUsageHigh", f"{MEMORY} > 90"),
        ("WorstTtft", f"max(histogram_quantile(0.99, sum by (le, instance) ({BUCKETS}))) > 2"),
        ("Ttft", f"avg(histogram_quantile(0.99, sum by (le) ({BUCKETS}))) > 2"),
        ("KvFull", f"avg({KV}) > 0.9"),
        ("KvFull", f"sum by (instance) ({KV}) > 0.9"),
        ("KvFull", f"sum({KV}) / count({KV}) > 0.9"),
        ("KvFull", f"sum({KV} > bool 0.9) > 3"),
        ("Busy", "sum by (gpu) (DCGM_FI_DEV_GPU_UTIL) > 90"),
        ("Power", "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE) > 5000"),
        ("Queue", "sum(vllm:num_requests_waiting) > 100"),
    ],
)
def test_what_only_looks_like_it_is_not_reported(name: str, expression: str, tmp_path: Path) -> None:
    assert found(tmp_path, expression, VLLM, DCGM, name=name) == ()


def test_what_a_rule_says_of_itself_decides_what_it_counts(tmp_path: Path) -> None:
    expression = f'sum(rate({DONE}{{finished_reason!="stop"}}[5m])) > 1'
    assert found(tmp_path, expression, VLLM, annotations={"summary": "answers that did not end"}) == ()
    told = found(tmp_path, expression, VLLM, annotations={"summary": "the error rate is high"})
    assert [one.kind for one in told] == ["length-as-error"]
    link = {"runbook_url": "https://example.com/errors/high"}
    assert found(tmp_path, expression, VLLM, annotations=link) == ()
    busy = found(tmp_path, f"{COPY} > 90", DCGM, annotations={"summary": "GPU memory usage above 90 %"})
    assert [one.kind for one in busy] == ["memory-busy"]


def test_two_faults_of_one_place_are_both_told(tmp_path: Path) -> None:
    wrong = f'sum(rate({DONE}{{finish_reason!="stop"}}[5m])) > 1'
    assert [one.kind for one in found(tmp_path, wrong, VLLM, name="Errors")] == ["label", "length-as-error"]
