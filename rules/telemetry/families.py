"""Families: sizewatch's own names, kinds, units and meanings for the metrics of engines and GPU exporters.

Engine tables (`rules.engines`) map onto these names, and the exporter prints them as `sizewatch_<family>`. Each family
needs an engine table that yields it or a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rules.telemetry.snapshots import LINKS


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


def _counter(name: str, text: str, export: str | None = None) -> Family:
    return Family(name=name, kind=FamilyKind.COUNTER, export=f"{name}_total" if export is None else export, text=text)


def _histogram(name: str, text: str, export: str = "") -> Family:
    return Family(name=name, kind=FamilyKind.HISTOGRAM, export=export or name, text=text)


def _gauge(name: str, text: str, export: str | None = None) -> Family:
    return Family(name=name, kind=FamilyKind.GAUGE, export=name if export is None else export, text=text)


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
    _counter("requests_finished", "Requests that finished without an error, those that their clients left included"),
    _counter("requests_arrived", "Requests that arrived, where the engine counts them"),
    _counter("requests_aborted", "Of the finished ones, aborted: their clients left"),
    _counter("requests_failed", "Requests that ended by an error of the engine; not among the finished ones"),
    _counter("requests_ended_by_length", "Of the finished ones, ended at their token limit"),
    _counter(
        "in_system_change",
        "Net change of running + waiting requests; with the finished ones it gives arrivals",
        export="",
    ),
    _counter("requests_held_lost", "Requests that were lost with an engine that no longer stepped", export=""),
    _counter("requests_overdue_left", "Requests that left after the TTFT objective without a first token", export=""),
    _counter("http_requests_ok", "HTTP answers 2xx; minus the finished ones: clients that left"),
    _counter("http_requests_refused", "HTTP answers 4xx: what cannot be served, or (429) is too much"),
    _counter("http_requests_failed", "HTTP answers 5xx, those for want of room (503) included"),
    _counter("admission_rejections", "Requests refused for want of room: by a queue limit, answered 503"),
    _counter("prompt_tokens", "Prompt tokens, cached ones included"),
    _counter("prompt_tokens_computed", "Prompt tokens that had to be computed"),
    _counter("generation_tokens", "Generated tokens"),
    _counter("generation_seconds", "Time spent generating, summed over requests (llama.cpp)"),
    _counter("preemptions", "Requests thrown out of the KV cache to be computed again"),
    _counter(
        "prefix_queried_tokens", "Tokens looked up in the prefix cache", export="prefix_cache_queried_tokens_total"
    ),
    _counter("prefix_hit_tokens", "Tokens found in the prefix cache", export="prefix_cache_hit_tokens_total"),
    _counter(
        "external_prefix_queried_tokens",
        "Tokens looked up in the KV connector's cache",
        export="external_prefix_cache_queried_tokens_total",
    ),
    _counter(
        "external_prefix_hit_tokens",
        "Tokens found in the KV connector's cache",
        export="external_prefix_cache_hit_tokens_total",
    ),
    _counter(
        "expert_balance_sum",
        "Mean by largest number of tokens of the GPUs that hold experts (1 is even), summed over passes",
    ),
    _counter("expert_balance_passes", "Forward passes that this was told of"),
    _counter("spec_drafts", "Speculation rounds"),
    _counter("spec_draft_tokens", "Tokens drafted"),
    _counter("spec_accepted_tokens", "Drafted tokens accepted"),
    _counter(
        "spec_accepted_at_position",
        "Drafted tokens accepted, by draft position (0 is the first)",
        export="spec_accepted_tokens_at_position_total",
    ),
    _counter("kv_transfer_failures", "KV transfers that failed, between instances or to and from an offloaded cache"),
    *(
        _counter(f"kv_offload_{word}_{what}", text)
        for word, way in (("load", "fetched back from"), ("store", "moved to"))
        for what, text in (
            ("bytes", f"Bytes {way} the offloaded KV cache"),
            ("seconds", f"Time in which KV blocks were {way} the offloaded cache, summed over transfers"),
            ("transfers", f"Transfers {way} the offloaded KV cache, as far as they are timed"),
        )
    ),
    _counter("kv_offload_drops", "Stores to the offloaded KV cache dropped for want of room (SGLang: tokens)"),
    _counter("engine_steps", "Scheduler steps; gauges are refreshed by steps only"),
    _counter("restarts", "Restarts seen between two scrapes"),
    _counter("cold_starts", "Restarts whose cold start could be timed"),
    _counter("cold_start_seconds", "Process start to ready, summed over these"),
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
    _gauge("requests_running", "Requests in the batch"),
    _gauge("requests_waiting", "Requests queued in the engine"),
    _gauge("requests_waiting_capacity", "Of these, waiting for KV or batch capacity"),
    _gauge("requests_waiting_deferred", "Of these, held back (adapter slots, KV load)"),
    _gauge("requests_paused", "Requests paused while weights are updated"),
    _gauge("requests_overdue", "Requests that wait longer than the TTFT objective, at least", export=""),
    _gauge("requests_held", "Requests in engines that no longer step", export=""),
    _gauge(
        "requests_in_system", "Running and waiting requests by Little's law, where the gauges are unknown", export=""
    ),
    _gauge("kv_utilization", "KV cache blocks in use, mean over data-parallel engines", export="kv_utilization_ratio"),
    _gauge("kv_utilization_max", "The same, the fullest data-parallel engine", export="kv_utilization_max_ratio"),
    _gauge(
        "prefix_hit_gauge",
        "Prefix cache hits as the engine averages them itself",
        export="prefix_cache_hit_average_ratio",
    ),
    _gauge(
        "external_prefix_hit_gauge",
        "Hits of the offloaded KV cache as its manager averages them",
        export="external_prefix_cache_hit_average_ratio",
    ),
    _gauge("kv_offload_utilization", "Offloaded KV cache in use", export="kv_offload_utilization_ratio"),
    _gauge("kv_offload_pinned", "Offloaded KV cache held by transfers under way", export="kv_offload_pinned_ratio"),
    _gauge("kv_offload_used_bytes", "Offloaded KV cache in use, where its size is not told"),
    _gauge("kv_offload_used_tokens", "Tokens in the offloaded KV cache"),
    _gauge("kv_offload_total_tokens", "Tokens that fit into the offloaded KV cache"),
    _gauge("spec_accept_length", "Tokens a speculation round yields, as a gauge", export="spec_accept_length_tokens"),
    _gauge("spec_accept_rate", "Accepted / drafted tokens, as a gauge", export="spec_accept_rate_ratio"),
    _gauge("spec_steps", "Draft positions a round, as a gauge"),
    _gauge("engine_startup_seconds", "How long the running process took to start, as it says"),
    _gauge("adapters_running", "LoRA adapters with running requests"),
    _gauge("adapters_waiting", "LoRA adapters with waiting requests"),
    _gauge("engine_awake", "1 while the engine is awake, 0 in sleep mode"),
    _counter("estimated_flops", "Floating point operations of one GPU, as the engine estimates them"),
    _counter("estimated_read_bytes", "Bytes that one GPU read from its memory, as the engine estimates them"),
    _counter("estimated_write_bytes", "Bytes that one GPU wrote to its memory, as the engine estimates them"),
    _counter("gpu_busy_seconds", "Seconds with a kernel running, by the driver's sample buffer"),
    _counter("gpu_busy_covered_seconds", "Seconds that these samples cover"),
    _counter("gpu_energy_joules", "Energy used"),
    _counter("gpu_energy_covered_seconds", "Seconds that this energy covers"),
    _counter("gpu_throttled_power_seconds", "Clocks held down by the power limit"),
    _counter("gpu_throttled_thermal_seconds", "Clocks held down by heat"),
    _counter(
        "gpu_throttled_hardware_seconds",
        "Clocks held down by the board: power brake, external power, hardware slowdown",
    ),
    _counter("gpu_throttled_covered_seconds", "Seconds that throttling is known for"),
    _counter("gpu_ecc_uncorrectable_errors", "Memory errors that ECC could not correct"),
    _counter("gpu_ecc_correctable_errors", "Memory errors that ECC corrected"),
    _counter("gpu_fault_events", "Faults the driver reported (NVIDIA XID, AMD AFID)"),
    _counter("gpu_fault_events_by_code", "The same by code, such as xid-79"),
    _gauge(
        "gpu_gr_engine_active",
        "Graphics engine active (DCGM PROF_GR_ENGINE_ACTIVE)",
        export="gpu_gr_engine_active_ratio",
    ),
    _gauge("gpu_sm_active", "Streaming multiprocessors active (DCGM PROF_SM_ACTIVE)", export="gpu_sm_active_ratio"),
    _gauge("gpu_gfx_active", "Graphics engine busy (AMD gfx activity)", export="gpu_gfx_active_ratio"),
    _gauge(
        "gpu_utilization_sampled", "Utilisation by a plain poll: says little", export="gpu_utilization_sampled_ratio"
    ),
    *(_gauge(name, text) for name, text in LINKS.items()),
    _gauge("gpu_memory_used_bytes", "GPU memory allocated"),
    _gauge("gpu_memory_total_bytes", "GPU memory installed"),
    _gauge("gpu_memory_reserved_bytes", "GPU memory the driver keeps for itself"),
    _gauge("gpu_temperature_celsius", "GPU temperature"),
    _gauge("gpu_power_watts", "Power by a plain poll, where energy is not supported"),
    _gauge("gpu_power_limit_watts", "Enforced power limit"),
    _gauge("tensor_active", "Tensor pipes active (DCGM PROF_PIPE_TENSOR_ACTIVE)", export="gpu_tensor_active_ratio"),
    _gauge("dram_active", "Memory interface active (DCGM PROF_DRAM_ACTIVE)", export="gpu_dram_active_ratio"),
)

BY_NAME = {family.name: family for family in FAMILIES}


def stem(name: str) -> str:
    """Return the family of a labelled counter such as `spec_accepted_at_position/2`."""
    return name.partition("/")[0]


MOST_RATIO = 1.05
"""A ratio of two numbers that an engine reads one after the other may be a little above 1."""

MOST_IN_SYSTEM = 1e7
"""Requests in an engine: each takes memory, and a machine has some TB at most."""

MOST_REQUESTS = 1e6
"""Requests, or events of requests, that a replica counts in a second: each takes a front end a microsecond or more."""

MOST_TOKENS = 1e10
"""Tokens that a replica counts in a second. 72 GPUs of 1e16 FLOP/s reach 7e9 with a model of 50 million weights at two
FLOP a weight and token."""

MOST_OF_GAUGE: Mapping[str, float] = {
    **{
        family.name: MOST_RATIO
        for family in FAMILIES
        if family.kind is FamilyKind.GAUGE and family.export.endswith("_ratio") and not family.name.startswith("gpu_")
    },
    **dict.fromkeys(("requests_running", "requests_waiting", "requests_waiting_capacity"), MOST_IN_SYSTEM),
}
"""Largest possible value of an engine's gauge."""

MOST_PER_SECOND: Mapping[str, float] = {
    family.name: MOST_TOKENS if "tokens" in family.name else MOST_REQUESTS
    for family in FAMILIES
    if family.kind is FamilyKind.COUNTER
    and (
        "tokens" in family.name
        or family.name.startswith(("requests_", "http_requests_", "preemptions", "engine_steps"))
    )
}
"""Largest possible increase of an engine's counter in a second."""
