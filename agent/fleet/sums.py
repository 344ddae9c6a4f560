"""Sums over many replicas, asked of a store so that they are exact: which queries, and what their answers are.

Owns the PromQL. Replicas that were seen at both ends of a minute are named group by group (a group is a load); their
cumulative counters and buckets are added up by the store at both ends, and the difference is what they did: no `rate`,
nothing extrapolated, nothing of a replica that came, went or began anew. Buckets go with the count of the series behind
each edge: where those differ, the group's replicas have different bucket grids and their sum means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.fleet.promql import join_expressions, quote_value, regex_any, split_members
from exporters.metrics import names
from rules.telemetry.families import FamilyKind
from rules.telemetry.gpu_readout import GPU_NAMES

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
