"""Limits of GPU readings: what no GPU can reach. A value beyond them is a gap named `impossible`, never a reading.

Each limit is far above the largest GPU of today, so that a new product needs no release of ours. Sources:

- Power: NVIDIA's GB300 and AMD's MI355X take 1,400 W (data sheets), Rubin Ultra's package of four dies 3,600 W (GTC 2025).
- Memory: 288 GB of HBM (MI355X, GB300), 1 TB announced for Rubin Ultra.
- Temperature: silicon is specified from -55 to 150 degrees at its junction (JEDEC); GPUs shut down near 105.
- Links: NVLink 5 moves 1.8 TB/s, NVLink 6 3.6 TB/s, NVLink-C2C 0.9 TB/s; PCIe 7.0 x16 0.25 TB/s in one direction.
- Corrected errors: one for each access of 32 bytes to a memory of 1e13 bytes a second. HBM3e gives 8e12.
- Uncorrectable errors and faults: the driver handles an interrupt for each, which takes it more than a microsecond.
- XID codes: NVIDIA's list ends below 200; AMD's AFIDs are two digits.
- Seconds of a state: at most the time that passed. A page may be older than its scrape by a refresh of the exporter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rules.telemetry.families import GPU_NAMES, LINKS, stem
from rules.telemetry.snapshots import GpuReadout

MOST_WATTS = 5_000.0
MOST_MEMORY_BYTES = 4.0 * 2**40
LEAST_CELSIUS, MOST_CELSIUS = -55.0, 150.0
MOST_LINK_BYTES = 1e13
MOST_ACCESSES = 1e13 / 32
MOST_INTERRUPTS = 1e6
MOST_CODE = 9_999
"""Largest code of a fault."""

REFRESH_SECONDS = 60.0
"""Age that an exporter's values may have: two refreshes of dcgm-exporter's default."""

LEVELS: Mapping[str, tuple[float, float]] = {
    **{name: (0.0, 1.0) for name, row in GPU_NAMES.items() if row.unit == "ratio"},
    **{name: (0.0, MOST_MEMORY_BYTES) for name in GPU_NAMES if name.startswith("gpu_memory_")},
    **{name: (0.0, MOST_WATTS) for name, row in GPU_NAMES.items() if row.unit == "watts"},
    **dict.fromkeys(LINKS, (0.0, MOST_LINK_BYTES)),
    "gpu_temperature_celsius": (LEAST_CELSIUS, MOST_CELSIUS),
}
"""Least and largest possible value of a gauge."""

PER_SECOND: Mapping[str, float] = {
    # Software and hardware slowdown are added, and may overlap.
    **{name: 2.0 for name, row in GPU_NAMES.items() if row.kind == "counter" and row.unit == "seconds"},
    "gpu_energy_joules": MOST_WATTS,
    "gpu_ecc_correctable_errors": MOST_ACCESSES,
    "gpu_ecc_uncorrectable_errors": MOST_INTERRUPTS,
    "gpu_fault_events": MOST_INTERRUPTS,
    "gpu_fault_events_by_code": MOST_INTERRUPTS,
}
"""Largest possible increase of a counter in a second."""

PARTS = (("gpu_memory_used_bytes", "gpu_memory_total_bytes"), ("gpu_memory_reserved_bytes", "gpu_memory_total_bytes"))


class Impossible(str):
    """Reason for no value: the source gives one that cannot be."""

    __slots__ = ()


def check_level(name: str, value: float) -> Impossible | None:
    """Return why a gauge in our unit cannot have this value, or None."""
    least, most = LEVELS.get(name, (-math.inf, math.inf))
    return None if least <= value <= most else Impossible(f"{value:.3g} is outside {least:g} to {most:g}: cannot be")


def drop_impossible(readout: GpuReadout) -> GpuReadout:
    """Return the readout without gauges that cannot be; each becomes a gap. A part above its whole costs both."""
    gauges = readout.gauges
    found = {name: text for name, value in gauges.items() if (text := check_level(name, value)) is not None}
    for part, whole in PARTS:
        if part in gauges and whole in gauges and gauges[part] > gauges[whole]:
            text = Impossible(f"{part} is {gauges[part]:.3g} of {gauges[whole]:.3g} bytes: cannot be")
            found |= {part: text, whole: text}
    if not found:
        return readout
    kept = {name: value for name, value in gauges.items() if name not in found}
    return replace(readout, gauges=kept, gaps={**readout.gaps, **found}, sampled=readout.sampled - found.keys())


def find_impossible_increases(counters: Mapping[str, float], seconds: float) -> frozenset[str]:
    """Return the counters whose increase within `seconds` is more than a GPU can reach."""
    time = seconds + REFRESH_SECONDS
    return frozenset(name for name, value in counters.items() if value > PER_SECOND.get(stem(name), math.inf) * time)
