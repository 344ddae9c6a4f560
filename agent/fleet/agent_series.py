"""Pages of replicas from the series that node agents export: sizewatch's own names, back to snapshots.

Owns the way from `sizewatch_*` series to what `rules.engines.normalize` makes of an engine's page. A page's time is that of the
agent's own scrape, so windows have the edges that the agent's had; `agent_clock` has what becomes of a clock that is wrong. An
agent that starts anew begins its sums at zero: they are continued, for no engine restarted. A new family of
`rules.telemetry.families` is read without a change here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.fleet.agent_clock import AgentClock
from agent.fleet.agent_columns import GPU_INFO, SAMPLES, SeriesColumns
from agent.fleet.continued import CounterContinuity
from agent.fleet.found import StoredPage, StoredSeries
from agent.prometheus.answers import MatrixSeries
from exporters.metrics import names

AGENT = ("instance", "job", "pod", "namespace", "node", "container", "endpoint")
"""Labels that tell agents apart: two of them that see one replica are not added up."""

CARRIED_SECONDS = 60.0
"""So long the last word on a GPU of another node stands for it: Prometheus' usual interval between two scrapes."""

_UP, _SEEN, _INFO = names.TARGET_UP.name, names.TARGET_SEEN.name, names.REPLICA_INFO.name


def selector(tier: str, matchers: str = "", families: Iterable[str] = names.FAMILY) -> str:
    """The PromQL selector of everything that pages of a tier are made from; `matchers` narrow it further."""
    wanted = set(families)
    stems = [name for name, (family, _) in SAMPLES.items() if family in wanted]
    stems += [_UP, _SEEN, _INFO, GPU_INFO]
    alternatives = "|".join(sorted(stem.removeprefix(names.PREFIX) for stem in stems))
    more = f",{matchers}" if matchers else ""
    return f'{{__name__=~"{names.PREFIX}({alternatives})",{names.TIER}="{_quoted(tier)}"{more}}}'


def replica_count_query(tier: str, matchers: str = "") -> str:
    """The PromQL of how many replicas of a tier are told of."""
    more = f",{matchers}" if matchers else ""
    return f'count(max by ({names.REPLICA}) ({_UP}{{{names.TIER}="{_quoted(tier)}"{more}}}))'


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(slots=True)
class _Seen:
    """All series that one agent told of one replica, by sample name."""

    by_name: dict[str, list[StoredSeries]] = field(default_factory=dict)

    @property
    def scrape_times(self) -> tuple[float, ...]:
        """The times at which the agent was scraped."""
        return tuple(sorted({t for one in self.by_name.get(_UP, ()) for t in one.times}))

    @property
    def newest_time(self) -> float:
        return max((s.times[-1] for several in self.by_name.values() for s in several), default=-math.inf)


class AgentPages:
    """The pages of one tier from answer to answer. It remembers what is needed to continue sums and to tell a page from
    the one before; for one thread."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._read_until: dict[str, float] = {}
        self._clocks: dict[str, AgentClock] = {}
        self._sums: dict[str, CounterContinuity] = {}

    def pages(self, several: Iterable[StoredSeries]) -> Iterator[StoredPage]:
        """The pages in an answer, replica by replica, each replica's in order of time; none twice."""
        for (replica, pool), seen in _by_replica(several).items():
            yield from self._of(replica, pool, seen)

    def forget(self, replicas: set[str]) -> None:
        """What is remembered of replicas that are gone."""
        for replica in replicas:
            self._last.pop(replica, None)
            self._read_until.pop(replica, None)
            self._clocks.pop(replica, None)
            self._sums.pop(replica, None)

    def _of(self, replica: str, pool: str, seen: _Seen) -> Iterator[StoredPage]:
        facts = _facts(seen)
        read = SeriesColumns(seen.by_name, seen.scrape_times)
        sums = self._sums.setdefault(replica, CounterContinuity())
        up, at = read.column(_UP), read.column(_SEEN)
        for place, t in enumerate(read.times):
            if not up[place]:
                yield StoredPage(
                    t=t, replica=replica, pool=pool, snapshot=None, trouble="its agent got no page from it"
                )
                continue
            if t <= self._read_until.get(replica, -math.inf):
                continue
            self._read_until[replica] = t
            scraped = self._clocks.setdefault(replica, AgentClock()).scrape_times(t, at[place])
            if scraped is None or scraped <= self._last.get(replica, -math.inf):
                continue
            self._last[replica] = scraped
            page = sums.page(read.snapshot(place, scraped, facts))
            yield StoredPage(t=scraped, replica=replica, pool=pool, snapshot=page, gpus=read.gpus(place, scraped))


def _by_replica(several: Iterable[StoredSeries]) -> dict[tuple[str, str], _Seen]:
    """The series by replica, of several agents that see it those of the one that saw it last; GPUs that it has on other nodes
    are told of by the agents there."""
    agents: dict[tuple[str, str], dict[tuple[str | None, ...], _Seen]] = {}
    for one in several:
        labels = one.labels
        replica = labels.get(names.REPLICA)
        if replica is None or not one.times:
            continue
        get = labels.get
        of_replica = agents.setdefault((replica, get(names.POOL, "mixed")), {})
        agent = tuple(map(get, AGENT))
        seen = of_replica.get(agent)
        if seen is None:
            seen = of_replica[agent] = _Seen()
        seen.by_name.setdefault(get("__name__", ""), []).append(one)
    return {key: _joined(list(group.values())) for key, group in agents.items()}


def _joined(agents: list[_Seen]) -> _Seen:
    """What the agent tells that scrapes the replica, and what the others tell of GPUs that this one does not see."""
    if len(agents) == 1:
        return agents[0]
    first = max(agents, key=lambda seen: (_UP in seen.by_name, seen.newest_time))
    own = {one.labels[names.GPU] for several in first.by_name.values() for one in several if names.GPU in one.labels}
    for other in agents:
        for name, several in other.by_name.items() if other is not first else ():
            for one in several:
                if one.labels.get(names.GPU, "") not in ("", *own):
                    first.by_name.setdefault(name, []).append(_carried(one, first.scrape_times))
    return first


def _carried(one: StoredSeries, times: tuple[float, ...]) -> MatrixSeries:
    """Another agent's series at the times of this one's scrapes: its last sample before each, if that is not old."""
    found = []
    for t in times:
        place = bisect_right(one.times, t) - 1
        if place >= 0 and t - one.times[place] <= CARRIED_SECONDS:
            found.append((t, one.values[place]))
    return MatrixSeries(one.labels, tuple(t for t, _ in found), tuple(value for _, value in found))


def _facts(seen: _Seen) -> dict[str, str]:
    info = max(seen.by_name.get(_INFO, ()), key=lambda s: s.times[-1], default=None)
    if info is None:
        return {}
    labels = info.labels
    told = {"model": labels.get(names.MODEL, ""), "engine_versions": labels.get("engine_version", "")}
    return {name: value for name, value in told.items() if value} | {"engine": labels.get("engine", "")}
