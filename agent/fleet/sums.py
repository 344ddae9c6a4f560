"""Exact sums of agents' series over many replicas: PromQL queries, and windows from their results.

Replicas that were seen at both ends of a minute are named group by group; a group is a load. The store sums their
cumulative counters and buckets at both ends, and the difference is the window: no `rate`, no extrapolation, and no
replica that came, went or restarted. Buckets come with the number of series per edge. If the numbers differ, the replicas
have different bucket grids and the family is queried by replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from agent.fleet.agent_columns import SAMPLES, SeriesColumns
from agent.prometheus.answers import MatrixSeries
from exporters.metrics import names
from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.snapshots import GPU_NAMES
from rules.telemetry.windows import Window

MAX_QUERY_CHARACTERS = 15_000
"""Limit of one query. VictoriaMetrics accepts 16 KiB (-search.maxQueryLen), Prometheus more."""

OR = " or "

WHAT = "sizewatch_what"
"""Label of replicas that several agents export."""

PART = "sizewatch_part"
"""Label that a query adds to its parts: group, lot of replicas, and aggregation."""

SUMS, COUNTED, SEVERAL = "sums", "counted", "several"
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

_ASKED_FOR = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")

_FAMILY_OF = {metric.name: family for family, metric in names.FAMILY.items()}


def quote_value(value: str) -> str:
    """Escape a value for double quotes in PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def regex_any(members: Sequence[str]) -> str:
    """Return a quoted regular expression of exactly these names, with their common prefix once: pod names are long."""
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
        # As `regex_any` writes it: the prefix once, then the rest of each name, with brackets and bars.
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

    @property
    def _more(self) -> str:
        return f",{self.matchers}" if self.matchers else ""

    def queries(self, groups: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield the queries for the sums of all groups, several groups in a query. A part is named GROUP.LOT.WHAT."""
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
        """Return the query for the series of every replica without the labels of its agent, which are most of a response.

        Replicas that several agents export are named under WHAT: their series must not be mixed.
        """
        by = ",".join((*_KEPT, names.REPLICA, names.POOL, *REPLICA_FACTS))
        up = f'{names.TARGET_UP.name}{{{names.TIER}="{quote_value(self.tier)}"{self._more}}}'
        several = f'label_replace(count by ({names.REPLICA}) ({up}) > 1, "{WHAT}", "{SEVERAL}", "", "")'
        return f"max by ({by}) ({self.replica_selector(edges)}) or {several}"

    def replica_selector(self, edges: Iterable[str]) -> str:
        """Return the selector for the series of every replica. `edges` are printed bucket edges."""
        stems = "|".join(sorted(name.removeprefix(names.PREFIX) for name in _EACH))
        some = "|".join(("", *(re.escape(edge) for edge in (*edges, "+Inf"))))
        tier = f'{names.TIER}="{quote_value(self.tier)}"'
        return f'{{__name__=~"{names.PREFIX}({stems})",{tier},le=~"{quote_value(some)}"{self._more}}}'

    def _selector(self, name: str, members: str) -> str:
        """Return the selector of series of a name. Both are regular expressions."""
        return (
            f'{{__name__=~"{name}",{names.TIER}="{quote_value(self.tier)}",{names.REPLICA}=~"{members}"{self._more}}}'
        )


def _labelled(expr: str, name: str, what: str) -> str:
    return f'label_replace({expr}, "{PART}", "{name}.{what}", "", "")'


@dataclass(slots=True)
class GroupSums:
    """Sums of one part of a group between two times, with the gauges of its GPUs.

    `mixed` are histogram families whose replicas have different bucket edges. They are not summed.
    """

    window: Window
    mixed: frozenset[str] = frozenset()


@dataclass(slots=True)
class _GroupPart:
    sums: dict[str, list[MatrixSeries]] = field(default_factory=dict)
    counted: dict[str, list[MatrixSeries]] = field(default_factory=dict)
    levels: dict[str, dict[str, MatrixSeries]] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def _split_part(text: str) -> tuple[str, str]:
    """Return group and lot, and aggregation, of a part's name. Return "" of what no query asks for."""
    lot, _, what = text.rpartition(".")
    return (lot, what) if _ASKED_FOR.fullmatch(lot) else ("", "")


def group_sums(several: Iterable[MatrixSeries], start: float, end: float) -> dict[int, tuple[GroupSums, ...]]:
    """Return the parts of each group from `start` to `end` (unix seconds). Their windows cover no time themselves."""
    parts: dict[str, _GroupPart] = {}
    for one in several:
        labels = one.labels
        lot, what = _split_part(labels.get(PART, ""))
        if not lot:
            # The series belongs to no part of the query.
            continue
        part = parts.get(lot) or parts.setdefault(lot, _GroupPart())
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
    increase = windows.diff_snapshots(*(replace(page, counters=_lasting(page.counters)) for page in (before, after)))
    gauges = {f: g for name, several in part.levels.items() for f, g in _gauge(name, several, end - start)}
    return GroupSums(
        window=replace(increase, expected_seconds=0.0, covered_seconds=0.0, gauges=gauges, short_seconds={}),
        mixed=mixed,
    )


def _family(name: str) -> str:
    return SAMPLES.get(name, ("", ""))[0]


def _lasting(counters: Mapping[str, float]) -> dict[str, float]:
    """Drop the start counters: replicas that started are in no group."""
    return {family: value for family, value in counters.items() if family not in windows.STARTS}


def _alike(several: Iterable[MatrixSeries]) -> bool:
    """Return whether every edge has the same number of series, at both ends."""
    at_end = [one.values[-1] for one in several]
    at_start = [one.values[0] for one in several]
    return len(set(at_end)) <= 1 and len(set(at_start)) <= 1


def _gauge(name: str, several: Mapping[str, MatrixSeries], seconds: float) -> list[tuple[str, GaugeSum]]:
    family = _FAMILY_OF.get(name, "")
    if not family or BY_NAME[family].kind is not FamilyKind.GAUGE or not {SUMS, COUNTED, *LEVELS} <= several.keys():
        return []
    sums, gpus = (several[what].values for what in (SUMS, COUNTED))
    if several[SUMS].times != several[COUNTED].times or min(gpus) <= 0:
        # The number of summed GPUs is unknown.
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
    several: Iterable[MatrixSeries], start: float, end: float
) -> dict[str, dict[str, tuple[Histogram, ...]]]:
    """Return the increases of histograms by replica."""
    grouped: dict[str, dict[str, list[MatrixSeries]]] = {}
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
