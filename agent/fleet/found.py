"""What is read back from a store: pages of replicas with their true times.

Owns the records that the readers of stored series (`own_pages`, `engine_pages`) make and whoever watches takes. It knows
neither the store's API nor any name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rules.telemetry.gpu_readout import GpuReadout
from rules.telemetry.snapshots import Snapshot


class StoredSeries(Protocol):
    """One series of a store's answer: labels with `__name__`, and samples in order of time (unix seconds)."""

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def times(self) -> tuple[float, ...]: ...

    @property
    def values(self) -> tuple[float, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """One page of a replica, or at `t` the word of whoever scraped it that there was none (`snapshot` None, `trouble`
    why). `gpus` are the readouts of its GPUs that came with it."""

    t: float
    replica: str
    pool: str
    snapshot: Snapshot | None
    gpus: tuple[GpuReadout, ...] = ()
    trouble: str = ""
