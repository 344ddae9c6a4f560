"""Readers of one tier from a store: replica by replica, or by the number of its replicas as sums by load."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping

from agent.config.config import Config
from agent.config.store import FleetConfig, TierSource
from agent.fleet import agent_series, engine_series
from agent.fleet.stored_pages import USUAL_SECONDS, PageReaderProtocol, StoredPage, TierPages
from agent.fleet.summed_reader import Minute, SummedReader
from agent.fleet.sums import AgentSums
from agent.prometheus.api import SampleClient, StoreApi
from agent.prometheus.errors import StoreError, StoreErrorKind
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.windows import Window

_log = logging.getLogger(__name__)

MOST_ENGINES = 100
"""Maximum replicas of a tier from engines that hold 2 s of CPU a cycle and 400 MiB. A larger tier is read whole too."""

PIECE_SECONDS = 900.0
"""Maximum time range of a query after an outage of the store."""

OVERLAP_SECONDS = 60.0
"""Query overlap. Samples of one scrape arrive at different times, and it shows that a new sum did not exist before."""

LEAST_SECONDS = 4 * OVERLAP_SECONDS
"""Minimum piece to halve. Smaller pieces would be mostly overlap."""

TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})
"""Errors that half a piece may avoid."""

BACK_SHARE = 0.75
"""Share of the limit below which a tier is read replica by replica again."""

AGENTS = TierSource()
"""Source of a tier without an entry in the configuration."""

TierReaderKey = tuple[Hashable, str]
"""Settings of a tier reader, and its tier."""


class ReplicaReader:
    """Reader of a tier replica by replica. `beside` are further selectors, such as that of a GPU exporter.

    A tier of more than `most` replicas is logged once.
    """

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: PageReaderProtocol,
        api: SampleClient,
        usual_seconds: float = USUAL_SECONDS,
        beside: tuple[str, ...] = (),
        most: int | None = None,
    ) -> None:
        self.tier = tier
        self.sums = False
        self._selectors = (selector, *beside)
        self._api = api
        self._taken: list[StoredPage] = []
        self._most = most
        self.pages = TierPages(tier, reader, usual_seconds)

    def ask(self, since: float, until: float) -> tuple[StoredPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError.

        A long time is queried in pieces: an hour of many replicas is above the limits of a store. Pages of the pieces
        before an error are returned by the next call.
        """
        at = since
        while at < until:
            end = min(until, at + PIECE_SECONDS)
            self._take(at - OVERLAP_SECONDS if at > since else at, end)
            at = end
        pages, self._taken = tuple(self._taken), []
        count = len(self.pages.pools)
        if self._most is not None and count > self._most:
            _log.warning("tier larger than measured tier=%s replicas=%d limit=%d", self.tier, count, self._most)
            self._most = None
        return pages

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> Minute:
        """Return nothing: the pages of the replicas close their minutes."""
        return (), ()

    def _take(self, since: float, until: float) -> None:
        try:
            series = [
                sample for selector in self._selectors for sample in self._api.query_samples(selector, since, until)
            ]
        except StoreError as error:
            if error.kind not in TOO_LARGE or until - since <= LEAST_SECONDS:
                raise
            middle = (since + until) / 2.0
            self._take(since, middle)
            self._take(middle - OVERLAP_SECONDS, until)
        else:
            self._taken += self.pages.take(series)


class AdaptiveReader:
    """Reader of a tier of agents by its size. `most` is the maximum number of replicas to read one by one."""

    def __init__(self, each: ReplicaReader, summed: SummedReader, counted: str, most: int, api: StoreApi) -> None:
        self.tier = each.tier
        self._each, self._summed = each, summed
        self._now: ReplicaReader | SummedReader = each
        self._counted = counted
        self._most = most
        self._api = api

    @property
    def sums(self) -> bool:
        """Return whether the tier is read as sums now."""
        return self._now is self._summed

    @property
    def pages(self) -> TierPages:
        """Return the pages of the active reader."""
        return self._now.pages

    def ask(self, since: float, until: float) -> tuple[StoredPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError."""
        # Before the first response the store counts the replicas.
        count: float = len(self.pages.pools)
        if not count:
            count = sum(sample.value for sample in self._api.query(self._counted, until))
        if not self.sums and count > self._most:
            self._now = self._summed
        elif self.sums and count <= BACK_SHARE * self._most:
            self._now = self._each
        return self._now.ask(since, until)

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> Minute:
        """Return the minute of a tier that is read as sums. Raise StoreError."""
        return self._summed.minute(seen, context, before)


TierReader = ReplicaReader | AdaptiveReader


def read_tier(reader: TierReader, since: float, until: float) -> tuple[tuple[StoredPage, ...], str]:
    """Return the new pages and missed scrapes of a tier, and why it is unavailable although the store answers, or "".

    Raise StoreError.
    """
    pages = reader.ask(since, until)
    absent, silent_since = reader.pages.missing_scrapes(until), reader.pages.all_silent_since
    if silent_since is None:
        return (*pages, *absent), ""
    if math.isfinite(silent_since):
        return pages, f"the store has had no sample of the tier for {until - silent_since:.0f} s"
    return pages, "the store has no sample of the tier"


def build_tier_reader(
    tier: str, source: TierSource, context: TierContext, fleet: FleetConfig, api: StoreApi
) -> TierReader:
    """Return the reader of a tier. That of agents' series adapts to the size of the tier."""
    each = build_replica_reader(tier, source, context, api)
    if source.source == "engines":
        return each
    matchers = source.selector or ""
    sums = AgentSums(tier=tier, matchers=matchers)
    summed = SummedReader(tier, sums, context.basis.ttft_slo_seconds, api, fleet.cycle_seconds)
    return AdaptiveReader(each, summed, agent_series.replica_count_query(tier, matchers), fleet.each_up_to, api)


def build_replica_reader(tier: str, source: TierSource, context: TierContext, api: SampleClient) -> ReplicaReader:
    """Return the reader of a tier replica by replica."""
    matchers = source.selector or ""
    if source.source == "agents":
        return ReplicaReader(tier, agent_series.selector(tier, matchers), agent_series.AgentPages(), api)
    engine = source.engine or (context.plan.engine if context.plan is not None else None)
    gpus = None
    beside: tuple[str, ...] = ()
    if source.gpus is not None:
        exporter = EXPORTERS[source.gpus.exporter]
        gpus = engine_series.GpuPages(exporter, source.gpus.replica_label)
        beside = (engine_series.exporter_selector(exporter, source.gpus.selector),)
    pages = engine_series.EnginePages(source.replica_label, source.pool_label or "", engine, gpus)
    return ReplicaReader(
        tier, engine_series.engine_selector(engine, matchers), pages, api, beside=beside, most=MOST_ENGINES
    )


def uses_agent_series(config: Config, tier: str) -> bool:
    """Return whether node agents export a tier, and the store does not scrape its engines."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def replica_count_query_for(config: Config, tier: str) -> str:
    """Return the PromQL for the number of replicas of a tier in the store."""
    source = config.tiers.get(tier, AGENTS)
    if source.source == "agents":
        return agent_series.replica_count_query(tier, source.selector or "")
    return engine_series.replica_count_query(source.selector or "", source.replica_label)
