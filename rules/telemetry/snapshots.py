"""Snapshots: one checked engine page, the timestamps of a replica's pod, and one GPU readout.

`rules.engines.reader` makes engine snapshots; `rules.telemetry.windows` takes their difference. Quantiles and ratios
belong to windows. Every GPU source (NVML, the exporters in `rules.gpu_sources`) fills the readout under the names,
units and meanings of `rules.telemetry.families.GPU_NAMES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rules.telemetry.histograms import Cumulative

ENGINE_VERSION = "engine_version"
"""Fact with the engine's release where known. `engine_versions` has the releases that the names allow."""

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
    limit) are never in it. ``t`` is in unix seconds, ``gpu`` a UUID, ``host`` the exporter's name of the machine or "".
    """

    t: float
    gpu: str
    host: str = ""
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


RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)([^+]*)")
"""Numbers of a release, and what follows them without the builder's part."""


def is_same_release(text: str, right: str) -> bool:
    """Return whether two releases are equal: v0.32 is 0.32.0+cpu, 0.33.0rc1 is not 0.33.0."""
    first, second = RELEASE.fullmatch(text.partition("+")[0]), RELEASE.fullmatch(right.partition("+")[0])
    if first is None or second is None:
        return text == right
    return (release_numbers(first[1]), first[2]) == (release_numbers(second[1]), second[2])


def release_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a release without zeros at the end."""
    numbers = list(map(int, text.split(".")))
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
