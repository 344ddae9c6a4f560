"""Metric and label names of one expression."""

from __future__ import annotations

import pytest
from paths import TESTS

from agent.lint.names import MAX_CHARACTERS, LintInputError, check_names, read_query

PAGES = TESTS / "pages"


def kinds_and_fixes(expression: str, *target_labels: str) -> list[tuple[str, str]]:
    return [(one.kind, one.fix) for one in check_names(read_query(expression), {"vllm:worst_queue"}, target_labels)]


@pytest.mark.parametrize(
    ("expression", "kind", "fix"),
    [
        ("vllm:gpu_cache_usage_perc > 0.8", "renamed", "vllm:kv_cache_usage_perc"),
        ("vllm_gpu_cache_usage_perc > 0.8", "renamed", "vllm_kv_cache_usage_perc"),
        ("ray_vllm_gpu_cache_usage_perc > 0.8", "renamed", "ray_vllm_kv_cache_usage_perc"),
        ("rate(vllm:gpu_prefix_cache_hits_total[5m]) > 1", "renamed", "vllm:prefix_cache_hits_total"),
        ("rate(vllm:gpu_prefix_cache_hits[5m]) > 1", "renamed", "vllm:prefix_cache_hits_total"),
        (
            "rate(vllm:time_per_output_token_seconds_sum[5m]) > 1",
            "renamed",
            "vllm:inter_token_latency_seconds_sum",
        ),
        (
            "kserve_vllm:gpu_prefix_cache_hit_rate < 0.3",
            "renamed",
            "rate(kserve_vllm:prefix_cache_hits_total[5m]) / rate(kserve_vllm:prefix_cache_queries_total[5m])",
        ),
        ("vllm:time_in_queue_requests_bucket > 1", "renamed", "vllm:request_queue_time_seconds_bucket"),
        ("vllm:cpu_prefix_cache_hit_rate > 1", "renamed", ""),
        ("trtllm:num_requests_running > 5", "spelling", "trtllm_num_requests_running"),
        ("rate(vllm:num_preemptions[5m]) > 1", "suffix", "vllm:num_preemptions_total"),
        ("rate(tgi_request_count_total[5m]) > 1", "suffix", "tgi_request_count"),
        ("rate(vllm:time_to_first_token_seconds[5m]) > 3", "suffix", "vllm:time_to_first_token_seconds_bucket"),
        ("vllm:num_request_waiting > 5", "dead-name", "vllm:num_requests_waiting"),
        ('{__name__="vllm:num_request_waiting"} > 5', "dead-name", "vllm:num_requests_waiting"),
        ("DCGM_FI_DEV_GPU_UTILL > 95", "dead-name", "DCGM_FI_DEV_GPU_UTIL"),
        ("sizewatch_verdit == 2", "dead-name", "sizewatch_verdict"),
        ("vllm:flux_capacitor > 88", "dead-name", ""),
        ('vllm:request_success_total{finish_reason="abort"} > 1', "label", "finished_reason"),
        ('vllm:num_requests_running{model="m"} > 5', "label", "model_name"),
        ("sum by (model) (vllm:num_requests_running) > 5", "label", "model_name"),
        ('dynamo_frontend_inflight_requests{model_name="m"} > 5', "label", "model"),
        ('DCGM_FI_DEV_GPU_TEMP{hostname="n"} > 85', "label", "Hostname"),
    ],
)
def test_a_wrong_name_is_found_with_the_name_to_write(expression: str, kind: str, fix: str) -> None:
    assert kinds_and_fixes(expression) == [(kind, fix)]
    assert kinds_and_fixes(fix or "x") == []


@pytest.mark.parametrize(
    "expression",
    [
        "vllm:kv_cache_usage_perc > 0.9 or vllm:gpu_cache_usage_perc > 0.9",
        "rate(vllm:iteration_tokens_total_sum[5m]) > 1",
        "kube_pod_status_ready == 0 or up == 0 or node_load1 > 5",
        'rate({__name__=~"vllm:.*_tokens"}[5m]) > 1',
        'vllm:worst_queue{model="m"} > 1 and vllm:tpot:p99 > 1',
        "vllm:healthy_pods_total < 2",
        "DCGM_FI_DEV_SOMETHING_ELSE > 1",
        "sum by (le) (rate(sizewatch_ttft_seconds_bucket[5m])) > 0",
        'vllm:num_requests_running{instance="a:1", job="vllm", namespace="n", cluster="c", pod="p", node="x"} > 5',
        'sum by (model) (label_replace(vllm:num_requests_running, "model", "$1", "model_name", "(.*)")) > 5',
        "sum by (model) (vllm:num_requests_running * on (pod) group_left (model) kube_pod_labels) > 5",
        "sum by (model) (vllm:num_requests_running or something_of_others) > 5",
    ],
)
def test_a_right_or_unknown_name_is_not_reported(expression: str) -> None:
    assert kinds_and_fixes(expression) == []


def test_a_label_of_targets_is_not_reported() -> None:
    assert kinds_and_fixes('vllm:num_requests_running{model="m"} > 5', "model") == []


@pytest.mark.parametrize(
    "page",
    [
        *("vllm-0.33.0.prom", "vllm-0.33.0.openmetrics.txt", "sglang-0.5.23.prom", "sglang-0.5.23.openmetrics.txt"),
        *("llamacpp_after_load.prom", "made-tgi.prom", "made-triton.prom", "made-trtllm-1.3-newer.prom"),
        *("made-dynamo-frontend.prom", "made-dynamo-worker.prom", "sglang_after_load.prom", "lora_mixed.prom"),
    ],
)
def test_a_page_of_a_current_release_has_no_wrong_name(page: str) -> None:
    series = {line.rpartition(" ")[0] for line in (PAGES / page).read_text(encoding="utf-8").splitlines()}
    selectors = [one for one in series if one and not one.startswith("#") and " # " not in one]
    assert len(selectors) > 10
    assert [(one, kinds_and_fixes(one)) for one in selectors if kinds_and_fixes(one)] == []


@pytest.mark.parametrize("text", ["", "x >", "sum(x", "nosuchfunction(x)", "rate(x)", 'x{a="b"', "x y"])
def test_text_that_is_not_promql_raises(text: str) -> None:
    with pytest.raises(LintInputError, match="is no PromQL"):
        read_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 9000 + "x" + ")" * 9000,
        "abs(" * 3000 + "x" + ")" * 3000,
        "+".join(["x"] * 9000),
        "-" * 15_000 + "x",
        "x" * (MAX_CHARACTERS + 1),
        "# don't\n" + "(" * 9000 + "x" + ")" * 9000 + "# don't",
    ],
    ids=lambda text: text[:4],
)
def test_an_expression_beyond_the_limits_raises(text: str) -> None:
    with pytest.raises(LintInputError, match="too long or nested too deeply"):
        read_query(text)


def test_many_alternatives_and_brackets_in_quotes_are_within_the_limits() -> None:
    many = " or ".join(f'vllm:num_requests_running{{model_name="m{n}"}}' for n in range(300))
    assert read_query(many).metrics == ("vllm:num_requests_running",)
    assert read_query(f'x{{a="{"(" * 2000}"}}').metrics == ("x",)
