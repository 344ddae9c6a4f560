"""Input and output records of one evaluation step (`rules.evaluator.step`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import ClosedSpan, Finding

ReplicaKey = tuple[str, str]
"""Tier and replica."""

AGGREGATE = "*"
"""Replica name in the closed minutes of a tier that a store adds up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaScrape:
    """Scrape of one replica at unix seconds `t`. `snapshot` is None after a failure.

    `failure` is the kind of the failure. It is empty while a target is skipped after failures; `error` is then the text
    of the last one. `starting` says that the replica's pod was created at `pod_created` and is not ready: its failed
    scrape is no gap. `no_engine` says that the page is of a router, or of engines that nothing tells apart: it is no
    replica. `gpu_window` sums its GPUs since the previous scrape. `gpu_problem` says why GPUs are not read.
    """

    tier: str
    replica: str
    t: float
    snapshot: Snapshot | None = None
    error: str = ""
    failure: str = ""
    seconds: float = 0.0
    starting: bool = False
    no_engine: bool = False
    pod_created: float | None = None
    gpu_window: Window | None = None
    gpu_problem: str = ""

    @property
    def key(self) -> ReplicaKey:
        return self.tier, self.replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGpus:
    """GPUs of one replica: last readouts, windows by GPU, and which GPUs were not found."""

    readouts: tuple[GpuReadout, ...] = ()
    windows: Mapping[str, Window] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAggregate:
    """Minute of a tier that a store adds up: windows by load, and of each replica what comparing rules need."""

    groups: tuple[BinnedWindow, ...]
    each: tuple[BinnedWindow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything a source saw up to `now` (unix seconds), the only time that a step knows.

    `gpus` also holds replicas that another agent scrapes. `aggregated` are the tiers that a store adds up, `aggregates`
    their new minutes. `unavailable` maps a tier of which nothing is known now to the reason. `removed` are replicas that
    no longer exist. `pools` maps replicas to pools, by tier, where the source learns them. `partial`: it is one of
    several of a cycle. The rules of a replica are evaluated only where it was scraped.
    """

    now: float
    scrapes: tuple[ReplicaScrape, ...] = ()
    gpus: Mapping[ReplicaKey, ReplicaGpus] = field(default_factory=dict)
    gpu_problems: tuple[str, ...] = ()
    aggregated: frozenset[str] = frozenset()
    aggregates: Mapping[str, TierAggregate] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    removed: frozenset[ReplicaKey] = frozenset()
    pools: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    events: tuple[TimelineEvent, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedMinute:
    """Complete minute of a replica.

    It is not `kept` where no agent watched. `release` is the engine and the version of its page. `precision` is the format
    of weights and KV cache ("fp8/bf16"). Empty is unknown. The history adds `plan_version`, and `pool` if it is not mixed.
    """

    tier: str
    replica: str = AGGREGATE
    slice: BinnedWindow
    plan_version: str = ""
    pool: str = "mixed"
    kept: bool = True
    release: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one step. A sink takes what it needs.

    `tiers` are the tier contexts of the step. `closed` ended with it, `open` are all open findings after it, `changed`
    those that began or became worse. `windows` are those of the scrapes. `defects` are unexpected errors by replica.
    """

    now: float
    tiers: Mapping[str, TierContext] = field(default_factory=dict)
    observation: Observation | None = None
    closed: tuple[ClosedSpan, ...] = ()
    open: tuple[Finding, ...] = ()
    changed: tuple[Finding, ...] = ()
    minutes: tuple[ClosedMinute, ...] = ()
    windows: tuple[tuple[ReplicaKey, Window], ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    defects: Mapping[ReplicaKey, Exception] = field(default_factory=dict)

    def raise_defects(self) -> None:
        """Raise the first defect, where no log is watched."""
        for defect in self.defects.values():
            raise defect
