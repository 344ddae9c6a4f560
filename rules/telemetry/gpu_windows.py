"""From two readouts of GPUs to what they add to their replica's window.

Owns the difference of two readouts and its sum over the GPUs of a replica. GPU families carry their own seconds, so they
join an engine's window without touching its coverage. A gauge stands for the time since the readout before: exporters
print means of their last interval, and a value that an exporter refreshes every 30 s is counted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rules.telemetry import windows
from rules.telemetry.families import stem
from rules.telemetry.gauges import GAUGE_HOLD_SECONDS, GaugeSum
from rules.telemetry.gpu_readout import GpuReadout
from rules.telemetry.signals import Gap
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
