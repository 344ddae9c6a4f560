"""What a store's sums over groups of replicas say: a window for each group.

Owns the way from answers to `agent.fleet.sums`' queries back to windows, and the check that the buckets of a group were
counted alike. Families whose grids differ inside a group are left for whoever asks again replica by replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.fleet.agent_columns import SAMPLES, SeriesColumns
from agent.fleet.found import StoredSeries
from agent.fleet.sums import COUNTED, LEVEL_NAMES, LEVELS, PART, SUMS
from exporters.metrics import names
from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window

_ASKED_FOR = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")

_FAMILY_OF = {metric.name: family for family, metric in names.FAMILY.items()}


@dataclass(slots=True)
class GroupSums:
    """What one part of one group did between two times: sums of counters and histograms, and its GPUs' gauges.

    `mixed` are histogram families whose replicas have different bucket edges; they are in none of the sums.
    """

    window: Window
    mixed: frozenset[str] = frozenset()


@dataclass(slots=True)
class _GroupPart:
    sums: dict[str, list[StoredSeries]] = field(default_factory=dict)
    counted: dict[str, list[StoredSeries]] = field(default_factory=dict)
    levels: dict[str, dict[str, StoredSeries]] = field(default_factory=dict)


def group_sums(several: Iterable[StoredSeries], start: float, end: float) -> dict[int, tuple[GroupSums, ...]]:
    """By group, in the order of the query: its parts, each from `start` to `end` (unix seconds), covering nothing itself."""
    parts: dict[str, _GroupPart] = {}
    for one in several:
        labels = one.labels
        lot, _, what = labels.get(PART, "").rpartition(".")
        if not _ASKED_FOR.fullmatch(lot):
            # A series that no part of the query gives: whose it is nobody knows.
            continue
        part = parts.setdefault(lot, _GroupPart())
        name = labels.get("__name__", "")
        if what in LEVELS or name in LEVEL_NAMES:
            part.levels.setdefault(name, {})[what] = one
        elif what in (SUMS, COUNTED):
            (part.sums if what == SUMS else part.counted).setdefault(name, []).append(one)
    found: dict[int, list[GroupSums]] = {}
    for key, part in sorted(parts.items()):
        found.setdefault(int(key.partition(".")[0]), []).append(_sums(part, start, end))
    return {group: tuple(of_group) for group, of_group in found.items()}


def _sums(part: _GroupPart, start: float, end: float) -> GroupSums:
    mixed = frozenset(_family(name) for name, several in part.counted.items() if not _alike(several))
    kept = {name: several for name, several in part.sums.items() if _family(name) not in mixed}
    columns = SeriesColumns(kept, (start, end))
    before, after = (columns.snapshot(place, t, {}) for place, t in enumerate((start, end)))
    told = windows.diff_snapshots(*(replace(page, counters=_lasting(page.counters)) for page in (before, after)))
    gauges = {f: g for name, several in part.levels.items() for f, g in _gauge(name, several, end - start)}
    return GroupSums(
        window=replace(told, expected_seconds=0.0, covered_seconds=0.0, gauges=gauges, short_seconds={}), mixed=mixed
    )


def _family(name: str) -> str:
    return SAMPLES.get(name, ("", ""))[0]


def _lasting(counters: Mapping[str, float]) -> dict[str, float]:
    """Without what tells of starts: replicas that started are in no group."""
    return {family: value for family, value in counters.items() if family not in windows.STARTS}


def _alike(several: Iterable[StoredSeries]) -> bool:
    """Whether as many series stand behind every edge, at either end."""
    at_end = [one.values[-1] for one in several]
    at_start = [one.values[0] for one in several]
    return len(set(at_end)) <= 1 and len(set(at_start)) <= 1


def _gauge(name: str, several: Mapping[str, StoredSeries], seconds: float) -> list[tuple[str, GaugeSum]]:
    family = _FAMILY_OF.get(name, "")
    if not family or BY_NAME[family].kind is not FamilyKind.GAUGE or not {SUMS, COUNTED, *LEVELS} <= several.keys():
        return []
    sums, gpus = (several[what].values for what in (SUMS, COUNTED))
    if several[SUMS].times != several[COUNTED].times or min(gpus) <= 0:
        # A sum of nobody knows how many.
        return []
    covered = seconds * min(gpus)
    level = math.fsum(total / count for total, count in zip(sums, gpus, strict=True)) / len(gpus)
    return [
        (
            family,
            GaugeSum(
                integral=level * covered,
                seconds=covered,
                minimum=min(several["least"].values),
                maximum=max(several["most"].values),
                samples=min(gpus),
            ),
        )
    ]


def replica_parts(
    several: Iterable[StoredSeries], start: float, end: float
) -> dict[str, dict[str, tuple[Histogram, ...]]]:
    """By replica, the increases of the histograms that were asked for replica by replica."""
    grouped: dict[str, dict[str, list[StoredSeries]]] = {}
    for one in several:
        by_name = grouped.setdefault(one.labels.get(names.REPLICA, ""), {})
        by_name.setdefault(one.labels.get("__name__", ""), []).append(one)
    found = {}
    for replica, by_name in grouped.items():
        columns = SeriesColumns(by_name, (start, end))
        found[replica] = dict(
            windows.diff_snapshots(columns.snapshot(0, start, {}), columns.snapshot(1, end, {})).histograms
        )
    return found
