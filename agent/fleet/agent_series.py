"""Pages of replicas from the series that node agents export: sizewatch's own names, back to snapshots.

Owns the way from `sizewatch_*` series to what `rules.engines.normalize` makes of an engine's page. A page's time is that of the
agent's own scrape, so windows have the edges that the agent's had; `agent_clock` has what becomes of a clock that is wrong. An
agent that starts anew begins its sums at zero: they are continued, for no engine restarted. A new family of
`rules.telemetry.families` is read without a change here.

When an agent scraped a replica, by the store's clock.

An agent tells the time of its scrape by its own clock, and the store stamps what it took with its. Where the two differ by
more than can be, the agent's clock is wrong: its times are moved, and the time between two of its scrapes stays what it was.
Owns that difference, for one replica. It must not judge whether a replica is silent: a page that is told again is none.

Running sums of an agent, continued where the agent starts anew.

Owns what is remembered of one replica's sums: they begin at zero with each agent, and nothing the engine did. A sum that
is not there is one of which nothing was added yet.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from agent.fleet.agent_columns import GPU_INFO, SAMPLES, SeriesColumns
from agent.fleet.stored_pages import StoredPage, StoredSeries
from agent.prometheus.answers import MatrixSeries
from exporters.metrics import names
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import Snapshot

EARLY_SECONDS = 5.0
"""A scrape that is later than the sample that tells of it: the store stamps when it begins to ask."""

LATE = 1.25
"""So many times of what lies between two scrapes of the agent its last one may be old when the store asks."""

UNKNOWN_SECONDS = 300.0
"""It may be so old while nothing is known of that time (Prometheus' staleness)."""


@dataclass(slots=True)
class AgentClock:
    """Of one replica. `behind` is what its agent's clock is behind the store's, in seconds."""

    behind: float = 0.0
    _told: float = math.nan
    _between: float = math.nan

    def scrape_times(self, t: float, told: float) -> float | None:
        """The time of the scrape that an agent told of as `told`, in a sample of `t`; None where it told of it before."""
        if not math.isfinite(told):
            return t
        if told == self._told:
            return None
        if 0.0 < told - self._told <= UNKNOWN_SECONDS:
            self._between = told - self._told
        self._told = told
        age = t - told
        if not self._can_be(age - self.behind):
            self.behind = 0.0 if self._can_be(age) else age
        return told + self.behind

    def _can_be(self, age: float) -> bool:
        most = LATE * self._between if math.isfinite(self._between) else UNKNOWN_SECONDS
        return -EARLY_SECONDS <= age <= most


class CounterContinuity:
    """The sums of one replica over the lives of its agents."""

    def __init__(self) -> None:
        self._base: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._base_parts: dict[str, Cumulative] = {}
        self._last_parts: dict[str, Cumulative] = {}

    def page(self, page: Snapshot) -> Snapshot:
        """The page with what earlier agents had added up on top."""
        if self._of_the_first_agent(page):
            self._last, self._last_parts = dict(page.counters), dict(page.histograms)
            return page
        counters = {f: self._counter(f, page.counters.get(f, 0.0)) for f in {**self._last, **page.counters}}
        for family, part in page.histograms.items():
            self._part(family, part)
        for family in self._last_parts.keys() - page.histograms.keys():
            self._vanished(family)
        parts = {
            family: _plus(self._base_parts.get(family), self._last_parts.get(family))
            for family in {**self._base_parts, **self._last_parts}
        }
        return replace(page, counters=counters, histograms={f: p for f, p in parts.items() if p is not None})

    def _of_the_first_agent(self, page: Snapshot) -> bool:
        """Return whether nothing began anew so far and all that was told before is told again."""
        if self._base or self._base_parts:
            return False
        counters, parts = page.counters, page.histograms
        return all(counters.get(f, -math.inf) >= last for f, last in self._last.items()) and all(
            (now := parts.get(f)) is not None and (now.edges != last.edges or now.counts[-1] >= last.counts[-1])
            for f, last in self._last_parts.items()
        )

    def _counter(self, family: str, now: float) -> float:
        last = self._last.get(family, 0.0)
        if now < last:
            self._base[family] = self._base.get(family, 0.0) + last
        self._last[family] = now
        return self._base.get(family, 0.0) + now

    def _part(self, family: str, now: Cumulative) -> None:
        last = self._last_parts.get(family)
        if last is not None and last.edges == now.edges and now.counts[-1] < last.counts[-1]:
            self._vanished(family)
        base = self._base_parts.get(family)
        if base is not None and base.edges != now.edges:
            # Another grid is another histogram: the engine was replaced by one with other buckets.
            del self._base_parts[family]
        self._last_parts[family] = now

    def _vanished(self, family: str) -> None:
        whole = _plus(self._base_parts.get(family), self._last_parts.pop(family))
        if whole is not None:
            self._base_parts[family] = whole


def _plus(base: Cumulative | None, last: Cumulative | None) -> Cumulative | None:
    if base is None or last is None or base.edges != last.edges:
        return last if last is not None else base
    counts = tuple(a + b for a, b in zip(base.counts, last.counts, strict=True))
    total = None if base.total is None or last.total is None else base.total + last.total
    return Cumulative(last.edges, counts, total)


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
