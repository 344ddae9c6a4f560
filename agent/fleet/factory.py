"""Role fleet's turns from a configuration: the one place where store, readers and tiers meet.

Owns which tier is asked in which way, and what goes on when a configuration takes the place of another.

Which of several agents of one fleet speaks: all of them judge, and one posts alerts and sends reports.

Owns the thread that keeps the lease, and what goes on when a configuration takes the place of another. The election itself is
`agent.kubernetes.lease`'s. An agent that cannot ask the API does not lead: two that post are worse than a minute of silence.
"""

from __future__ import annotations

from dataclasses import replace

from agent.config.keys import Config
from agent.config.store_keys import FleetConfig, Lease, TierSource
from agent.fleet import agent_series, engine_series, engine_sums
from agent.fleet.aggregates import AgentAggregates, EngineAggregates
from agent.fleet.engine_series import GpuPages, PagesWithGpus
from agent.fleet.engine_sums import EngineSums
from agent.fleet.sums import AgentSums
from agent.fleet.tier_readers import (
    AdaptiveTierReader,
    AggregatedTierReader,
    AggregateQueries,
    ReplicaReader,
    TierReader,
)
from agent.kubernetes.api import KubernetesClient, KubernetesEndpoint, endpoint_from_pod
from agent.kubernetes.lease import REQUEST_SECONDS, Elector, Leadership
from agent.prometheus.api import QueryClient
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan.load_bins import TierContext


class LeaderElection:
    """One agent's part in the election of `keys`, from now until `stop`. Raises ApiTrouble where this is no pod."""

    def __init__(self, keys: Lease, server: KubernetesEndpoint | None = None) -> None:
        self.keys = keys
        found = server or endpoint_from_pod()
        self._api = KubernetesClient(replace(found, timeout_seconds=min(found.timeout_seconds, REQUEST_SECONDS)))
        self._elector = Elector(Leadership(self._api, keys.name, keys.namespace, keys.identity))
        self._elector.start()

    @property
    def leads(self) -> bool:
        """Return whether this agent speaks now."""
        return self._elector.leads

    @property
    def trouble(self) -> str:
        """Why the lease could not be asked for last time, in words."""
        return self._elector.trouble

    def stop(self) -> None:
        """Gives the lease back."""
        self._elector.stop()
        self._api.close()


AGENTS = TierSource()
"""A tier that the configuration says nothing more of."""


def build_tier_reader(
    tier: str, source: TierSource, view: TierContext, fleet: FleetConfig, api: QueryClient
) -> TierReader:
    """What asks the store about a tier, in the way that fits where it is told of and its size."""
    each = build_replica_reader(tier, source, view, api)
    summed = AggregatedTierReader(tier, _summing(tier, source, view, api), fleet.turn_seconds)
    return AdaptiveTierReader(each, summed, _counted(tier, source), fleet.each_up_to, api)


def build_replica_reader(tier: str, source: TierSource, view: TierContext, api: QueryClient) -> ReplicaReader:
    """What asks the store about a tier replica by replica."""
    selector = selector_of(tier, source, view)
    reader = build_page_reader(source, view)
    if source.gpus is None or not isinstance(reader, engine_series.EnginePages):
        return ReplicaReader(tier, selector, reader, api)
    exporter = EXPORTERS[source.gpus.exporter]
    with_gpus = PagesWithGpus(reader, GpuPages(exporter, source.gpus.replica_label))
    beside = (engine_series.exporter_selector(exporter, source.gpus.selector),)
    return ReplicaReader(tier, selector, with_gpus, api, beside=beside)


def _summing(tier: str, source: TierSource, view: TierContext, api: QueryClient) -> AggregateQueries:
    slo, matchers = view.basis.ttft_slo_seconds, source.selector or ""
    if source.source == "agents":
        return AgentAggregates(AgentSums(tier=tier, matchers=matchers), slo, api)
    sums = EngineSums(engine=_engine(source, view), matchers=matchers, replica_label=source.replica_label)
    return EngineAggregates(sums, source.pool_label or "", slo, api)


def _counted(tier: str, source: TierSource) -> str:
    """The PromQL of how many replicas a tier has."""
    if source.source == "agents":
        return agent_series.replica_count_query(tier, source.selector or "")
    return engine_sums.scrape_count_query(source.selector or "", source.replica_label)


def selector_of(tier: str, source: TierSource, view: TierContext) -> str:
    """The PromQL selector of a tier's series."""
    if source.source == "agents":
        return agent_series.selector(tier, source.selector or "")
    return engine_series.engine_selector(_engine(source, view), source.selector or "")


def build_page_reader(source: TierSource, view: TierContext) -> agent_series.AgentPages | engine_series.EnginePages:
    """What makes pages of them."""
    if source.source == "agents":
        return agent_series.AgentPages()
    return engine_series.EnginePages(source.replica_label, source.pool_label or "", _engine(source, view))


def uses_agent_series(config: Config, tier: str) -> bool:
    """Return whether node agents tell of a tier, and not the store's own scrapes of its engines."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def replica_count_query_for(config: Config, tier: str) -> str:
    """The PromQL of how many replicas of a tier the store tells of."""
    return _counted(tier, config.tiers.get(tier, AGENTS))


def _engine(source: TierSource, view: TierContext) -> str | None:
    return source.engine or (view.plan.engine if view.plan is not None else None)
