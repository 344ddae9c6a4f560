"""Sums over many replicas, asked of a store so that they are exact: which queries, and what their answers are.

Owns the PromQL. Replicas that were seen at both ends of a minute are named group by group (a group is a load); their
cumulative counters and buckets are added up by the store at both ends, and the difference is what they did: no `rate`,
nothing extrapolated, nothing of a replica that came, went or began anew. Buckets go with the count of the series behind
each edge: where those differ, the group's replicas have different bucket grids and their sum means nothing.

Pieces of PromQL that queries over groups of replicas are made from: exact names, and lots that fit into a query.

Owns quoting and length. It knows no metric.

What a store's sums over groups of replicas say: a window for each group.

Owns the way from answers to `agent.fleet.sums`' queries back to windows, and the check that the buckets of a group were
counted alike. Families whose grids differ inside a group are left for whoever asks again replica by replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.fleet.agent_columns import SAMPLES, SeriesColumns
from agent.fleet.stored_pages import StoredSeries
from exporters.metrics import names
from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.snapshots import GPU_NAMES
from rules.telemetry.windows import Window

MAX_MATCHER_CHARACTERS = 12_000
"""Of one query: VictoriaMetrics takes 16 KiB (-search.maxQueryLen), Prometheus more."""

GROUP, WHAT = "sizewatch_group", "sizewatch_what"
"""Labels that a query puts on its parts."""


def quote_value(value: str) -> str:
    """A value as it stands between double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def regex_any(members: Sequence[str]) -> str:
    """A quoted regular expression of exactly these names, with what all begin with written once: names of pods are long."""
    if len(members) == 1:
        return quote_value(re.escape(members[0]))
    first, last = min(members), max(members)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = first[:same]
    rest = "|".join(re.escape(name.removeprefix(prefix)) for name in sorted(members))
    return quote_value(f"{re.escape(prefix)}({rest})")


def set_label(expr: str, group: str, what: str) -> str:
    """The expression's series with the labels that tell whose they are and what."""
    return f'label_replace(label_replace({expr}, "{GROUP}", "{group}", "", ""), "{WHAT}", "{what}", "", "")'


def split_members(members: Iterable[str], most_characters: float) -> Iterator[tuple[str, ...]]:
    """The members in lots whose names together are at most so long."""
    lot: list[str] = []
    for member in sorted(members):
        if lot and len(regex_any([*lot, member])) > most_characters:
            yield tuple(lot)
            lot = []
        lot.append(member)
    if lot:
        yield tuple(lot)


def join_expressions(texts: Iterable[str], most_characters: int = MAX_MATCHER_CHARACTERS) -> Iterator[str]:
    """Expressions joined to queries, as many as fit into each."""
    lot: list[str] = []
    for text in texts:
        if lot and sum(map(len, lot)) + len(text) > most_characters:
            yield " or ".join(lot)
            lot = []
        lot.append(text)
    if lot:
        yield " or ".join(lot)


MAX_QUERY_CHARACTERS = 15_000
"""Of one query: VictoriaMetrics takes 16 KiB (-search.maxQueryLen), Prometheus more."""

PART = "sizewatch_part"
"""The label that a query puts on its parts: the group, which lot of its replicas, and what was added up."""

SUMS, COUNTED = "sums", "counted"
COPIES = 4
"""So often the names of a group's replicas stand in its part of a query."""

MOST_NAMES = MAX_QUERY_CHARACTERS / COPIES - 400
"""Characters of the names of one lot of replicas."""

LEVELS: Mapping[str, str] = {"least": "min", "most": "max"}
"""What is asked of gauges of GPUs beside their sum and count: what the part is called, and the aggregation."""

EACH_COUNTERS = (
    *("requests_finished", "requests_arrived", "admission_rejections", "preemptions", "engine_steps"),
    *("prompt_tokens", "generation_tokens", "prefix_queried_tokens", "prefix_hit_tokens"),
    *("expert_balance_sum", "expert_balance_passes", "restarts", "cold_starts", "cold_start_seconds"),
)
"""Counter families that are read of every replica: its load, the cascade, and what rules that compare replicas look at."""

EACH_HISTOGRAMS = ("ttft_seconds", "e2e_seconds", "prompt_tokens_per_request")
"""Histogram families of which every replica's count, sum and the buckets around an objective are read."""

_EACH = (
    *(names.FAMILY[name].name for name in EACH_COUNTERS),
    *(f"{names.FAMILY[name].name}_{part}" for name in EACH_HISTOGRAMS for part in ("bucket", "sum")),
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
"""They all, and what else has their units: a query has no room for forty names."""

_OWN_LEVELS = f"{names.PREFIX}{_LEVELS}"
_OWN_COUNTED = f"{names.PREFIX}(.+_bucket|{_LEVELS})"
_OWN_SUMS = f"{names.PREFIX}(.+_(bucket|sum|total)|{_LEVELS})"
_KEPT = ("__name__", "le", *sorted(set(names.PARTS.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSums:
    """Queries over what node agents export of one tier; `matchers` narrow it further."""

    tier: str
    matchers: str = ""

    def queries(self, groups: Sequence[Sequence[str]]) -> Iterator[str]:
        """The sums of each group of replicas; several groups a query, as many as fit into it. A part is named
        GROUP.LOT.WHAT."""
        parts = [
            (f"{place}.{part}", members)
            for place, group in enumerate(groups)
            for part, members in enumerate(split_members(group, MOST_NAMES))
        ]
        yield from join_expressions(
            (" or ".join(self._parts(name, members)) for name, members in parts), MAX_QUERY_CHARACTERS
        )

    def histogram_by_replica_query(self, family: str, members: Iterable[str]) -> Iterator[str]:
        """The buckets and sums of one histogram replica by replica, where their grids differ."""
        name = names.metric(family).name
        for some in split_members(members, MOST_NAMES):
            selector = self._selector(f"{name}_(bucket|sum)", some)
            yield f"max by (__name__, le, {names.REPLICA}) ({selector})"

    def _parts(self, name: str, members: Sequence[str]) -> Iterator[str]:
        # As few times as can be: the names of a group's replicas are most of a query.
        by = ",".join(_KEPT)
        once = f"max by ({by},{names.REPLICA},{names.GPU}) ({self._selector(_OWN_SUMS, members)})"
        yield _labelled(f"sum by ({by}) ({once})", name, SUMS)
        counted = f"max by (__name__,le,{names.REPLICA},{names.GPU}) ({self._selector(_OWN_COUNTED, members)})"
        yield _labelled(f"count by (__name__,le) ({counted})", name, COUNTED)
        gpus = self._selector(_OWN_LEVELS, members)
        for what, aggregation in LEVELS.items():
            yield _labelled(f"{aggregation} by (__name__) ({gpus})", name, what)

    def replica_selector(self, edges: Iterable[str]) -> str:
        """The selector of what is asked of every replica; of histograms the buckets at these edges, as they are printed."""
        stems = "|".join(sorted(name.removeprefix(names.PREFIX) for name in _EACH))
        some = "|".join(("", *(re.escape(edge) for edge in (*edges, "+Inf"))))
        more = f",{self.matchers}" if self.matchers else ""
        tier = f'{names.TIER}="{quote_value(self.tier)}"'
        return f'{{__name__=~"{names.PREFIX}({stems})",{tier},le=~"{quote_value(some)}"{more}}}'

    def _selector(self, name: str, members: Sequence[str]) -> str:
        more = f",{self.matchers}" if self.matchers else ""
        return f'{{__name__=~"{name}",{names.TIER}="{quote_value(self.tier)}",{names.REPLICA}=~"{regex_any(members)}"{more}}}'


def _labelled(expr: str, name: str, what: str) -> str:
    return f'label_replace({expr}, "{PART}", "{name}.{what}", "", "")'


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
    """Return whether as many series stand behind every edge, at either end."""
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
