"""vLLM with the V1 engine, 0.8.5 to 0.33.0: a row for every rename, unit, type and label change, and ignored families.

Sources: the released wheels (vllm/v1/metrics/loggers.py, v1/spec_decode/metrics.py and the KV connectors' metrics),
scanned at 0.8.5, 0.9.2, 0.10.2, 0.11.0, 0.12.0, 0.15.1, 0.18.1, 0.20.2, 0.25.1, 0.26.0, 0.29.0 and 0.33.0, and live
0.32.0 pages. Public pages of 0.25.1 agree (lifenyan/inference-lab, MIT). `since` and `until` are scanned releases: the
true first release lies between `since` and the scan before it. A new release needs a row for a rename, a marker if its
page is recognisable, and its number in `scanned`. Ignored families have one row per prefix, for `sizewatch inspect` and
the doctor. A test checks that every page's families have a row.
"""

from __future__ import annotations

from rules.engines.table import (
    KVBM_ROWS,
    LMCACHE_ROWS,
    EngineTable,
    LabelAggregation,
    Marker,
    Match,
    SourceRow,
)
from rules.telemetry.families import FamilyKind

IGNORED: tuple[tuple[str, str], ...] = (
    ("python_", "the interpreter's own"),
    ("process_", "the process's own; its start time is used"),
    ("http_", "the HTTP layer's own; its request counter is used"),
    ("vllm_request_params_", "what clients asked for, not what happened"),
    ("vllm_request_max_num_generation_tokens", "what clients asked for, not what happened"),
    ("vllm_mm_cache_", "multimodal inputs are not judged"),
    ("vllm_prompt_tokens_cached", "the prefix cache counters say the same"),
    ("vllm_prompt_tokens_recomputed", "existed between 0.15.1 and 0.20.2 only"),
    ("vllm_request_prefill_kv_computed_tokens", "computed prompt tokens say the same in sum"),
    ("vllm_request_num_preemptions", "0 and 1 preemption share a bucket; the counter is used"),
    ("vllm_kv_block_", "sampled reuse and idle times: of blocks that came back only; their life is used"),
    ("vllm_nixl_", "volume of KV transfers; time and failed transfers are used"),
    ("vllm_nixl_num_failed_notifications", "a notification that failed is no transfer that failed"),
    ("vllm_nixl_num_kv_expired_reqs", "KV that nobody fetched in time is no transfer that failed"),
    ("vllm_nixl_num_notifications_after_expiry", "KV that nobody fetched in time is no transfer that failed"),
    ("vllm_mooncake_", "volume of KV transfers; time and failed transfers are used"),
    (
        "vllm_kv_offload_",
        "of one connector: sizes, lookups and parts of its host cache; bytes, time and failures are used",
    ),
    ("vllm_simple_kv_offload_", "of one connector, in blocks: its hits are among the external ones"),
    ("vllm_hf3fs_", "of one connector"),
    ("vllm_hisparse_", "of one connector"),
    ("vllm_umbp_", "of one connector"),
    ("vllm_corrupted_requests", "needs VLLM_COMPUTE_NANS_IN_LOGITS"),
    ("vllm_gpu_prefix_cache_", "deprecated twin of prefix_cache_* from 0.9"),
    ("vllm_gpu_prefix_cache_hit_rate", "a gauge of V0, -1 without prefix caching; the counters are used"),
    ("vllm_gpu_cache_usage_perc", "deprecated twin of kv_cache_usage_perc from 0.9"),
    ("vllm_time_per_output_token_seconds", "deprecated twin of inter_token_latency_seconds from 0.10"),
    ("vllm_num_requests_swapped", "of V0; always zero in V1"),
    ("vllm_cpu_", "of V0; always zero in V1"),
    ("vllm_diffusion_", "diffusion language models are not judged"),
    ("vllm_num_requests_kv_fetch_by_stage", "stages of an asynchronous KV load"),
    ("vllm_sleep_mode_", "how long sleep-mode operations take"),
    ("vllm_rl_weight_update_", "weight updates of reinforcement learning are not serving"),
    ("vllm_watermark_", "only with a watermark configured"),
    ("vllm_websocket_", "the realtime API's connections"),
)


C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE


NO_ERROR = Match(label="finished_reason", values=("error",), without=True, optional=True)

GENERATING = Match(
    label="handler",
    values=(
        *("/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages"),
        *("/inference/v1/generate", "/cohere/v2/chat", "/invocations", "/generate"),
    ),
)
"""Paths of requests to generate. Requests to other paths (404 of a scanner, a list of models) do not count."""


def _finished(family: str, reason: str, since: str) -> SourceRow:
    return SourceRow(C, family, "vllm_request_success_total", since, where=(("finished_reason", reason),))


def _http(family: str, status: str) -> SourceRow:
    return SourceRow(
        C,
        family,
        "http_requests_total",
        "0.8.5",
        where=(("status", status),),
        matches=(GENERATING,),
        lazy=True,
        note="prometheus-fastapi-instrumentator: absent before the first request, a status before its first answer; "
        "generating endpoints only; 5xx holds 503 too, 4xx holds 429",
    )


OFFLOAD_FAILURES = tuple(f"vllm_kv_offload_tiering_{job}_job_failures_total" for job in ("promotion", "cascade"))
"""Between the host and a further tier. A transfer between GPU and host that fails ends the engine."""


def _offloading(what: str, source: str, old: str, part: str = "") -> tuple[SourceRow, ...]:
    """Return the rows of the offloading connector, both directions, its deprecated names last."""
    return tuple(
        row
        for word, way in (("load", (("transfer_type", "CPU_to_GPU"),)), ("store", (("transfer_type", "GPU_to_CPU"),)))
        for row in (
            SourceRow(C, f"kv_offload_{word}_{what}", f"vllm_kv_offload_{word}_{source}", "0.26.0", part=part),
            SourceRow(
                C, f"kv_offload_{word}_{what}", f"vllm_kv_offload_{old}", "0.18.1", part=part, where=way, lazy=True
            ),
        )
    )


ROWS: tuple[SourceRow, ...] = (
    SourceRow(
        C,
        "requests_finished",
        "vllm_request_success_total",
        "0.8.5",
        matches=(NO_ERROR,),
        note="stop, length, abort, from 0.18.1 repetition; a disconnect is in none, an error is in requests_failed",
    ),
    _finished("requests_aborted", "abort", "0.8.5"),
    _finished("requests_failed", "error", "0.15.1"),
    _finished("requests_ended_by_length", "length", "0.8.5"),
    _http("http_requests_ok", "2xx"),
    _http("http_requests_refused", "4xx"),
    _http("http_requests_failed", "5xx"),
    SourceRow(
        C, "admission_rejections", "vllm_admission_rejections_total", "0.32.0", note="no engine label; answered 503"
    ),
    SourceRow(C, "prompt_tokens", "vllm_prompt_tokens_total", "0.8.5", note="cached tokens included"),
    SourceRow(
        C,
        "prompt_tokens_computed",
        "vllm_prompt_tokens_by_source_total",
        "0.18.1",
        where=(("source", "local_compute"),),
    ),
    SourceRow(C, "generation_tokens", "vllm_generation_tokens_total", "0.8.5"),
    SourceRow(C, "preemptions", "vllm_num_preemptions_total", "0.8.5"),
    SourceRow(C, "prefix_queried_tokens", "vllm_prefix_cache_queries_total", "0.9.2"),
    SourceRow(
        C,
        "prefix_queried_tokens",
        "vllm_gpu_prefix_cache_queries_total",
        "0.8.5",
        "0.8.5",
        factor_fact="block_size",
        note="counted in blocks in 0.8.5; deprecated in 0.9, hidden in 0.11, gone in 0.12",
    ),
    SourceRow(C, "prefix_hit_tokens", "vllm_prefix_cache_hits_total", "0.9.2"),
    SourceRow(
        C,
        "prefix_hit_tokens",
        "vllm_gpu_prefix_cache_hits_total",
        "0.8.5",
        "0.8.5",
        factor_fact="block_size",
        note="blocks, as the queries",
    ),
    SourceRow(C, "external_prefix_queried_tokens", "vllm_external_prefix_cache_queries_total", "0.12.0"),
    SourceRow(C, "external_prefix_hit_tokens", "vllm_external_prefix_cache_hits_total", "0.12.0"),
    SourceRow(C, "spec_drafts", "vllm_spec_decode_num_drafts_total", "0.8.5", note="only with speculation configured"),
    SourceRow(C, "spec_draft_tokens", "vllm_spec_decode_num_draft_tokens_total", "0.8.5"),
    SourceRow(C, "spec_accepted_tokens", "vllm_spec_decode_num_accepted_tokens_total", "0.8.5"),
    SourceRow(
        C,
        "spec_accepted_at_position",
        "vllm_spec_decode_num_accepted_tokens_per_pos_total",
        "0.8.5",
        by="position",
    ),
    SourceRow(C, "kv_transfer_failures", "vllm_nixl_num_failed_transfers_total", "0.12.0", plus=OFFLOAD_FAILURES),
    SourceRow(C, "kv_transfer_failures", "vllm_mooncake_num_failed_transfers_total", "0.33.0"),
    *(
        SourceRow(C, f"estimated_{what}", f"vllm_estimated_{what}_per_gpu_total", "0.18.1", note="--enable-mfu-metrics")
        for what in ("flops", "read_bytes", "write_bytes")
    ),
    *_offloading("bytes", "bytes_total", "total_bytes_total"),
    *_offloading("seconds", "time_total", "total_time_total"),
    *_offloading("transfers", "size", "size", "count"),
    SourceRow(C, "kv_transfer_failures", OFFLOAD_FAILURES[0], "0.32.0", plus=OFFLOAD_FAILURES[1:]),
    SourceRow(C, "kv_transfer_failures", "vllm_mooncake_store_operation_failed_keys_total", "0.32.0"),
    SourceRow(C, "kv_offload_drops", "vllm_kv_offload_allocation_failure_total", "0.32.0"),
    SourceRow(
        C, "engine_steps", "vllm_iteration_tokens_total", "0.8.5", part="count", note="a histogram despite its name"
    ),
    SourceRow(
        H,
        "ttft_seconds",
        "vllm_time_to_first_token_seconds",
        "0.8.5",
        note="one a request at its first output, aborted ones included; bucket edges grew in spring 2025",
    ),
    SourceRow(
        H,
        "tpot_seconds",
        "vllm_request_time_per_output_token_seconds",
        "0.11.0",
        note="per finished request; 0 for one-token outputs",
    ),
    SourceRow(
        H,
        "itl_seconds",
        "vllm_inter_token_latency_seconds",
        "0.10.2",
        note="one a decode output event: several tokens under speculation",
    ),
    SourceRow(
        H,
        "itl_seconds",
        "vllm_time_per_output_token_seconds",
        "0.8.5",
        "0.10.2",
        note="was ITL under another name; deprecated 0.11, hidden 0.12, gone 0.15.1",
    ),
    SourceRow(H, "e2e_seconds", "vllm_e2e_request_latency_seconds", "0.8.5"),
    SourceRow(
        H,
        "queue_seconds",
        "vllm_request_queue_time_seconds",
        "0.8.5",
        note="first queueing only; nothing below 0.3 s; the sum can be corrupt (vLLM issue 49135)",
    ),
    SourceRow(H, "prefill_seconds", "vllm_request_prefill_time_seconds", "0.8.5"),
    SourceRow(H, "decode_seconds", "vllm_request_decode_time_seconds", "0.8.5"),
    SourceRow(H, "inference_seconds", "vllm_request_inference_time_seconds", "0.8.5"),
    SourceRow(H, "prompt_tokens_per_request", "vllm_request_prompt_tokens", "0.8.5"),
    SourceRow(H, "generation_tokens_per_request", "vllm_request_generation_tokens", "0.8.5"),
    SourceRow(H, "kv_transfer_seconds", "vllm_nixl_xfer_time_seconds", "0.12.0"),
    SourceRow(H, "kv_transfer_seconds", "vllm_mooncake_xfer_time_seconds", "0.33.0"),
    SourceRow(
        H,
        "kv_residency_seconds",
        "vllm_kv_block_lifetime_seconds",
        "0.12.0",
        note="only with --kv-cache-metrics; 1 % of blocks",
    ),
    SourceRow(G, "requests_running", "vllm_num_requests_running", "0.8.5"),
    SourceRow(
        G,
        "requests_waiting",
        "vllm_num_requests_waiting",
        "0.8.5",
        note="from between 0.15.1 and 0.20.2 capacity + deferred, before that the waiting queue",
    ),
    SourceRow(
        G,
        "requests_waiting_capacity",
        "vllm_num_requests_waiting_by_reason",
        "0.20.2",
        where=(("reason", "capacity"),),
    ),
    SourceRow(
        G,
        "requests_waiting_deferred",
        "vllm_num_requests_waiting_by_reason",
        "0.20.2",
        where=(("reason", "deferred"),),
    ),
    SourceRow(
        G,
        "kv_utilization",
        "vllm_kv_cache_usage_perc",
        "0.9.2",
        across=LabelAggregation.MEAN,
        note="a ratio despite its name; one series a process (`pid`) in 0.9 to 0.11: the maximum counts",
    ),
    SourceRow(G, "kv_utilization", "vllm_gpu_cache_usage_perc", "0.8.5", "0.8.5", across=LabelAggregation.MEAN),
    SourceRow(G, "kv_utilization_max", "vllm_kv_cache_usage_perc", "0.9.2", across=LabelAggregation.MAX),
    SourceRow(G, "kv_utilization_max", "vllm_gpu_cache_usage_perc", "0.8.5", "0.8.5", across=LabelAggregation.MAX),
    SourceRow(
        G, "kv_offload_pinned", "vllm_kv_offload_cpu_cache_usage_perc", "0.32.0", note="a ratio despite its name"
    ),
    *LMCACHE_ROWS,
    *KVBM_ROWS,
    SourceRow(
        G,
        "adapters_running",
        "vllm_lora_requests_info",
        "0.8.5",
        across=LabelAggregation.NEWEST_NAMES,
        by="running_lora_adapters",
        note="value is the time of the last update; old label sets never go away: only the newest series counts",
    ),
    SourceRow(
        G,
        "adapters_waiting",
        "vllm_lora_requests_info",
        "0.8.5",
        across=LabelAggregation.NEWEST_NAMES,
        by="waiting_lora_adapters",
    ),
    SourceRow(
        G,
        "engine_awake",
        "vllm_engine_sleep_state",
        "0.12.0",
        across=LabelAggregation.MEAN,
        where=(("sleep_state", "awake"),),
    ),
)

VLLM_V1 = EngineTable(
    name="vllm",
    generation="v1",
    title="vLLM",
    signatures=("vllm_num_requests_running",),
    signature_labels=("engine",),
    wrappers=("ray_", "kserve_"),
    rows=ROWS,
    rank_label="engine",
    info=("vllm_cache_config_info",),
    version_path="/version",
    born="vllm_prompt_tokens_created",
    model_label="model_name",
    scanned=(
        "0.8.5",
        "0.9.2",
        "0.10.2",
        "0.11.0",
        "0.12.0",
        "0.15.1",
        "0.18.1",
        "0.20.2",
        "0.25.1",
        "0.26.0",
        "0.29.0",
        "0.32.0",
        "0.33.0",
    ),
    markers=(
        Marker(source="vllm_gpu_cache_usage_perc", since="0.8.5", until="0.11.0"),
        Marker(source="vllm_kv_cache_usage_perc", since="0.9.2"),
        Marker(source="vllm_inter_token_latency_seconds", since="0.10.2"),
        Marker(source="vllm_time_per_output_token_seconds", since="0.8.5", until="0.12.0"),
        Marker(source="vllm_request_time_per_output_token_seconds", since="0.11.0"),
        Marker(source="vllm_engine_sleep_state", since="0.12.0"),
        Marker(source="vllm_request_prefill_kv_computed_tokens", since="0.15.1"),
        Marker(source="vllm_prompt_tokens_by_source_total", since="0.18.1"),
        Marker(source="vllm_prompt_tokens_recomputed_total", since="0.18.1", until="0.18.1"),
        Marker(source="vllm_num_requests_waiting_by_reason", since="0.20.2"),
        Marker(source="vllm_admission_rejections_total", since="0.32.0"),
    ),
    always=(
        *("vllm_prompt_tokens_total", "vllm_request_success_total", "vllm_num_preemptions_total"),
        *("vllm_iteration_tokens_total", "vllm_request_params_n", "vllm_request_params_max_tokens"),
        *("vllm_request_prefill_time_seconds", "vllm_request_decode_time_seconds"),
    ),
    ignored=IGNORED,
    not_exposed=(
        ("kv_offload_used_tokens", "vLLM prints what transfers hold of the host's KV cache, not how full it is"),
        ("adapter_evictions", "vLLM counts no adapter loads or evictions (open: PR 45820, PR 54830)"),
        ("expert_balance_sum", "vLLM logs the balance of experts and prints none (open: PR 43715)"),
    ),
)
