"""Families: sizewatch's own names, kinds and meanings for the metrics of engines and GPU exporters.

Engine tables (`rules.engines`) map onto these names, and the exporter prints them as `sizewatch_<family>`. To add a
family: a row of families.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Row of the family table. `export` is the name after `sizewatch_`, "" for none. `unit` is given for GPUs only."""

    name: str
    kind: FamilyKind
    export: str
    text: str
    unit: str = ""


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


MOST_RATIO = 1.05
"""A ratio of two numbers that an engine reads one after the other may be a little above 1."""

MOST_IN_SYSTEM = 1e7
"""Requests in an engine: each takes memory, and a machine has some TB at most."""

MOST_REQUESTS = 1e6
"""Requests, or events of requests, that a replica counts in a second: each takes a front end a microsecond or more."""

MOST_TOKENS = 1e10
"""Tokens that a replica counts in a second. 72 GPUs of 1e16 FLOP/s reach 7e9 with a model of 50 million weights at two
FLOP a weight and token."""

MOST_OF_GAUGE: Mapping[str, float] = {
    **{
        family.name: MOST_RATIO
        for family in FAMILIES
        if family.kind is FamilyKind.GAUGE and family.export.endswith("_ratio") and not family.name.startswith("gpu_")
    },
    **dict.fromkeys(("requests_running", "requests_waiting", "requests_waiting_capacity"), MOST_IN_SYSTEM),
}
"""Largest possible value of an engine's gauge."""

MOST_PER_SECOND: Mapping[str, float] = {
    family.name: MOST_TOKENS if "tokens" in family.name else MOST_REQUESTS
    for family in FAMILIES
    if family.kind is FamilyKind.COUNTER
    and (
        "tokens" in family.name
        or family.name.startswith(("requests_", "http_requests_", "preemptions", "engine_steps"))
    )
}
"""Largest possible increase of an engine's counter in a second."""
