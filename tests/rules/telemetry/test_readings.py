"""Every signal by hand on a small window, and every reason why one has no number."""

import math
from dataclasses import replace
from typing import Any

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st
from making import EDGES, START, gauge, histogram, reading, window
from paths import TESTS

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.plan.capacity import stated_capacity
from rules.sizing import acceptance_from_mean_accepted
from rules.telemetry import windows
from rules.telemetry.derived import PlanFacts
from rules.telemetry.gpu_windows import gpu_utilization
from rules.telemetry.histograms import Histogram
from rules.telemetry.reading_methods import replica_rate, total_rate
from rules.telemetry.readings import NOTHING, read, read_all, window_since_start
from rules.telemetry.signals import BY_NAME, SIGNALS, Gap, Missing, Reading, Signal, SignalKind, SignalValue
from rules.telemetry.windows import EVERYTHING, Window
from rules.telemetry.work import CapacityLengths, MeanTokens, computed_share

LENGTHS = (50.0, 100.0, 200.0, math.inf)
LENGTHS_OF_CAPACITY = CapacityLengths(
    prompt_tokens=MeanTokens(low=40.0, high=40.0),
    generation_tokens=MeanTokens(low=50.0, high=50.0),
    prefix_hit_ratio=0.7,
)
BASIS = PlanFacts(
    gpus_per_replica=4,
    gpu_hour_price=2.0,
    ttft_slo_seconds=1.0,
    tpot_slo_seconds=0.5,
    prefix_reuse_seconds=10.0,
    peak_flops=1e15,
    peak_bytes_per_second=4e12,
    capacity=replace(stated_capacity(4.0, "the plan"), lengths=LENGTHS_OF_CAPACITY),
)

# One replica, one minute: 120 requests finished, 60 tokens each way.
COUNTERS = {
    "requests_finished": 120.0,
    "requests_aborted": 12.0,
    "requests_failed": 0.0,
    "http_requests_refused": 30.0,
    "in_system_change": 30.0,
    "prompt_tokens": 6000.0,
    "prompt_tokens_computed": 1500.0,
    "generation_tokens": 7200.0,
    "preemptions": 12.0,
    "prefix_queried_tokens": 6000.0,
    "prefix_hit_tokens": 4200.0,
    "spec_drafts": 1000.0,
    "expert_balance_sum": 450.0,
    "expert_balance_passes": 600.0,
    "spec_draft_tokens": 5000.0,
    "spec_accepted_tokens": 2689.28,
    "gpu_busy_seconds": 48.0,
    "gpu_busy_covered_seconds": 60.0,
    "gpu_energy_joules": 18000.0,
    "gpu_energy_covered_seconds": 60.0,
    "gpu_throttled_power_seconds": 12.0,
    "gpu_throttled_thermal_seconds": 3.0,
    "gpu_throttled_hardware_seconds": 0.0,
    "gpu_throttled_covered_seconds": 60.0,
    "cold_starts": 2.0,
    "cold_start_seconds": 90.0,
    "external_prefix_queried_tokens": 1800.0,
    "external_prefix_hit_tokens": 900.0,
    "kv_offload_load_seconds": 0.5,
    "kv_offload_load_transfers": 10.0,
    "kv_offload_store_seconds": 1.5,
    "kv_offload_store_transfers": 10.0,
    "estimated_flops": 6e15,
    "estimated_read_bytes": 9e13,
    "estimated_write_bytes": 3e13,
}
NOBODY = (Histogram(edges=EDGES, counts=(0.0,) * 5, total=0.0),)
HISTOGRAMS = {
    "ttft_seconds": (histogram([0.2] * 96 + [0.7] * 18 + [3.0] * 6),),
    "tpot_seconds": (histogram([0.05] * 90 + [0.3] * 18 + [0.7] * 12),),
    "itl_seconds": (histogram([0.05] * 7200),),
    "e2e_seconds": (histogram([0.7] * 100 + [3.0] * 20),),
    "queue_seconds": (histogram([0.05] * 119 + [9.0]),),
    "prefill_seconds": (histogram([0.2] * 120),),
    "decode_seconds": (histogram([2.95] * 120),),
    "prompt_tokens_per_request": (histogram([40.0] * 60 + [60.0] * 54 + [150.0] * 6, LENGTHS),),
    "generation_tokens_per_request": (histogram([60.0] * 120, LENGTHS),),
    "kv_transfer_seconds": (histogram([0.2]),),
    "kv_residency_seconds": (histogram([3.0] * 4),),
}
GAUGES = {
    "requests_running": gauge(6.0, low=2.0, high=8.0),
    "requests_waiting": gauge(1.0, low=0.0, high=4.0),
    "kv_utilization": gauge(0.4, low=0.2, high=0.6),
    "adapters_running": gauge(2.0, low=1.0, high=3.0),
    "gpu_pcie_tx_bytes_per_second": gauge(1e9),
    "gpu_pcie_rx_bytes_per_second": gauge(2e9),
    "gpu_nvlink_tx_bytes_per_second": gauge(3e9),
    "gpu_nvlink_rx_bytes_per_second": gauge(4e9),
    "kv_offload_used_tokens": gauge(250.0, low=200.0, high=300.0),
    "kv_offload_total_tokens": gauge(1000.0),
    "gpu_gr_engine_active": gauge(0.7, low=0.6, high=0.8),
    "gpu_sm_active": gauge(0.3),
    "gpu_utilization_sampled": gauge(1.0),
    "gpu_memory_used_bytes": gauge(60e9, low=50e9, high=70e9),
    "gpu_memory_total_bytes": gauge(80e9),
    "gpu_power_watts": gauge(500.0),
    "gpu_temperature_celsius": gauge(55.0),
    "tensor_active": gauge(0.2),
    "dram_active": gauge(0.5),
}


def minute(**changes: Any) -> Window:
    """The minute with changes: a family of None is taken out."""
    kinds = {"counters": COUNTERS, "histograms": HISTOGRAMS, "gauges": GAUGES}
    merged = {
        kind: {family: v for family, v in {**whole, **changes.get(kind, {})}.items() if v is not None}
        for kind, whole in kinds.items()
    }
    return window(START, 60.0, **merged)


def value(name: str, of: Window | None = None, basis: PlanFacts = BASIS) -> SignalValue:
    return read(BY_NAME[name], minute() if of is None else of, basis)


def exactly(number: float, n: float) -> Reading:
    return reading(number, number, number, n)


def in_tail(at_low: float, left: float, at_high: float = 0.5) -> float:
    """How far into its bucket a quantile lies (0-1): requests above the lower edge, above it, and above the upper edge (of
    none, half of one), which fall by a constant factor."""
    return math.log(at_low / left) / math.log(at_low / at_high)


BY_HAND: dict[str, Reading] = {
    # rank 60 of 120 is among the 96 between 0.1 and 0.5; a P99 of 120 leaves 1.2 of the six between 1 and 5
    "ttft_p50_seconds": reading(0.1 + 0.4 * 59.5 / 96, 0.1, 0.5, 120),
    "ttft_p99_seconds": reading(1 + 4 * in_tail(6, 1.2), 1.0, 5.0, 120),
    "tpot_p50_seconds": reading(0.1 * 59.5 / 90, 0.0, 0.1, 120),
    "tpot_p99_seconds": reading(0.5 + 0.5 * in_tail(12, 1.2), 0.5, 1.0, 120),
    "itl_p50_seconds": reading(0.1 * in_tail(7200, 3600), 0.0, 0.1, 7200),
    "itl_p99_seconds": reading(0.1 * in_tail(7200, 72), 0.0, 0.1, 7200),
    "e2e_p50_seconds": reading(0.5 + 0.5 * 59.5 / 100, 0.5, 1.0, 120),
    "e2e_p99_seconds": reading(1 + 4 * in_tail(20, 1.2), 1.0, 5.0, 120),
    "queue_p99_seconds": reading(0.1 * in_tail(120, 1.2, 1), 0.0, 0.1, 120),
    "prefill_p99_seconds": reading(0.1 + 0.4 * in_tail(120, 1.2), 0.1, 0.5, 120),
    # 2.95 s over the 59 tokens after the first
    "tpot_mean_seconds": exactly(0.05, 120),
    "arrival_rps": reading(2.5, 2.5, None, 120),
    "completed_rps": exactly(2.0, 120),
    "failed_share": exactly(0.0, 120),
    # 30 answered 4xx beside the 120 that finished
    "refused_share": exactly(0.2, 150),
    "prompt_tokens_per_second": exactly(100.0, 6000),
    "generation_tokens_per_second": exactly(120.0, 7200),
    "prompt_tokens_p50": reading(50 * 59.5 / 60, 0.0, 50.0, 120),
    # rank 114 is the last of its 54: their upper edge is no guess, the place of the last of them is
    "prompt_tokens_p95": reading(50 + 50 * 53.5 / 54, 50.0, 100.0, 120),
    "prompt_tokens_p99": reading(100 + 100 * in_tail(6, 1.2), 100.0, 200.0, 120),
    "generation_tokens_p50": reading(50 + 50 * in_tail(120, 60), 50.0, 100.0, 120),
    "generation_tokens_p95": reading(50 + 50 * in_tail(120, 6), 50.0, 100.0, 120),
    "generation_tokens_p99": reading(50 + 50 * in_tail(120, 1.2), 50.0, 100.0, 120),
    "requests_running": reading(6.0, 2.0, 8.0, 4),
    "requests_waiting": reading(1.0, 0.0, 4.0, 4),
    "kv_utilization": reading(0.4, 0.2, 0.6, 4),
    "eviction_rate": exactly(0.1, 120),
    # 0.2 a second over 6, at most 8 and at least 2 running
    "evictions_per_running_request_per_second": reading(0.2 / 6, 0.025, 0.1, 12),
    "prefix_hit_ratio": exactly(0.7, 6000),
    "prefix_reuse_ratio": exactly(0.75, 6000),
    # 0.8 + 0.64 + 0.512 + 0.4096 + 0.32768 = 2.68928 (the guide's 3.69 with the bonus token)
    "expert_balance_ratio": exactly(0.75, 600),
    "speculative_acceptance": reading(0.8, 2689.28 / 3689.28, 1.0, 1000),
    "tokens_per_round": exactly(3.68928, 1000),
    "adapters_active": reading(2.0, 1.0, 3.0, 4),
    "gpu_utilization": reading(0.7, 0.6, 0.8, 4),
    "gpu_memory_utilization": reading(0.75, 0.625, 0.875, 4),
    "tensor_active": reading(0.2, 0.2, 0.2, 4),
    "dram_active": reading(0.5, 0.5, 0.5, 4),
    "gpu_power_watts": exactly(300.0, 60),
    # 300 W x 4 GPUs / 120 tokens a second
    "energy_per_generated_token": reading(10.0, 10.0, 10.0, 7200),
    "mfu": reading(0.1, None, None, 6e15),
    "mbu": reading(0.5, None, None, 12e13),
    "gpu_pcie_tx_bytes_per_second": reading(1e9, 1e9, 1e9, 4),
    "gpu_pcie_rx_bytes_per_second": reading(2e9, 2e9, 2e9, 4),
    "gpu_nvlink_tx_bytes_per_second": reading(3e9, 3e9, 3e9, 4),
    "gpu_nvlink_rx_bytes_per_second": reading(4e9, 4e9, 4e9, 4),
    "gpu_temperature_celsius": reading(55.0, 55.0, 55.0, 4),
    "gpu_throttled_ratio": exactly(0.05, 60),
    # Per second 100 prompt tokens, a quarter of them computed, and 120 outputs; at capacity 4 x 40 x 0.3 and 4 x 50.
    "fleet_utilization": reading((25 / 48 + 0.6) / 2, 25 / 48, 0.6, 120),
    "tokens_per_gpu_hour": exactly(108000.0, 7200),
    "cost_per_million_tokens": exactly(2.0 / 108000.0 * 1e6, 7200),
    "cold_start_seconds": exactly(45.0, 2),
    "kv_transfer_p99_seconds": reading(0.3, 0.1, 0.5, 1),
    "kv_residency_by_reuse": reading((1 + 4 * in_tail(4, 2)) / 10, 0.1, 0.5, 4),
    "external_prefix_hit_ratio": exactly(0.5, 1800),
    "kv_offload_utilization": reading(0.25, 0.2, 0.3, 4),
    "kv_offload_load_mean_seconds": exactly(0.05, 10),
    "kv_offload_store_mean_seconds": exactly(0.15, 10),
}


def assert_close(found: SignalValue, expected: Reading) -> None:
    assert isinstance(found, Reading)
    for name in ("value", "low", "high", "n"):
        wanted = getattr(expected, name)
        assert getattr(found, name) == (None if wanted is None else pytest.approx(wanted, rel=1e-9)), name


@pytest.mark.parametrize("name", BY_HAND)
def test_signal_matches_hand_reckoning(name: str) -> None:
    assert_close(value(name), BY_HAND[name])


def test_every_signal_is_reckoned_in_order() -> None:
    """But one that no engine so far exposes. Windows of replicas and minutes add up in any grouping, with a number each."""
    assert [signal.name for signal in SIGNALS if signal.name not in BY_HAND] == ["adapter_evictions_per_second"]
    assert value("adapter_evictions_per_second") == Missing(gap=Gap.NOT_EXPOSED)
    counted = minute(counters={"adapter_evictions": 30.0})
    assert_close(value("adapter_evictions_per_second", counted), exactly(0.5, 30))
    several = [replace(counted, start=START + 60 * i, end=START + 60 * i + 60) for i in range(3) for _ in "ab"]
    whole = read_all(windows.sum_windows(several), BASIS)
    assert list(whole) == [signal.name for signal in SIGNALS]
    assert all(isinstance(reading, Reading) for reading in whole.values())
    by_time = [windows.sum_windows(several[place : place + 2]) for place in (0, 2, 4)]
    by_replica = [windows.sum_windows(several[place::2]) for place in (0, 1)]
    assert read_all(windows.sum_windows(by_time), BASIS) == read_all(windows.sum_windows(by_replica), BASIS) == whole


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_signal_without_families_is_a_gap(signal: Signal) -> None:
    name = signal.name
    assert value(name, windows.gap_window(START, START + 60, Gap.SCRAPE_FAILED), BASIS) == (
        Missing(gap=Gap.NO_TRAFFIC, text="no restart was seen")
        if name == "cold_start_seconds"
        else Missing(gap=Gap.SCRAPE_FAILED)
    )
    found = value(name, window(START))
    assert found.gap is (Gap.NO_TRAFFIC if name == "cold_start_seconds" else Gap.NOT_EXPOSED)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *((s.name, family) for s in SIGNALS if s.how is not SignalKind.DERIVED for family in s.families),
        *(("tpot_mean_seconds", family) for family in ("decode_seconds", "generation_tokens_per_request")),
        *(("speculative_acceptance", f"spec_{part}") for part in ("drafts", "draft_tokens", "accepted_tokens")),
    ],
)
def test_signal_needs_every_family(name: str, family: str) -> None:
    whole = spoken() if family.startswith("spec_") else minute()
    kinds = {kind: dict(getattr(whole, kind)) for kind in ("counters", "histograms", "gauges")}
    for families in kinds.values():
        families.pop(family, None)
    assert value(name, unsaid(replace(whole, **kinds), family)) == STALE


def idle(**changes: Any) -> Window:
    counters = dict.fromkeys(COUNTERS, 0.0)
    parts = dict.fromkeys(HISTOGRAMS, NOBODY)
    return window(START, 60.0, counters=counters, histograms=parts, gauges={"requests_running": gauge(0.0)}, **changes)


@pytest.mark.parametrize(
    "name",
    [
        *("ttft_p99_seconds", "tpot_mean_seconds", "eviction_rate", "evictions_per_running_request_per_second"),
        *("prefix_hit_ratio", "prefix_reuse_ratio", "speculative_acceptance", "tokens_per_round"),
        "cost_per_million_tokens",
    ],
)
def test_idle_engine_has_no_traffic(name: str) -> None:
    assert value(name, idle()) == Missing(gap=Gap.NO_TRAFFIC)
    half_seen = idle(expected_seconds=120.0, gaps={EVERYTHING: Gap.RESTARTED})
    assert value(name, half_seen) == Missing(gap=Gap.RESTARTED)


@pytest.mark.parametrize("name", ["completed_rps", "arrival_rps", "fleet_utilization", "tokens_per_gpu_hour"])
def test_nothing_happened_is_rate_zero(name: str) -> None:
    found = value(name, idle())
    assert (found.value, found.low) == (0.0, 0.0)


def spoken(start: float = 0.0, **counters: float) -> Window:
    """A minute with speculation: 100 rounds of 4 drafts, 200 of them accepted."""
    whole = {"spec_drafts": 100.0, "spec_draft_tokens": 400.0, "spec_accepted_tokens": 200.0}
    return window(START + start, counters={**whole, **counters})


def finished(covered: float, expected: float = 60.0, seconds: float = 60.0) -> Window:
    """90 finished requests in so many covered seconds."""
    return window(
        START, seconds, expected_seconds=expected, covered_seconds=covered, counters={"requests_finished": 90.0}
    )


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (finished(60), exactly(1.5, 90)),
        (finished(57), reading(1.5 / 0.95, 1.5, None, 90)),
        (finished(54), reading(1.5 / 0.9, 1.5, None, 90)),
        (finished(53), reading(None, 1.5, None, 90)),
        # counters booked late: alone exact, beside another replica's shorter window only a lower bound
        (finished(60, expected=15), exactly(1.5, 90)),
        (finished(90, expected=30), reading(None, 1.5, None, 90)),
        # four replicas, one of them for half of the time
        (finished(210, expected=210), exactly(1.5, 90)),
        (finished(0.5, expected=0.5, seconds=0.5), exactly(180.0, 90)),
    ],
)
def test_total_rate_follows_coverage(of: Window, expected: Reading) -> None:
    assert_close(total_rate(of, "requests_finished"), expected)


TPOT, ARRIVALS, ACCEPTANCE, STARTS = "tpot_mean_seconds", "arrival_rps", "speculative_acceptance", "cold_start_seconds"
USE, GPU_USE, GPU_MEMORY = "fleet_utilization", "gpu_utilization", "gpu_memory_utilization"
HITS, EVICTIONS = "prefix_hit_ratio", "eviction_rate"
STALE, RESTARTED = Missing(gap=Gap.STALE), Missing(gap=Gap.RESTARTED)

EVICTING = window(START, counters={"preemptions": 6.0, "requests_finished": 60.0})
HALF_SPOKEN = windows.sum_windows(
    [
        spoken(prompt_tokens=100.0, prompt_tokens_computed=60.0),
        window(START + 60, counters={"prompt_tokens": 100.0, "spec_accepted_tokens": 200.0}),
    ]
)
LATE = replace(finished(90, expected=30), counters={"requests_finished": 90.0, "in_system_change": 30.0})
UNEXPOSED = Missing(gap=Gap.NOT_EXPOSED)
BY_REQUESTS = reading(0.5, n=120)


def counted(**counters: float | None) -> Window:
    return minute(counters=counters)


def gauged(**gauges: Any) -> Window:
    return minute(gauges=gauges)


def timed(**histograms: Any) -> Window:
    return minute(histograms=histograms)


def tokens(*lengths: float) -> tuple[Histogram, ...]:
    return (histogram(list(lengths), LENGTHS),)


def lower(low: float, n: float, value: float | None = None) -> Reading:
    """What is at least `low`."""
    return reading(value, low, None, n)


def unexposed(text: str) -> Missing:
    return Missing(gap=Gap.NOT_EXPOSED, text=text)


def unsaid(of: Window, *families: str, gap: Gap = Gap.STALE) -> Window:
    return replace(of, gaps=dict.fromkeys(families, gap))


def short(of: Window, family: str, seconds: float = 60.0) -> Window:
    return replace(of, short_seconds={family: seconds})


def queued(**more: tuple[Histogram, ...]) -> Window:
    """100 requests: queued for less than 0.1 s but for four of 0.2 s, and whole in 0.7 s but for two of 3 s."""
    queue, whole = histogram([0.05] * 96 + [0.2] * 4), histogram([0.7] * 98 + [3.0] * 2)
    return window(START, histograms={"queue_seconds": (queue,), "e2e_seconds": (whole,), **more})


HUNDRED = (histogram([0.2] * 100),)
THREE_TOKENS = (histogram([3.0] * 100),)
SUMMED = window(START, counters={"generation_seconds": 30.0, "generation_tokens": 600.0})
ARRIVED = window(START, counters={"requests_arrived": 90.0, "requests_finished": 60.0, "in_system_change": 0.0})
PRINTED = window(START, gauges={"prefix_hit_gauge": gauge(0.4, low=0.3, high=0.5)})
# 0.8 + 0.8^2 + 0.8^3 = 1.952 accepted of three positions
AVERAGES = window(START, gauges={"spec_accept_length": gauge(2.952), "spec_steps": gauge(3.0)})
NO_DRAFTS = window(START, gauges={"spec_accept_length": gauge(0.0, low=0.0, high=0.0)})
PER_ROUND = Missing(
    gap=Gap.NOT_EXPOSED,
    text="the engine prints tokens a round, not of how many drafted: acceptance per token does not follow",
)
UNDRAFTED, ONE_TOKEN = (
    Missing(gap=Gap.NO_TRAFFIC, text=text) for text in ("no token was drafted", "no request generated a second token")
)
UNTOLD = {"requests_waiting": None}
TWENTY = [replace(minute(), start=START + 60 * i, end=START + 60 * (i + 1)) for i in range(20)]
STALE_GAUGES = replace(counted(in_system_change=None), start=START + 60, end=START + 120)
UNEQUAL = windows.sum_windows([*TWENTY[:1], STALE_GAUGES, *TWENTY[2:]])
TIER = windows.sum_windows([minute(), minute(), windows.gap_window(START, START + 60, Gap.SCRAPE_FAILED)])

CHANGED = [
    (
        EVICTIONS,
        windows.sum_windows([EVICTING, short(window(START + 60, counters={"preemptions": 6.0}), "requests_finished")]),
        reading(0.1, n=60),
    ),
    ("prefix_reuse_ratio", HALF_SPOKEN, reading(0.4, n=200)),
    ("tokens_per_round", HALF_SPOKEN, reading(3.0, n=100)),
    (ACCEPTANCE, HALF_SPOKEN, reading(acceptance_from_mean_accepted(2.0, 4), n=100)),
    (EVICTIONS, short(EVICTING, "preemptions"), UNEXPOSED),
    (EVICTIONS, unsaid(short(EVICTING, "preemptions"), "preemptions"), STALE),
    (EVICTIONS, unsaid(short(EVICTING, "requests_finished"), "requests_finished", gap=Gap.RESTARTED), RESTARTED),
    (ARRIVALS, counted(in_system_change=-60.0), lower(1.0, 120, 1.0)),
    (ARRIVALS, counted(in_system_change=-180.0), lower(0.0, 120, 0.0)),
    (ARRIVALS, unsaid(counted(in_system_change=None), "requests_running"), STALE),
    (ARRIVALS, replace(minute(), expected_seconds=120.0), lower(2.5, 120)),
    (ARRIVALS, windows.sum_windows([minute(), minute()]), lower(5.0, 240, 5.0)),
    (ARRIVALS, LATE, lower(2.0, 90)),
    (ARRIVALS, short(minute(), "in_system_change", 30.0), lower(0.0, 120)),
    (
        TPOT,
        timed(decode_seconds=(Histogram(edges=EDGES, counts=(0.0, 0.0, 0.0, 120.0, 0.0), total=None),)),
        unexposed("a sum that the engine printed is contradicted by its buckets"),
    ),
    (TPOT, timed(generation_tokens_per_request=tokens(*[1.0] * 5)), ONE_TOKEN),
    (TPOT, timed(generation_tokens_per_request=tokens(2.0), decode_seconds=(histogram([0.3]),)), exactly(0.3, 1)),
    (
        TPOT,
        timed(generation_tokens_per_request=tokens(1.0, 2.0), decode_seconds=(histogram([0.0, 0.3]),)),
        exactly(0.3, 2),
    ),
    # Half and half, at an acceptance of 0.8: 1.952 and 2.3616 accepted a round.
    (
        ACCEPTANCE,
        spoken(spec_draft_tokens=350.0, spec_accepted_tokens=50 * 1.952 + 50 * 2.3616),
        reading(0.8, 215.68 / (215.68 + 100), 1.0, 100),
    ),
    (
        ACCEPTANCE,
        spoken(spec_accepted_tokens=0.0, **{f"spec_accepted_at_position/{i}": 0.0 for i in range(4)}),
        exactly(0.0, 100),
    ),
    (ACCEPTANCE, spoken(spec_draft_tokens=0.0, spec_accepted_tokens=0.0), UNDRAFTED),
    (GPU_USE, gauged(gpu_gr_engine_active=None), exactly(0.8, 60)),
    (GPU_USE, minute(gauges={"gpu_gr_engine_active": None}, counters={"gpu_busy_seconds": None}), exactly(1.0, 4)),
    ("gpu_power_watts", counted(gpu_energy_joules=None), exactly(500.0, 4)),
    (GPU_MEMORY, gauged(gpu_memory_total_bytes=None), UNEXPOSED),
    (GPU_MEMORY, gauged(gpu_memory_total_bytes=gauge(0.0)), UNEXPOSED),
    (GPU_MEMORY, gauged(gpu_memory_total_bytes=gauge(75e9, low=60e9, high=80e9)), reading(0.8, 0.625, 1.0, 4)),
    (USE, counted(prompt_tokens=None, generation_tokens=None), BY_REQUESTS),
    (USE, counted(prompt_tokens=None), reading((0.5 + 0.6) / 2, n=120)),
    (STARTS, window(START, counters={"restarts": 1.0}), unexposed("the page does not tell when the engine was ready")),
    ("kv_utilization", gauged(kv_utilization=gauge(0.5, 30.0, low=0.25, high=0.75)), reading(0.5, 0.25, 0.75, 4)),
    ("kv_utilization", gauged(kv_utilization=gauge(0.5, 0.0)), UNEXPOSED),
    (
        "requests_running",
        windows.sum_windows([minute(), gauged(requests_running=gauge(3.0, low=1.0, high=5.0))]),
        reading(9.0, 2.0, 16.0, 8),
    ),
    ("requests_running", gauged(requests_running=gauge(6.0, 30.0)), lower(3.0, 4)),
    ("requests_running", gauged(requests_running=gauge(6.0, 57.0)), lower(5.7, 4, 6.0)),
    ("requests_running", gauged(requests_running=gauge(6.0, 54.0)), lower(5.4, 4, 6.0)),
    (HITS, counted(prefix_queried_tokens=6600.0, prefix_hit_tokens=4200.0), exactly(7 / 11, 6600)),
    ("prefix_reuse_ratio", counted(prompt_tokens_computed=6100.0), exactly(0.0, 6000)),
    # Times that the engine does not print as they are asked for lie between others.
    ("ttft_p50_seconds", queued(), reading(None, 0.0, 1.0, 100)),
    ("ttft_p99_seconds", queued(), reading(None, 0.1, 5.0, 100)),
    ("ttft_p99_seconds", unsaid(queued(), "ttft_seconds", gap=Gap.RESTARTED), RESTARTED),
    ("ttft_p99_seconds", replace(queued(), histograms={"queue_seconds": HUNDRED}), UNEXPOSED),
    ("ttft_p99_seconds", replace(queued(), histograms={"e2e_seconds": HUNDRED}), UNEXPOSED),
    ("itl_p99_seconds", queued(), UNEXPOSED),
    (
        "ttft_p50_seconds",
        queued(ttft_seconds=(histogram([0.7] * 100),)),
        reading(0.5 + 0.5 * in_tail(100, 50), 0.5, 1.0, 100),
    ),
    ("tpot_p99_seconds", window(START, histograms={"whole_per_token_seconds": HUNDRED}), reading(None, 0.0, 0.5, 100)),
    # (0.98 x 0.7 + 0.02 x 3 - 0.2) / (3 - 1)
    (TPOT, queued(ttft_seconds=HUNDRED, generation_tokens_per_request=THREE_TOKENS), reading(0.273, n=100)),
    (TPOT, queued(ttft_seconds=NOBODY, generation_tokens_per_request=THREE_TOKENS), Missing(gap=Gap.NO_TRAFFIC)),
    (TPOT, SUMMED, exactly(0.05, 600)),
    (ARRIVALS, ARRIVED, exactly(1.5, 90)),
    (HITS, PRINTED, reading(0.4, 0.3, 0.5, 4)),
    (HITS, replace(PRINTED, counters={"prefix_hit_tokens": 10.0, "prefix_queried_tokens": 100.0}), exactly(0.1, 100)),
    (ACCEPTANCE, AVERAGES, reading(0.8, n=4)),
    ("tokens_per_round", AVERAGES, exactly(2.952, 4)),
    ("tokens_per_round", NO_DRAFTS, UNDRAFTED),
    (ACCEPTANCE, NO_DRAFTS, UNDRAFTED),
    (ACCEPTANCE, window(START, gauges={"spec_accept_length": gauge(2.952)}), PER_ROUND),
    (STARTS, window(START, gauges={"engine_startup_seconds": gauge(50.0)}), lower(50.0, 4)),
    ("prefix_reuse_ratio", counted(prompt_tokens_computed=9600.0), Gap.CONTRADICTORY),
    (HITS, counted(prefix_queried_tokens=9000.0), Gap.CONTRADICTORY),
    # Counters that come late may overlap a little.
    (HITS, minute(counters={"prefix_queried_tokens": 9100.0}, gauges=UNTOLD), Gap.CONTRADICTORY),
    (HITS, minute(counters={"prefix_queried_tokens": 8900.0}, gauges=UNTOLD), exactly(42 / 89, 8900)),
    (ACCEPTANCE, spoken(spec_accepted_tokens=450.0), Gap.CONTRADICTORY),
    (ACCEPTANCE, spoken(spec_accepted_tokens=404.0), exactly(1.0, 100)),
    # In one of twenty minutes the gauges were stale: 2 finished a second, 0.5 more came in 19 of the minutes.
    (ARRIVALS, UNEQUAL, lower(0.0, 2400, 2.5)),
    (USE, TIER, replace(BY_HAND["fleet_utilization"], n=240)),
    ("tokens_per_gpu_hour", TIER, exactly(108000.0, 14400)),
]


@pytest.mark.parametrize(("name", "of", "expected"), CHANGED)
def test_changed_minute_reads_by_hand(name: str, of: Window, expected: SignalValue | Gap) -> None:
    if isinstance(expected, Gap):
        assert value(name, of).gap is expected
    elif isinstance(expected, Missing):
        assert value(name, of) == expected
    else:
        assert_close(value(name, of), expected)


def test_unseen_counters_and_kinds_stay_apart() -> None:
    unseen = short(EVICTING, "preemptions")
    assert total_rate(unseen, "preemptions") == UNEXPOSED
    assert replica_rate(unseen, "preemptions") is None
    assert replica_rate(unseen, "requests_finished") == 1.0
    kinds = ("sm_active", "nvml_gpu", "amd_gfx")
    assert [gpu_utilization(minute(), kind) for kind in kinds] == [exactly(0.3, 4), exactly(0.8, 60), UNEXPOSED]


@given(st.floats(0.0, 1.0), st.integers(1, 8))
def test_uniform_acceptance_is_found_again(a: float, k: int) -> None:
    at = {f"spec_accepted_at_position/{i}": 1e6 * a ** (i + 1) for i in range(k)}
    accepted = math.fsum(at.values())
    found = value(
        "speculative_acceptance",
        spoken(spec_drafts=1e6, spec_draft_tokens=k * 1e6, spec_accepted_tokens=accepted, **at),
    )
    assert found.value == pytest.approx(a, abs=1e-6)
    assert found.low - 1e-9 <= a <= found.high + 1e-9


def test_refusals_are_bounded_twice() -> None:
    """1040 tokens thrown away at up to four a refusal: at least 260; 139 of 453 rounds were accepted whole: at most 314."""
    at = {f"spec_accepted_at_position/{i}": n for i, n in enumerate((200.0, 156.0, 139.0, 139.0))}
    odd = {"spec_accepted_at_position/": 7.0}
    found = value(
        "speculative_acceptance",
        spoken(spec_drafts=453.0, spec_draft_tokens=1674.0, spec_accepted_tokens=634.0, **at, **odd),
    )
    assert (found.low, found.high) == (pytest.approx(634 / (634 + 314)), pytest.approx(634 / (634 + 260)))


rounds = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=60)


@given(rounds)
def test_acceptance_bounds_hold_for_any_rounds(several: list[tuple[int, int]]) -> None:
    """Rounds of (drafted, accepted) tokens; refused where fewer were accepted than drafted."""
    played = [(drafted, min(drafted, accepted)) for drafted, accepted in several]
    accepted = sum(a for _, a in played)
    tried = accepted + sum(a < d for d, a in played)
    at = {f"spec_accepted_at_position/{i}": float(sum(a > i for _, a in played)) for i in range(5)}
    found = value(
        "speculative_acceptance",
        spoken(
            spec_drafts=float(len(played)),
            spec_draft_tokens=float(sum(d for d, _ in played)),
            spec_accepted_tokens=float(accepted),
            **at,
        ),
    )
    assert found.low - 1e-9 <= accepted / tried <= found.high + 1e-9
    assert found.low <= (found.value or 0.0) <= found.high


@pytest.mark.parametrize(
    ("first", "last", "share", "acceptance"),
    [(10, 115, 0.99, 0.99), (145, 245, 0.024, 0.09)],
    ids=["repeated", "random"],
)
def test_real_acceptance_matches_prompts(first: float, last: float, share: float, acceptance: float) -> None:
    """n-gram drafts of up to four tokens, repetitive prompts for 125 s, then random ones.

    Accepted / drafted falls from 0.99 to 0.024, as the recording says. Of the tokens that were tried 0.99 were accepted,
    then 0.09: at the first position, which every round tries, about as many, and hardly one beyond it.
    """
    recording, _ = load(recorded.folder("specdecode"))
    reader = PageReader()
    pages = [reader.read(scrape.body, scrape.t) for scrape in scrapes(recording, []) if scrape.body is not None]
    inside = [page for page in pages if first <= page.t - pages[0].t <= last]
    seen = windows.diff_snapshots(inside[0], inside[-1])
    counters = seen.counters
    assert counters["spec_accepted_tokens"] / counters["spec_draft_tokens"] == pytest.approx(share, abs=0.005)
    found = value("speculative_acceptance", seen)
    assert (found.high or 1.0) - (found.low or 0.0) < 0.015
    assert found.value == pytest.approx(acceptance, abs=0.01)
    assert found.value == pytest.approx(counters["spec_accepted_at_position/0"] / counters["spec_drafts"], abs=0.01)


@pytest.mark.parametrize(
    ("name", "basis", "expected"),
    [
        ("fleet_utilization", NOTHING, "the plan has no curve to derive usable rps from"),
        ("tokens_per_gpu_hour", NOTHING, ""),
        ("cost_per_million_tokens", PlanFacts(gpus_per_replica=4), "the plan has no gpu_hour_price"),
        ("cost_per_million_tokens", PlanFacts(gpu_hour_price=2.0), ""),
        # A capacity that is stated without lengths counts requests.
        ("fleet_utilization", replace(BASIS, capacity=stated_capacity(4.0, "the plan")), BY_REQUESTS),
    ],
)
def test_plan_facts_decide_use_and_cost(name: str, basis: PlanFacts, expected: str | Reading) -> None:
    if isinstance(expected, str):
        expected = Missing(gap=Gap.NOT_IN_PLAN, text=expected)
    assert value(name, basis=basis) == expected


@pytest.mark.parametrize("kind", ["", "external_"])
def test_repeated_lookups_are_no_share(kind: str) -> None:
    """6,000 prompt tokens of 120 requests, 7 in the system: 350 tokens may be looked up and not yet counted."""
    counters = {f"{kind}prefix_queried_tokens": 9000.0, f"{kind}prefix_hit_tokens": 4200.0}
    again = value(f"{kind}prefix_hit_ratio", minute(counters=counters))
    assert again.text.startswith("9,000 tokens were looked up for 6,000 prompt tokens:")
    untold = minute(counters={**counters, "prompt_tokens": None})
    assert_close(value(f"{kind}prefix_hit_ratio", untold), exactly(7 / 15, 9000))


def test_repeated_hits_make_nothing_cheaper() -> None:
    counters = {"prompt_tokens_computed": None, "prefix_queried_tokens": 60_000.0, "prefix_hit_tokens": 54_000.0}
    assert computed_share(minute(counters=counters)) is None
    less = {**counters, "prefix_queried_tokens": 6000.0, "prefix_hit_tokens": 600.0}
    assert computed_share(minute(counters=less)) == 0.9


def test_life_begins_when_the_engine_was_ready() -> None:
    (page,) = PageReader().read_engines((TESTS / "pages" / "lora_mixed.prom").read_bytes(), 2e9).values()
    assert window_since_start(page).start == page.ready_at != page.started_at
