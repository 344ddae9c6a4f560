"""Signals: the table SIGNALS (name, unit, kind, families) and the types Reading, Missing and Gap.

`rules.telemetry.readings` computes readings by this table. To add a signal: a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rules.telemetry.snapshots import LINKS


class Gap(StrEnum):
    """Reason for a missing number. The later member wins if windows with different gaps are added."""

    NO_TRAFFIC = "no_traffic"
    TOO_FEW_REQUESTS = "too_few_requests"
    NOT_IN_PLAN = "not_in_plan"
    LOAD_NOT_REACHED = "load_not_reached"
    OUTSIDE_BENCHMARK = "outside_benchmark"
    NOT_EXPOSED = "not_exposed"
    STALE = "stale"
    RESTARTED = "restarted"
    NOT_SCRAPED = "not_scraped"
    CONTRADICTORY = "contradictory"
    IMPOSSIBLE = "impossible"
    SCRAPE_FAILED = "scrape_failed"


GAP_ORDER = {gap: place for place, gap in enumerate(Gap)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Value of a signal in a window, with certain bounds.

    For a quantile the bounds are the edges of the bucket that holds the rank; `high` is None in the last bucket.
    `value` is the best estimate, or None if only bounds are known. `n` counts the observations (requests for latencies,
    events for rates, samples for gauges). The bounds exclude sampling uncertainty.
    """

    value: float | None
    low: float | None
    high: float | None
    n: float

    def map(self, change: Callable[[float], float]) -> Reading:
        """Return the reading with a rising function of its value and its bounds."""
        value, low, high = (None if one is None else change(one) for one in (self.value, self.low, self.high))
        return Reading(value=value, low=low, high=high, n=self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Missing number and its reason. `text` adds details beyond the name of the gap."""

    gap: Gap
    text: str = ""


SignalValue = Reading | Missing


class Unit(StrEnum):
    """Base units only (Prometheus naming)."""

    SECONDS = "seconds"
    RATIO = "ratio"
    PER_SECOND = "per_second"  # requests
    TOKENS_PER_SECOND = "tokens_per_second"
    EVENTS_PER_SECOND = "events_per_second"
    TOKENS = "tokens"
    REQUESTS = "requests"
    WATTS = "watts"
    CELSIUS = "celsius"
    MONEY = "money"
    TOKENS_PER_HOUR = "tokens_per_hour"
    ADAPTERS = "adapters"
    BYTES_PER_SECOND = "bytes_per_second"
    JOULES_PER_TOKEN = "joules_per_token"


RATES = frozenset({*(unit for unit in Unit if unit.endswith(("per_second", "per_hour"))), Unit.MONEY})
"""Units that need a duration."""


class SignalKind(StrEnum):
    """Kind of reading. Each is one function in `rules.telemetry.reading_methods`."""

    QUANTILE = "quantile"  # of a histogram family
    RATE = "rate"  # counter increase per second, tier total
    RATIO = "ratio"  # increase of one counter by the increase of another
    LEVEL = "level"  # mean of a gauge over its covered time, per replica
    TOTAL_LEVEL = "total_level"  # level summed over the replicas
    DERIVED = "derived"  # a function in `rules.telemetry.derived`, by the signal's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Row of SIGNALS: `families` are the names in a window that `how` reads; `q` is the quantile (0-1)."""

    name: str
    unit: Unit
    how: SignalKind
    families: tuple[str, ...]
    q: float | None = None
    text: str


def _quantiles(stem: str, unit: Unit, family: str, what: str, qs: tuple[int, ...] = (50, 99)) -> tuple[Signal, ...]:
    suffix = "_seconds" if unit is Unit.SECONDS else ""
    return tuple(
        Signal(
            name=f"{stem}_p{q}{suffix}",
            unit=unit,
            how=SignalKind.QUANTILE,
            families=(family,),
            q=q / 100,
            text=f"{what}, P{q} of the requests in the window",
        )
        for q in qs
    )


def _derived(name: str, unit: Unit, text: str, *families: str) -> Signal:
    return Signal(name=name, unit=unit, how=SignalKind.DERIVED, families=families, text=text)


def _rate(name: str, unit: Unit, text: str, family: str) -> Signal:
    return Signal(name=name, unit=unit, how=SignalKind.RATE, families=(family,), text=text)


def _ratio(name: str, text: str, part: str, whole: str, unit: Unit = Unit.RATIO) -> Signal:
    return Signal(name=name, unit=unit, how=SignalKind.RATIO, families=(part, whole), text=text)


def _level(name: str, unit: Unit, text: str, family: str) -> Signal:
    return Signal(name=name, unit=unit, how=SignalKind.LEVEL, families=(family,), text=text)


def _total_level(name: str, text: str) -> Signal:
    return Signal(name=name, unit=Unit.REQUESTS, how=SignalKind.TOTAL_LEVEL, families=(name,), text=text)


SIGNALS: tuple[Signal, ...] = (
    *_quantiles("ttft", Unit.SECONDS, "ttft_seconds", "Time to first token, from arrival at the engine"),
    *_quantiles("tpot", Unit.SECONDS, "tpot_seconds", "Time per output token of a request, (last - first) / (n - 1)"),
    *_quantiles("itl", Unit.SECONDS, "itl_seconds", "Time between two output events"),
    *_quantiles("e2e", Unit.SECONDS, "e2e_seconds", "Whole request, arrival to last token"),
    *_quantiles("queue", Unit.SECONDS, "queue_seconds", "Time queued before first scheduling", (99,)),
    *_quantiles("prefill", Unit.SECONDS, "prefill_seconds", "First scheduling to first token", (99,)),
    _derived(
        "tpot_mean_seconds",
        Unit.SECONDS,
        "Mean time per output token: decode time / (generated tokens - requests), or as near as the engine tells",
        "decode_seconds",
        "generation_tokens_per_request",
    ),
    _derived(
        "arrival_rps",
        Unit.PER_SECOND,
        "Arrivals, where counted; else finished, failed and refused requests plus the change of requests in the system "
        "and those that clients left",
        "requests_finished",
        "in_system_change",
    ),
    _rate("completed_rps", Unit.PER_SECOND, "Requests that finished without an error", "requests_finished"),
    _derived(
        "failed_share",
        Unit.RATIO,
        "Requests that failed, of those that were neither refused nor are in the system still",
        "requests_finished",
        "requests_failed",
    ),
    _derived(
        "refused_share",
        Unit.RATIO,
        "Requests refused for want of room or answered 4xx, of all that came to an end",
        "requests_finished",
        "admission_rejections",
    ),
    _derived(
        "goodput_rps",
        Unit.PER_SECOND,
        "Requests that ended well, within the TTFT and the TPOT SLO; bounds are Frechet's: the joint share is not exposed",
        "requests_finished",
        "ttft_seconds",
        "tpot_seconds",
    ),
    _rate("prompt_tokens_per_second", Unit.TOKENS_PER_SECOND, "Prompt tokens, cached ones included", "prompt_tokens"),
    _rate("generation_tokens_per_second", Unit.TOKENS_PER_SECOND, "Generated tokens", "generation_tokens"),
    *_quantiles("prompt_tokens", Unit.TOKENS, "prompt_tokens_per_request", "Prompt length", (50, 95, 99)),
    *_quantiles("generation_tokens", Unit.TOKENS, "generation_tokens_per_request", "Output length", (50, 95, 99)),
    _total_level("requests_running", "Requests in the batch"),
    _total_level("requests_waiting", "Requests queued in the engine"),
    _level("kv_utilization", Unit.RATIO, "KV cache blocks in use", "kv_utilization"),
    _ratio("eviction_rate", "Preemptions per finished request", "preemptions", "requests_finished"),
    _derived(
        "evictions_per_running_request_per_second",
        Unit.EVENTS_PER_SECOND,
        "Preemptions per second and running request (the guide's 7.4 reading)",
        "preemptions",
        "requests_running",
    ),
    _derived(
        "prefix_hit_ratio",
        Unit.RATIO,
        "Prompt tokens found in the prefix cache",
        "prefix_hit_tokens",
        "prefix_queried_tokens",
    ),
    _derived(
        "prefix_reuse_ratio",
        Unit.RATIO,
        "Share of prefill work avoided: 1 - computed / all prompt tokens",
        "prompt_tokens_computed",
        "prompt_tokens",
    ),
    _derived(
        "speculative_acceptance",
        Unit.RATIO,
        "Accepted tokens of those that were tried, from mean accepted per draft = a + a^2 + ... + a^k",
        "spec_accepted_tokens",
        "spec_drafts",
        "spec_draft_tokens",
    ),
    _derived(
        "tokens_per_round",
        Unit.TOKENS,
        "Tokens a verification round yields, the bonus token included",
        "spec_accepted_tokens",
        "spec_drafts",
    ),
    _ratio(
        "expert_balance_ratio",
        "Mean by largest number of tokens of the GPUs that hold experts, mean over layers and forward passes (1 is even)",
        "expert_balance_sum",
        "expert_balance_passes",
    ),
    _level("adapters_active", Unit.ADAPTERS, "LoRA adapters with running requests", "adapters_running"),
    _rate("adapter_evictions_per_second", Unit.EVENTS_PER_SECOND, "LoRA adapters paged out", "adapter_evictions"),
    _derived(
        "gpu_utilization",
        Unit.RATIO,
        "Share of time the GPU had work (graphics engine active, else NVML's utilisation, else AMD's gfx activity)",
        "gpu_gr_engine_active",
        "gpu_busy_seconds",
    ),
    _derived(
        "gpu_memory_utilization", Unit.RATIO, "GPU memory in use", "gpu_memory_used_bytes", "gpu_memory_total_bytes"
    ),
    _level("tensor_active", Unit.RATIO, "Tensor pipes active", "tensor_active"),
    _level("dram_active", Unit.RATIO, "Memory interface active", "dram_active"),
    _derived("gpu_power_watts", Unit.WATTS, "Mean power of one GPU", "gpu_energy_joules", "gpu_power_watts"),
    *(
        _derived(name, Unit.JOULES_PER_TOKEN, f"Energy of all GPUs by {what} tokens", "gpu_energy_joules", *tokens)
        for name, what, tokens in (
            ("energy_per_generated_token", "generated", ("generation_tokens",)),
            ("energy_per_token", "prompt (cached ones included) and generated", ("generation_tokens", "prompt_tokens")),
        )
    ),
    _derived("mfu", Unit.RATIO, "Estimated operations of a GPU by its BF16 peak", "estimated_flops"),
    _derived(
        "mbu", Unit.RATIO, "Estimated memory traffic by its peak", "estimated_read_bytes", "estimated_write_bytes"
    ),
    *(_level(name, Unit.BYTES_PER_SECOND, text, name) for name, text in LINKS.items()),
    _level("gpu_temperature_celsius", Unit.CELSIUS, "GPU temperature", "gpu_temperature_celsius"),
    *(
        _ratio(f"gpu_throttled_{what}_ratio", text, f"gpu_throttled_{what}_seconds", "gpu_throttled_covered_seconds")
        for what, text in (
            ("power", "Share of time the power limit held clocks down"),
            ("thermal", "Share of time heat held clocks down"),
            ("hardware", "Share of time the board held clocks down (power brake, hardware slowdown)"),
        )
    ),
    _derived(
        "gpu_throttled_ratio",
        Unit.RATIO,
        "The larger of the two: slower than the GPU that was measured",
        "gpu_throttled_thermal_seconds",
        "gpu_throttled_hardware_seconds",
        "gpu_throttled_covered_seconds",
    ),
    _rate(
        "gpu_fault_events_per_second",
        Unit.EVENTS_PER_SECOND,
        "Faults the driver reported (NVIDIA XID, AMD AFID)",
        "gpu_fault_events",
    ),
    _rate(
        "gpu_ecc_uncorrectable_errors_per_second",
        Unit.EVENTS_PER_SECOND,
        "Memory errors that ECC could not correct",
        "gpu_ecc_uncorrectable_errors",
    ),
    _derived(
        "fleet_utilization",
        Unit.RATIO,
        "Used share of the capacity of the ready replicas, by computed prompt and generated tokens (DESIGN 3.12)",
        "requests_finished",
        "prompt_tokens",
        "generation_tokens",
    ),
    _derived("tokens_per_gpu_hour", Unit.TOKENS_PER_HOUR, "Generated tokens per GPU-hour", "generation_tokens"),
    _derived("cost_per_million_tokens", Unit.MONEY, "GPU-hours x price / generated tokens x 1e6", "generation_tokens"),
    _derived(
        "cold_start_seconds",
        Unit.SECONDS,
        "Process start to ready, of the restarts seen in the window",
        "cold_start_seconds",
        "cold_starts",
    ),
    *_quantiles("kv_transfer", Unit.SECONDS, "kv_transfer_seconds", "KV blocks moved between instances", (99,)),
    *_quantiles("kv_residency", Unit.SECONDS, "kv_residency_seconds", "Life of a KV block before eviction", (50,)),
    _derived(
        "kv_residency_by_reuse",
        Unit.RATIO,
        "Median life of a KV block by the planned time until its prefix comes back",
        "kv_residency_seconds",
    ),
    *(
        _derived(name, Unit.RATIO, text, part, whole)
        for name, text, part, whole in (
            (
                "external_prefix_hit_ratio",
                "Tokens found in the offloaded KV cache, of those that the GPU's own cache did not have",
                "external_prefix_hit_tokens",
                "external_prefix_queried_tokens",
            ),
            (
                "kv_offload_utilization",
                "Offloaded KV cache in use",
                "kv_offload_used_tokens",
                "kv_offload_total_tokens",
            ),
        )
    ),
    *(
        signal
        for way, text in (("load", "fetched back from"), ("store", "moved to"))
        for stem, blocks in ((f"kv_offload_{way}", f"KV blocks {text} the offloaded cache"),)
        for signal in (
            _rate(f"{stem}_bytes_per_second", Unit.BYTES_PER_SECOND, f"Bytes of {blocks}", f"{stem}_bytes"),
            _ratio(
                f"{stem}_mean_seconds", f"Mean time: {blocks}", f"{stem}_seconds", f"{stem}_transfers", Unit.SECONDS
            ),
        )
    ),
    _rate(
        "kv_transfer_failures_per_second", Unit.EVENTS_PER_SECOND, "KV transfers that failed", "kv_transfer_failures"
    ),
)

BY_NAME = {signal.name: signal for signal in SIGNALS}
