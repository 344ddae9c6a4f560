"""TensorRT-LLM: trtllm-serve's /prometheus/metrics of 1.3 and newer, and the five unprefixed families of 1.0 to 1.2.

Sources for 1.3: tensorrt_llm/metrics/collector.py, metrics/perf_utils.py and serve/openai_server.py of the main branch
of 2026, and NVIDIA's AIPerf reference. For Dynamo: components/src/dynamo/trtllm/metrics.py and its example pages. It
needs `return_perf_metrics: true`; gauges, blocks and drafts also need `enable_iter_perf_stats: true`. All values of a
request are written when it ends, including its TTFT. A duration of zero is dropped (except the queue's), so counts
differ. A series appears with its first event. trtllm-serve runs in multiprocess mode: no process_*, no _created, a
`pid` label on gauges.

Source for 1.0 to 1.2: tensorrt_llm/metrics/collector.py of those releases, with fixed labels model_name="undefined" and
engine_type="undefined". The names are generic, so a page is recognised by request_success_total with all three labels.
A duration of zero is dropped, so counts differ. Nothing is printed before the first request ended. Dynamo workers of
all releases print the families with the prefix `trtllm_`.
"""

from __future__ import annotations

from rules.engines.table import (
    KVBM_ROWS,
    EngineTable,
    LabelAggregation,
    Match,
    SourceRow,
    add_prefix,
    http_status_row,
)
from rules.telemetry.families import FamilyKind

C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE
SINCE = "1.3.0"
CONFIG = "model_config_info"
"""Printed from the start of trtllm-serve: families that are missing on a page with it are zero."""
CACHED, REUSED, MISSED = "prompt_cached_tokens_total", "kv_cache_reused_blocks_total", "kv_cache_missed_blocks_total"
DRAFTED, ACCEPTED = "spec_decode_drafted_tokens_total", "spec_decode_accepted_tokens_total"
DRAFTED_BY_STEP = "spec_decode_num_draft_tokens_total"
NONE = Match(label="le", values=())
"""Fits no series. Such a row only checks that the name is on the page and reads its `plus`."""
IN_TIME = Match(label="finished_reason", values=("timeout",), without=True, optional=True)
NEWER = "not in the first builds of 1.3"
STEPS = "needs enable_iter_perf_stats"


def _ended(family: str, reason: str, note: str = "") -> SourceRow:
    where = ("finished_reason", reason)
    return SourceRow(C, family, "request_success_total", note=note, where=(where,), lazy=True, zero_with=CONFIG)


def _answered(family: str, digit: str) -> SourceRow:
    return SourceRow(
        C, family, "request_error_total", note=NEWER, matches=http_status_row("http_code", digit), lazy=True
    )


def _ratio(family: str, across: LabelAggregation) -> SourceRow:
    return SourceRow(G, family, "kv_cache_utilization", note=f"used / all blocks; {STEPS}", across=across)


ROWS: tuple[SourceRow, ...] = (
    SourceRow(
        C,
        "requests_finished",
        "request_success_total",
        note="stop, length, cancelled: no errors",
        matches=(IN_TIME,),
        lazy=True,
        zero_with=CONFIG,
    ),
    _ended("requests_aborted", "cancelled"),
    _ended("requests_failed", "timeout", "the one way to fail that is counted here"),
    _ended("requests_ended_by_length", "length"),
    _answered("http_requests_refused", "4"),
    _answered("http_requests_failed", "5"),
    _answered("admission_rejections", "503"),
    SourceRow(
        C, "prompt_tokens", "prompt_tokens_total", note="at a request's end; cached ones included", zero_with=CONFIG
    ),
    SourceRow(
        C, "generation_tokens", "generation_tokens_total", note="at a request's end; not with n > 1", zero_with=CONFIG
    ),
    SourceRow(C, "prefix_hit_tokens", CACHED, note=NEWER),
    SourceRow(C, "prefix_hit_tokens", REUSED, note=f"blocks; {STEPS}", zero_with=MISSED, factor_fact="block_size"),
    SourceRow(
        C,
        "prefix_queried_tokens",
        CACHED,
        note="all prompt tokens, where the cached ones are counted in tokens",
        matches=(NONE,),
        plus=("prompt_tokens_total",),
        lazy=True,
    ),
    SourceRow(
        C,
        "prefix_queried_tokens",
        MISSED,
        note=f"blocks; {STEPS}",
        plus=(REUSED,),
        zero_with=REUSED,
        factor_fact="block_size",
    ),
    SourceRow(
        C, "spec_drafts", DRAFTED, note=f"each round drafts a first token; {NEWER}", where=(("token_position", "0"),)
    ),
    SourceRow(C, "spec_draft_tokens", DRAFTED, note=f"at a request's end; {NEWER}"),
    SourceRow(C, "spec_draft_tokens", DRAFTED_BY_STEP, note=STEPS),
    SourceRow(C, "spec_accepted_tokens", ACCEPTED, note="the bonus token left out", zero_with=DRAFTED),
    SourceRow(
        C, "spec_accepted_tokens", "spec_decode_num_accepted_tokens_total", note=STEPS, zero_with=DRAFTED_BY_STEP
    ),
    SourceRow(C, "spec_accepted_at_position", ACCEPTED, note=NEWER, by="token_position"),
    SourceRow(C, "kv_transfer_failures", "kv_transfer_failure_total", note="Dynamo's, with prefill and decode apart"),
    SourceRow(H, "ttft_seconds", "time_to_first_token_seconds", note="from arrival; written when the request ends"),
    SourceRow(
        H,
        "tpot_seconds",
        "time_per_output_token_seconds",
        note="(last - first token) / (tokens - 1); none for one token",
    ),
    SourceRow(H, "e2e_seconds", "e2e_request_latency_seconds"),
    SourceRow(H, "queue_seconds", "request_queue_time_seconds", note="nothing below 0.3 s"),
    SourceRow(H, "prefill_seconds", "request_prefill_time_seconds"),
    SourceRow(H, "decode_seconds", "request_decode_time_seconds"),
    SourceRow(H, "inference_seconds", "request_inference_time_seconds"),
    SourceRow(H, "kv_transfer_seconds", "kv_transfer_latency_seconds", note="Dynamo's, with prefill and decode apart"),
    SourceRow(G, "requests_running", "num_requests_running", note=f"active, scheduled in this step or not; {STEPS}"),
    SourceRow(G, "requests_waiting", "num_requests_waiting", note=STEPS),
    SourceRow(C, "kv_offload_load_bytes", "kv_cache_onboard_bytes_total", note=STEPS),
    SourceRow(C, "kv_offload_store_bytes", "kv_cache_offload_bytes_total", note=STEPS),
    SourceRow(
        G, "kv_offload_utilization", "kv_cache_host_utilization", across=LabelAggregation.MEAN, note=f"host; {STEPS}"
    ),
    _ratio("kv_utilization", LabelAggregation.MEAN),
    _ratio("kv_utilization_max", LabelAggregation.MAX),
    SourceRow(
        G,
        "prefix_hit_gauge",
        "kv_cache_hit_rate",
        note=f"of blocks, since the start; {STEPS}",
        across=LabelAggregation.MEAN,
    ),
    SourceRow(
        G,
        "spec_accept_length",
        "spec_decode_acceptance_length",
        note=f"of the last step only, bonus token included; {STEPS}",
        across=LabelAggregation.MEAN,
    ),
)

IGNORED: tuple[tuple[str, str], ...] = (
    ("python_", "the interpreter's own"),
    ("process_", "the process's own"),
    ("http_", "the HTTP layer's own; trtllm-serve leaves it empty"),
    ("trtllm_num_requests_completed", "request_success_total counts them with their reason"),
    ("trtllm_max_", "limits of the configuration"),
    ("trtllm_iteration_latency_seconds", "of the last step only"),
    ("trtllm_gpu_memory_usage_bytes", "read from the GPU, not from an engine's page"),
    ("trtllm_cpu_memory_usage_bytes", "the host's memory is not judged"),
    ("trtllm_pinned_memory_usage_bytes", "the host's memory is not judged"),
    ("trtllm_kv_cache_free_blocks", "the share in use says it"),
    ("trtllm_kv_cache_used_blocks", "the share in use says it"),
    ("trtllm_kv_cache_reused_blocks", "the cached tokens say it where they are counted"),
    ("trtllm_kv_cache_missed_blocks", "the cached tokens say it where they are counted"),
    ("trtllm_kv_cache_iter_", "reused and missed blocks, step by step"),
    ("trtllm_kv_cache_gen_alloc_blocks", "how the KV cache grows is not judged"),
    ("trtllm_kv_cache_disk_prefetch_blocks", "traffic with the disk's KV cache"),
    ("trtllm_kv_cache_intra_device_copy_bytes", "copies within the GPU"),
    ("trtllm_prompt_cache_hit_tokens", "the cached tokens once more, by cache level"),
    ("trtllm_prompt_cached_tokens_per_request", "the counter of cached tokens says it in sum"),
    ("trtllm_num_context_requests", "of the last step only"),
    ("trtllm_num_generation_requests", "of the last step only"),
    ("trtllm_num_scheduled_requests", "of the last step only"),
    ("trtllm_num_paused_requests", "paused in the last step: how often requests are paused is not counted"),
    ("trtllm_total_context_tokens", "of the last step only"),
    ("trtllm_avg_decoded_tokens_per_iter", "of the last step only"),
    ("trtllm_prefill_batch_", "of single steps"),
    ("trtllm_spec_decode_draft_overhead", "of the last step only"),
    ("trtllm_spec_decode_num_", "drafted and accepted tokens once more, step by step"),
    ("trtllm_prefill_perplexity", "what a model says is not judged"),
    ("trtllm_generation_perplexity", "what a model says is not judged"),
    ("trtllm_scheduled_batch_size", "of single steps"),
    ("trtllm_kv_cache_hit_rate", "since the start, of blocks; the counters are used"),
    ("trtllm_num_aborted_requests", "Dynamo's count; finished_reason tells what the engine ended"),
    ("trtllm_request_type_", "Dynamo's count of pictures and structured output"),
    ("trtllm_kv_transfer_", "volume of KV transfers; their time and failures are used"),
)

NOT_EXPOSED: tuple[tuple[str, str], ...] = (
    ("itl_seconds", "TensorRT-LLM times no single token; tpot_* are the means of its requests"),
    ("prompt_tokens_per_request", "TensorRT-LLM counts prompt tokens in sum only"),
    ("generation_tokens_per_request", "TensorRT-LLM counts generated tokens in sum only"),
    ("preemptions", "TensorRT-LLM prints how many requests are paused now, not how often one was"),
    ("prompt_tokens_computed", "TensorRT-LLM does not count the prompt tokens that it computed"),
    ("adapters_running", "TensorRT-LLM prints nothing about LoRA adapters"),
    ("adapter_evictions", "TensorRT-LLM prints nothing about LoRA adapters"),
    ("expert_balance_sum", "TensorRT-LLM prints nothing about experts"),
    ("cold_start_seconds", "trtllm-serve prints neither when its process started nor how long loading took"),
    ("kv_transfer_seconds", "trtllm-serve times no KV transfer; a Dynamo worker does"),
    ("kv_residency_seconds", "TensorRT-LLM does not time how long a KV block lives"),
)

TRTLLM = EngineTable(
    name="trtllm",
    generation="v1.3",
    title="TensorRT-LLM",
    signatures=(
        f"trtllm_{CONFIG}",
        "trtllm_request_success_total",
        "trtllm_num_requests_running",
        "trtllm_e2e_request_latency_seconds_count",
    ),
    signature_labels=("model_name", "engine_type"),
    wrappers=("ray_", "kserve_"),
    rows=(*add_prefix("trtllm_", ROWS, SINCE), *KVBM_ROWS),
    info=(
        f"trtllm_{CONFIG}",
        "trtllm_parallel_config_info",
        "trtllm_speculative_config_info",
        "trtllm_kv_cache_config_info",
    ),
    fact_gauges=(
        ("block_size", "trtllm_kv_cache_tokens_per_block"),
        ("num_gpu_blocks", "trtllm_kv_cache_max_blocks"),
    ),
    model_label="model_name",
    scanned=(SINCE,),
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
)


PLAIN_C, PLAIN_H = FamilyKind.COUNTER, FamilyKind.HISTOGRAM
ENDED = "request_success_total"


def _plain_finished(family: str, reason: str, other: bool = False) -> SourceRow:
    """Return a row for requests that ended for a reason, or for any `other` one."""
    match = Match(label="finished_reason", values=(reason,), without=other)
    return SourceRow(PLAIN_C, family, ENDED, "1.0.0", matches=(match,), lazy=True)


def _seconds(family: str, source: str, note: str = "") -> SourceRow:
    return SourceRow(PLAIN_H, family, source, "1.0.0", note=note)


PLAIN_ROWS: tuple[SourceRow, ...] = (
    _plain_finished("requests_finished", "timeout", other=True),
    _plain_finished("requests_aborted", "cancelled"),
    _plain_finished("requests_failed", "timeout"),
    _plain_finished("requests_ended_by_length", "length"),
    _seconds("ttft_seconds", "time_to_first_token_seconds", "written when the request ends"),
    _seconds("tpot_seconds", "time_per_output_token_seconds", "none for one token"),
    _seconds("e2e_seconds", "e2e_request_latency_seconds"),
    _seconds(
        "queue_seconds", "request_queue_time_seconds", "nothing below 0.3 s; a request that did not wait is in none"
    ),
)

_FIVE = "TensorRT-LLM prints five families before 1.3, and this is in none"

TRTLLM_PLAIN = EngineTable(
    name="trtllm",
    generation="v1.0",
    title="TensorRT-LLM",
    signatures=(ENDED,),
    signature_labels=("model_name", "engine_type", "finished_reason"),
    rows=PLAIN_ROWS,
    ignored=(
        ("python_", "the interpreter's own"),
        ("process_", "the process's own"),
        ("http_", "the HTTP layer's own; trtllm-serve leaves it empty"),
    ),
    not_exposed=tuple(
        (family, _FIVE)
        for family in (
            *("itl_seconds", "prefill_seconds", "decode_seconds", "prompt_tokens", "prompt_tokens_computed"),
            *("generation_tokens", "prompt_tokens_per_request", "generation_tokens_per_request"),
            *("requests_running", "requests_waiting", "kv_utilization", "preemptions", "admission_rejections"),
            *("prefix_hit_tokens", "prefix_queried_tokens", "spec_accepted_tokens", "spec_drafts", "spec_draft_tokens"),
            *("adapters_running", "adapter_evictions", "cold_start_seconds", "kv_transfer_seconds"),
            *("kv_residency_seconds", "expert_balance_sum"),
        )
    ),
)
