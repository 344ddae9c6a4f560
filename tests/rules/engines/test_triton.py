"""Triton with the TensorRT-LLM backend: several models on a page, sums of microseconds, states as labels."""

import math
import re

import pytest
from making import page_text, read
from table_checks import TABLES, uses, without

from agent.errors import ScrapeError
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import Gap, Missing, SignalValue
from rules.telemetry.snapshots import Snapshot

TRITON = TABLES["triton/trtllm"]

PAGE = "made-triton.prom"


def page() -> Snapshot:
    return read(page_text(PAGE))


def signals(found: Snapshot) -> dict[str, SignalValue]:
    return dict(read_all(window_since_start(found)))


def older() -> str:
    """Before failures had a reason and the backend told who waits and the share of blocks in use."""
    text = re.sub(r'(?m)^nv_inference_request_failure\{.*reason="(CANCELED|REJECTED|OTHER)".*\n', "", page_text(PAGE))
    text = text.replace(',reason="BACKEND"', "")
    text = re.sub(r'(?m)^nv_trt_llm_.*"(waiting|fraction|reused)".*\n', "", text)
    return without(
        text, "nv_llm_input_token_len", "nv_llm_output_token_len", "nv_inference_first_response_histogram_ms"
    )


def test_other_triton_models_are_strangers() -> None:
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(re.sub(r"(?m)^(# TYPE )?nv_trt_llm_.*\n", "", page_text(PAGE)))


def test_triton_model_names_are_free() -> None:
    scripted = read(page_text(PAGE).replace('model="ensemble"', 'model="tensorrt_llm_bls"'))
    assert scripted.counters == page().counters
    assert scripted.histograms == page().histograms
    renamed = read(page_text(PAGE).replace('model="tensorrt_llm"', 'model="llama"'))
    assert (renamed.counters, renamed.gauges) == (page().counters, page().gauges)


def test_old_triton_has_no_rejections() -> None:
    counters = read(older()).counters
    assert counters["http_requests_failed"] == 1
    assert "admission_rejections" not in counters


def test_the_first_response_is_timed_in_milliseconds() -> None:
    found = page().histograms["ttft_seconds"]
    printed = float(
        re.findall(r'(?m)^nv_inference_first_response_histogram_ms_sum\{model="tens.* (\S+)$', page_text(PAGE))[0]
    )
    assert found.edges == (0.1, 0.5, 2.0, 5.0, math.inf)
    assert found.total == pytest.approx(printed / 1000)
    value = signals(page())["ttft_p99_seconds"]
    assert (value.low, value.high) == (0.5, 2.0)


def test_triton_hints_at_missing_histogram() -> None:
    found = signals(read(without(page_text(PAGE), "nv_inference_first_response_histogram_ms")))
    assert found["ttft_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)
    assert "histogram_latencies=true" in TRITON.explain_missing(["ttft_seconds"])


def test_microsecond_sums_give_no_quantile() -> None:
    found = uses(TRITON, page_text(PAGE))
    for name in ("request_duration_us", "queue_duration_us", "compute_infer_duration_us"):
        assert not found[f"nv_inference_{name}"].is_read
    assert signals(page())["e2e_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)


def test_triton_gauges_and_facts() -> None:
    gauges = page().gauges
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (8, 3)
    assert "requests_waiting" not in read(older()).gauges
    printed = {kind: float(value) for kind, value in re.findall(r'block_type="(\w+)".* (\S+)\n', page_text(PAGE))}
    assert page().gauges["kv_utilization"] == page().gauges["kv_utilization_max"] == printed["used"] / printed["max"]
    assert "kv_utilization" not in read(older()).gauges
    assert page().gauges["engine_startup_seconds"] == 63.25
    value = signals(page())["cold_start_seconds"]
    assert (value.value, value.low, value.high) == (None, 63.25, None)
