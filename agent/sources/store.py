"""Source of role fleet: query a store for every tier. Where it fails, only the queried tiers are hidden."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from agent.config.load import LoadedConfig
from agent.config.peer import Peer
from agent.errors import SizewatchError
from agent.fleet.stored_pages import GONE_SECONDS, StoredPage
from agent.fleet.tier_readers import (
    AGENTS,
    OVERLAP_SECONDS,
    TierReader,
    TierReaderKey,
    build_tier_reader,
    read_tier,
    uses_agent_series,
)
from agent.garbage import collect_rarely, collector_resting
from agent.pipeline.interfaces import Source
from agent.prometheus.api import StoreApi
from agent.scrape.scrapers import Target
from exporters.status.records import ExportScope, StoreHealth
from rules.evaluator.observation import Observation, ReplicaGpus, ReplicaKey, StepResult, TierAggregate
from rules.evaluator.tier_minutes import AHEAD_SECONDS, RECENT_SECONDS
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.telemetry.wording import format_count

MOST_BEHIND_SECONDS = 3600.0
"""Maximum span in seconds of a query. After a longer outage of the store the time before is a gap."""

MOST_NAMED = 5
"""Maximum number of replicas named in a sentence."""

Item = TypeVar("Item")


class StoreSource(Source):
    """Tiers of a store, for one thread.

    `readers` has the reader of each tier and its options. Node agents export the `agent_tiers`. What was read goes on from
    the source `before`. Nothing up to `begin` (unix seconds) is read. `failed` is the last error of the store.
    """

    def __init__(
        self,
        *,
        readers: Mapping[TierReaderKey, TierReader],
        api: StoreApi,
        agent_tiers: frozenset[str],
        delay_seconds: float,
        before: StoreSource | None = None,
        begin: float = -math.inf,
    ) -> None:
        self.readers = dict(readers)
        self.api = api
        self.agent_tiers = agent_tiers
        self.errors: Mapping[str, str] = {}
        self.failed: SizewatchError | None = None
        self._readers = tuple(readers.values())
        self._delay = delay_seconds
        self._begin = begin
        self._interrupted = False
        self._targets: tuple[Target, ...] = before.targets if before is not None else ()
        self._read_until: dict[str, float] = dict(before._read_until) if before is not None else {}
        self._windows: dict[ReplicaKey, Window] = {}
        self._contexts: Mapping[str, TierContext] = {}
        self._last_minutes: dict[str, dict[str | None, BinnedWindow]] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for target in self._targets if target.tier in self.tiers)

    @property
    def tiers(self) -> frozenset[str]:
        """Return the tiers with a reader, also without replicas."""
        return frozenset(reader.tier for reader in self._readers)

    def observe(self, now: float) -> Iterator[Observation]:
        """Yield an observation per cycle of scrapes, then one with the sums of the store and the replicas that are gone.

        Yield no more after `interrupt`: what was not waited for is no failure of the store.
        """
        with collector_resting():
            until = now - self._delay
            pages, unavailable = self._read(until)
            if self._interrupted:
                return
            # A failed query is no evidence that a replica is gone.
            gone = {
                reader.tier: reader.pages.pop_gone_replicas(until)
                for reader in self._readers
                if self._read_until.get(reader.tier) == until
            }
            pools = {reader.tier: reader.pages.pools for reader in self._readers}
            aggregated = frozenset(reader.tier for reader in self._readers if reader.sums)
            # Every replica had a page or a missed scrape in this cycle.
            seen = partial(Observation, aggregated=aggregated, pools=pools, partial=True)
            self._windows = {}
            for cycle in group_by_cycle(pages, lambda page: (page.tier, page.replica)):
                yield seen(
                    now=cycle[-1].t,
                    scrapes=tuple(page.to_scrape() for page in cycle),
                    gpus={(page.tier, page.replica): ReplicaGpus(readouts=page.gpus) for page in cycle if page.gpus},
                    unavailable=dict(unavailable),
                )
            sums = {}
            for reader in self._readers:
                if reader.sums:
                    sums[reader.tier] = self._aggregate(reader, until, unavailable)
            if self._interrupted:
                return
            peer = Peer(url=self.api.place)
            self._targets = tuple(
                Target(tier=tier, replica=name, pool=pool, peer=peer)
                for tier, replicas in pools.items()
                for name, pool in sorted(replicas.items())
            )
            self.errors, events = unavailable, []
            for tier, names in gone.items():
                text = f"{format_count(len(names), 'replica')} gone from the store: {', '.join(sorted(names)[:MOST_NAMED])}"
                if names:
                    events.append(TimelineEvent(t=until, kind=TimelineKind.GONE, tier=tier, text=text))
            yield seen(
                now=until,
                aggregates=sums,
                unavailable=unavailable,
                removed=frozenset((tier, name) for tier, names in gone.items() for name in names),
                events=tuple(events),
            )

    def take_windows(self, result: StepResult) -> None:
        """Take the windows that the sums of the last observation are grouped by."""
        self._windows.update(result.windows)
        self._contexts = result.tiers

    def _read(self, until: float) -> tuple[list[StoredPage], dict[str, str]]:
        pages: list[StoredPage] = []
        unavailable: dict[str, str] = {}
        for reader in self._readers:
            # The clock may have been set back. Do not query future times.
            known = min(self._read_until.get(reader.tier, until - GONE_SECONDS), until)
            since = max(known, until - MOST_BEHIND_SECONDS)
            try:
                replica_pages, silence = read_tier(reader, max(since - OVERLAP_SECONDS, self._begin), until)
            except SizewatchError as error:
                self.failed, unavailable[reader.tier] = error, str(error)
                continue
            self._read_until[reader.tier] = until
            if silence:
                unavailable[reader.tier] = silence
            pages += replica_pages
        return sorted(pages, key=lambda page: page.t), unavailable

    def _aggregate(self, reader: TierReader, until: float, unavailable: dict[str, str]) -> TierAggregate:
        """Query the sums of a tier. A failure makes the tier unavailable, and its minute a gap."""
        tier = reader.tier
        mapping = {name: window for (of, name), window in self._windows.items() if of == tier}
        if tier in unavailable or not mapping:
            return TierAggregate(groups=(), each=())
        known = self._last_minutes.get(tier, {})
        since = until - load_bins.AFTER_SECONDS - RECENT_SECONDS
        before = {}
        for name, binned in known.items():
            if since < binned.window.end <= until + AHEAD_SECONDS:
                before[name] = binned
        try:
            groups, each = reader.minute(mapping, self._contexts[tier], before)
        except SizewatchError as error:
            unavailable[tier] = str(error)
            missing = (windows.gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in mapping.values())
            whole = windows.sum_windows(missing)
            return TierAggregate(groups=(load_bins.bin_window(whole, None, None),), each=())
        self._last_minutes[tier] = before | {binned.replica: binned for binned in each}
        return TierAggregate(groups=groups, each=each)

    def describe(self) -> str:
        return f"{format_count(len(self._readers), 'tier')} through {self.api.place}"

    def export_scope(self, tier: str) -> ExportScope:
        """Return which results of a tier to export. Node agents export their own replicas."""
        return ExportScope.WHOLE_TIER if tier in self.agent_tiers else ExportScope.ALL

    def store_health(self) -> StoreHealth:
        counts = self.api.counts
        return StoreHealth(
            place=self.api.place,
            queries=counts.queries,
            seconds=counts.seconds,
            failures={kind.value: number for kind, number in counts.troubles.items()},
            in_sight={reader.tier: self.errors.get(reader.tier, "") for reader in self._readers},
        )

    def interrupt(self) -> None:
        """Let the present query fail, and the present cycle end without its result."""
        self._interrupted = True
        self.api.interrupt()


def group_by_cycle(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[tuple[Item, ...]]:
    """Yield the scrapes of each cycle. The second of a target begins the next cycle: all replicas close a minute at once."""
    cycle: dict[Hashable, Item] = {}
    for item in items:
        if key(item) in cycle:
            yield tuple(cycle.values())
            cycle = {}
        cycle[key(item)] = item
    if cycle:
        yield tuple(cycle.values())


def build_store_source(
    loaded: LoadedConfig, contexts: Mapping[str, TierContext], before: StoreSource | None
) -> StoreSource:
    """Build the source of a configuration of role fleet. Unchanged readers keep their state."""
    # An hour of thousands of replicas are a million records without cycles.
    collect_rarely()
    keys = loaded.config
    assert keys.store is not None, "role fleet has a store"
    api = before.api if before is not None else None
    if not isinstance(api, StoreApi) or (api.store, api.cycle_seconds) != (keys.store, keys.cycle_seconds):
        api = StoreApi(keys.store, cycle_seconds=keys.cycle_seconds)
    known: dict[TierReaderKey, TierReader] = before.readers if before is not None else {}
    readers: dict[TierReaderKey, TierReader] = {}
    for tier, context in contexts.items():
        source = keys.tiers.get(tier, AGENTS)
        depends_on = (source, api, keys.fleet, context.basis.ttft_slo_seconds)
        readers[depends_on, tier] = known.get((depends_on, tier)) or build_tier_reader(
            tier, source, context, keys.fleet, api
        )
    return StoreSource(
        readers=readers,
        api=api,
        agent_tiers=frozenset(tier for tier in contexts if uses_agent_series(keys, tier)),
        delay_seconds=keys.fleet.delay_seconds,
        before=before,
    )
