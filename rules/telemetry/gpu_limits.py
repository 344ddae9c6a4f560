"""Limits of GPU readings: what no GPU can reach (families.toml). A value beyond them is a gap named `impossible`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rules.telemetry.families import BY_NAME, MOST, FamilyKind, stem
from rules.telemetry.snapshots import GpuReadout

MOST_CODE = 9_999
"""Largest code of a fault: NVIDIA's list of XIDs ends below 200, AMD's AFIDs are two digits."""

REFRESH_SECONDS = 60.0
"""Age that an exporter's values may have: two refreshes of dcgm-exporter's default."""

PARTS = (("gpu_memory_used_bytes", "gpu_memory_total_bytes"), ("gpu_memory_reserved_bytes", "gpu_memory_total_bytes"))


class Impossible(str):
    """Reason for no value: the source gives one that cannot be."""

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
