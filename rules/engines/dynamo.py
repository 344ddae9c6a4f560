"""NVIDIA Dynamo 1.6: its frontend (port 8000), and a worker (DYN_SYSTEM_PORT) without families of an engine.

Sources: lib/llm/src/http/service/metrics.rs, lib/runtime/src/metrics/prometheus_names.rs and the ingress
push_handler.rs of ai-dynamo/dynamo at 1.6, the names of the 1.6.1 wheel, and its example pages of early 2026 for older
names. A worker that passes vllm:, sglang: or trtllm_ families through is read as its engine, so both tables are last in
the registry. The frontend's times are a client's: they include tokenising, routing and the network to the worker. A
series appears with its first event. DYN_METRICS_PREFIX replaces `dynamo_frontend`. Such a page is unrecognised, because
a name does not show its prefix. Dynamo's source plans to remove the variable. Before requests_started_total the model
is in lower case.
"""

from __future__ import annotations

from rules.engines.table import KVBM_ROWS, EngineTable, LabelAggregation, Match, SourceRow, add_prefix
from rules.telemetry.families import FamilyKind

C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE
SINCE, BEFORE = "1.6.1", "0.8.0"

ALWAYS = "disconnected_clients"
"""Only family that every release prints before the first request."""
STARTED = "requests_started_total"
"""Newer than cancellations and rejections: on a page with it, their absence is zero."""

BROKEN = Match(label="error_type", values=("internal", "response_timeout", "unavailable"), optional=True)
"""Errors that are neither the client's nor a lack of room. Releases without the label do not separate errors."""
WRONG = Match(label="error_type", values=("validation", "not_found", "not_implemented"))
CANCELLED = "model_cancellation_total"


FRONTEND_ROWS: tuple[SourceRow, ...] = (
    SourceRow(C, "requests_arrived", "requests_started_total", note="refused ones included"),
    SourceRow(
        C,
        "requests_finished",
        "requests_total",
        note="successes, and requests that their clients left",
        where=(("status", "success"),),
        plus=(CANCELLED,),
        lazy=True,
        zero_with=ALWAYS,
    ),
    SourceRow(
        C,
        "requests_failed",
        "requests_total",
        where=(("status", "error"),),
        matches=(BROKEN,),
        lazy=True,
        zero_with=ALWAYS,
    ),
    SourceRow(C, "http_requests_refused", "requests_total", matches=(WRONG,), lazy=True),
    SourceRow(C, "requests_aborted", CANCELLED, zero_with=STARTED),
    SourceRow(C, "admission_rejections", "model_rejection_total", note="no worker had room", zero_with=STARTED),
    SourceRow(C, "prompt_tokens", "input_sequence_tokens", note="of requests that had a first token", part="sum"),
    SourceRow(C, "generation_tokens", "output_tokens_total", note="as they are streamed"),
    SourceRow(C, "prefix_hit_tokens", "cached_tokens", note="0 also where the engine does not tell them", part="sum"),
    SourceRow(C, "prefix_queried_tokens", "input_sequence_tokens", part="sum"),
    SourceRow(
        H, "ttft_seconds", "time_to_first_token_seconds", note="from the HTTP handler's start; the first edge is 0"
    ),
    SourceRow(
        H, "itl_seconds", "inter_token_latency_seconds", note="per token: the tokens of one event share its time"
    ),
    SourceRow(H, "e2e_seconds", "request_duration_seconds", note="failed ones included; edges 0 2 4 8 ... 510 s"),
    SourceRow(H, "prompt_tokens_per_request", "input_sequence_tokens", note="observed at the first token"),
    SourceRow(H, "generation_tokens_per_request", "output_sequence_tokens", note="of requests with at least one token"),
    SourceRow(G, "requests_running", "active_requests", note="in the system: those that wait in router or engine too"),
    SourceRow(G, "requests_running", "inflight_requests", note="its old name"),
)

_FRONTEND_IGNORED: tuple[tuple[str, str], ...] = (
    ("dynamo_frontend_inflight_requests", "deprecated twin of active_requests"),
    (
        "dynamo_frontend_queued_requests",
        "from the handler's start to the first token: prefill is in it, it is no queue",
    ),
    ("dynamo_frontend_router_queue_", "the router's queue, a part of the active requests"),
    ("dynamo_frontend_disconnected_clients", "a gauge of the clients that left; cancellations are used"),
    ("dynamo_frontend_model_ready", "whether a worker is there"),
    ("dynamo_frontend_model_workers", "how many workers there are"),
    ("dynamo_frontend_model_migration_", "requests that moved to another worker"),
    ("dynamo_frontend_model_", "the workers' configuration"),
    ("dynamo_frontend_worker_", "a worker's last value"),
    ("dynamo_frontend_lora_", "where adapters are placed, and what changed in the last tick"),
    ("dynamo_frontend_tokenizer_", "the tokeniser's own"),
    ("dynamo_frontend_tokenize_", "stages of the frontend"),
    ("dynamo_frontend_template_", "stages of the frontend"),
    ("dynamo_frontend_detokenize_", "stages of the frontend"),
    ("dynamo_frontend_stage_", "stages of the frontend"),
    ("dynamo_frontend_event_loop_", "the frontend's event loop"),
    ("dynamo_frontend_embedding_", "embeddings are not judged"),
    ("dynamo_frontend_images_", "multimodal inputs are not judged"),
    ("dynamo_frontend_image_tokens_", "multimodal inputs are not judged"),
    ("dynamo_frontend_videos_", "multimodal inputs are not judged"),
    ("dynamo_frontend_audio_", "multimodal inputs are not judged"),
    ("dynamo_component_", "the router's count of the requests that the frontend counts, or a worker's"),
)

_FROM_WORKERS = "Dynamo's frontend does not print it; the workers' pages may (set DYN_SYSTEM_PORT)"

_NO_QUEUE = "Dynamo's frontend counts what has no first token yet, which is no queue; the workers print theirs"

DYNAMO_FRONTEND = EngineTable(
    name="dynamo",
    generation="frontend",
    title="Dynamo",
    signatures=(f"dynamo_frontend_{ALWAYS}", "dynamo_frontend_requests_total"),
    rows=add_prefix("dynamo_frontend_", FRONTEND_ROWS, SINCE),
    fact_gauges=(
        ("max_model_len", "dynamo_frontend_model_context_length"),
        ("block_size", "dynamo_frontend_model_kv_cache_block_size"),
        ("num_gpu_blocks", "dynamo_frontend_model_total_kv_blocks"),
        ("max_num_seqs", "dynamo_frontend_model_max_num_seqs"),
        ("max_num_batched_tokens", "dynamo_frontend_model_max_num_batched_tokens"),
    ),
    model_label="model",
    ignored=_FRONTEND_IGNORED,
    not_exposed=(
        (
            "tpot_seconds",
            "Dynamo's frontend times the gaps between tokens, not the mean of a request: itl_* is per token",
        ),
        (
            "queue_seconds",
            _NO_QUEUE,
        ),
        (
            "requests_waiting",
            _NO_QUEUE,
        ),
        *(
            (family, _FROM_WORKERS)
            for family in (
                *("prefill_seconds", "kv_utilization", "preemptions", "prompt_tokens_computed", "spec_accepted_tokens"),
                *("spec_drafts", "kv_transfer_seconds", "kv_residency_seconds", "cold_start_seconds"),
            )
        ),
        ("adapters_running", "Dynamo's frontend prints where adapters are placed, not which have requests"),
        ("adapter_evictions", "Dynamo's frontend prints the unloads of its last tick, not their number"),
        ("expert_balance_sum", "Dynamo's frontend does not see the experts"),
    ),
    itl_is_per_token=True,
)

GENERATE = ("dynamo_endpoint", "generate")
"""Endpoint of requests. A worker has other endpoints too (clear_kv_blocks, load_lora)."""


def _worker(
    kind: FamilyKind,
    family: str,
    source: str,
    note: str = "",
    *,
    across: LabelAggregation = LabelAggregation.SUM,
    generate: bool = True,
    part: str = "",
    zero_with: str = "",
    until: str = "",
) -> SourceRow:
    return SourceRow(
        kind,
        family,
        f"dynamo_component_{source}",
        until or SINCE,
        until,
        across=across,
        where=(GENERATE,) if generate else (),
        part=part,
        zero_with=f"dynamo_component_{zero_with}" if zero_with else "",
        note=note,
    )


def _rank(family: str, source: str, across: LabelAggregation, until: str = "", note: str = "") -> SourceRow:
    return _worker(G, family, source, note, across=across, generate=False, until=until)


WORKER_ROWS: tuple[SourceRow, ...] = (
    _worker(C, "requests_arrived", "requests_total", "counted when the worker takes a request in"),
    _worker(
        C,
        "requests_finished",
        "request_duration_seconds",
        "observed when it ends, however: failed ones are among them, and count twice as ends",
        part="count",
    ),
    _worker(C, "requests_failed", "errors_total", zero_with="requests_total"),
    _worker(C, "requests_aborted", "cancellation_total"),
    _worker(H, "e2e_seconds", "request_duration_seconds", "from the worker's side; the last edge was 10 s at first"),
    _worker(G, "requests_running", "inflight_requests", "in the worker: those that its engine queues too"),
    _rank("kv_utilization", "gpu_cache_usage_percent", LabelAggregation.MEAN, note="a ratio despite its name"),
    _rank("kv_utilization", "kvstats_gpu_cache_usage_percent", LabelAggregation.MEAN, until=BEFORE),
    _rank("kv_utilization_max", "gpu_cache_usage_percent", LabelAggregation.MAX),
    _rank("kv_utilization_max", "kvstats_gpu_cache_usage_percent", LabelAggregation.MAX, until=BEFORE),
    _rank("prefix_hit_gauge", "kv_cache_hit_rate", LabelAggregation.MEAN, note="as the engine averages it"),
    _rank("prefix_hit_gauge", "kvstats_gpu_prefix_cache_hit_rate", LabelAggregation.MEAN, until=BEFORE),
    _rank(
        "engine_startup_seconds",
        "model_load_time_seconds",
        LabelAggregation.MAX,
        note="loading: a part of a cold start",
    ),
)

_WORKER_IGNORED: tuple[tuple[str, str], ...] = (
    ("dynamo_component_uptime_seconds", "how long the worker's runtime is up"),
    ("dynamo_component_request_bytes", "volume of requests"),
    ("dynamo_component_response_bytes", "volume of answers"),
    ("dynamo_component_kvstats_active_blocks", "the share in use says it"),
    ("dynamo_component_kv_", "events about KV blocks, for the router"),
    ("dynamo_component_router_", "the router's"),
    ("dynamo_component_embedding_cache_", "multimodal inputs are not judged"),
    ("vllm_", "the engine's own: leave the engine of this target unset, then its page is read as vLLM's"),
    ("sglang_", "the engine's own: leave the engine of this target unset, then its page is read as SGLang's"),
    ("trtllm_", "the engine's own: leave the engine of this target unset, then its page is read as TensorRT-LLM's"),
)

_FROM_ENGINE = "a Dynamo worker prints it only where it passes its engine's own metrics through"

DYNAMO_WORKER = EngineTable(
    name="dynamo",
    generation="worker",
    title="Dynamo",
    signatures=("dynamo_component_uptime_seconds", "dynamo_component_requests_total"),
    rows=(*WORKER_ROWS, *KVBM_ROWS),
    fact_gauges=(
        ("num_gpu_blocks", "dynamo_component_total_blocks"),
        ("num_gpu_blocks", "dynamo_component_kvstats_total_blocks"),
    ),
    model_label="model",
    ignored=_WORKER_IGNORED,
    not_exposed=tuple(
        (family, _FROM_ENGINE)
        for family in (
            *("ttft_seconds", "tpot_seconds", "itl_seconds", "queue_seconds", "prefill_seconds", "decode_seconds"),
            *("prompt_tokens", "generation_tokens", "prompt_tokens_per_request", "generation_tokens_per_request"),
            *("requests_waiting", "preemptions", "prompt_tokens_computed", "spec_accepted_tokens", "spec_drafts"),
            *("adapters_running", "adapter_evictions", "kv_transfer_seconds", "kv_residency_seconds"),
            *("expert_balance_sum", "admission_rejections"),
        )
    ),
)
