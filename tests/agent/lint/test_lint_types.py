"""Counters and gauges taken for each other, averages since the start, and what histogram_quantile is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from linted import DCGM, SGLANG, VLLM, found, kinds_and_fixes

BUCKETS = "vllm:time_to_first_token_seconds_bucket"
E2E = "vllm:e2e_request_latency_seconds"


@pytest.mark.parametrize(
    ("expression", "kind", "fix"),
    [
        ("rate(vllm:num_requests_waiting[5m]) > 1", "rate-of-gauge", "deriv(vllm:num_requests_waiting[5m])"),
        ("increase(vllm:num_requests_running[5m]) > 1", "rate-of-gauge", "delta(vllm:num_requests_running[5m])"),
        ("increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0", "rate-of-gauge", "changes(DCGM_FI_DEV_XID_ERRORS[5m])"),
        ("delta(vllm:num_preemptions_total[5m]) > 1", "delta-of-counter", "increase(vllm:num_preemptions_total[5m])"),
        (f"deriv({E2E}_sum[5m]) > 1", "delta-of-counter", f"rate({E2E}_sum[5m])"),
        ("vllm:num_preemptions_total > 100", "raw-counter", "increase(vllm:num_preemptions_total[5m]) > 100"),
        (
            'sum by (pod) (vllm:request_success_total{finished_reason="abort"}) > 10',
            "raw-counter",
            'sum by (pod) (increase(vllm:request_success_total{finished_reason="abort"}[5m])) > 10',
        ),
        (f"{E2E}_sum / {E2E}_count > 30", "since-start", f"rate({E2E}_sum[5m]) / rate({E2E}_count[5m])"),
        (
            "sum(vllm:prefix_cache_hits_total) / sum(vllm:prefix_cache_queries_total) < 0.2",
            "since-start",
            "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))",
        ),
        (
            f"histogram_quantile(0.95, sum by (model_name) (rate({BUCKETS}[5m]))) > 2",
            "no-le",
            f"sum by (le, model_name) (rate({BUCKETS}[5m]))",
        ),
        (f"histogram_quantile(0.95, sum(rate({BUCKETS}[5m]))) > 2", "no-le", f"sum by (le) (rate({BUCKETS}[5m]))"),
        (
            f"histogram_quantile(0.95, sum without (le, engine) (rate({BUCKETS}[5m]))) > 2",
            "no-le",
            f"sum without (engine) (rate({BUCKETS}[5m]))",
        ),
        (
            f"histogram_quantile(95, sum by (le) (rate({BUCKETS}[5m]))) > 2",
            "quantile",
            f"histogram_quantile(0.95, sum by (le) (rate({BUCKETS}[5m])))",
        ),
        (f"histogram_quantile(0.95, {BUCKETS}) > 2", "since-start", f"histogram_quantile(0.95, rate({BUCKETS}[5m]))"),
        (
            "histogram_quantile(0.95, rate(vllm:time_to_first_token_seconds_sum[5m])) > 2",
            "no-buckets",
            f"{BUCKETS}[5m]",
        ),
    ],
)
def test_what_does_not_fit_the_type_is_found_with_what_does(
    expression: str, kind: str, fix: str, tmp_path: Path
) -> None:
    assert kinds_and_fixes(tmp_path, expression, VLLM, DCGM) == [(kind, fix)]


@pytest.mark.parametrize(
    "expression",
    [
        "deriv(vllm:num_requests_waiting[5m]) > 1",
        "delta(vllm:num_requests_waiting[5m]) > 10",
        "avg_over_time(vllm:num_requests_waiting[5m]) > 10",
        "avg_over_time(rate(vllm:num_preemptions_total[5m])[1h:5m]) > 1",
        "increase(vllm:num_preemptions_total[5m]) > 100",
        "vllm:request_success_total == 0",
        "vllm:num_requests_waiting > 5 and vllm:request_success_total > 0",
        "count(vllm:num_preemptions_total) < 4",
        "vllm:num_preemptions_total - vllm:num_preemptions_total offset 5m > 10",
        "changes(vllm:num_preemptions_total[5m]) > 3 or resets(vllm:num_preemptions_total[1h]) > 1",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS > 0",
        f"rate({E2E}_sum[5m]) / rate({E2E}_count[5m]) > 30",
        f"({E2E}_sum - {E2E}_sum offset 5m) / ({E2E}_count - {E2E}_count offset 5m) > 30",
        f"histogram_quantile(0.95, rate({BUCKETS}[5m])) > 2",
        f"histogram_quantile(0.95, sum by (model_name, le) (rate({BUCKETS}[5m]))) > 2",
        f"histogram_quantile(0.95, sum without (engine) (rate({BUCKETS}[5m]))) > 2",
        f"histogram_quantile(1, sum by (le) (increase({BUCKETS}[5m]))) > 2",
        "histogram_quantile(0.95, sum(rate(istio_request_duration_milliseconds[5m]))) > 2",
        "sum by (gpu) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])) / 1000 > 600",
        "rate(some_gauge_of_others[5m]) > 1",
    ],
)
def test_what_fits_the_type_is_not_reported(expression: str, tmp_path: Path) -> None:
    assert found(tmp_path, expression, VLLM, DCGM) == ()


def test_the_type_is_that_of_the_page_and_not_of_the_name(tmp_path: Path) -> None:
    """A gauge until SGLang 0.5.7, a histogram from 0.5.10 on."""
    expression = "avg_over_time(sglang:kv_transfer_latency_ms[5m]) > 100"
    assert found(tmp_path, expression, "sglang-0.5.3") == ()
    assert [one.kind for one in found(tmp_path, expression, SGLANG)] == ["suffix"]
