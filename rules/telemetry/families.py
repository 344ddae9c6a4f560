"""Families: sizewatch's own names, kinds and meanings for the metrics of engines and GPU exporters.

Engine tables (`rules.engines`) map onto these names, and the exporter prints them as `sizewatch_<family>`. To add a
family: a row of families.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rules.tables import read_table


class FamilyKind(StrEnum):
    """Kind of a family. Counters and histograms are differenced, gauges are integrated."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Row of the family table. `export` is the name after `sizewatch_`, "" for none. `unit` is given for GPUs only.
    `least` and `most` are its limits (families.toml); without a limit of its own, sums over time still stay finite.
    `by_rank`: a gauge of a rank's requests, or a counter or histogram that moves only if its engine works."""

    name: str
    kind: FamilyKind
    export: str
    text: str
    unit: str = ""
    least: float = 0.0
    most: float = 1e18
    by_rank: bool = False


def _load(row: dict[str, Any]) -> Family:
    kind = FamilyKind(row["kind"])
    export = f"{row['name']}_total" if kind is FamilyKind.COUNTER else row["name"]
    return Family(**{"export": export, **row, "kind": kind})


FAMILIES: tuple[Family, ...] = tuple(map(_load, read_table("rules.telemetry", "families")["families"]))

BY_NAME = {family.name: family for family in FAMILIES}

GPU_NAMES = {family.name: family for family in FAMILIES if family.unit}
"""Families of GPUs: the names of a `GpuReadout`. Counters only grow within the life of one reader."""

LINKS = tuple(name for name in GPU_NAMES if name.endswith("_bytes_per_second"))
"""Traffic by link and direction: between the GPUs of a replica, and to the host and the network (P/D, offloading)."""


def stem(name: str) -> str:
    """Return the family of a labelled counter such as `spec_accepted_at_position/2`."""
    return name.partition("/")[0]


MOST = {family.name: family.most for family in FAMILIES}
"""Largest possible value of a gauge, and largest possible increase of a counter in a second."""
