"""Labels that are often misspelt, and label values of which there are only so many.

Owns rows only. Sources: the wheels and exporters that METRICS 1 and 2 name (as `rules.engines`, `rules.gpu_sources`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    "finish_reason": ("finished_reason",),
    "finishreason": ("finished_reason",),
    "reason": ("finished_reason",),
    "model": ("model_name",),
    "modelname": ("model_name", "modelName"),
    "model_name": ("model", "modelName"),
    "modelName": ("model_name",),
    "uuid": ("UUID", "gpu_uuid"),
    "gpu_uuid": ("UUID", "uuid"),
    "UUID": ("uuid", "gpu_uuid"),
    "Hostname": ("hostname",),
    "hostname": ("Hostname",),
    "gpu_id": ("gpu",),
    "gpu_index": ("gpu",),
    "status_code": ("status",),
    "status": ("status_code",),
    "code": ("status_code", "status"),
    "err_type": ("err",),
}
"""A label that is asked for, and what the series have instead."""

FINISHED = frozenset({"stop", "length", "abort", "error", "repetition"})

CLOSED: Mapping[tuple[str, str], frozenset[str]] = {
    ("vllm_request_success_total", "finished_reason"): FINISHED,
    ("trtllm_request_success_total", "finished_reason"): frozenset({"stop", "length", "timeout", "cancelled"}),
    ("vllm_num_requests_waiting_by_reason", "reason"): frozenset({"capacity", "deferred"}),
    ("vllm_engine_sleep_state", "sleep_state"): frozenset({"awake", "weights_offloaded", "discard_all"}),
    ("vllm_prompt_tokens_by_source_total", "source"): frozenset(
        {"local_compute", "local_cache_hit", "external_kv_transfer"}
    ),
    ("sglang_realtime_tokens_total", "mode"): frozenset({"prefill_compute", "prefill_cache", "decode"}),
    ("tgi_request_failure", "err"): frozenset(
        {"overloaded", "validation", "template", "generation", "dropped", "incomplete"}
    ),
    ("dynamo_frontend_requests_total", "status"): frozenset({"success", "error"}),
    ("nv_trt_llm_request_metrics", "request_type"): frozenset({"waiting", "context", "scheduled", "max", "active"}),
    ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type"): frozenset(
        {"fraction", "tokens_per", "used", "free", "max"}
    ),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "clock_event"): frozenset(
        {
            *("gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal"),
            *("hw_power_brake", "display_clocks"),
        }
    ),
}
"""By key and label: every value there is in any scanned release."""

TARGET_LABELS = frozenset(
    {
        *("job", "instance", "namespace", "pod", "container", "endpoint", "service", "node", "cluster", "prometheus"),
        *("env", "environment", "region", "zone", "tier", "pool", "replica", "app", "team", "tenant", "host", "server"),
    }
)
"""Labels that Prometheus or its operator puts on every series of a target, or people do; no page has them."""
