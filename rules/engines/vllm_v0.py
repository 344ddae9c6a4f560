"""vLLM with the V0 engine, 0.6.6 to 0.8 (VLLM_USE_V1=0), pages of 0.5 as far as possible, and its ignored families.

Sources: vllm/engine/metrics.py and vllm/engine/llm_engine.py of the released wheels 0.6.6.post1 and 0.8.5, the
repository's history for 0.5.0, and captured pages of 0.5.0 and of January 2025. Families shared with V1 have the same
name without the `engine` label. Histograms appear with their first observation, counters and gauges with the first
step. A new release needs a row for a rename and its number in `scanned`. Release 0.6.4 swaps prefill and decode times
(vLLM PR 10853, fixed from 0.6.5; observed in the wheels 0.6.4.post1 and 0.6.6.post1). Its names are those of 0.6.6,
except the last edge of `iteration_tokens_total`, 8096. This table reads it as 0.6.6, so those two times are wrong.
Every V0 family has a row or a reason here; a test checks its pages.
"""

from __future__ import annotations

from rules.engines.table import EngineTable, LabelAggregation, Marker, SourceRow
from rules.engines.vllm_v1 import GENERATING
from rules.telemetry.families import FamilyKind

IGNORED: tuple[tuple[str, str], ...] = (
    ("python_", "the interpreter's own"),
    ("process_", "the process's own; its start time is used"),
    ("http_", "the HTTP layer's own; its request counter is used"),
    ("vllm_request_params_", "what clients asked for, not what happened"),
    ("vllm_request_max_num_generation_tokens", "what clients asked for, not what happened"),
    ("vllm_tokens", "prompt and generation tokens, which are counted apart"),
    ("vllm_avg_", "a throughput over the log's interval of some seconds; the token counters are used"),
    ("vllm_num_requests_swapped", "requests whose KV lies in CPU memory; each was counted as a preemption"),
    ("vllm_cpu_", "blocks swapped out to CPU memory"),
    ("vllm_time_in_queue_requests", "request_queue_time_seconds says the same"),
    (
        "vllm_model_forward_time_milliseconds",
        "summed over a request's steps, each shared with others; only for traced ones",
    ),
    (
        "vllm_model_execute_time_milliseconds",
        "summed over a request's steps, each shared with others; only for traced ones",
    ),
    ("vllm_spec_decode_efficiency", "emitted tokens of the most there could be; the acceptance rate is used"),
    ("vllm_spec_decode_num_", "sums of running totals (vLLM PR 15415); the acceptance rate is used"),
)


C, H, G = FamilyKind.COUNTER, FamilyKind.HISTOGRAM, FamilyKind.GAUGE
RUNNING = "vllm_num_requests_running"
EVERY_FINISH = "vllm_request_success_total"


def _finished(family: str, reason: str) -> SourceRow:
    note = "a reason appears with its first request, the counter with its first"
    where = ("finished_reason", reason)
    return SourceRow(C, family, EVERY_FINISH, "0.5.0", where=(where,), lazy=True, zero_with=RUNNING, note=note)


def _http(family: str, status: str) -> SourceRow:
    note = (
        "prometheus-fastapi-instrumentator, in vllm/entrypoints/openai/api_server.py: a status before its first answer"
    )
    return SourceRow(
        C,
        family,
        "http_requests_total",
        "0.6.6",
        where=(("status", status),),
        matches=(GENERATING,),
        lazy=True,
        note=note,
    )


ROWS: tuple[SourceRow, ...] = (
    SourceRow(
        C,
        "requests_finished",
        EVERY_FINISH,
        "0.5.0",
        lazy=True,
        zero_with=RUNNING,
        note="one a sequence, so n of a request with n > 1; a disconnect is in none",
    ),
    _finished("requests_aborted", "abort"),
    _finished("requests_ended_by_length", "length"),
    _http("http_requests_ok", "2xx"),
    _http("http_requests_refused", "4xx"),
    _http("http_requests_failed", "5xx"),
    SourceRow(
        C,
        "prompt_tokens",
        "vllm_prompt_tokens_total",
        "0.5.0",
        note="cached tokens included, and tokens prefilled again after a preemption",
    ),
    SourceRow(C, "generation_tokens", "vllm_generation_tokens_total", "0.5.0"),
    SourceRow(C, "preemptions", "vllm_num_preemptions_total", "0.5.0", note="by recomputing and by swapping out"),
    SourceRow(
        C,
        "engine_steps",
        "vllm_iteration_tokens_total",
        "0.6.6",
        part="count",
        note="a histogram despite its name; the log of an idle server, every 10 s, counts and refreshes gauges too",
    ),
    SourceRow(
        H,
        "ttft_seconds",
        "vllm_time_to_first_token_seconds",
        "0.5.0",
        note="edges end at 10 s; a request that was preempted and recomputed is observed again",
    ),
    SourceRow(
        H,
        "itl_seconds",
        "vllm_time_per_output_token_seconds",
        "0.5.0",
        note="is ITL, one a decode step of a request; edges end at 2.5 s",
    ),
    SourceRow(
        H,
        "e2e_seconds",
        "vllm_e2e_request_latency_seconds",
        "0.5.0",
        note="edges ended at 60 s, in 0.5 they began at 1 s",
    ),
    SourceRow(
        H, "queue_seconds", "vllm_request_queue_time_seconds", "0.6.6", note="first scheduling; nothing below 0.3 s"
    ),
    SourceRow(H, "prefill_seconds", "vllm_request_prefill_time_seconds", "0.6.6"),
    SourceRow(H, "decode_seconds", "vllm_request_decode_time_seconds", "0.6.6"),
    SourceRow(H, "inference_seconds", "vllm_request_inference_time_seconds", "0.6.6"),
    SourceRow(H, "prompt_tokens_per_request", "vllm_request_prompt_tokens", "0.5.0"),
    SourceRow(H, "generation_tokens_per_request", "vllm_request_generation_tokens", "0.5.0", note="one a sequence"),
    SourceRow(G, "requests_running", RUNNING, "0.5.0"),
    SourceRow(G, "requests_waiting", "vllm_num_requests_waiting", "0.5.0", note="those swapped out are not among them"),
    SourceRow(
        G,
        "kv_utilization",
        "vllm_gpu_cache_usage_perc",
        "0.5.0",
        across=LabelAggregation.MEAN,
        note="a ratio despite its name",
    ),
    SourceRow(G, "kv_utilization_max", "vllm_gpu_cache_usage_perc", "0.5.0", across=LabelAggregation.MAX),
    SourceRow(
        G,
        "prefix_hit_gauge",
        "vllm_gpu_prefix_cache_hit_rate",
        "0.6.6",
        across=LabelAggregation.MEAN,
        none=-1.0,
        note="of blocks, averaged since the start, of the first pipeline stage's scheduler; -1 without prefix caching",
    ),
    SourceRow(
        G,
        "spec_accept_rate",
        "vllm_spec_decode_draft_acceptance_rate",
        "0.6.6",
        across=LabelAggregation.MEAN,
        note="accepted / drafted since the start; only with speculation configured",
    ),
    SourceRow(
        G,
        "adapters_running",
        "vllm_lora_requests_info",
        "0.6.6",
        across=LabelAggregation.NEWEST_NAMES,
        by="running_lora_adapters",
        note="value is the time of the last update; old label sets never go away: only the newest series counts",
    ),
    SourceRow(
        G,
        "adapters_waiting",
        "vllm_lora_requests_info",
        "0.6.6",
        across=LabelAggregation.NEWEST_NAMES,
        by="waiting_lora_adapters",
    ),
)

_NO_COUNTERS = (
    "vLLM V0 counts no prefix hits, and its gauge of the hit rate is -1 without prefix caching and absent before 0.6.6"
)
_SUM_OF_SUMS = (
    "vLLM V0 adds its running totals to these counters again and again (vLLM PR 15415): their increase says nothing"
)
_NOT_YET = "vLLM V0 prints a histogram from its first observation on, and there was none"
_FROM_0_6 = "vLLM V0 has it from between 0.5.0 and 0.6.6 on, a histogram from its first observation on"

NOT_EXPOSED: tuple[tuple[str, str], ...] = (
    ("adapter_evictions", "vLLM counts no adapter loads or evictions (open: PR 45820, PR 54830)"),
    ("expert_balance_sum", "vLLM prints nothing about experts"),
    *((family, _NOT_YET) for family in ("ttft_seconds", "itl_seconds", "e2e_seconds")),
    *((family, _NOT_YET) for family in ("prompt_tokens_per_request", "generation_tokens_per_request")),
    *((family, _FROM_0_6) for family in ("queue_seconds", "prefill_seconds", "decode_seconds")),
    ("prefix_hit_gauge", _FROM_0_6),
    ("adapters_running", _FROM_0_6),
    ("tpot_seconds", "vLLM V0 has no time per output token of requests; the histogram of that name is ITL"),
    ("prefix_hit_tokens", _NO_COUNTERS),
    ("prefix_queried_tokens", _NO_COUNTERS),
    ("prompt_tokens_computed", "vLLM V0 does not tell cached prompt tokens from computed ones"),
    ("spec_accepted_tokens", _SUM_OF_SUMS),
    ("spec_drafts", "vLLM V0 does not count speculation rounds"),
    ("requests_failed", "vLLM V0 has no finish reason for errors"),
    ("admission_rejections", "vLLM V0 has no queue limit"),
    ("kv_transfer_seconds", "vLLM V0 does not time KV transfers"),
    ("kv_residency_seconds", "vLLM V0 does not follow the life of KV blocks"),
)

VLLM_V0 = EngineTable(
    name="vllm",
    generation="v0",
    title="vLLM",
    signatures=(RUNNING,),
    signature_without=("engine",),
    wrappers=("ray_", "kserve_"),
    rows=ROWS,
    info=("vllm_cache_config_info",),
    version_path="/version",
    model_label="model_name",
    scanned=("0.5.0", "0.6.6", "0.8.5"),
    markers=(
        Marker(source="vllm_request_params_best_of", since="0.5.0", until="0.5.0"),
        Marker(source="vllm_avg_prompt_throughput_toks_per_s", since="0.5.0", until="0.6.6"),
        Marker(source="vllm_tokens_total", since="0.6.6", until="0.6.6"),
    ),
    ignored=IGNORED,
    not_exposed=NOT_EXPOSED,
)
