"""Triton Inference Server with the TensorRT-LLM backend (port 8002): nv_trt_llm_* and Triton's own nv_inference_*.

Sources: triton_backend/inflight_batcher_llm/src (custom_metrics_reporter.cc, model_instance_state.cc) of TensorRT-LLM,
src/metrics.cc of triton-inference-server/core, docs/user_guide/metrics.md of its server, and the backend's README. A
deployment is several Triton models: a pipeline (ensemble or tensorrt_llm_bls) around preprocessing, tensorrt_llm and
postprocessing. Each counts every request, so only the generating model is read: every pipeline has it once. Its counts
exclude the tokeniser. Triton's times are sums of microseconds in counters without `_total`. A sum gives a mean and no
quantile, so no signal reads them. nv_trt_llm_* are as of the engine's last step.
"""

from __future__ import annotations

from rules.engines.table import EngineTable, LabelAggregation, Match, SourceRow
from rules.telemetry.families import FamilyKind

C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE
REQUESTS, BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"

AROUND = ("ensemble", "preprocessing", "postprocessing", "tensorrt_llm_bls", "multimodal_encoders")
GENERATES = Match(label="model", values=AROUND, without=True)
"""Model names around the engine in all_models of tensorrtllm_backend. Other models generate."""


def _of_triton(
    kind: FamilyKind, family: str, source: str, note: str, reasons: tuple[str, ...] = (), factor: float = 1.0
) -> SourceRow:
    reason = (Match(label="reason", values=reasons, optional="OTHER" in reasons),) if reasons else ()
    return SourceRow(
        kind, family, f"nv_inference_{source}", "23.04", matches=(GENERATES, *reason), factor=factor, note=note
    )


def _lengths(family: str, source: str, part: str = "") -> SourceRow:
    note = "of each request that ended; not in older builds"
    kind = C if part else H
    return SourceRow(kind, family, source, "24.11", matches=(GENERATES,), part=part, note=note)


def _gauge(
    family: str, source: str, where: tuple[str, str], note: str, across: LabelAggregation = LabelAggregation.SUM
) -> SourceRow:
    return SourceRow(G, family, source, "23.10", across=across, where=(where,), note=note)


FRACTION = ("kv_cache_block_type", "fraction")

ROWS: tuple[SourceRow, ...] = (
    _of_triton(C, "requests_finished", "request_success", "of the model that generates; failures are not in it"),
    _of_triton(C, "http_requests_failed", "request_failure", "of the same model", ("BACKEND", "OTHER", "REJECTED")),
    _of_triton(C, "admission_rejections", "request_failure", "beyond max_queue_size", ("REJECTED",)),
    _lengths("prompt_tokens", "nv_llm_input_token_len", "sum"),
    _lengths("generation_tokens", "nv_llm_output_token_len", "sum"),
    _lengths("prompt_tokens_per_request", "nv_llm_input_token_len"),
    _lengths("generation_tokens_per_request", "nv_llm_output_token_len"),
    _of_triton(
        H,
        "ttft_seconds",
        "first_response_histogram_ms",
        "first chunk of a decoupled model; needs --metrics-config histogram_latencies=true; edges 0.1 0.5 2 5 s",
        factor=0.001,
    ),
    SourceRow(
        G,
        "engine_startup_seconds",
        "nv_model_load_duration_secs",
        "24.11",
        across=LabelAggregation.MAX,
        matches=(GENERATES,),
        note="loading the model: a part of a cold start",
    ),
    _gauge("requests_running", REQUESTS, ("request_type", "scheduled"), "active = scheduled + waiting"),
    _gauge("requests_waiting", REQUESTS, ("request_type", "waiting"), "active, but not in this step"),
    _gauge("kv_utilization", BLOCKS, FRACTION, "used / all blocks; not in older builds", LabelAggregation.MEAN),
    _gauge("kv_utilization_max", BLOCKS, FRACTION, "the same, the fullest", LabelAggregation.MAX),
)

_SUMS = "a sum of microseconds: a mean, no quantile; "
IGNORED: tuple[tuple[str, str], ...] = (
    ("nv_inference_request_duration_us", f"{_SUMS}Triton prints no distribution of it"),
    ("nv_inference_queue_duration_us", f"{_SUMS}of Triton's own queue, not of the engine's"),
    ("nv_inference_compute_", f"{_SUMS}of a pass through a model"),
    ("nv_inference_request_summary_us", "quantiles that Triton made itself cannot be added up"),
    ("nv_inference_queue_summary_us", "quantiles that Triton made itself cannot be added up"),
    ("nv_inference_count", "a request that holds several counts as several"),
    ("nv_inference_exec_count", "passes through a model"),
    ("nv_inference_pending_request_count", "Triton's own queue, empty while the engine takes requests in"),
    ("nv_cache_", "Triton's cache of whole answers, not of prefixes"),
    ("nv_trt_llm_runtime_memory_metrics", "what the engine allocated; memory is read from the GPU"),
    ("nv_trt_llm_inflight_batcher_metrics", "of the last step only"),
    ("nv_trt_llm_v1_metrics", "of the last step only"),
    ("nv_trt_llm_general_metrics", "a number of steps that is no counter, and a time"),
    ("nv_trt_llm_disaggregated_serving_metrics", "the sum of KV transfer times: a mean, no quantile"),
    ("nv_cpu_", "the host's; not judged"),
    ("nv_pinned_memory_pool_", "the host's; not judged"),
)

_SUM_ONLY = "Triton prints sums of microseconds, no distribution"
NOT_EXPOSED: tuple[tuple[str, str], ...] = (
    (
        "ttft_seconds",
        "Triton times first responses only with --metrics-config histogram_latencies=true, and tokens never",
    ),
    ("e2e_seconds", _SUM_ONLY),
    ("queue_seconds", _SUM_ONLY),
    ("prefill_seconds", "Triton does not time prefill and decode apart"),
    ("decode_seconds", "Triton does not time prefill and decode apart"),
    ("tpot_seconds", "Triton does not time tokens"),
    ("itl_seconds", "Triton does not time tokens"),
    ("preemptions", "Triton's TensorRT-LLM backend prints how many requests are paused now, not how often one was"),
    ("prefix_hit_tokens", "Triton's TensorRT-LLM backend prints reused KV blocks, but not of how many"),
    ("prompt_tokens_computed", "Triton's TensorRT-LLM backend does not count the prompt tokens that it computed"),
    ("spec_accepted_tokens", "Triton's TensorRT-LLM backend prints nothing about drafts"),
    ("spec_drafts", "Triton's TensorRT-LLM backend prints nothing about drafts"),
    ("adapters_running", "Triton's TensorRT-LLM backend prints nothing about LoRA adapters"),
    ("adapter_evictions", "Triton's TensorRT-LLM backend prints nothing about LoRA adapters"),
    ("expert_balance_sum", "Triton's TensorRT-LLM backend prints nothing about experts"),
    ("kv_transfer_seconds", "Triton's TensorRT-LLM backend prints the sum of KV transfer times, no distribution"),
    ("kv_residency_seconds", "Triton's TensorRT-LLM backend does not time how long a KV block lives"),
)

TRITON = EngineTable(
    name="triton",
    generation="trtllm",
    title="Triton",
    signatures=(REQUESTS,),
    signature_labels=("model", "request_type"),
    rows=ROWS,
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
)
