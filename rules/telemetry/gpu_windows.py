"""From two readouts of GPUs to what they add to their replica's window.

Owns the difference of two readouts and its sum over the GPUs of a replica. GPU families carry their own seconds, so they
join an engine's window without touching its coverage. A gauge stands for the time since the readout before: exporters
print means of their last interval, and a value that an exporter refreshes every 30 s is counted once.

What a window's GPU families say: utilisation by kind, memory, power.

Owns these derived signals. Which exporter measures what is `rules.gpu_sources`'s, how readouts become windows
`rules.telemetry.gpu_windows`'s. A new kind of utilisation is a row of GPU_UTILIZATION_KINDS and of the plan's key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rules.telemetry import windows
from rules.telemetry.families import stem
from rules.telemetry.gauges import GAUGE_HOLD_SECONDS, GaugeSum
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

COVERED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu_energy_covered_seconds": ("gpu_energy_joules",),
        "gpu_throttled_covered_seconds": (
            "gpu_throttled_power_seconds",
            "gpu_throttled_thermal_seconds",
            "gpu_throttled_hardware_seconds",
        ),
    }
)
"""Covered seconds -> what they cover. A source that gives sums without them is covered from refresh to refresh."""

FAULTS, FAULTS_BY_CODE = "gpu_fault_events", "gpu_fault_events_by_code"

LEVEL_SECONDS = 300.0
"""A gauge says nothing about a longer silence before it; counters do (as `rules.replicas.track.BRIDGE_SECONDS` for gaps)."""

ACTIVITY = frozenset(
    {
        *("gpu_utilization_sampled", "gpu_power_watts", "gpu_gr_engine_active", "gpu_sm_active", "gpu_gfx_active"),
        *("tensor_active", "dram_active"),
    }
)
"""Gauges that follow the load: they hold no longer than those of the engine. Memory and temperature move slowly."""


def diff_readouts(earlier: GpuReadout, later: GpuReadout) -> Window | None:
    """What one GPU did between two readouts; None where time did not go forward.

    A counter that fell began anew (driver reload, another reader): a gap, not a number. A code of which the earlier
    readout counted no fault counted none: its first one is an increase from zero.
    """
    dt = later.t - earlier.t
    if dt <= 0:
        return None
    before = {**_codes_not_yet_seen(earlier, later), **earlier.counters}
    counters = {f: v - before[f] for f, v in later.counters.items() if v >= before.get(f, math.inf)}
    for seconds, covered in COVERED.items():
        if seconds not in later.counters and any(family in counters for family in covered):
            counters[seconds] = dt
    gauges = {
        name: GaugeSum(integral=value * dt, seconds=dt, minimum=value, maximum=value, samples=1)
        for name, value in later.gauges.items()
        if dt <= (GAUGE_HOLD_SECONDS if name in ACTIVITY else LEVEL_SECONDS)
    }
    unseen = (name for name in later.gauges if name not in gauges)
    fell = (name for name in later.counters if name in earlier.counters and name not in counters)
    return Window(
        start=earlier.t,
        end=later.t,
        expected_seconds=0.0,
        covered_seconds=0.0,
        counters=counters,
        gauges=gauges,
        gaps=dict.fromkeys(later.gaps, Gap.NOT_EXPOSED)
        | dict.fromkeys(fell, Gap.RESTARTED)
        | dict.fromkeys(unseen, Gap.NOT_SCRAPED),
        sampled=later.sampled,
    )


def _codes_not_yet_seen(earlier: GpuReadout, later: GpuReadout) -> dict[str, float]:
    """Zero for every fault code, where both readouts of one reader tell faults."""
    if not earlier.counters.get(FAULTS, math.inf) <= later.counters.get(FAULTS, -math.inf):
        return {}
    return {family: 0.0 for family in later.counters if stem(family) == FAULTS_BY_CODE}


def sum_gpus(of_gpus: Iterable[Window]) -> Window | None:
    """The sum over a replica's GPUs: integrals, seconds and counters add, so readings are means over GPUs and time."""
    several = tuple(of_gpus)
    return windows.sum_windows(several) if several else None


GPU_UTILIZATION_KINDS = {
    "gr_engine_active": "gpu_gr_engine_active",
    "sm_active": "gpu_sm_active",
    "nvml_gpu": "gpu_busy_seconds",
    "amd_gfx": "gpu_gfx_active",
}
"""Which family holds which kind of utilisation; kinds are never compared with each other (DESIGN 3.4)."""


def gpu_utilization(window: Window, kind: str) -> SignalValue:
    """Utilisation of one kind (0-1): from sums where the driver keeps them, else the gauge's time mean."""
    family = GPU_UTILIZATION_KINDS[kind]
    if family != "gpu_busy_seconds":
        return mean_level(window, family)
    found = ratio(window, "gpu_busy_seconds", "gpu_busy_covered_seconds")
    return found if isinstance(found, Reading) else mean_level(window, "gpu_utilization_sampled")


def utilization(window: Window) -> SignalValue:
    """Of the kind that is there, the one that says most first (DESIGN 3.4: kinds are never mixed in a comparison)."""
    found = tuple(gpu_utilization(window, kind) for kind in ("gr_engine_active", "nvml_gpu", "amd_gfx"))
    return next((reading for reading in found if isinstance(reading, Reading)), found[1])


def memory_utilization(window: Window) -> SignalValue:
    """Used by installed memory (0-1), means over the window; the extremes that were seen are the bounds."""
    used, total = (window.gauges.get(name) for name in ("gpu_memory_used_bytes", "gpu_memory_total_bytes"))
    if used is None:
        return Missing(gap=window.explain_missing("gpu_memory_used_bytes"))
    if total is None or total.minimum <= 0:
        return Missing(gap=window.explain_missing("gpu_memory_total_bytes"))
    return Reading(
        value=used.integral / used.seconds / (total.integral / total.seconds),
        low=used.minimum / total.maximum,
        high=min(1.0, used.maximum / total.minimum),
        n=used.samples,
    )


def power(window: Window) -> SignalValue:
    """Mean watts of one GPU: energy by the seconds it covers, else the mean of polled powers."""
    found = ratio(window, "gpu_energy_joules", "gpu_energy_covered_seconds")
    return found if isinstance(found, Reading) else mean_level(window, "gpu_power_watts")


def throttled(window: Window) -> SignalValue:
    """Share of time in which heat or the board held the clocks down, the larger of the two: they may overlap.

    The power limit is left out: at full load it holds any data-centre GPU's clocks, by design.
    """
    names = ("gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds")
    found = [ratio(window, name, "gpu_throttled_covered_seconds") for name in names]
    known = [one for one in found if isinstance(one, Reading) and one.value is not None]
    return max(known, key=lambda one: one.value or 0.0) if known else found[0]
