"""What one checked page said: an engine's counters, histograms and gauges under sizewatch's own family names.

Owns the record only. `rules.engines.normalize` makes it from a page by an engine's table; `rules.telemetry.windows` takes the
difference of two. It never holds quantiles or ratios: those belong to windows.

When a replica's pod was asked for and what became of it, by its own status. The record only; `rules.replicas.starts` uses it.

What one GPU said at one instant, and the names it may say it under.

Owns the record that every GPU source (NVML, the exporters in ``rules/gpu_names``) fills, and the table of names with
units and meanings. Must not know any source's own spelling. A new quantity is a row of ``GPU_NAMES``; a new exporter
is a file in ``rules/gpu_names``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rules.telemetry.histograms import Cumulative


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTimes:
    """Unix seconds, as the cluster's clocks tell them, to the second; None where they are not known or not to be believed.

    `asked_at` is when the pod was made, `scheduled_at` when a node was found for it, `container_at` when the engine's
    container of now was started, `ready_at` when the pod was Ready, so that traffic could come. The first two are None once the
    container was restarted in its pod. They and `ready_at` are None unless the pod was seen before it was Ready: a condition
    tells when it last changed, not when it first did, and the process of now need not be the pod's first.
    """

    asked_at: float | None = None
    scheduled_at: float | None = None
    container_at: float | None = None
    ready_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One page at one instant. Family names and units are those of `rules.telemetry.families`.

    `started_at` is when the counters began, as far as the page tells (unix seconds, None where it does not).
    `ready_at` is when the engine made its metrics, which is when it became ready. `facts` are labels of info series.
    `pod` is what is known of the pod that the page is from, where it is from one.
    `broken` are the families that were broken on this page and are therefore absent here, `contradictory` those that
    contradict each other and are absent, too; `problems` says how.
    """

    t: float
    engine: str
    generation: str
    started_at: float | None
    ready_at: float | None
    counters: Mapping[str, float]
    histograms: Mapping[str, Cumulative]
    gauges: Mapping[str, float]
    facts: Mapping[str, str]
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()
    contradictory: frozenset[str] = frozenset()
    sampled: frozenset[str] = frozenset()
    pod: PodTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadout:
    """What one GPU said at one instant. Base units; a name in none of the three mappings was not asked.

    ``counters`` only grow within one reader's life: use increases, never levels. ``gaps`` holds a reason a person can
    read for every name that was asked and has no value (and ``pids`` when processes are not visible): never a zero.
    ``sampled`` names the counters and gauges for which a sum over time exists in principle, but which here come from
    a plain poll; what is a level by nature (memory, temperature, a limit) is never in it.
    """

    t: float
    """Unix seconds of the values."""
    gpu: str
    """UUID."""
    index: int | None
    product: str
    """As the source spells it ("NVIDIA H100 80GB HBM3"); empty where the source does not say."""
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    gaps: Mapping[str, str]
    sampled: frozenset[str]
    pids: tuple[int, ...]
    """Host process ids of compute processes; empty when there are none or they are not visible."""
    pods: tuple[str, ...] = ()
    """Pods of Kubernetes that the source says it was given to, as namespace/name; empty where it says none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """One quantity: how it behaves, its unit, what it means."""

    kind: str
    """``counter`` or ``gauge``."""
    unit: str
    meaning: str
    utilization_kind: str | None = None
    """For a utilisation: the plan's ``gpu_utilization_kind`` it may be compared with, and no other."""


def _counter(unit: str, meaning: str, utilization_kind: str | None = None) -> GpuName:
    return GpuName(kind="counter", unit=unit, meaning=meaning, utilization_kind=utilization_kind)


def _gauge(unit: str, meaning: str, utilization_kind: str | None = None) -> GpuName:
    return GpuName(kind="gauge", unit=unit, meaning=meaning, utilization_kind=utilization_kind)


GPU_NAMES: Mapping[str, GpuName] = MappingProxyType(
    {
        "gpu_busy_seconds": _counter(
            "seconds",
            "time in which at least one kernel ran; divided by the increase of gpu_busy_covered_seconds: utilisation",
            "nvml_gpu",
        ),
        "gpu_busy_covered_seconds": _counter("seconds", "time for which gpu_busy_seconds knows whether a kernel ran"),
        "gpu_energy_joules": _counter(
            "joules",
            "energy used; divided by the increase of gpu_energy_covered_seconds: mean power. A source that gives no "
            "covered seconds (an exporter's page) is covered from one refresh to the next",
        ),
        "gpu_energy_covered_seconds": _counter("seconds", "time over which gpu_energy_joules was summed"),
        "gpu_throttled_power_seconds": _counter("seconds", "time in which the power limit held the clocks down"),
        "gpu_throttled_thermal_seconds": _counter("seconds", "time in which heat held the clocks down"),
        "gpu_throttled_hardware_seconds": _counter(
            "seconds", "time in which the board held the clocks down: power brake, external power, hardware slowdown"
        ),
        "gpu_throttled_covered_seconds": _counter("seconds", "time for which the three above know it"),
        "gpu_ecc_uncorrectable_errors": _counter("errors", "memory errors that ECC could not correct"),
        "gpu_ecc_correctable_errors": _counter("errors", "memory errors that ECC corrected"),
        "gpu_fault_events": _counter(
            "events",
            "faults the driver reported since the reader began (NVIDIA XID, AMD AFID): by change, not by level",
        ),
        "gpu_fault_events_by_code": _counter("events", "the same by code after a '/', such as /xid-79 or /afid-23"),
        "gpu_memory_used_bytes": _gauge("bytes", "memory that is not free: total minus free, reserved included"),
        "gpu_memory_total_bytes": _gauge("bytes", "memory of the GPU: used plus free"),
        "gpu_memory_reserved_bytes": _gauge("bytes", "the part of used that driver and firmware keep for themselves"),
        "gpu_temperature_celsius": _gauge("degrees Celsius", "temperature of the GPU's core"),
        "gpu_power_watts": _gauge("watts", "power at the instant of the poll; mean power comes from gpu_energy_joules"),
        "gpu_power_limit_watts": _gauge("watts", "power limit in force"),
        "gpu_gr_engine_active": _gauge(
            "ratio", "share of time the graphics and compute engine was active, mean over a refresh", "gr_engine_active"
        ),
        "gpu_gfx_active": _gauge("ratio", "share of time the graphics engine of an AMD GPU was busy", "amd_gfx"),
        "gpu_utilization_sampled": _gauge(
            "ratio", "share of the driver's last sample period (1/6 to 1 s) in which a kernel ran: one poll", "nvml_gpu"
        ),
        "gpu_sm_active": _gauge(
            "ratio", "share of time a multiprocessor had at least one warp, mean over multiprocessors", "sm_active"
        ),
        "tensor_active": _gauge("ratio", "share of cycles the tensor pipe was active, mean over a refresh"),
        "dram_active": _gauge("ratio", "share of cycles the memory interface moved data, mean over a refresh"),
    }
)
