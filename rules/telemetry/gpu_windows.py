"""GPU readings: limits of what can be, windows between two readouts, their sums over a replica's GPUs, and signals.

GPU families carry their own seconds, so they do not change the coverage of an engine's window. A gauge stands for the
time since the previous readout, because exporters print means of their last interval. To add a kind of utilisation: a
row of GPU_UTILIZATION_KINDS and of the plan's key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, LINKS, MOST, FamilyKind, stem
from rules.telemetry.gauges import GAUGE_HOLD_SECONDS, GaugeSum
from rules.telemetry.reading_methods import gap_for_empty_family, mean_level, ratio, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

MOST_CODE = 9_999
"""Largest code of a fault: NVIDIA's list of XIDs ends below 200, AMD's AFIDs are two digits."""

REFRESH_SECONDS = 60.0
"""Age that an exporter's values may have: two refreshes of dcgm-exporter's default."""

PARTS = (("gpu_memory_used_bytes", "gpu_memory_total_bytes"), ("gpu_memory_reserved_bytes", "gpu_memory_total_bytes"))


class Impossible(str):
    """Reason for no value: the source gives one that cannot be (limits in families.toml)."""

    __slots__ = ()


def check_level(name: str, value: float) -> Impossible | None:
    """Return why a gauge or counter in our unit cannot have this value, or None."""
    row = BY_NAME.get(name)
    if row is None or row.kind is FamilyKind.COUNTER:
        return None
    if row.least <= value <= row.most:
        return None
    return Impossible(f"{value:.3g} is outside {row.least:g} to {row.most:g}: cannot be")


def drop_impossible(readout: GpuReadout) -> GpuReadout:
    """Return the readout without gauges that cannot be; each becomes a gap. A part above its whole costs both."""
    gauges = readout.gauges
    mapping = {name: text for name, value in gauges.items() if (text := check_level(name, value)) is not None}
    for part, whole in PARTS:
        if part in gauges and whole in gauges and gauges[part] > gauges[whole]:
            text = Impossible(f"{part} is {gauges[part]:.3g} of {gauges[whole]:.3g} bytes: cannot be")
            mapping |= {part: text, whole: text}
    if not mapping:
        return readout
    kept = {name: value for name, value in gauges.items() if name not in mapping}
    return replace(readout, gauges=kept, gaps={**readout.gaps, **mapping}, sampled=readout.sampled - mapping.keys())


def find_impossible_increases(counters: Mapping[str, float], seconds: float) -> frozenset[str]:
    """Return the counters whose increase within `seconds` is more than a GPU can reach."""
    time = seconds + REFRESH_SECONDS
    return frozenset(name for name, value in counters.items() if value > MOST.get(stem(name), math.inf) * time)


THROTTLED_COVERED = "gpu_throttled_covered_seconds"
SLOWER = ("gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds")

COVERED: Mapping[str, tuple[str, ...]] = {
    "gpu_energy_covered_seconds": ("gpu_energy_joules",),
    THROTTLED_COVERED: ("gpu_throttled_power_seconds", *SLOWER),
}
"""Families of each covered-seconds counter. A source of sums without such a counter covers from refresh to refresh."""

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes")
FAULTS, FAULTS_BY_CODE = "gpu_fault_events", "gpu_fault_events_by_code"

LEVEL_SECONDS = 300.0
"""Longest silence in seconds that a gauge stands for. Counters bridge longer ones (`BRIDGE_SECONDS`)."""

ACTIVITY = frozenset(
    {
        *("gpu_utilization_sampled", "gpu_power_watts", "gpu_gr_engine_active", "gpu_sm_active", "gpu_gfx_active"),
        *("tensor_active", "dram_active", *LINKS),
    }
)
"""Gauges that follow the load. They hold no longer than the engine's gauges; memory and temperature change slowly."""


def diff_readouts(earlier: GpuReadout, later: GpuReadout) -> Window | None:
    """Return the window of one GPU between two readouts, None if time did not advance.

    A counter that fell was reset (driver reload, another reader) and becomes a gap. So does one that grew faster than any
    GPU can. A fault code missing from the earlier readout counts from zero if that readout reports faults.
    """
    dt = later.t - earlier.t
    if dt <= 0:
        return None
    before = {**_codes_not_yet_seen(earlier, later), **earlier.counters}
    counters = {f: v - before[f] for f, v in later.counters.items() if v >= before.get(f, math.inf)}
    impossible = find_impossible_increases(counters, dt)
    counters = {family: value for family, value in counters.items() if family not in impossible}
    for seconds, covered in COVERED.items():
        known = later.counters.keys() & covered
        if seconds not in later.counters and known and known <= counters.keys():
            counters[seconds] = dt
    gauges = {
        name: GaugeSum(integral=value * dt, seconds=dt, minimum=value, maximum=value, samples=1)
        for name, value in later.gauges.items()
        if dt <= (GAUGE_HOLD_SECONDS if name in ACTIVITY else LEVEL_SECONDS)
    }
    gaps = {n: Gap.IMPOSSIBLE if isinstance(text, Impossible) else Gap.NOT_EXPOSED for n, text in later.gaps.items()}
    unseen = (name for name in later.gauges if name not in gauges)
    fell = (name for name in later.counters if name in earlier.counters and name not in counters)
    return Window(
        start=earlier.t,
        end=later.t,
        expected_seconds=0.0,
        covered_seconds=0.0,
        counters=counters,
        gauges=gauges,
        gaps=gaps
        | dict.fromkeys(fell, Gap.RESTARTED)
        | dict.fromkeys(impossible, Gap.IMPOSSIBLE)
        | dict.fromkeys(unseen, Gap.NOT_SCRAPED),
        sampled=later.sampled,
    )


def _codes_not_yet_seen(earlier: GpuReadout, later: GpuReadout) -> dict[str, float]:
    """Return zero for every fault code if both readouts of one reader report faults."""
    if not earlier.counters.get(FAULTS, math.inf) <= later.counters.get(FAULTS, -math.inf):
        return {}
    return {family: 0.0 for family in later.counters if stem(family) == FAULTS_BY_CODE}


def sum_gpus(of_gpus: Iterable[Window]) -> Window | None:
    """Return the sum over a replica's GPUs: readings are means over GPUs and time. Seconds held down by heat or the board
    are those of the GPU held down most, memory is the fullest GPU's: they stop the others."""
    rows = tuple(of_gpus)
    if not rows:
        return None
    slowest = max(rows, key=lambda row: getattr(throttled(row), "value", None) or 0.0)
    fullest = max(rows, key=lambda row: getattr(level_ratio(row, *MEMORY), "value", None) or 0.0)
    held = {name: slowest.counters[name] for name in (*SLOWER, THROTTLED_COVERED) if name in slowest.counters}
    used = {name: fullest.gauges[name] for name in MEMORY if name in fullest.gauges}
    return windows.sum_windows(
        replace(row, counters={**row.counters, **held}, gauges={**row.gauges, **used}) for row in rows
    )


GPU_UTILIZATION_KINDS = {
    "gr_engine_active": "gpu_gr_engine_active",
    "sm_active": "gpu_sm_active",
    "nvml_gpu": "gpu_busy_seconds",
    "amd_gfx": "gpu_gfx_active",
}
"""Family of each kind of utilisation. Kinds are never compared with each other (DESIGN 3.4)."""


def gpu_utilization(window: Window, kind: str) -> SignalValue:
    """Return the utilisation of one kind (0-1), by the driver's sums if they exist, else the gauge's time mean."""
    family = GPU_UTILIZATION_KINDS[kind]
    if family != "gpu_busy_seconds":
        return mean_level(window, family)
    reading = ratio(window, "gpu_busy_seconds", "gpu_busy_covered_seconds")
    return reading if isinstance(reading, Reading) else mean_level(window, "gpu_utilization_sampled")


def utilization(window: Window) -> SignalValue:
    """Return the utilisation of the most informative kind that exists (DESIGN 3.4: kinds are never mixed in a
    comparison)."""
    readings = tuple(gpu_utilization(window, kind) for kind in ("gr_engine_active", "nvml_gpu", "amd_gfx"))
    return next((reading for reading in readings if isinstance(reading, Reading)), readings[1])


def level_ratio(window: Window, part: str, whole: str) -> SignalValue:
    """Return the ratio (0-1) of two gauges, from means over the window. The observed extremes are the bounds."""
    used, total = window.gauges.get(part), window.gauges.get(whole)
    if used is None:
        return Missing(gap=window.explain_missing(part))
    if total is None or total.minimum <= 0:
        return Missing(gap=window.explain_missing(whole))
    return Reading(
        value=used.mean / total.mean,
        low=used.minimum / total.maximum,
        high=min(1.0, used.maximum / total.minimum),
        n=used.samples,
    )


def power(window: Window) -> SignalValue:
    """Return the mean power of a GPU in watts: energy by covered seconds, else the mean of polls."""
    reading = ratio(window, "gpu_energy_joules", "gpu_energy_covered_seconds")
    return reading if isinstance(reading, Reading) else mean_level(window, "gpu_power_watts")


def throttled(window: Window) -> SignalValue:
    """Return the share of time in which heat or the board reduced the clocks, the larger: at least the board's alone. The
    power limit is excluded: at full load it reduces any GPU's clocks."""
    heat, board = (ratio(window, name, THROTTLED_COVERED) for name in SLOWER)
    if isinstance(board, Missing):
        return heat
    if isinstance(heat, Missing):
        return replace(board, low=board.value, high=None)
    return max(heat, board, key=lambda reading: reading.value or 0.0)


def energy(window: Window, gpus: float | None, tokens: str) -> SignalValue:
    """Return joules per token: mean power of a GPU x GPUs of a replica / tokens per second of a replica."""
    watts, rate = power(window), replica_rate(window, tokens)
    if rate is None:
        return Missing(gap=window.explain_missing(tokens))
    if isinstance(watts, Missing) or gpus is None:
        return watts if isinstance(watts, Missing) else Missing(gap=Gap.NOT_IN_PLAN)
    if not rate:
        return gap_for_empty_family(window, tokens)
    return replace(watts, n=window.counters[tokens]).map(lambda each: each * gpus / rate)


def share_of_peak(window: Window, peak: float | None, *families: str) -> SignalValue:
    """Return an engine's estimates per GPU and second by the peak of the GPU's product."""
    rates = {family: replica_rate(window, family) for family in families}
    for family, rate in rates.items():
        if rate is None:
            return Missing(gap=window.explain_missing(family))
    total = math.fsum(rate or 0.0 for rate in rates.values())
    if not total:
        return Missing(gap=Gap.NOT_EXPOSED, text="nothing was estimated: no traffic, or no --enable-mfu-metrics")
    if peak is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="no peak is known for the plan's GPU product and precision")
    return Reading(value=total / peak, low=None, high=None, n=math.fsum(window.counters[f] for f in families))
