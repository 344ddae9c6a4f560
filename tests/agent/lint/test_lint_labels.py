"""Labels and values that no series has."""

from __future__ import annotations

from pathlib import Path

import pytest
from linted import DCGM, SGLANG, VLLM, found, kinds_and_fixes, rule_file
from linted import page as saved

from agent.lint.catalogue import catalogue
from agent.lint.linting import lint

TTFT = "vllm:time_to_first_token_seconds_bucket"


@pytest.mark.parametrize(
    ("expression", "kind", "fix"),
    [
        (
            'rate(vllm:request_success_total{finish_reason="abort"}[5m]) > 1',
            "label",
            'vllm:request_success_total{finished_reason="abort"}[5m]',
        ),
        ('vllm:num_requests_running{model="m"} > 5', "label", 'vllm:num_requests_running{model_name="m"}'),
        ("sum by (model) (vllm:num_requests_running) > 5", "label", "sum by (model_name) (vllm:num_requests_running)"),
        ("avg by (uuid) (DCGM_FI_DEV_GPU_TEMP) > 85", "label", "avg by (UUID) (DCGM_FI_DEV_GPU_TEMP)"),
        ('DCGM_FI_DEV_GPU_TEMP{hostname="n"} > 85', "label", 'DCGM_FI_DEV_GPU_TEMP{Hostname="n"}'),
        ('vllm:num_requests_running{model_nam="m"} > 5', "label", 'vllm:num_requests_running{model_name="m"}'),
        (
            'rate(vllm:request_success_total{finished_reason="aborted"}[5m]) > 1',
            "label-value",
            'vllm:request_success_total{finished_reason="abort"}[5m]',
        ),
        ('rate(vllm:request_success_total{finished_reason=~"abort|failed"}[5m]) > 1', "label-value", ""),
        ('rate(vllm:request_success_total{finished_reason!="success"}[5m]) > 1', "label-value", ""),
        ('vllm:num_requests_waiting_by_reason{reason=~"kv.*"} > 1', "label-value", ""),
        (
            f'rate({TTFT}{{le="2"}}[5m]) > 1',
            "bucket-edge",
            f'{TTFT}{{le="2.5"}}[5m]',
        ),
        (f'rate({TTFT}{{le="1"}}[5m]) > 1', "bucket-edge", f'{TTFT}{{le="1.0"}}[5m]'),
        (f'rate({TTFT}{{le=~"3|4"}}[5m]) > 1', "bucket-edge", ""),
    ],
)
def test_a_label_or_value_that_no_series_has_is_found_with_the_one_it_has(
    expression: str, kind: str, fix: str, tmp_path: Path
) -> None:
    assert kinds_and_fixes(tmp_path, expression, VLLM, DCGM) == [(kind, fix)]


@pytest.mark.parametrize(
    "expression",
    [
        'rate(vllm:request_success_total{finished_reason="abort"}[5m]) > 1',
        'rate(vllm:request_success_total{finished_reason=~"abort|error"}[5m]) > 1',
        'rate(vllm:request_success_total{finished_reason!~"stop|repetition"}[5m]) > 1',
        'rate(vllm:request_success_total{finished_reason=""}[5m]) > 1',
        'vllm:num_requests_running{model_name="another model", engine="3"} > 5',
        'vllm:num_requests_running{instance="a:1", job="vllm", namespace="n", cluster="c", rack="r7"} > 5',
        "sum by (namespace, pod, shard) (vllm:num_requests_running) > 5",
        "sum by (exported_pod) (DCGM_FI_DEV_GPU_UTIL > bool 5) > 1",
        'sum by (model) (label_replace(vllm:num_requests_running, "model", "$1", "model_name", "(.*)")) > 5',
        "sum by (model) (vllm:num_requests_running * on (pod) group_left (model) kube_pod_labels) > 5",
        "sum by (model) (something_of_others) > 5",
        f'rate({TTFT}{{le="2.5"}}[5m]) > 1',
        f'rate({TTFT}{{le="+Inf"}}[5m]) > 1',
        f'rate({TTFT}{{le=~"1.0|2.5"}}[5m]) > 1',
        f"sum without (model) (rate({TTFT}[5m])) > 1",
        'vllm:num_requests_waiting_by_reason{reason=~"cap.*"} > 1',
    ],
)
def test_a_label_that_is_there_or_that_prometheus_may_add_is_not_reported(expression: str, tmp_path: Path) -> None:
    assert found(tmp_path, expression, VLLM, DCGM) == ()


def test_what_the_series_of_an_engine_have_decides(tmp_path: Path) -> None:
    """Dynamo says model where vLLM says model_name."""
    expression = 'dynamo_frontend_inflight_requests{model_name="m"} > 5'
    assert kinds_and_fixes(tmp_path, expression, "made-dynamo-frontend") == [
        ("label", 'dynamo_frontend_inflight_requests{model="m"}')
    ]
    assert found(tmp_path, expression.replace("model_name", "model"), "made-dynamo-frontend") == ()


def test_a_value_that_could_be_either_of_two_is_found_without_a_guess(tmp_path: Path) -> None:
    (one,) = found(tmp_path, 'rate(sglang:realtime_tokens_total{mode="prefill"}[5m]) > 5', SGLANG)
    assert (one.kind, one.fix) == ("label-value", "")
    assert "prefill_cache, prefill_compute" in one.text


def test_a_label_that_is_said_to_be_put_on_targets_is_none_of_the_pages(tmp_path: Path) -> None:
    path = rule_file(tmp_path, {"alert": "A", "expr": 'vllm:num_requests_running{model="m"} > 5'})
    pages = catalogue((saved(VLLM),))
    assert [one.kind for one in lint((path,), pages).findings] == ["label"]
    assert lint((path,), pages, ("model",)).findings == ()


def test_a_name_that_others_print_too_may_have_their_labels(tmp_path: Path) -> None:
    expression = 'sum by (code) (rate(http_requests_total{status_code="500"}[5m])) > 1'
    assert "http_requests_total" in catalogue((saved("steady_after_load"),)).printed
    assert found(tmp_path, expression, "steady_after_load") == ()
