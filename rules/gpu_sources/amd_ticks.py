"""Throttling as AMD's device-metrics-exporter tells it: counts of the firmware's accumulation cycles, without a unit.

Owns which counts become which of our names. How counts become seconds is `rules.gpu_sources.changes`'s: by their share of
the cycles between two pages, as amd-smi's percentages are. Source: ROCm/device-metrics-exporter
docs/configuration/metricslist.md; Linux amdgpu gpu_metrics 1.6 ("accumulated throttler residencies", of which a later
patch says "dimensionless hardware counters"); AMD SMI, GPU violations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rules.gpu_sources.devices import Device
from rules.gpu_sources.exporter import Ticks

TICKS = "gpu_violation_current_accumulated_counter"
RESIDENCIES: Mapping[str, tuple[str, ...]] = {
    "gpu_throttled_power_seconds": ("gpu_violation_ppt_residency_accumulated",),
    "gpu_throttled_thermal_seconds": (
        "gpu_violation_socket_thermal_residency_accumulated",
        "gpu_violation_vr_thermal_residency_accumulated",
        "gpu_violation_hbm_thermal_residency_accumulated",
    ),
    "gpu_throttled_hardware_seconds": ("gpu_violation_processor_hot_residency_accumulated",),
}
"""MI300 and newer. PPT is the package power limit, VR the voltage regulator, "processor hot" a signal from outside."""


def ticks_of(device: Device) -> Ticks | str:
    """The counts of a GPU, or the reason why there are none. Of a name whose parts are not all there there is none."""
    if device.part:
        return f"throttling is measured for the whole GPU, not for {device.part}"
    total = device.value(TICKS)
    if isinstance(total, str):
        return f"{total} (MI300 and newer have it)"
    of = {}
    for ours, names in RESIDENCIES.items():
        parts = [count for count in map(device.value, names) if not isinstance(count, str)]
        if len(parts) == len(names):
            of[ours] = math.fsum(parts)
    return Ticks(total=total, of=of)


def explain_missing_ticks(device: Device, ticks: Ticks | str) -> Mapping[str, str]:
    """By our name the reason why a GPU does not count it."""
    if isinstance(ticks, str):
        return dict.fromkeys(RESIDENCIES, ticks)
    missing = {ours: names for ours, names in RESIDENCIES.items() if ours not in ticks.of}
    return {
        ours: next(why for why in map(device.value, names) if isinstance(why, str)) for ours, names in missing.items()
    }
