"""SGLang 0.4.1 to 0.5.23: every rename, type and label change of its pages is a row.

Sources: the released wheels (sglang/srt/metrics/collector.py up to 0.5.9, sglang/srt/observability/metrics_collector.py
from 0.5.10, http_request_metrics.py), scanned at 0.4.1, 0.4.6, 0.5.3, 0.5.4, 0.5.5.post3, 0.5.7, 0.5.10 and 0.5.23, and
live 0.5.23 pages. `since` and `until` are scanned releases: the true first release lies between `since` and the scan
before it. The engine always runs in multiprocess mode: no start time, no `_created`, and a series appears with its
first event. Most counters therefore name a sample (`zero_with`) that makes their absence a zero. A new release needs a
row for a rename, a marker if its page is recognisable, and its number in `scanned`.
"""

from __future__ import annotations

from rules.engines.sglang_ignored import IGNORED, NOT_EXPOSED
from rules.engines.table import EngineTable, LabelAggregation, Marker, Match, SourceRow, add_prefix, http_status_row
from rules.telemetry.families import FamilyKind

C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE

STREAMED = Match(label="is_streaming", values=("true",), optional=True)
"""A request without streaming gets its first token with its last: its TTFT is its whole time."""

ALL_PRIORITIES = Match(label="priority", values=("",), optional=True)
"""With priority scheduling the total has an empty priority, and each priority has its own series."""

HITS = Match(label="mode", values=("device_hit", "host_hit", "storage_hit"))
BEYOND_GPU = Match(label="mode", values=("input", "host_hit", "storage_hit"))
PREFILLED = Match(label="mode", values=("input", *HITS.values))

GENERATING = Match(
    label="endpoint",
    values=(
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/generate",
        "/api/chat",
        "/invocations",
    ),
)
"""Endpoints of generating requests. The page also counts /health and /metrics."""


def _http(family: str, status: str) -> SourceRow:
    code = http_status_row("status_code", status)
    note = "generating endpoints only; in 0.5.23 counted up to 2 s after the end of the answer"
    return SourceRow(C, family, "http_responses_total", "0.5.7", matches=(GENERATING, *code), lazy=True, note=note)


COUNTERS: tuple[SourceRow, ...] = (
    SourceRow(
        C,
        "requests_finished",
        "num_requests_total",
        "0.4.6",
        zero_with="spec_accept_length",
        note="streamed or not, however they ended; not those aborted while still queued",
    ),
    SourceRow(
        C,
        "requests_finished",
        "e2e_request_latency_seconds",
        "0.4.1",
        "0.4.1",
        part="count",
        note="before there was a counter: one observation a finished request",
    ),
    SourceRow(
        C,
        "requests_arrived",
        "http_requests_total",
        "0.5.7",
        matches=(GENERATING,),
        lazy=True,
        note="counted on arrival, generating endpoints only; one HTTP request with several prompts is one",
    ),
    SourceRow(
        C,
        "requests_aborted",
        "num_aborted_requests_total",
        "0.5.3",
        zero_with="num_retracted_reqs",
        note="calls to abort: an abort of everything is one; several tokenizer workers also count streams that ended well",
    ),
    _http("http_requests_ok", "2"),
    _http("http_requests_refused", "4"),
    _http("http_requests_failed", "5"),
    _http("admission_rejections", "503"),
    SourceRow(
        C,
        "prompt_tokens",
        "prompt_tokens_total",
        "0.4.1",
        zero_with="token_usage",
        note="cached tokens included; counted when a request finishes",
    ),
    SourceRow(
        C,
        "prompt_tokens_computed",
        "uncached_prompt_tokens_histogram",
        "0.5.23",
        part="sum",
        note="counted with prompt_tokens_total; realtime_tokens_total moves earlier and counts retracted work again",
    ),
    SourceRow(
        C,
        "generation_tokens",
        "generation_tokens_total",
        "0.4.1",
        zero_with="token_usage",
        note="counted when a request finishes, streamed or not: long outputs come at once",
    ),
    SourceRow(
        C,
        "preemptions",
        "num_retracted_requests_total",
        "0.5.7",
        zero_with="max_total_num_tokens",
        note="SGLang says retraction; appears with the first one",
    ),
    SourceRow(
        C,
        "prefix_queried_tokens",
        "prefill_effective_tokens_total",
        "0.5.23",
        matches=(PREFILLED,),
        note="counted when a prompt is prefilled, beside its first token; retracted requests only once",
    ),
    SourceRow(
        C,
        "prefix_queried_tokens",
        "prompt_tokens_total",
        "0.4.6",
        zero_with="spec_accept_length",
        note="before: when a request finishes, as its cached tokens",
    ),
    SourceRow(C, "prefix_hit_tokens", "prefill_effective_tokens_total", "0.5.23", matches=(HITS,)),
    SourceRow(
        C,
        "prefix_hit_tokens",
        "cached_tokens_total",
        "0.4.6",
        zero_with="spec_accept_length",
        note="cache_source: a request adds to device, host and storage_*, or (without details) to total, never to both",
    ),
    SourceRow(C, "external_prefix_queried_tokens", "prefill_effective_tokens_total", "0.5.23", matches=(BEYOND_GPU,)),
    SourceRow(
        C,
        "external_prefix_hit_tokens",
        "load_back_tokens_total",
        "0.5.5",
        matches=(Match(label="pool", values=("kv",), optional=True),),
        zero_with="hicache_host_total_tokens",
        note="only with HiCache; what came from storage passes through the host",
    ),
    *(
        SourceRow(C, f"estimated_{what}", f"estimated_{what}_per_gpu_total", "0.5.10", note="--enable-mfu-metrics")
        for what in ("flops", "read_bytes", "write_bytes")
    ),
    SourceRow(C, "kv_offload_load_bytes", "load_back_bytes_total", "0.5.23", note="of the rank with the most"),
    SourceRow(C, "kv_offload_store_bytes", "hicache_backup_bytes_total", "0.5.23", note="of the rank with the most"),
    SourceRow(C, "kv_offload_load_seconds", "load_back_duration_seconds", "0.5.5", part="sum"),
    SourceRow(C, "kv_offload_load_transfers", "load_back_duration_seconds", "0.5.5", part="count"),
    SourceRow(C, "kv_offload_store_seconds", "hicache_backup_duration_seconds", "0.5.23", part="sum"),
    SourceRow(C, "kv_offload_store_transfers", "hicache_backup_duration_seconds", "0.5.23", part="count"),
    SourceRow(C, "kv_offload_drops", "hicache_dropped_tokens_total", "0.5.23", note="tokens evicted without a copy"),
    SourceRow(
        C,
        "kv_transfer_failures",
        "num_transfer_failed_reqs_total",
        "0.5.3",
        zero_with="kv_transfer_latency_ms_bucket",
        note="with separate prefill and decode servers",
    ),
    SourceRow(
        C,
        "kv_transfer_failures",
        "storage_prefetch_unfulfilled_tokens_total",
        "0.5.23",
        where=(("reason", "storage_transfer"),),
        note="tokens that HiCache's storage had and did not deliver",
    ),
    SourceRow(
        C,
        "engine_steps",
        "cuda_graph_passes_total",
        "0.5.7",
        note="forward passes, with a CUDA graph or without; up to 0.5.10 decoding ones only",
    ),
    SourceRow(
        C,
        "expert_balance_sum",
        "eplb_balancedness",
        "0.5.7",
        part="sum",
        note="a summary; of each forward pass the mean over layers, GPUs' mean by largest count of tokens; where reported",
    ),
    SourceRow(
        C, "expert_balance_passes", "eplb_balancedness", "0.5.7", part="count", note="appears with the first pass"
    ),
)

HISTOGRAMS: tuple[SourceRow, ...] = (
    SourceRow(
        H,
        "ttft_seconds",
        "time_to_first_token_seconds",
        "0.4.1",
        matches=(STREAMED,),
        note="from 0.5.23 told apart: streamed ones only; nothing below 0.1 s from 0.4.6 on, before from 1 ms to 30 s",
    ),
    SourceRow(
        H,
        "tpot_seconds",
        "request_time_per_output_token_seconds",
        "0.5.23",
        note="(finished - first token) / (tokens - 1), streamed or not",
    ),
    SourceRow(
        H,
        "itl_seconds",
        "inter_token_latency_seconds",
        "0.4.6",
        note="per token: n tokens that come at once are n observations of a share of 1/n",
    ),
    SourceRow(H, "e2e_seconds", "e2e_request_latency_seconds", "0.4.1", note="streamed or not"),
    SourceRow(H, "queue_seconds", "queue_time_seconds", "0.5.3", note="below 0.1 s in one bucket up to 0.5.10"),
    SourceRow(
        H,
        "prefill_seconds",
        "per_stage_req_latency_seconds",
        "0.5.3",
        where=(("stage", "prefill_forward"),),
        note="last scheduling to first token; up to 0.5.7, of a prompt in chunks only the last chunk",
    ),
    SourceRow(
        H,
        "prompt_tokens_per_request",
        "prompt_tokens_histogram",
        "0.5.3",
        note="nothing below 100 tokens by default; before 0.5.23 needs --collect-tokens-histogram",
    ),
    SourceRow(
        H,
        "generation_tokens_per_request",
        "generation_tokens_histogram",
        "0.5.3",
        note="first edge 100 tokens by default; lower ones (--generation-tokens-buckets) bound TPOT closer",
    ),
    SourceRow(
        H,
        "kv_transfer_seconds",
        "kv_transfer_latency_ms",
        "0.5.10",
        factor=1e-3,
        note="milliseconds; up to 0.5.7 a gauge of the same name, which is not read",
    ),
    SourceRow(H, "kv_transfer_seconds", "load_back_duration_seconds", "0.5.5", note="of HiCache, from host to GPU"),
)

GAUGES: tuple[SourceRow, ...] = (
    SourceRow(G, "requests_running", "num_running_reqs", "0.4.1", matches=(ALL_PRIORITIES,)),
    SourceRow(G, "requests_waiting", "num_queue_reqs", "0.4.1", matches=(ALL_PRIORITIES,)),
    SourceRow(G, "requests_paused", "num_paused_reqs", "0.5.3", note="while weights are updated"),
    SourceRow(
        G,
        "kv_utilization",
        "token_usage",
        "0.4.1",
        across=LabelAggregation.MEAN,
        note="the fullest pool (full attention, sliding window, Mamba); cached tokens that may be evicted do not count",
    ),
    SourceRow(G, "kv_utilization_max", "token_usage", "0.4.1", across=LabelAggregation.MAX),
    SourceRow(G, "kv_offload_used_tokens", "hicache_host_used_tokens", "0.5.10"),
    SourceRow(G, "kv_offload_total_tokens", "hicache_host_total_tokens", "0.5.10"),
    SourceRow(
        G,
        "spec_accept_length",
        "spec_accept_length",
        "0.4.6",
        across=LabelAggregation.MEAN,
        note="of the last log interval, bonus token included; 0 without speculation",
    ),
    SourceRow(
        G, "spec_accept_rate", "spec_accept_rate", "0.5.4", across=LabelAggregation.MEAN, note="accepted / drafted"
    ),
    SourceRow(G, "spec_steps", "spec_num_steps", "0.5.23", across=LabelAggregation.MAX),
    SourceRow(
        G,
        "engine_startup_seconds",
        "startup_time_seconds",
        "0.5.23",
        across=LabelAggregation.MAX,
        matches=(Match(label="phase", values=("scheduler_e2e", "tokenizer_e2e")),),
        note="the longer of its two processes, which start side by side",
    ),
    SourceRow(G, "engine_startup_seconds", "engine_startup_time", "0.5.3", "0.5.10", across=LabelAggregation.MAX),
)

SGLANG = EngineTable(
    name="sglang",
    generation="srt",
    title="SGLang",
    signatures=(
        "sglang_num_running_reqs",
        "sglang_num_queue_reqs",
        "sglang_token_usage",
        "sglang_num_retracted_reqs",
        "sglang_prompt_tokens_total",
        "sglang_num_requests_total",
        "sglang_e2e_request_latency_seconds_count",
    ),
    wrappers=("ray_", "kserve_"),
    rows=add_prefix("sglang_", (*COUNTERS, *HISTOGRAMS, *GAUGES)),
    repeats=("pid", "tp_rank", "pp_rank", "moe_ep_rank"),
    rank_label="dp_rank",
    info=("sglang_cache_config_info",),
    fact_gauges=(
        ("kv_tokens", "sglang_max_total_num_tokens"),
        ("block_size", "sglang_page_size"),
        ("num_gpu_blocks", "sglang_num_pages"),
        ("max_model_len", "sglang_context_len"),
    ),
    model_label="model_name",
    scanned=("0.4.1", "0.4.6", "0.5.3", "0.5.4", "0.5.5", "0.5.7", "0.5.10", "0.5.23"),
    markers=(
        Marker(source="sglang_time_per_output_token_seconds", since="0.4.1", until="0.4.1"),
        Marker(source="sglang_spec_accept_length", since="0.4.6"),
        Marker(source="sglang_avg_request_queue_latency", since="0.4.6", until="0.4.6"),
        Marker(source="sglang_num_retracted_reqs", since="0.5.3"),
        Marker(source="sglang_is_cuda_graph", since="0.5.4"),
        Marker(source="sglang_max_total_num_tokens", since="0.5.7"),
        Marker(source="sglang_engine_startup_time", since="0.5.3", until="0.5.10"),
        # Their absence proves nothing: excerpts of pages omit some of them.
        Marker(source="sglang_full_token_usage", since="0.5.10", until="0.5.23"),
        Marker(source="sglang_http_requests_active", since="0.5.10", until="0.5.23"),
        Marker(source="sglang_kv_used_tokens", since="0.5.23"),
    ),
    always=(
        *("sglang_cache_hit_rate", "sglang_gen_throughput", "sglang_num_queue_reqs"),
        *("sglang_num_running_reqs", "sglang_num_used_tokens", "sglang_token_usage"),
    ),
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
    itl_is_per_token=True,
)
