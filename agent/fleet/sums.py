"""Exact sums of agents' series over many replicas: PromQL queries, and windows from their results.

A group is the replicas of a load that were seen at both ends of a minute. The window is the difference of their sums,
without extrapolation. Buckets come with the number of series per edge: where it differs, the bucket grids do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from agent.fleet.agent_columns import SAMPLES, SeriesColumns
from agent.prometheus.answers import MatrixSeries
from exporters.metrics import names
from rules.telemetry import histograms, windows
from rules.telemetry.families import GPU_NAMES, FamilyKind
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window

MAX_QUERY_CHARACTERS = 15_000
"""Limit of one query. VictoriaMetrics accepts 16 KiB (-search.maxQueryLen), Prometheus more."""

OR = " or "

PART = "sizewatch_part"
"""Label that a query adds to its parts: group, lot of replicas, and aggregation."""

SUMS, COUNTED = "sums", "counted"
COPIES = 4
"""Number of times that a query repeats the names of a group's replicas."""

MOST_NAMES = MAX_QUERY_CHARACTERS / COPIES - 400
"""Maximum characters of the names of one lot of replicas."""

LEVELS: Mapping[str, str] = {"least": "min", "most": "max"}
"""Further aggregations of GPU gauges, by the name of their part."""

_EACH_COUNTERS = (
    *("requests_finished", "requests_arrived", "admission_rejections", "preemptions", "engine_steps"),
    *("prompt_tokens", "generation_tokens", "prefix_queried_tokens", "prefix_hit_tokens"),
    *("expert_balance_sum", "expert_balance_passes", "restarts", "cold_starts", "cold_start_seconds"),
)
"""Counter families read from every replica: for its load, the cascade, and rules that compare replicas."""

_EACH_HISTOGRAMS = ("ttft_seconds", "e2e_seconds", "prompt_tokens_per_request")
"""Histogram families read from every replica: count, sum and the buckets around an objective."""

_EACH = (
    *(names.FAMILY[name].name for name in _EACH_COUNTERS),
    *(f"{names.FAMILY[name].name}_{part}" for name in _EACH_HISTOGRAMS for part in ("bucket", "sum")),
    *(
        metric.name
        for name, metric in names.FAMILY.items()
        if metric.kind is FamilyKind.GAUGE and name not in GPU_NAMES
    ),
    *(metric.name for metric in (names.TARGET_UP, names.TARGET_SEEN, names.REPLICA_INFO)),
)

LEVEL_NAMES = frozenset(
    names.FAMILY[name].name
    for name, known in GPU_NAMES.items()
    if name in names.FAMILY and known.kind == FamilyKind.GAUGE.value
)
"""Sample names of gauges of GPUs."""

_LEVELS = "gpu_.+_({})".format("|".join(sorted({name.rpartition("_")[2] for name in LEVEL_NAMES})))
"""Regular expression of all LEVEL_NAMES by their units: a query has no room for forty names."""

_OWN_LEVELS = f"{names.PREFIX}{_LEVELS}"
_OWN_COUNTED = f"{names.PREFIX}(.+_bucket|{_LEVELS})"
_OWN_SUMS = f"{names.PREFIX}(.+_(bucket|sum|total)|{_LEVELS})"
_KEPT = ("__name__", "le", *sorted(set(names.PARTS.values())))

REPLICA_FACTS = (names.MODEL, "engine", "engine_version")
"""Labels of the info series of a replica."""

WORST = 3
"""Replicas with the worst GPUs, whose GPUs are read too."""

_HELD = "gpu_throttled_(thermal|hardware)_seconds_total"
_OF_WORST = ("gpu_(memory|throttled)_.+", "gpu_memory_used_bytes", "gpu_memory_total_bytes", _HELD)

_LOT = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
"""Name of a lot: group, and lot of its replicas."""


def quote_value(value: str) -> str:
    """Escape a value for double quotes in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def regex_any(members: Sequence[str]) -> str:
    """Return a quoted regular expression of exactly these names, with their common prefix once."""
    if len(members) == 1:
        return quote_value(re.escape(members[0]))
    prefix = _common_prefix(min(members), max(members))
    rest = "|".join(re.escape(name.removeprefix(prefix)) for name in sorted(members))
    return quote_value(f"{re.escape(prefix)}({rest})")


def _common_prefix(first: str, last: str) -> str:
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


@lru_cache(maxsize=4096)
def _escaped_length(name: str) -> int:
    return len(quote_value(re.escape(name)))


def split_members(members: Iterable[str], most_characters: float) -> Iterator[tuple[str, ...]]:
    """Split members into lots with a limited length of their regular expression."""
    lot: list[str] = []
    characters = 0
    for name in sorted(members):
        length = _escaped_length(name)
        prefix = _escaped_length(_common_prefix(lot[0], name)) if lot else 0
        # As `regex_any` writes it.
        if lot and prefix + 2 + characters + length - (len(lot) + 1) * prefix + len(lot) > most_characters:
            yield tuple(lot)
            lot, characters = [], 0
        lot.append(name)
        characters += length
    if lot:
        yield tuple(lot)


def _join_expressions(texts: Iterable[str]) -> Iterator[str]:
    """Join expressions to queries, as many as fit into each."""
    query = ""
    for text in texts:
        if query and len(query) + len(text) > MAX_QUERY_CHARACTERS - len(OR):
            yield query
            query = ""
        query += f"{OR}{text}" if query else text
    if query:
        yield query


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSums:
    """Queries over the agents' series of one tier, narrowed by `matchers`."""

    tier: str
    matchers: str = ""

    def queries(self, groups: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield the queries for the sums of all groups. A part is named GROUP.LOT.WHAT."""
        parts = [
            (f"{place}.{part}", members)
            for place, group in enumerate(groups)
            for part, members in enumerate(split_members(group, MOST_NAMES))
        ]
        yield from _join_expressions(OR.join(self._parts(name, members)) for name, members in parts)

    def histogram_by_replica_query(self, family: str, members: Iterable[str]) -> Iterator[str]:
        """Yield the queries for the buckets and sums of one histogram by replica."""
        name = names.metric(family).name
        for some in split_members(members, MOST_NAMES):
            selector = self._selector(f"{name}_(bucket|sum)", regex_any(some))
            yield f"max by (__name__, le, {names.REPLICA}) ({selector})"

    def _parts(self, name: str, members: Sequence[str]) -> Iterator[str]:
        # The names of a group's replicas are most of a query: repeat them rarely.
        by, some = ",".join(_KEPT), regex_any(members)
        once = f"max by ({by},{names.REPLICA},{names.GPU}) ({self._selector(_OWN_SUMS, some)})"
        yield _labelled(f"sum by ({by}) ({once})", name, SUMS)
        counted = f"max by (__name__,le,{names.REPLICA},{names.GPU}) ({self._selector(_OWN_COUNTED, some)})"
        yield _labelled(f"count by (__name__,le) ({counted})", name, COUNTED)
        gpus = self._selector(_OWN_LEVELS, some)
        for what, aggregation in LEVELS.items():
            yield _labelled(f"{aggregation} by (__name__) ({gpus})", name, what)

    def replica_query(self, edges: Iterable[str]) -> str:
        """Return the query for the series of every replica. `edges` are printed bucket edges.

        Of the labels of an agent, which are most of a response, it has only the one that tells two agents apart.
        """
        by = ",".join((*_KEPT, names.REPLICA, names.POOL, *REPLICA_FACTS, "instance", names.GPU))
        stems = "|".join(sorted(name.removeprefix(names.PREFIX) for name in _EACH))
        some = quote_value("|".join(("", *map(re.escape, (*edges, "+Inf")))))
        tier = f'{names.TIER}="{quote_value(self.tier)}"'
        each = f'{{__name__=~"{names.PREFIX}({stems})",{tier},le=~"{some}",{self.matchers}}}'
        gpus, used, total, held = (self._selector(names.PREFIX + name, ".+") for name in _OF_WORST)
        of_gpu = f"by ({names.REPLICA},{names.GPU})"
        levels = (
            f"max {of_gpu} ({used}) / max {of_gpu} ({total})",
            f"sum {of_gpu} ({held}) - sum {of_gpu} ({held} offset 5m)",
        )
        most = f"topk({WORST}, max by ({names.REPLICA})"
        worst = OR.join(f"{most} ({level}))" for level in levels)
        return f"max by ({by}) ({each}{OR}{gpus} and on ({names.REPLICA}) ({worst}))"

    def _selector(self, name: str, members: str) -> str:
        """Return the selector of series of a name. Both are regular expressions."""
        tier = quote_value(self.tier)
        return f'{{__name__=~"{name}",{names.TIER}="{tier}",{names.REPLICA}=~"{members}",{self.matchers}}}'


def _labelled(expr: str, name: str, what: str) -> str:
    return f'label_replace({expr}, "{PART}", "{name}.{what}", "", "")'


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Sums of a part of a group between two times. Its window covers no time itself.

    `mixed` are histogram families whose replicas have different bucket edges. They are not summed.
    """

    window: Window
    mixed: frozenset[str] = frozenset()


ByName = dict[str, list[MatrixSeries]]


def group_sums(matrix_series: Iterable[MatrixSeries], start: float, end: float) -> dict[int, list[GroupSums]]:
    """Return the parts of each group from `start` to `end` (unix seconds)."""
    lots: dict[str, dict[str, ByName]] = {}
    for series in matrix_series:
        lot, _, what = series.labels.get(PART, "").rpartition(".")
        by_name = lots.setdefault(lot, {}).setdefault(what, {})
        by_name.setdefault(series.labels.get("__name__", ""), []).append(series)
    groups: dict[int, list[GroupSums]] = {}
    for lot, parts in sorted(lots.items()):
        if _LOT.fullmatch(lot):
            groups.setdefault(int(lot.partition(".")[0]), []).append(_lot_sums(parts, start, end))
    return groups


def _lot_sums(parts: Mapping[str, ByName], start: float, end: float) -> GroupSums:
    sums, counted = parts.get(SUMS, {}), parts.get(COUNTED, {})
    mixed = frozenset(_family(name) for name, matrix_series in counted.items() if not _alike(matrix_series))
    increase = _increase(
        {name: matrix_series for name, matrix_series in sums.items() if _family(name) not in mixed}, start, end
    )
    gauges = {}
    for name in LEVEL_NAMES & sums.keys():
        series = [parts.get(what, {}).get(name, []) for what in (SUMS, COUNTED, *LEVELS)]
        gauge = _gauge([matrix_series[0] for matrix_series in series if matrix_series], end - start)
        if gauge is not None:
            gauges[_family(name)] = gauge
    window = replace(
        increase,
        expected_seconds=0.0,
        covered_seconds=0.0,
        # Replicas that started are in no group.
        counters={family: value for family, value in increase.counters.items() if family not in windows.STARTS},
        gauges=gauges,
        short_seconds={},
    )
    return GroupSums(window, mixed)


def _increase(by_name: Mapping[str, Sequence[MatrixSeries]], start: float, end: float) -> Window:
    columns = SeriesColumns(by_name, (start, end))
    return windows.diff_snapshots(columns.snapshot(0, start, {}), columns.snapshot(1, end, {}))


def _family(name: str) -> str:
    return SAMPLES.get(name, ("", ""))[0]


def _alike(matrix_series: Sequence[MatrixSeries]) -> bool:
    """Return whether every edge has the same number of series, at both ends."""
    return all(len({series.values[place] for series in matrix_series}) <= 1 for place in (0, -1))


def _gauge(matrix_series: Sequence[MatrixSeries], seconds: float) -> GaugeSum | None:
    """Return the gauge of a group from its sum, number of GPUs, minimum and maximum, if all are known."""
    if len(matrix_series) != 4 or matrix_series[0].times != matrix_series[1].times or min(matrix_series[1].values) <= 0:
        return None
    sums, gpus, least, most = (series.values for series in matrix_series)
    covered = seconds * min(gpus)
    level = math.fsum(total / count for total, count in zip(sums, gpus, strict=True)) / len(gpus)
    return GaugeSum(integral=level * covered, seconds=covered, minimum=min(least), maximum=max(most), samples=min(gpus))


def sum_by_replica(
    matrix_series: Iterable[MatrixSeries], family: str, start: float, end: float
) -> tuple[Histogram, ...]:
    """Return the sum of a histogram's increases by replica, one for each bucket grid."""
    grouped: dict[str, ByName] = {}
    for series in matrix_series:
        by_name = grouped.setdefault(series.labels.get(names.REPLICA, ""), {})
        by_name.setdefault(series.labels.get("__name__", ""), []).append(series)
    increases = (_increase(by_name, start, end) for by_name in grouped.values())
    return histograms.sum_histograms(part for each in increases for part in each.histograms.get(family, ()))
