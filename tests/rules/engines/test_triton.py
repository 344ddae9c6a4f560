"""Triton with the TensorRT-LLM backend: several models on a page, sums of microseconds, states as labels."""

import re

import pytest
from making import page_text, read
from table_checks import TABLES, signals, uses, without

from agent.errors import ScrapeError
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import Snapshot

TRITON = TABLES["triton/trtllm"]

PAGE = "made-triton.prom"


def page() -> Snapshot:
    return read(page_text(PAGE))


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


def test_triton_hints_at_missing_histogram() -> None:
    found = signals(read(without(page_text(PAGE), "nv_inference_first_response_histogram_ms")))
    assert found["ttft_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)
    assert "histogram_latencies=true" in TRITON.explain_missing(["ttft_seconds"])


def test_microsecond_sums_give_no_quantile() -> None:
    found = uses(TRITON, page_text(PAGE))
    for name in ("request_duration_us", "queue_duration_us", "compute_infer_duration_us"):
        assert not found[f"nv_inference_{name}"].is_read
    assert signals(page())["e2e_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)


def test_older_triton_lacks_waiting_and_share() -> None:
    assert {"requests_waiting", "kv_utilization"} <= page().gauges.keys() - read(older()).gauges.keys()
