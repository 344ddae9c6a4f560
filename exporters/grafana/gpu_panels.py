"""GPU panels: activity, memory, power, temperature and throttling, by pool (tier dashboard) or GPU (replica dashboard).

`gpu_busy` is the driver's sample buffer, not a poll. A new panel is a function here.
"""

from __future__ import annotations

from dataclasses import replace

from exporters.grafana import queries as q
from exporters.grafana.queries import SeriesScope
from exporters.grafana.records import (
    AMBER,
    RATIO,
    LineStyle,
    Panel,
    Query,
    falling_thresholds,
    range_thresholds,
    rising_thresholds,
    signal_text,
    signal_unit,
)
from exporters.metrics import names
from rules.telemetry.families import LINKS

ACTIVE = (
    ("SMs active", "gpu_sm_active"),
    ("tensor pipes", "tensor_active"),
    ("memory interface", "dram_active"),
)
"""Legends and families of DCGM's profiling fields, where collected."""


def _of(labels: tuple[str, ...]) -> str:
    return "{{replica}} {{gpu}}" if names.GPU in labels else "{{cluster}} {{tier}} {{pool}}"


def busy_share(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> str:
    """Return the share of the covered time in which a kernel ran, 0 to 1."""
    return q.divide(q.total(where, "gpu_busy_seconds", labels), q.total(where, "gpu_busy_covered_seconds", labels))


def busy(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    """Return kernel activity by the driver's samples."""
    return Panel(
        title="GPU busy",
        description="Share of time with a kernel running, from the driver's sample buffer. A busy GPU may still do little: "
        "see the active units.",
        unit=signal_unit("gpu_utilization"),
        queries=(Query(expr=busy_share(where, labels), legend=f"busy {_of(labels)}"),),
        steps=falling_thresholds("GpuComputeLow", "below"),
        top=1.0,
    )


def active(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    """Return unit activity: busy tensor pipes and idle memory mean prefill, the reverse means decode."""
    return Panel(
        title="GPU units active",
        description="Mean over the GPUs, where DCGM's profiling fields are collected. Tensor pipes busy: prefill bound; "
        "memory interface busy: decode bound.",
        unit=RATIO,
        queries=tuple(
            Query(expr=q.aggregate("avg", labels, q.level(where, family)), legend=f"{word} {_of(labels)}")
            for word, family in ACTIVE
        ),
        top=1.0,
    )


def memory(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    """Return GPU memory in use, with the guide's healthy band."""
    used, installed = (
        q.aggregate("sum", labels, q.level(where, f"gpu_memory_{word}_bytes")) for word in ("used", "total")
    )
    return Panel(
        title="GPU memory in use",
        description=signal_text("gpu_memory_utilization"),
        unit=signal_unit("gpu_memory_utilization"),
        queries=(Query(expr=q.divide(used, installed), legend=f"used {_of(labels)}"),),
        steps=range_thresholds(("GpuMemoryLow", "below"), ("GpuMemoryHigh", "above")),
        top=1.0,
    )


def power(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    """Return power by energy counters, against the limit."""
    energy, covered = (q.total(where, f"gpu_energy_{word}", labels) for word in ("joules", "covered_seconds"))
    return Panel(
        title="Power of a GPU",
        description="Mean power of one GPU, from the energy counter, and its limit.",
        unit="watt",
        queries=(
            Query(expr=q.divide(energy, covered), legend=f"power {_of(labels)}"),
            Query(
                expr=q.aggregate("avg", labels, q.level(where, "gpu_power_limit_watts")),
                legend=f"limit {_of(labels)}",
                line=LineStyle.PLAN,
            ),
        ),
    )


def links(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    """Return the traffic of a GPU by link and direction."""
    return Panel(
        title="Traffic of a GPU",
        description="Mean over the GPUs, by link and direction. NVLink carries tensor parallelism; PCIe the host and the NIC.",
        unit="Bps",
        queries=tuple(
            Query(expr=q.aggregate("avg", labels, q.level(where, name)), legend=f"{name[4:-17]} {_of(labels)}")
            for name in LINKS
        ),
        width=12,
    )


def temperature(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    return Panel(
        title="Hottest GPU",
        description="The highest temperature of the GPUs.",
        unit="celsius",
        queries=(
            Query(expr=q.aggregate("max", labels, q.level(where, "gpu_temperature_celsius")), legend=_of(labels)),
        ),
    )


def throttled(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    covered = q.total(where, "gpu_throttled_covered_seconds", labels)
    return Panel(
        title="Clocks held down",
        description="Share of time in which the power limit, heat or the board held the clocks down. Heat and board make the "
        "GPU slower than the one that was measured.",
        unit=RATIO,
        queries=tuple(
            Query(
                expr=q.divide(q.total(where, f"gpu_throttled_{what}_seconds", labels), covered),
                legend=f"{what} {_of(labels)}",
            )
            for what in ("power", "thermal", "hardware")
        ),
        steps=rising_thresholds(("GpuThrottling", "above", AMBER)),
    )


def faults(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> Panel:
    rows = (("driver faults", "gpu_fault_events"), ("uncorrectable memory errors", "gpu_ecc_uncorrectable_errors"))
    return Panel(
        title="GPU faults",
        description="Faults the driver reported and memory errors that ECC could not correct, per second. One is too many.",
        unit="cps",
        queries=tuple(
            Query(expr=q.total(where, family, labels), legend=f"{word} {_of(labels)}") for word, family in rows
        ),
    )


def all_gpu_panels(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL) -> tuple[Panel, ...]:
    """Return every panel in reading order: three in the first line, then four."""
    work = tuple(panel(where, labels) for panel in (busy, active, memory))
    state = tuple(panel(where, labels) for panel in (power, temperature, throttled, faults))
    return (*work, *(replace(panel, width=6) for panel in state), links(where, labels))
