"""Role fleet's turns from a configuration: the one place where store, readers and tiers meet.

Owns which tier is asked in which way, and what goes on when a configuration takes the place of another.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.alerting.service import AlertingService
from agent.config.keys import Config
from agent.config.load import LoadedConfig
from agent.config.store_keys import FleetConfig, Lease, TierSource
from agent.config.views import build_tier_contexts, plan_versions
from agent.errors import ConfigError
from agent.fleet import agent_series, engine_series, engine_sums, gpu_pages
from agent.fleet.aggregates import EngineAggregates
from agent.fleet.each import RawQueryClient, ReplicaReader
from agent.fleet.engine_sums import EngineSums
from agent.fleet.gpu_pages import GpuPages, PagesWithGpus
from agent.fleet.leading import LeaderElection
from agent.fleet.sized import AdaptiveTierReader
from agent.fleet.summed_own import AgentAggregates
from agent.fleet.sums import AgentSums
from agent.fleet.tier_readers import AggregatedTierReader, AggregateQueries
from agent.history.service import HistoryService
from agent.kubernetes.api import KubernetesApiError
from agent.prometheus.api import StoreApi
from agent.sources.past_store import QueryClient
from agent.sources.store import StoreSource, TierReader, TierReaderKey
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan.load_bins import TierContext

AGENTS = TierSource()
"""A tier that the configuration says nothing more of."""


def fleet_turns(
    loaded: LoadedConfig,
    before: StoreSource | None,
    *,
    history: HistoryService | None,
    alerting: AlertingService | None,
    clock: Callable[[], float],
) -> StoreSource:
    """The turns of a configuration of role fleet; what is asked as before goes on where it was."""
    keys = loaded.config
    assert keys.store is not None, "role fleet has a store"
    options = keys.store.options(keys.turn_seconds)
    kept = before.api if before is not None else None
    api = kept if isinstance(kept, StoreApi) and kept.options == options else StoreApi(options)
    views = build_tier_contexts(loaded)
    known: dict[TierReaderKey, TierReader] = before.asked if before is not None else {}
    asking: dict[TierReaderKey, TierReader] = {}
    for tier, view in views.items():
        source = keys.tiers.get(tier, AGENTS)
        way = (source, options, keys.fleet, view.basis.ttft_slo_seconds)
        asking[way, tier] = known.get((way, tier)) or build_tier_reader(tier, source, view, keys.fleet, api)
    return StoreSource(
        asking=asking,
        api=api,
        told_by_agents=frozenset(tier for tier in views if uses_agent_series(keys, tier)),
        delay_seconds=keys.fleet.delay_seconds,
        leading=_leading(keys.fleet.lease, before.leading if before is not None else None),
        views=views,
        versions=plan_versions(loaded),
        history=history,
        alerting=alerting,
        clock=clock,
    )


def build_tier_reader(
    tier: str, source: TierSource, view: TierContext, fleet: FleetConfig, api: QueryClient
) -> TierReader:
    """What asks the store about a tier, in the way that fits where it is told of and its size."""
    each = build_replica_reader(tier, source, view, api)
    summed = AggregatedTierReader(tier, _summing(tier, source, view, api), fleet.turn_seconds)
    return AdaptiveTierReader(each, summed, _counted(tier, source), fleet.each_up_to, api)


def build_replica_reader(tier: str, source: TierSource, view: TierContext, api: RawQueryClient) -> ReplicaReader:
    """What asks the store about a tier replica by replica."""
    selector = selector_of(tier, source, view)
    reader = build_page_reader(source, view)
    if source.gpus is None or not isinstance(reader, engine_series.EnginePages):
        return ReplicaReader(tier, selector, reader, api)
    exporter = EXPORTERS[source.gpus.exporter]
    with_gpus = PagesWithGpus(reader, GpuPages(exporter, source.gpus.replica_label))
    beside = (gpu_pages.exporter_selector(exporter, source.gpus.selector),)
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


def _leading(keys: Lease | None, before: LeaderElection | None) -> LeaderElection | None:
    """Raises BadConfig where the API cannot be found."""
    if keys is None:
        return None
    if before is not None and before.keys == keys:
        return before
    try:
        return LeaderElection(keys)
    except KubernetesApiError as trouble:
        raise ConfigError((f"fleet.lease: {trouble.text}",)) from trouble


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
    """Whether node agents tell of a tier, and not the store's own scrapes of its engines."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def replica_count_query_for(config: Config, tier: str) -> str:
    """The PromQL of how many replicas of a tier the store tells of."""
    return _counted(tier, config.tiers.get(tier, AGENTS))


def _engine(source: TierSource, view: TierContext) -> str | None:
    return source.engine or (view.plan.engine if view.plan is not None else None)
