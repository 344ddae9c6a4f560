"""Units of metrics, and the numbers that no one compares them with: known facts, one row each.

Owns rows only. A name that keeps to Prometheus' naming (`_seconds`, `_bytes`, `_ratio`) needs none. A limit stands where a
number beyond it can only be meant in another unit; what somebody could mean is not in it. Sources: METRICS 1 and 2 (wheels,
dcgm-exporter etc/default-counters.csv), as `rules.engines` and `rules.gpu_sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """What a number counts, in words for a message."""

    RATIO = "a ratio from 0 to 1"
    PERCENT = "a percentage from 0 to 100"
    SECONDS = "in seconds"
    MILLISECONDS = "in milliseconds"
    MICROSECONDS = "in microseconds"
    BYTES = "in bytes"
    MIB = "in MiB"
    GIB = "in GiB"
    WATTS = "in watts"
    MILLIWATTS = "in milliwatts"
    CELSIUS = "in degrees Celsius"
    TIMESTAMP = "the time of its last update"
    XID = "the code of the last error"
    COUNT = "a count"


UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(
        (
            "vllm_kv_cache_usage_perc",
            "vllm_gpu_cache_usage_perc",
            "vllm_cpu_cache_usage_perc",
            "vllm_gpu_prefix_cache_hit_rate",
            "vllm_cpu_prefix_cache_hit_rate",
            "vllm_spec_decode_draft_acceptance_rate",
            "lmdeploy_gpu_cache_usage_perc",
            "lmdeploy_prefix_cache_hit_rate",
            "sglang_token_usage",
            "sglang_full_token_usage",
            "sglang_swa_token_usage",
            "sglang_mamba_usage",
            "sglang_cache_hit_rate",
            "sglang_spec_accept_rate",
            "sglang_lora_pool_utilization",
            "trtllm_kv_cache_utilization",
            "trtllm_kv_cache_hit_rate",
            "trtllm_kv_cache_host_utilization",
            "dynamo_component_gpu_cache_usage_percent",
            "dynamo_component_kv_cache_hit_rate",
            "llamacpp_kv_cache_usage_ratio",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "DCGM_FI_PROF_SM_ACTIVE",
            "DCGM_FI_PROF_SM_OCCUPANCY",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
            "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
            "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
            "DCGM_FI_PROF_DRAM_ACTIVE",
        ),
        Unit.RATIO,
    ),
    **dict.fromkeys(
        (
            "DCGM_FI_DEV_GPU_UTIL",
            "DCGM_FI_DEV_MEM_COPY_UTIL",
            "DCGM_FI_DEV_ENC_UTIL",
            "DCGM_FI_DEV_DEC_UTIL",
            "gpu_gfx_activity",
            "gpu_umc_activity",
            "gpu_prof_tensor_active_percent",
            "gpu_prof_sm_active",
        ),
        Unit.PERCENT,
    ),
    **dict.fromkeys(
        (
            "tgi_request_duration",
            "tgi_request_queue_duration",
            "tgi_request_inference_duration",
            "tgi_request_mean_time_per_token_duration",
            "tgi_batch_inference_duration",
            "sglang_engine_startup_time",
        ),
        Unit.SECONDS,
    ),
    **dict.fromkeys(
        ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"), Unit.MIB
    ),
    "DCGM_FI_DEV_POWER_USAGE": Unit.WATTS,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": Unit.WATTS,
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Unit.WATTS,
    "DCGM_FI_DEV_GPU_TEMP": Unit.CELSIUS,
    "DCGM_FI_DEV_MEMORY_TEMP": Unit.CELSIUS,
    "DCGM_FI_DEV_XID_ERRORS": Unit.XID,
    "vllm_lora_requests_info": Unit.TIMESTAMP,
    "llamacpp_prompt_tokens_seconds": Unit.COUNT,
    "llamacpp_predicted_tokens_seconds": Unit.COUNT,
}
"""By key; of a histogram what it observes."""

ENDINGS: tuple[tuple[str, Unit], ...] = (
    ("_timestamp_seconds", Unit.COUNT),
    ("_start_time_seconds", Unit.COUNT),
    ("_milliseconds", Unit.MILLISECONDS),
    ("_seconds", Unit.SECONDS),
    ("_ms", Unit.MILLISECONDS),
    ("_us", Unit.MICROSECONDS),
    ("_bytes", Unit.BYTES),
)
"""What the end of a name says, the first that fits."""

RATIOS: tuple[str, ...] = ("sizewatch_", "nvidia_smi_")
"""Whose names in `_ratio` are all from 0 to 1; others call a ratio what may be above."""

RATES: Mapping[str, Unit] = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Unit.MILLIWATTS}
"""Counters whose rate has a unit of its own: millijoules a second."""

SHARES: tuple[tuple[str, str], ...] = (
    ("prefix_cache_hits_total", "prefix_cache_queries_total"),
    ("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"),
    ("sglang_cached_tokens_total", "sglang_prompt_tokens_total"),
    ("request_success_total", "request_success_total"),
    ("http_requests_total", "http_requests_total"),
)
"""Ends of the names of counters the first of which is a part of the second: their quotient is a ratio from 0 to 1."""

CONVERSIONS: Mapping[tuple[Unit, float], Unit] = {
    (Unit.RATIO, 100.0): Unit.PERCENT,
    (Unit.PERCENT, 0.01): Unit.RATIO,
    (Unit.SECONDS, 1e3): Unit.MILLISECONDS,
    (Unit.SECONDS, 1e6): Unit.MICROSECONDS,
    (Unit.MILLISECONDS, 1e-3): Unit.SECONDS,
    (Unit.MICROSECONDS, 1e-3): Unit.MILLISECONDS,
    (Unit.MICROSECONDS, 1e-6): Unit.SECONDS,
    (Unit.MIB, 1024.0): Unit.COUNT,
    (Unit.MIB, 1024.0**2): Unit.BYTES,
    (Unit.MIB, 1 / 1024.0): Unit.GIB,
    (Unit.BYTES, 1 / 1024.0**2): Unit.MIB,
    (Unit.BYTES, 1 / 1024.0**3): Unit.GIB,
    (Unit.MILLIWATTS, 1e-3): Unit.WATTS,
}
"""What becomes of a unit that is multiplied; any other factor makes it nobody knows what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number at or above `above`, or below `below`, is meant in another unit; times `factor` it is in the right one."""

    unit: Unit
    names: tuple[str, ...] = ()
    above: float | None = None
    below: float | None = None
    meant: str
    factor: float


LIMITS: tuple[Limit, ...] = (
    Limit(
        unit=Unit.SECONDS,
        names=("time_to_first_token", "ttft"),
        above=200.0,
        meant="milliseconds",
        factor=1e-3,
    ),
    Limit(
        unit=Unit.SECONDS,
        names=("inter_token_latency", "time_per_output_token", "mean_time_per_token", "itl_", "tpot_"),
        above=10.0,
        meant="milliseconds",
        factor=1e-3,
    ),
    Limit(unit=Unit.SECONDS, names=("prefill",), above=500.0, meant="milliseconds", factor=1e-3),
    Limit(unit=Unit.SECONDS, names=("queue",), above=1000.0, meant="milliseconds", factor=1e-3),
    Limit(
        unit=Unit.SECONDS,
        names=("e2e", "inference_time", "decode_time", "request_duration"),
        above=5000.0,
        meant="milliseconds",
        factor=1e-3,
    ),
    Limit(unit=Unit.MICROSECONDS, names=("nv_inference_",), below=50.0, meant="seconds", factor=1e6),
    Limit(unit=Unit.MIB, above=1e7, meant="bytes", factor=1 / 1024.0**2),
    Limit(unit=Unit.WATTS, above=1e4, meant="milliwatts", factor=1e-3),
    Limit(unit=Unit.MILLIWATTS, below=5000.0, meant="watts", factor=1e3),
)
"""Half of what anybody alerts at in the one unit, or less, and far from it in the other. Of several the first counts."""
