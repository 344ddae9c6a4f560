"""Pages of replicas from the series that node agents export.

The time of a page is that of the agent's own scrape, corrected for a wrong clock of its host. The sums of an agent start
at zero. They are continued over the restart of an agent, because the engine did not restart.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from agent.fleet.agent_columns import GPU_INFO, SAMPLES, SeriesColumns
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import quote_value
from agent.prometheus.answers import MatrixSeries
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
        most = LATE * self._between
        if not math.isfinite(most):
            most = UNKNOWN_SECONDS
        return -EARLY_SECONDS <= age <= most


class CounterContinuity:
    """Sums of one replica over restarts of its agent. A missing sum is zero. The bases are the sums of earlier agents."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, Cumulative] = {}

    def page(self, page: Snapshot) -> Snapshot:
        """Return the page with the sums of earlier agents added."""
        if self._last is not None:
            self._add_restarted(self._last, page)
        self._last = page
        if not self._counters and not self._histograms:
            return page
        counters = {f: v + page.counters.get(f, 0.0) for f, v in self._counters.items()}
        parts = {f: _plus(part, page.histograms.get(f)) for f, part in self._histograms.items()}
        return replace(page, counters={**page.counters, **counters}, histograms={**page.histograms, **parts})

    def _add_restarted(self, last: Snapshot, page: Snapshot) -> None:
        """Add the sums of the last page that are smaller or missing now."""
        for family, value in last.counters.items():
            if page.counters.get(family, -math.inf) < value:
                self._counters[family] = self._counters.get(family, 0.0) + value
        for family, part in last.histograms.items():
            now = page.histograms.get(family)
            if now is None or (now.edges == part.edges and now.counts[-1] < part.counts[-1]):
                base = self._histograms.get(family)
                if base is not None:
                    part = _plus(base, part)
                self._histograms[family] = part
        for family, now in page.histograms.items():
            base = self._histograms.get(family)
            if base is not None and base.edges != now.edges:
                # The engine was replaced by one with other buckets.
                del self._histograms[family]


def _plus(base: Cumulative, last: Cumulative | None) -> Cumulative:
    if last is None:
        return base
    if base.edges != last.edges:
        return last
    counts = tuple(a + b for a, b in zip(base.counts, last.counts, strict=True))
    total = None
    if base.total is not None and last.total is not None:
        total = base.total + last.total
    return Cumulative(last.edges, counts, total)


def selector(tier: str, matchers: str = "") -> str:
    """Return the PromQL selector of the series of a tier's pages, narrowed by `matchers`."""
    stems = sorted(name.removeprefix(names.PREFIX) for name in (*SAMPLES, _UP, _SEEN, _INFO, GPU_INFO))
    alternatives = "|".join(stems)
    tier = quote_value(tier)
    return f'{{__name__=~"{names.PREFIX}({alternatives})",{names.TIER}="{tier}",{matchers}}}'


def replica_count_query(tier: str, matchers: str = "") -> str:
    """Return the PromQL for the number of replicas of a tier."""
    tier = quote_value(tier)
    return f'count(max by ({names.REPLICA}) ({_UP}{{{names.TIER}="{tier}",{matchers}}}))'


@dataclass(slots=True)
class _Seen:
    """Series of one replica from one agent, by sample name."""

    by_name: dict[str, list[MatrixSeries]] = field(default_factory=dict)

    @property
    def scrape_times(self) -> tuple[float, ...]:
        """Return the times at which the agent was scraped."""
        return tuple(sorted({t for series in self.by_name.get(_UP, ()) for t in series.times}))

    @property
    def newest_time(self) -> float:
        return max((s.times[-1] for series in self.by_name.values() for s in series), default=-math.inf)


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

    def pages(self, series: Iterable[MatrixSeries]) -> Iterator[StoredPage]:
        """Yield the new pages of a response, replica by replica, each in order of time."""
        for (replica, pool), seen in _by_replica(series).items():
            # One text for all minutes of a replica: an hour of thousands is kept.
            yield from self._pages_of(sys.intern(replica), sys.intern(pool), seen)

    def forget(self, replicas: set[str]) -> None:
        """Drop the state of replicas."""
        for replica in replicas:
            self._replicas.pop(replica, None)

    def _pages_of(self, replica: str, pool: str, seen: _Seen) -> Iterator[StoredPage]:
        times, facts = seen.scrape_times, _facts(seen)
        read = SeriesColumns(seen.by_name, times)
        state = self._replicas[replica]
        up, at = read.column(_UP), read.column(_SEEN)
        for place, t in enumerate(times):
            if not up[place]:
                yield StoredPage(t=t, replica=replica, pool=pool, error="its agent got no page from it")
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


def _by_replica(series: Iterable[MatrixSeries]) -> dict[tuple[str, str], _Seen]:
    """Return the series by replica. Of several agents the last one counts; GPUs on other nodes come from their agents."""
    agents: dict[tuple[str, str], dict[tuple[str | None, ...], _Seen]] = {}
    for matrix_series in series:
        get = matrix_series.labels.get
        replica = get(names.REPLICA)
        if replica is None or not matrix_series.times:
            continue
        of_replica = agents.setdefault((replica, get(names.POOL, "mixed")), {})
        agent = tuple(map(get, AGENT))
        seen = of_replica.get(agent)
        if seen is None:
            seen = of_replica[agent] = _Seen()
        seen.by_name.setdefault(get("__name__", ""), []).append(matrix_series)
    return {key: _joined(list(group.values())) for key, group in agents.items()}


def _joined(agents: list[_Seen]) -> _Seen:
    """Return the series of the scraping agent, with those of the other agents for GPUs that it does not see."""
    if len(agents) == 1:
        return agents[0]
    first = max(agents, key=lambda seen: (_UP in seen.by_name, seen.newest_time))
    own = {""}
    for rows in first.by_name.values():
        own.update(series.labels.get(names.GPU, "") for series in rows)
    for agent in agents:
        for name, series in agent.by_name.items() if agent is not first else ():
            for matrix_series in series:
                if matrix_series.labels.get(names.GPU, "") not in own:
                    first.by_name.setdefault(name, []).append(_carried(matrix_series, first.scrape_times))
    return first


def _carried(series: MatrixSeries, times: tuple[float, ...]) -> MatrixSeries:
    """Return another agent's series at the given times: its last sample before each, if that is not old."""
    rows = []
    for t in times:
        place = bisect_right(series.times, t) - 1
        if place >= 0 and t - series.times[place] <= CARRIED_SECONDS:
            rows.append((t, series.values[place]))
    return MatrixSeries(series.labels, tuple(t for t, _ in rows), tuple(value for _, value in rows))


def _facts(seen: _Seen) -> dict[str, str]:
    info = max(seen.by_name.get(_INFO, ()), key=lambda s: s.times[-1], default=None)
    if info is None:
        return {}
    labels = info.labels
    release = labels.get("engine_version", "")
    name = ENGINE_VERSION
    if " " in release:
        # Words on the releases that the page's names allow.
        name = "engine_versions"
    facts = {"model": labels.get(names.MODEL, ""), name: release}
    return {name: value for name, value in facts.items() if value} | {"engine": labels.get("engine", "")}
