"""Families: sizewatch's own names, kinds, units and meanings for the metrics of engines and GPU exporters.

Engine tables (`rules.engines`) map onto these names, and the exporter prints them as `sizewatch_<family>`. Each family
needs an engine table that yields it or a reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FamilyKind(StrEnum):
    """Kind of a family. Counters and histograms are differenced, gauges are integrated."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Row of the family table. `export` is the stem after `sizewatch_` if it differs from the name (units,
    `_total`)."""

    name: str
    kind: FamilyKind
    export: str
    text: str


def _counter(name: str, export: str, text: str) -> Family:
    return Family(name=name, kind=FamilyKind.COUNTER, export=export, text=text)


def _histogram(name: str, text: str, export: str = "") -> Family:
    return Family(name=name, kind=FamilyKind.HISTOGRAM, export=export or name, text=text)


def _gauge(name: str, export: str, text: str) -> Family:
    return Family(name=name, kind=FamilyKind.GAUGE, export=export, text=text)


PART_OF: tuple[tuple[str, str, str], ...] = (
    (
        "prefix_hit_tokens",
        "prefix_queried_tokens",
        "tokens found in the prefix cache, {part:,.0f}, of {whole:,.0f} looked up",
    ),
    (
        "external_prefix_hit_tokens",
        "external_prefix_queried_tokens",
        "tokens found in the external cache, {part:,.0f}, of {whole:,.0f} looked up",
    ),
)
"""Pairs of counters in which the first is a part of the second, with the name of an excess. A page with an excess makes
both unusable."""

FAMILIES: tuple[Family, ...] = (
    _counter(
        "requests_finished",
        "requests_finished_total",
        "Requests that finished without an error, those that their clients left included",
    ),
    _counter("requests_arrived", "requests_arrived_total", "Requests that arrived, where the engine counts them"),
    _counter("requests_aborted", "requests_aborted_total", "Of the finished ones, aborted: their clients left"),
    _counter(
        "requests_failed",
        "requests_failed_total",
        "Requests that ended by an error of the engine; not among the finished ones",
    ),
    _counter(
        "requests_ended_by_length", "requests_ended_by_length_total", "Of the finished ones, ended at their token limit"
    ),
    _counter(
        "in_system_change", "", "Net change of running + waiting requests; with the finished ones it gives arrivals"
    ),
    _counter(
        "http_requests_ok", "http_requests_ok_total", "HTTP answers 2xx; minus the finished ones: clients that left"
    ),
    _counter(
        "http_requests_refused",
        "http_requests_refused_total",
        "HTTP answers 4xx: what cannot be served, or (429) is too much",
    ),
    _counter(
        "http_requests_failed", "http_requests_failed_total", "HTTP answers 5xx, those for want of room (503) included"
    ),
    _counter(
        "admission_rejections",
        "admission_rejections_total",
        "Requests refused for want of room: by a queue limit, answered 503",
    ),
    _counter("prompt_tokens", "prompt_tokens_total", "Prompt tokens, cached ones included"),
    _counter("prompt_tokens_computed", "prompt_tokens_computed_total", "Prompt tokens that had to be computed"),
    _counter("generation_tokens", "generation_tokens_total", "Generated tokens"),
    _counter(
        "generation_seconds", "generation_seconds_total", "Time spent generating, summed over requests (llama.cpp)"
    ),
    _counter("preemptions", "preemptions_total", "Requests thrown out of the KV cache to be computed again"),
    _counter("prefix_queried_tokens", "prefix_cache_queried_tokens_total", "Tokens looked up in the prefix cache"),
    _counter("prefix_hit_tokens", "prefix_cache_hit_tokens_total", "Tokens found in the prefix cache"),
    _counter(
        "external_prefix_queried_tokens",
        "external_prefix_cache_queried_tokens_total",
        "Tokens looked up in the KV connector's cache",
    ),
    _counter(
        "external_prefix_hit_tokens",
        "external_prefix_cache_hit_tokens_total",
        "Tokens found in the KV connector's cache",
    ),
    _counter(
        "expert_balance_sum",
        "expert_balance_sum_total",
        "Mean by largest number of tokens of the GPUs that hold experts (1 is even), summed over passes",
    ),
    _counter("expert_balance_passes", "expert_balance_passes_total", "Forward passes that this was told of"),
    _counter("spec_drafts", "spec_drafts_total", "Speculation rounds"),
    _counter("spec_draft_tokens", "spec_draft_tokens_total", "Tokens drafted"),
    _counter("spec_accepted_tokens", "spec_accepted_tokens_total", "Drafted tokens accepted"),
    _counter(
        "spec_accepted_at_position",
        "spec_accepted_tokens_at_position_total",
        "Drafted tokens accepted, by draft position (0 is the first)",
    ),
    _counter("kv_transfer_failures", "kv_transfer_failures_total", "KV transfers that failed"),
    _counter("engine_steps", "engine_steps_total", "Scheduler steps; gauges are refreshed by steps only"),
    _counter("restarts", "restarts_total", "Restarts seen between two scrapes"),
    _counter("cold_starts", "cold_starts_total", "Restarts whose cold start could be timed"),
    _counter("cold_start_seconds", "cold_start_seconds_total", "Process start to ready, summed over these"),
    _histogram("ttft_seconds", "Time to first token, from arrival at the engine"),
    _histogram("tpot_seconds", "Time per output token of a request"),
    _histogram(
        "whole_per_token_seconds", "Whole inference of a request by its tokens, prefill included: TPOT is below (TGI)"
    ),
    _histogram("itl_seconds", "Time between two output events"),
    _histogram("e2e_seconds", "Whole request"),
    _histogram("queue_seconds", "Queued before first scheduling"),
    _histogram("prefill_seconds", "First scheduling to first token"),
    _histogram("decode_seconds", "First token to last token"),
    _histogram("inference_seconds", "First scheduling to last token"),
    _histogram("prompt_tokens_per_request", "Prompt length of finished requests", "request_prompt_tokens"),
    _histogram("generation_tokens_per_request", "Output length of finished requests", "request_generation_tokens"),
    _histogram("kv_transfer_seconds", "KV blocks moved between instances"),
    _histogram("kv_residency_seconds", "Life of a KV block before eviction (sampled by the engine)"),
    _gauge("requests_running", "requests_running", "Requests in the batch"),
    _gauge("requests_waiting", "requests_waiting", "Requests queued in the engine"),
    _gauge("requests_waiting_capacity", "requests_waiting_capacity", "Of these, waiting for KV or batch capacity"),
    _gauge("requests_waiting_deferred", "requests_waiting_deferred", "Of these, held back (adapter slots, KV load)"),
    _gauge("requests_in_system", "", "Running and waiting requests by Little's law, where the gauges are unknown"),
    _gauge("kv_utilization", "kv_utilization_ratio", "KV cache blocks in use, mean over data-parallel engines"),
    _gauge("kv_utilization_max", "kv_utilization_max_ratio", "The same, the fullest data-parallel engine"),
    _gauge(
        "prefix_hit_gauge", "prefix_cache_hit_average_ratio", "Prefix cache hits as the engine averages them itself"
    ),
    _gauge("spec_accept_length", "spec_accept_length_tokens", "Tokens a speculation round yields, as a gauge"),
    _gauge("spec_accept_rate", "spec_accept_rate_ratio", "Accepted / drafted tokens, as a gauge"),
    _gauge("spec_steps", "spec_steps", "Draft positions a round, as a gauge"),
    _gauge(
        "engine_startup_seconds", "engine_startup_seconds", "How long the running process took to start, as it says"
    ),
    _gauge("adapters_running", "adapters_running", "LoRA adapters with running requests"),
    _gauge("adapters_waiting", "adapters_waiting", "LoRA adapters with waiting requests"),
    _gauge("engine_awake", "engine_awake", "1 while the engine is awake, 0 in sleep mode"),
    _counter(
        "gpu_busy_seconds", "gpu_busy_seconds_total", "Seconds with a kernel running, by the driver's sample buffer"
    ),
    _counter("gpu_busy_covered_seconds", "gpu_busy_covered_seconds_total", "Seconds that these samples cover"),
    _counter("gpu_energy_joules", "gpu_energy_joules_total", "Energy used"),
    _counter("gpu_energy_covered_seconds", "gpu_energy_covered_seconds_total", "Seconds that this energy covers"),
    _counter("gpu_throttled_power_seconds", "gpu_throttled_power_seconds_total", "Clocks held down by the power limit"),
    _counter("gpu_throttled_thermal_seconds", "gpu_throttled_thermal_seconds_total", "Clocks held down by heat"),
    _counter(
        "gpu_throttled_hardware_seconds",
        "gpu_throttled_hardware_seconds_total",
        "Clocks held down by the board: power brake, external power, hardware slowdown",
    ),
    _counter(
        "gpu_throttled_covered_seconds", "gpu_throttled_covered_seconds_total", "Seconds that throttling is known for"
    ),
    _counter(
        "gpu_ecc_uncorrectable_errors", "gpu_ecc_uncorrectable_errors_total", "Memory errors that ECC could not correct"
    ),
    _counter("gpu_ecc_correctable_errors", "gpu_ecc_correctable_errors_total", "Memory errors that ECC corrected"),
    _counter("gpu_fault_events", "gpu_fault_events_total", "Faults the driver reported (NVIDIA XID, AMD AFID)"),
    _counter("gpu_fault_events_by_code", "gpu_fault_events_by_code_total", "The same by code, such as xid-79"),
    _gauge("gpu_gr_engine_active", "gpu_gr_engine_active_ratio", "Graphics engine active (DCGM PROF_GR_ENGINE_ACTIVE)"),
    _gauge("gpu_sm_active", "gpu_sm_active_ratio", "Streaming multiprocessors active (DCGM PROF_SM_ACTIVE)"),
    _gauge("gpu_gfx_active", "gpu_gfx_active_ratio", "Graphics engine busy (AMD gfx activity)"),
    _gauge("gpu_utilization_sampled", "gpu_utilization_sampled_ratio", "Utilisation by a plain poll: says little"),
    _gauge("gpu_memory_used_bytes", "gpu_memory_used_bytes", "GPU memory allocated"),
    _gauge("gpu_memory_total_bytes", "gpu_memory_total_bytes", "GPU memory installed"),
    _gauge("gpu_memory_reserved_bytes", "gpu_memory_reserved_bytes", "GPU memory the driver keeps for itself"),
    _gauge("gpu_temperature_celsius", "gpu_temperature_celsius", "GPU temperature"),
    _gauge("gpu_power_watts", "gpu_power_watts", "Power by a plain poll, where energy is not supported"),
    _gauge("gpu_power_limit_watts", "gpu_power_limit_watts", "Enforced power limit"),
    _gauge("tensor_active", "gpu_tensor_active_ratio", "Tensor pipes active (DCGM PROF_PIPE_TENSOR_ACTIVE)"),
    _gauge("dram_active", "gpu_dram_active_ratio", "Memory interface active (DCGM PROF_DRAM_ACTIVE)"),
)

BY_NAME = {family.name: family for family in FAMILIES}


def stem(name: str) -> str:
    """Return the family of a labelled counter such as `spec_accepted_at_position/2`."""
    return name.partition("/")[0]
