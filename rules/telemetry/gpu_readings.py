"""What a window's GPU families say: utilisation by kind, memory, power.

Owns these derived signals. Which exporter measures what is `rules.gpu_sources`'s, how readouts become windows
`rules.telemetry.gpu_windows`'s. A new kind of utilisation is a row of GPU_UTILIZATION_KINDS and of the plan's key.
"""

from __future__ import annotations

from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.windows import Window

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
