"""Dead metric names: what they are called now, and which absences are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from linted import (
    DCGM,
    PAGES,
    SGLANG,
    SGLANG_IDLE,
    VLLM,
    VLLM_08,
    VLLM_09,
    VLLM_V0,
    found,
    kinds_and_fixes,
    linted,
    rule_file,
)

from agent.lint.catalogue import catalogue, read_page
from agent.lint.linting import lint

HITS = "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))"


@pytest.mark.parametrize(
    ("page", "expression", "kind", "fix"),
    [
        (VLLM, "vllm:gpu_cache_usage_perc > 0.8", "renamed", "vllm:kv_cache_usage_perc"),
        (VLLM_08, "vllm:kv_cache_usage_perc > 0.8", "renamed", "vllm:gpu_cache_usage_perc"),
        (VLLM_V0, "avg(vllm:kv_cache_usage_perc) > 0.8", "renamed", "vllm:gpu_cache_usage_perc"),
        (VLLM, "vllm:gpu_prefix_cache_hit_rate < 0.3", "renamed", HITS),
        (
            VLLM,
            'rate(vllm:gpu_prefix_cache_hits_total{model_name="m"}[5m]) > 1',
            "renamed",
            'vllm:prefix_cache_hits_total{model_name="m"}[5m]',
        ),
        (VLLM, "vllm:num_requests_swapped > 0", "renamed", "rate(vllm:num_preemptions_total[5m])"),
        (
            VLLM,
            "rate(vllm:time_per_output_token_seconds_sum[5m]) > 1",
            "renamed",
            "vllm:inter_token_latency_seconds_sum[5m]",
        ),
        (
            VLLM,
            "vllm:avg_generation_throughput_toks_per_s < 10",
            "renamed",
            "rate(vllm:generation_tokens_total[5m])",
        ),
        (
            VLLM,
            "rate(vllm:request_failure_total[5m]) > 0",
            "renamed",
            'vllm:request_success_total{finished_reason=~"abort|error"}',
        ),
        (
            VLLM,
            "rate(vllm_request_latency_seconds_bucket[5m]) > 0",
            "renamed",
            "vllm:e2e_request_latency_seconds_bucket[5m]",
        ),
        (
            SGLANG,
            "rate(sglang:time_per_output_token_seconds_sum[5m]) > 1",
            "renamed",
            "sglang:inter_token_latency_seconds_sum[5m]",
        ),
        (
            SGLANG_IDLE,
            "rate(sglang:time_per_output_token_seconds_sum[5m]) > 1",
            "renamed",
            "sglang:inter_token_latency_seconds_sum[5m]",
        ),
        (
            DCGM,
            "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 0.9",
            "renamed",
            "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)",
        ),
        (VLLM, "vllm_num_requests_running > 5", "spelling", "vllm:num_requests_running"),
        (VLLM, "ray_vllm_num_requests_running > 5", "spelling", "vllm:num_requests_running"),
        (VLLM, "kserve_vllm:num_requests_running > 5", "spelling", "vllm:num_requests_running"),
        (VLLM, "rate(vllm:prefix_cache_hits[5m]) > 1", "suffix", "vllm:prefix_cache_hits_total[5m]"),
        (VLLM, "rate(vllm:num_preemptions[5m]) > 1", "suffix", "vllm:num_preemptions_total[5m]"),
        ("made-tgi", "rate(tgi_request_count_total[5m]) > 1", "suffix", "tgi_request_count[5m]"),
        (
            VLLM,
            "histogram_quantile(0.9, rate(vllm:time_to_first_token_seconds[5m])) > 3",
            "suffix",
            "vllm:time_to_first_token_seconds_bucket[5m]",
        ),
        (VLLM, "rate(vllm:iteration_tokens_total[5m]) > 1", "suffix", "vllm:iteration_tokens_total_sum[5m]"),
        (VLLM, "vllm:num_request_waiting > 5", "dead-name", "vllm:num_requests_waiting"),
        (DCGM, "DCGM_FI_DEV_GPU_UTILL > 95", "dead-name", "DCGM_FI_DEV_GPU_UTIL"),
        (DCGM, "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) > 0", "dead-name", ""),
        (VLLM, "vllm:flux_capacitor > 88", "dead-name", ""),
        (VLLM, "sizewatch_verdit == 2", "dead-name", "sizewatch_verdict"),
        (
            SGLANG,
            "sglang:cache_hit_rate < 0.2",
            "avoid",
            "sum(rate(sglang:cached_tokens_total[5m])) / sum(rate(sglang:prompt_tokens_total[5m]))",
        ),
        (VLLM_09, "vllm:gpu_cache_usage_perc > 0.9", "avoid", "vllm:kv_cache_usage_perc"),
    ],
)
def test_a_name_that_no_page_prints_is_found_with_what_to_write(
    page: str, expression: str, kind: str, fix: str, tmp_path: Path
) -> None:
    assert kinds_and_fixes(tmp_path, expression, page) == [(kind, fix)]


@pytest.mark.parametrize(
    ("page", "expression", "says"),
    [
        (VLLM, "vllm:gpu_cache_usage_perc > 0.8", "seen from 0.9.2 on"),
        (VLLM_08, "rate(vllm:request_time_per_output_token_seconds_sum[5m]) > 1", "only from 0.11.0 on"),
        (VLLM_V0, "rate(vllm:prefix_cache_hits_total[5m]) > 1", "another generation of vLLM has"),
        ("sglang-0.4.6", "rate(sglang:num_retracted_requests_total[5m]) > 1", "only from 0.5.7 on"),
        ("sglang-0.4.6", "sglang:engine_startup_time > 100", "only from 0.5.3 on"),
        (DCGM, "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) > 0", "not in dcgm-exporter's default counters"),
        (VLLM, "rate(vllm:request_failure_total[5m]) > 0", "vLLM never had it"),
    ],
)
def test_it_is_said_since_when_or_until_when_a_name_is_printed(
    page: str, expression: str, says: str, tmp_path: Path
) -> None:
    (one,) = found(tmp_path, expression, page)
    assert says in one.text


def test_a_name_of_which_the_release_is_older_says_no_release_of_the_one_to_write(tmp_path: Path) -> None:
    (one,) = found(tmp_path, "vllm:kv_cache_usage_perc > 0.8", VLLM_08)
    assert "seen from" not in one.text


@pytest.mark.parametrize(
    ("page", "expression"),
    [
        (VLLM, "vllm:kv_cache_usage_perc > 0.8"),
        (VLLM_08, "vllm:gpu_cache_usage_perc > 0.8"),
        (VLLM_V0, "vllm:num_requests_swapped > 0"),
        (VLLM, "rate(vllm:prefix_cache_hits_total[5m]) > 1"),
        (VLLM, "rate(vllm:iteration_tokens_total_sum[5m]) > 1"),
        (VLLM, "kube_pod_status_ready == 0 or up == 0 or node_load1 > 5"),
        (VLLM, 'rate({__name__=~"vllm:.*_tokens_total"}[5m]) > 1'),
        (VLLM, '{__name__="vllm:num_requests_running"} > 5'),
        ("made-tgi", "rate(tgi_request_count[5m]) > 1"),
        (VLLM, "sizewatch_verdict == 2"),
        (VLLM, "sum by (le) (rate(sizewatch_ttft_seconds_bucket[5m])) > 0"),
        (SGLANG, "sglang:token_usage > 0.9"),
    ],
)
def test_a_name_that_a_page_prints_or_that_is_anothers_is_not_reported(
    page: str, expression: str, tmp_path: Path
) -> None:
    assert found(tmp_path, expression, page) == ()


def test_both_names_joined_by_or_serve_releases_of_both_kinds(tmp_path: Path) -> None:
    both = "vllm:kv_cache_usage_perc > 0.9 or vllm:gpu_cache_usage_perc > 0.9"
    for page in (VLLM, VLLM_09, VLLM_08, VLLM_V0):
        assert found(tmp_path, both, page) == ()
    invented = "rate(vllm:num_preemptions_total[5m]) > 1 or rate(vllm:request_failure_total[5m]) > 1"
    assert [one.kind for one in found(tmp_path, invented, VLLM)] == ["renamed"]
    neither = "vllm:num_requests_swapped > 0 or vllm:cpu_cache_usage_perc > 0.5"
    assert len(found(tmp_path, neither, VLLM)) == 2


def test_a_name_that_another_given_page_prints_is_alive(tmp_path: Path) -> None:
    assert found(tmp_path, "vllm:gpu_cache_usage_perc > 0.9", VLLM, VLLM_V0) == ()


def test_a_name_that_a_rule_records_is_alive_and_one_that_looks_recorded_is_not_judged(tmp_path: Path) -> None:
    recording = {"record": "vllm:ttft_p99", "expr": "max(vllm:num_requests_running)"}
    given = linted(tmp_path, recording, {"alert": "A", "expr": "vllm:ttft_p99 > 2 and vllm:tpot:p99 > 1"})
    assert given.findings == ()
    assert [remark.name for remark in given.remarks] == ["vllm:tpot:p99"]


@pytest.mark.parametrize(
    ("page", "expression", "name"),
    [
        (VLLM, "DCGM_FI_DEV_GPU_TEMP > 85", "DCGM_FI_DEV_GPU_TEMP"),
        (SGLANG_IDLE, "rate(sglang:num_aborted_requests_total[5m]) > 1", "sglang:num_aborted_requests_total"),
        (
            "steady_after_load",
            "rate(vllm:nixl_num_failed_transfers_total[5m]) > 0",
            "vllm:nixl_num_failed_transfers_total",
        ),
        (DCGM, 'DCGM_EXP_XID_ERRORS_COUNT{xid="79"} > 0', "DCGM_EXP_XID_ERRORS_COUNT"),
        (VLLM, "vllm:healthy_pods_total < 2", "vllm:healthy_pods_total"),
        (SGLANG, "sglang_token_usage > 0.9", "sglang_token_usage"),
    ],
)
def test_what_the_pages_do_not_decide_is_a_remark_and_no_finding(
    page: str, expression: str, name: str, tmp_path: Path
) -> None:
    given = linted(tmp_path, {"alert": "A", "expr": expression}, pages=(page,))
    assert given.findings == ()
    assert [remark.name for remark in given.remarks] == [name]


def test_a_pattern_of_names_that_fits_none_is_found(tmp_path: Path) -> None:
    assert [one.kind for one in found(tmp_path, 'sum({__name__=~"vllm:gpu_.*"}) > 1', VLLM)] == ["dead-name"]
    assert found(tmp_path, 'sum({__name__=~"DCGM_.*"}) > 1', VLLM) == ()


@pytest.mark.parametrize(
    ("expression", "fix"),
    [
        ("vllm:num_requests_running > 5", "ray_vllm_num_requests_running"),
        ("vllm_num_requests_running > 5", "ray_vllm_num_requests_running"),
        ("ray_vllm_gpu_cache_usage_perc > 0.9", "ray_vllm_kv_cache_usage_perc"),
        ("rate(ray_vllm_num_preemptions[5m]) > 1", "ray_vllm_num_preemptions_total[5m]"),
        (
            "vllm:gpu_prefix_cache_hit_rate < 0.2",
            "sum(rate(ray_vllm_prefix_cache_hits_total[5m])) / sum(rate(ray_vllm_prefix_cache_queries_total[5m]))",
        ),
    ],
)
def test_names_are_written_as_the_page_spells_them(expression: str, fix: str, tmp_path: Path) -> None:
    """Ray prints an engine's metrics under its own prefix."""
    body = (PAGES / f"{VLLM}.prom").read_bytes().replace(b"vllm:", b"ray_vllm_")
    path = rule_file(tmp_path, {"alert": "A", "expr": expression})
    found_there = lint((path,), catalogue((read_page("ray", body),))).findings
    assert [one.fix for one in found_there] == [fix]


def test_what_stands_on_such_a_page_is_alive_and_has_its_unit(tmp_path: Path) -> None:
    body = (PAGES / f"{VLLM}.prom").read_bytes().replace(b"vllm:", b"ray_vllm_")
    rules = ("ray_vllm_kv_cache_usage_perc > 0.9", "ray_vllm_kv_cache_usage_perc > 90")
    path = rule_file(tmp_path, *({"alert": f"A{n}", "expr": text} for n, text in enumerate(rules)))
    (one,) = lint((path,), catalogue((read_page("ray", body),))).findings
    assert (one.rule, one.kind, one.fix) == ("A1", "range", "ray_vllm_kv_cache_usage_perc > 0.9")
