"""Snapshots: one checked engine page, the timestamps of a replica's pod, and one GPU readout.

`rules.engines.reader` makes engine snapshots; `rules.telemetry.windows` takes their difference. Quantiles and ratios
belong to windows. Every GPU source (NVML, the exporters in `rules.gpu_sources`) fills the readout under the names,
units and meanings of ``GPU_NAMES``. To add a GPU quantity: a row of ``GPU_NAMES``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rules.telemetry.histograms import Cumulative

ENGINE_VERSION = "engine_version"
"""Fact with the engine's release, where it is known. `engine_versions` has the releases that the page's names allow."""

KV_FORMATS = ("cache_dtype", "kv_cache_dtype")
"""Facts with the format of the KV cache. vLLM's "auto" is the type of the model or its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTimes:
    """Pod timestamps in unix seconds by the cluster's clocks, to the second. None means unknown or unreliable.

    `asked_at`: the pod was created. `container_at`: the present engine container was started. `ready_at`: the pod was
    Ready for traffic. `asked_at` is None after a container restart in the pod. It and `ready_at` are None unless the pod
    was observed before it was Ready. A condition holds its last change, not its first, and the present process may not
    be the pod's first.
    """

    asked_at: float | None = None
    container_at: float | None = None
    ready_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPage:
    """Data-parallel rank on a page: gauges of its requests and the sum of its counters of work.

    `counts_steps`: these would move during a long generation.
    """

    name: str
    gauges: Mapping[str, float]
    work: float
    counts_steps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Page at one instant. Family names and units are those of `rules.telemetry.families`.

    `started_at` is the start of the counters (unix seconds, None if unknown). `ready_at` is the time when the engine
    made its metrics, which is when it became ready. `facts` are labels of info series. `pod` describes the page's pod,
    if it has one. `broken` are families that are absent because they were broken on this page. `contradictory` are
    families that are absent because they contradict each other, `impossible` because no engine can reach their values.
    `problems` gives the details. `ranks` are the data-parallel ranks, of pages with several.
    """

    t: float
    engine: str
    generation: str
    started_at: float | None = None
    ready_at: float | None = None
    counters: Mapping[str, float]
    histograms: Mapping[str, Cumulative]
    gauges: Mapping[str, float]
    facts: Mapping[str, str]
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()
    contradictory: frozenset[str] = frozenset()
    impossible: frozenset[str] = frozenset()
    sampled: frozenset[str] = frozenset()
    pod: PodTimes | None = None
    ranks: tuple[RankPage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadout:
    """Readout of one GPU at one instant, in base units. A name in none of the three mappings was not queried.

    ``counters`` only grow within one reader's life: use increases, never levels. ``gaps`` holds a readable reason for
    each queried name without a value (and ``pids`` for hidden processes), never a zero. ``sampled`` names counters and
    gauges that come from a plain poll although a time sum exists in principle. Natural levels (memory, temperature, a
    limit) are never in it.
    """

    t: float
    """Unix seconds of the values."""
    gpu: str
    """UUID."""
    index: int | None = None
    product: str
    """Product name as the source spells it ("NVIDIA H100 80GB HBM3"), or empty."""
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    gaps: Mapping[str, str] = field(default_factory=dict)
    sampled: frozenset[str] = frozenset()
    pids: tuple[int, ...] = ()
    """Host process ids of compute processes. Empty if there are none or they are hidden."""
    pods: tuple[str, ...] = ()
    """Kubernetes pods that own the GPU by the source, as namespace/name. Empty if it reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """GPU quantity: its kind, unit and meaning."""

    kind: str
    """``counter`` or ``gauge``."""
    unit: str
    meaning: str


def _counter(unit: str, meaning: str) -> GpuName:
    return GpuName(kind="counter", unit=unit, meaning=meaning)


def _gauge(unit: str, meaning: str) -> GpuName:
    return GpuName(kind="gauge", unit=unit, meaning=meaning)


LINKS: Mapping[str, str] = MappingProxyType(
    {
        f"gpu_{link}_{way}_bytes_per_second": f"{title} traffic {text} a GPU"
        for link, title in (("pcie", "PCIe"), ("nvlink", "NVLink"), ("c2c", "Chip-to-chip"))
        for way, text in (("tx", "from"), ("rx", "to"))
    }
)
"""Traffic by link and direction: between the GPUs of a replica, and to the host and the network (P/D, offloading)."""

GPU_NAMES: Mapping[str, GpuName] = MappingProxyType(
    {
        **{name: _gauge("bytes per second", f"{text}, mean over a refresh") for name, text in LINKS.items()},
        "gpu_busy_seconds": _counter(
            "seconds",
            "time in which at least one kernel ran; divided by the increase of gpu_busy_covered_seconds: utilisation",
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
            "ratio", "share of time the graphics and compute engine was active, mean over a refresh"
        ),
        "gpu_gfx_active": _gauge("ratio", "share of time the graphics engine of an AMD GPU was busy"),
        "gpu_utilization_sampled": _gauge(
            "ratio", "share of the driver's last sample period (1/6 to 1 s) in which a kernel ran: one poll"
        ),
        "gpu_sm_active": _gauge(
            "ratio", "share of time a multiprocessor had at least one warp, mean over multiprocessors"
        ),
        "tensor_active": _gauge("ratio", "share of cycles the tensor pipe was active, mean over a refresh"),
        "dram_active": _gauge("ratio", "share of cycles the memory interface moved data, mean over a refresh"),
    }
)


RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)([^+]*)")
"""Numbers of a release, and what follows them without the builder's part."""


def is_same_release(one: str, other: str) -> bool:
    """Return whether two releases are equal, without the builder's part: v0.32 is 0.32.0+cpu, 0.33.0rc1 is not 0.33.0."""
    first, second = RELEASE.fullmatch(one.partition("+")[0]), RELEASE.fullmatch(other.partition("+")[0])
    if first is None or second is None:
        return one == other
    return (release_numbers(first[1]), first[2]) == (release_numbers(second[1]), second[2])


def release_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a release without zeros at the end."""
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
