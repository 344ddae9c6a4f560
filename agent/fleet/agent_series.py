"""Pages of replicas from the series that node agents export.

The time of a page is that of the agent's own scrape, corrected for a wrong clock of its host. The sums of an agent start
at zero. They are continued over the restart of an agent, because the engine did not restart.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.fleet.agent_columns import GPU_INFO, SAMPLES, SeriesColumns
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import quote_value
from agent.prometheus.answers import MatrixSeries, Rows, SeriesKind
from exporters.metrics import names
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import ENGINE_VERSION, Snapshot

EARLY_SECONDS = 5.0
"""Tolerated lead of a scrape over its sample: the store takes the time at the start of its request."""

LATE = 1.25
"""Maximum age of a scrape, in scrape intervals of the agent."""

UNKNOWN_SECONDS = 300.0
"""Maximum age of a scrape while its interval is unknown (Prometheus' staleness)."""

AGENT = ("instance", "job", "pod", "namespace", "node", "container", "endpoint")
"""Labels that identify an agent. Two agents with the same replica are not summed."""

CARRIED_SECONDS = 60.0
"""Validity of the last sample of a GPU on another node: Prometheus' usual scrape interval."""

MOST_LAYOUTS = 256
"""Maximum number of cached layouts, by the kinds of a replica's series."""

_UP, _SEEN, _INFO = names.TARGET_UP.name, names.TARGET_SEEN.name, names.REPLICA_INFO.name


@dataclass(slots=True)
class AgentClock:
    """Clock of the agent of one replica. `behind` is its delay behind the store's clock, in seconds.

    An impossible age of a scrape means a wrong clock. The scrape times are then shifted; their distances stay.
    """

    behind: float = 0.0
    _scraped: float = math.nan
    _between: float = math.nan

    def scrape_time(self, t: float, scraped: float) -> float | None:
        """Return the time of a scrape at `scraped` by the agent's clock, in a sample of `t`; None for a repeated one."""
        if not math.isfinite(scraped):
            return t
        if scraped == self._scraped:
            return None
        if 0.0 < scraped - self._scraped <= UNKNOWN_SECONDS:
            self._between = scraped - self._scraped
        self._scraped = scraped
        age = t - scraped
        if not self._is_possible(age - self.behind):
            self.behind = 0.0 if self._is_possible(age) else age
        return scraped + self.behind

    def _is_possible(self, age: float) -> bool:
        most = LATE * self._between if math.isfinite(self._between) else UNKNOWN_SECONDS
        return -EARLY_SECONDS <= age <= most


class CounterContinuity:
    """Sums of one replica over restarts of its agent. A missing sum is zero."""

    def __init__(self) -> None:
        self._base: dict[str, float] = {}
        self._last: Mapping[str, float] = {}
        self._base_parts: dict[str, Cumulative] = {}
        self._last_parts: Mapping[str, Cumulative] = {}

    def page(self, page: Snapshot) -> Snapshot:
        """Return the page with the sums of earlier agents added."""
        if self._of_the_first_agent(page):
            self._last, self._last_parts = page.counters, page.histograms
            return page
        last, last_parts = dict(self._last), dict(self._last_parts)
        self._last, self._last_parts = last, last_parts
        counters = {f: self._counter(last, f, page.counters.get(f, 0.0)) for f in {**last, **page.counters}}
        for family, part in page.histograms.items():
            self._part(last_parts, family, part)
        for family in last_parts.keys() - page.histograms.keys():
            self._vanished(last_parts, family)
        parts = {
            family: _plus(self._base_parts.get(family), self._last_parts.get(family))
            for family in {**self._base_parts, **self._last_parts}
        }
        return replace(page, counters=counters, histograms={f: p for f, p in parts.items() if p is not None})

    def _of_the_first_agent(self, page: Snapshot) -> bool:
        """Return whether no sum has restarted or disappeared so far."""
        if self._base or self._base_parts:
            return False
        counters, parts = page.counters, page.histograms
        # Hot path: a generator for each of thousands of pages costs more than these loops.
        for family, last in self._last.items():
            if counters.get(family, -math.inf) < last:
                return False
        for family, last_part in self._last_parts.items():
            now = parts.get(family)
            if now is None or (now.edges == last_part.edges and now.counts[-1] < last_part.counts[-1]):
                return False
        return True

    def _counter(self, last: dict[str, float], family: str, now: float) -> float:
        before = last.get(family, 0.0)
        if now < before:
            self._base[family] = self._base.get(family, 0.0) + before
        last[family] = now
        return self._base.get(family, 0.0) + now

    def _part(self, last_parts: dict[str, Cumulative], family: str, now: Cumulative) -> None:
        last = last_parts.get(family)
        if last is not None and last.edges == now.edges and now.counts[-1] < last.counts[-1]:
            self._vanished(last_parts, family)
        base = self._base_parts.get(family)
        if base is not None and base.edges != now.edges:
            # The engine was replaced by one with other buckets.
            del self._base_parts[family]
        last_parts[family] = now

    def _vanished(self, last_parts: dict[str, Cumulative], family: str) -> None:
        whole = _plus(self._base_parts.get(family), last_parts.pop(family))
        if whole is not None:
            self._base_parts[family] = whole


def _plus(base: Cumulative | None, last: Cumulative | None) -> Cumulative | None:
    if base is None or last is None or base.edges != last.edges:
        return last if last is not None else base
    counts = tuple(a + b for a, b in zip(base.counts, last.counts, strict=True))
    total = None if base.total is None or last.total is None else base.total + last.total
    return Cumulative(last.edges, counts, total)


def selector(tier: str, matchers: str = "", families: Iterable[str] = names.FAMILY) -> str:
    """Return the PromQL selector of the series of a tier's pages, narrowed by `matchers`."""
    wanted = set(families)
    stems = [name for name, (family, _) in SAMPLES.items() if family in wanted]
    stems += [_UP, _SEEN, _INFO, GPU_INFO]
    alternatives = "|".join(sorted(stem.removeprefix(names.PREFIX) for stem in stems))
    more = f",{matchers}" if matchers else ""
    return f'{{__name__=~"{names.PREFIX}({alternatives})",{names.TIER}="{quote_value(tier)}"{more}}}'


def replica_count_query(tier: str, matchers: str = "") -> str:
    """Return the PromQL for the number of replicas of a tier."""
    more = f",{matchers}" if matchers else ""
    return f'count(max by ({names.REPLICA}) ({_UP}{{{names.TIER}="{quote_value(tier)}"{more}}}))'


@dataclass(slots=True)
class _Seen:
    """Series of one replica from one agent, by sample name."""

    by_name: dict[str, list[MatrixSeries]] = field(default_factory=dict)

    @property
    def scrape_times(self) -> tuple[float, ...]:
        """Return the times at which the agent was scraped."""
        return tuple(sorted({t for one in self.by_name.get(_UP, ()) for t in one.times}))

    @property
    def newest_time(self) -> float:
        return max((s.times[-1] for several in self.by_name.values() for s in several), default=-math.inf)


@dataclass(slots=True)
class _ReplicaState:
    """State of a replica between two responses. `last` is its last scrape, `read_until` the time of its last sample."""

    last: float = -math.inf
    read_until: float = -math.inf
    clock: AgentClock = field(default_factory=AgentClock)
    sums: CounterContinuity = field(default_factory=CounterContinuity)


class AgentPages:
    """Pages of one tier, for one thread."""

    def __init__(self) -> None:
        self._replicas: defaultdict[str, _ReplicaState] = defaultdict(_ReplicaState)
        self._layouts: dict[tuple[SeriesKind, ...], RowLayout] = {}

    def row_pages(self, rows: Rows, t: float) -> Iterator[StoredPage]:
        """Yield the new page of every replica in the rows of one time, without labels of agents."""
        for replica, row in rows.by_name.items():
            if not replica:
                continue  # A sum over replicas may keep its metric's name.
            kinds, values = zip(*row, strict=True)
            layout = self._layout(kinds)
            if layout.pool is None:
                labelled = (({**kind.labels, names.REPLICA: replica}, value) for kind, value in row)
                yield from self.pages([MatrixSeries(labels, (t,), (value,)) for labels, value in labelled])
            elif layout.times:
                layout.fill(values)
                yield from self._read(sys.intern(replica), layout.pool, layout.columns, (t,), layout.facts)

    def _layout(self, kinds: tuple[SeriesKind, ...]) -> RowLayout:
        found = self._layouts.get(kinds)
        if found is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[kinds] = RowLayout(kinds)
        return found

    def pages(self, several: Iterable[MatrixSeries]) -> Iterator[StoredPage]:
        """Yield the new pages of a response, replica by replica, each in order of time."""
        for (replica, pool), seen in _by_replica(tuple(several)).items():
            # One text for all minutes of a replica: an hour of thousands is kept.
            yield from self._of(sys.intern(replica), sys.intern(pool), seen)

    def forget(self, replicas: set[str]) -> None:
        """Drop the state of replicas."""
        for replica in replicas:
            self._replicas.pop(replica, None)

    def _of(self, replica: str, pool: str, seen: _Seen) -> Iterator[StoredPage]:
        times = seen.scrape_times
        return self._read(replica, pool, SeriesColumns(seen.by_name, times), times, _facts(seen))

    def _read(
        self, replica: str, pool: str, read: SeriesColumns, times: tuple[float, ...], facts: Mapping[str, str]
    ) -> Iterator[StoredPage]:
        state = self._replicas[replica]
        up, at = read.column(_UP), read.column(_SEEN)
        for place, t in enumerate(times):
            if not up[place]:
                yield StoredPage(t=t, replica=replica, pool=pool, snapshot=None, error="its agent got no page from it")
                continue
            if t <= state.read_until:
                continue
            state.read_until = t
            scraped = state.clock.scrape_time(t, at[place])
            if scraped is None or scraped <= state.last:
                continue
            state.last = scraped
            page = state.sums.page(read.snapshot(place, scraped, facts))
            yield StoredPage(t=scraped, replica=replica, pool=pool, snapshot=page, gpus=read.gpus(place, scraped))


def _by_replica(several: Sequence[MatrixSeries]) -> dict[tuple[str, str], _Seen]:
    """Return the series by replica. Of several agents the last one counts; GPUs on other nodes come from their agents."""
    agents: dict[tuple[str, str], dict[tuple[str | None, ...], _Seen]] = {}
    # Sums over a tier have no labels of agents.
    known = set().union(*(one.labels for one in several))
    agent_labels = tuple(label for label in AGENT if label in known)
    for one in several:
        get = one.labels.get
        replica = get(names.REPLICA)
        if replica is None or not one.times:
            continue
        of_replica = agents.setdefault((replica, get(names.POOL, "mixed")), {})
        agent = tuple(map(get, agent_labels))
        seen = of_replica.get(agent)
        if seen is None:
            seen = of_replica[agent] = _Seen()
        seen.by_name.setdefault(get("__name__", ""), []).append(one)
    return {key: _joined(list(group.values())) for key, group in agents.items()}


def _joined(agents: list[_Seen]) -> _Seen:
    """Return the series of the scraping agent, with those of the other agents for GPUs that it does not see."""
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


def _carried(one: MatrixSeries, times: tuple[float, ...]) -> MatrixSeries:
    """Return another agent's series at the given times: its last sample before each, if that is not old."""
    found = []
    for t in times:
        place = bisect_right(one.times, t) - 1
        if place >= 0 and t - one.times[place] <= CARRIED_SECONDS:
            found.append((t, one.values[place]))
    return MatrixSeries(one.labels, tuple(t for t, _ in found), tuple(value for _, value in found))


class RowLayout:
    """Columns of one value for rows of the same kinds of series. `pool` is None if the series have several pools."""

    def __init__(self, kinds: Iterable[SeriesKind]) -> None:
        several = [kind.labels for kind in kinds]
        self._cells = [[0.0] for _ in several]
        seen = _Seen()
        for labels, cell in zip(several, self._cells, strict=True):
            series = MatrixSeries(labels, (0.0,), cell)
            seen.by_name.setdefault(labels.get("__name__", ""), []).append(series)
        pools = {labels.get(names.POOL, "mixed") for labels in several}
        self.pool = sys.intern(pools.pop()) if len(pools) == 1 else None
        self.facts = _facts(seen)
        self.times = seen.scrape_times
        self.columns = SeriesColumns(seen.by_name, (0.0,))

    def fill(self, values: Iterable[float]) -> None:
        """Set the values of a row."""
        for cell, value in zip(self._cells, values, strict=True):
            cell[0] = value


def _facts(seen: _Seen) -> dict[str, str]:
    info = max(seen.by_name.get(_INFO, ()), key=lambda s: s.times[-1], default=None)
    if info is None:
        return {}
    labels = info.labels
    release = labels.get("engine_version", "")
    # A release, or words on the releases that the page's names allow.
    told = "engine_versions" if " " in release else ENGINE_VERSION
    facts = {"model": labels.get(names.MODEL, ""), told: release}
    return {name: value for name, value in facts.items() if value} | {"engine": labels.get("engine", "")}
