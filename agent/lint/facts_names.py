"""What became of metric names, and whose other names look like an engine's: the rows that the engine tables do not have.

Owns rows only. A name that an engine table reads under another name in another release needs no row: it is found there.
Sources: the released wheels of vLLM 0.6.6 to 0.33.0 and SGLang 0.4.1 to 0.5.23 (as `rules.engines`), dcgm-exporter
etc/default-counters.csv at d5e5f510, production-stack src/vllm_router/services/metrics_service.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A name that is gone, or that there never was. `fixes` are what to write instead, the first whose names the pages
    print; where `family`, a histogram's name, which gets the part (`_bucket`) that was asked for. `real`: it existed."""

    why: str
    fixes: tuple[str, ...] = ()
    family: bool = False
    real: bool = True


def _share(part: str, whole: str) -> str:
    return f"sum(rate({part}[5m])) / sum(rate({whole}[5m]))"


_V0 = "only vLLM's V0 engine had it"
_HITS = (
    _share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    _share("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
)
_ACCEPTED = (_share("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),)
_A_ROUND = (f"1 + {_share('vllm:spec_decode_num_accepted_tokens_total', 'vllm:spec_decode_num_drafts_total')}",)
_PREEMPTED = ("rate(vllm:num_preemptions_total[5m])",)
_MEMORY = (
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
)
_INSTALLED = (
    "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)",
    "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
)
OFF = "not in dcgm-exporter's default counters"


def memory_share(printed: Container[str]) -> str:
    """The share of a GPU's memory that is in use, from what a page prints: older exporters have no FB_RESERVED."""
    return _MEMORY[0] if "DCGM_FI_DEV_FB_RESERVED" in printed else _MEMORY[1]


FORMER: Mapping[str, Former] = {
    "vllm_gpu_prefix_cache_hit_rate": Former(why=f"{_V0}, a gauge since its start; V1 counts hits", fixes=_HITS),
    "vllm_cpu_prefix_cache_hit_rate": Former(why=_V0),
    "vllm_cpu_cache_usage_perc": Former(why=f"{_V0}; V1 does not swap, it preempts", fixes=_PREEMPTED),
    "vllm_num_requests_swapped": Former(why=f"{_V0}; V1 does not swap, it preempts", fixes=_PREEMPTED),
    "vllm_avg_prompt_throughput_toks_per_s": Former(why=_V0, fixes=("rate(vllm:prompt_tokens_total[5m])",)),
    "vllm_avg_generation_throughput_toks_per_s": Former(why=_V0, fixes=("rate(vllm:generation_tokens_total[5m])",)),
    "vllm_tokens_total": Former(why=_V0, fixes=("(vllm:prompt_tokens_total + vllm:generation_tokens_total)",)),
    "vllm_time_in_queue_requests": Former(why=_V0, fixes=("vllm:request_queue_time_seconds",), family=True),
    "vllm_model_forward_time_milliseconds": Former(
        why=f"{_V0}; in seconds there is", fixes=("vllm:request_inference_time_seconds",), family=True
    ),
    "vllm_model_execute_time_milliseconds": Former(
        why=f"{_V0}; in seconds there is", fixes=("vllm:request_inference_time_seconds",), family=True
    ),
    "vllm_request_params_best_of": Former(why="gone since vLLM 0.8"),
    "vllm_spec_decode_draft_acceptance_rate": Former(why=f"{_V0}; V1 counts tokens", fixes=_ACCEPTED),
    "vllm_spec_decode_efficiency": Former(why=f"{_V0}; tokens a round are", fixes=_A_ROUND),
    "vllm_spec_decode_num_emitted_tokens_total": Former(why=f"{_V0}; tokens a round are", fixes=_A_ROUND),
    "vllm_prompt_tokens_recomputed_total": Former(why="it existed between vLLM 0.15.1 and 0.20.2 only"),
    "vllm_request_failure_total": Former(
        why="vLLM never had it", fixes=('vllm:request_success_total{finished_reason=~"abort|error"}',), real=False
    ),
    "vllm_request_latency_seconds": Former(
        why="vLLM never had it", fixes=("vllm:e2e_request_latency_seconds",), family=True, real=False
    ),
    "sglang_time_per_output_token_seconds": Former(
        why="gone after SGLang 0.4.1", fixes=("sglang:inter_token_latency_seconds",), family=True
    ),
    "sglang_avg_request_queue_latency": Former(
        why="gone after SGLang 0.4.6",
        fixes=(_share("sglang:queue_time_seconds_sum", "sglang:queue_time_seconds_count"),),
    ),
    "sglang_engine_startup_time": Former(
        why="gone after SGLang 0.5.10",
        fixes=('max(sglang:startup_time_seconds{phase=~"scheduler_e2e|tokenizer_e2e"})',),
    ),
    "sglang_engine_load_weights_time": Former(
        why="gone after SGLang 0.5.10", fixes=('sglang:startup_time_seconds{phase="load_weight"}',)
    ),
    "sglang_num_prefill_prealloc_queue_reqs": Former(
        why="renamed in SGLang 0.5", fixes=("sglang:num_prefill_bootstrap_queue_reqs",)
    ),
    "sglang_gpu_execution_seconds_total": Former(
        why="renamed after SGLang 0.5.10", fixes=("sglang:forward_execution_seconds_total",)
    ),
    "llamacpp_kv_cache_usage_ratio": Former(why="gone since mid-2025"),
    "llamacpp_kv_cache_tokens": Former(why="gone since mid-2025"),
    "DCGM_FI_DEV_FB_TOTAL": Former(why=OFF, fixes=_INSTALLED),
    "DCGM_FI_DEV_FB_USED_PERCENT": Former(why=OFF, fixes=_MEMORY),
}
"""By key: ':' written as '_', histograms without `_bucket`, `_sum` and `_count`."""

DEPRECATED: Mapping[str, Former] = {
    "sglang_cache_hit_rate": Former(
        why="is overwritten by every prefill batch and stands still in between",
        fixes=(_share("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),),
    ),
    "vllm_gpu_cache_usage_perc": Former(
        why="is deprecated since vLLM 0.9 and gone in 0.12", fixes=("vllm:kv_cache_usage_perc",)
    ),
    "vllm_gpu_prefix_cache_queries_total": Former(
        why="is deprecated since vLLM 0.9 and gone in 0.12", fixes=("vllm:prefix_cache_queries_total",)
    ),
    "vllm_gpu_prefix_cache_hits_total": Former(
        why="is deprecated since vLLM 0.9 and gone in 0.12", fixes=("vllm:prefix_cache_hits_total",)
    ),
    "vllm_time_per_output_token_seconds": Former(
        why="is deprecated since vLLM 0.11 and gone in 0.15",
        fixes=("vllm:inter_token_latency_seconds",),
        family=True,
    ),
}
"""Names that the page still prints and nobody should read; told only where the page prints what to read instead."""

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "vllm_current_qps",
            "vllm_avg_decoding_length",
            "vllm_avg_latency",
            "vllm_avg_itl",
            "vllm_avg_ttft",
            "vllm_num_prefill_requests",
            "vllm_num_decoding_requests",
            "vllm_healthy_pods_total",
            "vllm_num_incoming_requests_total",
            "vllm_request_errors_total",
        ),
        "the router of production-stack prints it",
    ),
    "vllm_deployment_replicas": "AIBrix's GPU optimizer prints it",
}
"""Names under an engine's beginning that another program prints: nothing can be said of them without its page."""

APPEARING: tuple[str, ...] = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT")
"""Names that dcgm-exporter prints from the first event on: a page without them says nothing."""

NEGOTIATED: tuple[str, ...] = ("sglang_",)
"""Whose servers spell names by what they are asked for: `sglang:x`, or `sglang_x` for Prometheus before 3 (METRICS trap 1)."""
