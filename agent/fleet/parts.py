"""Role fleet's turns from a configuration: the one place where store, readers and tiers meet.

Owns which tier is asked in which way, and what goes on when a configuration takes the place of another.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.alerting.both_ways import Alerting
from agent.config import Config, Loaded
from agent.config_fleet import Fleet, Lease, TierSource
from agent.errors import BadConfig
from agent.fleet.each import EachReplica, Raw
from agent.fleet.leading import Leading
from agent.fleet.past import Api
from agent.fleet.sized import SizedTier
from agent.fleet.summed import SummedTier, Summing
from agent.fleet.summed_engines import SummedEngines
from agent.fleet.summed_own import SummedOwn
from agent.fleet.turns import Asked, FleetTurns, TierAsking
from agent.history.keeping import Keeping
from agent.kubernetes.api import ApiTrouble
from agent.store import engine_pages, engine_sums, gpu_pages, own_pages
from agent.store.api import StoreApi
from agent.store.engine_sums import EngineSums
from agent.store.gpu_pages import GpuPages, PagesWithGpus
from agent.store.sums import OwnSums
from agent.views import versions_of, views_of
from rules.gpu_names.registry import BY_NAME as EXPORTERS
from rules.slices import TierView

AGENTS = TierSource()
"""A tier that the configuration says nothing more of."""


def fleet_turns(
    loaded: Loaded,
    before: FleetTurns | None,
    *,
    history: Keeping | None,
    alerting: Alerting | None,
    clock: Callable[[], float],
) -> FleetTurns:
    """The turns of a configuration of role fleet; what is asked as before goes on where it was."""
    keys = loaded.config
    assert keys.store is not None, "role fleet has a store"
    options = keys.store.options(keys.turn_seconds)
    kept = before.api if before is not None else None
    api = kept if isinstance(kept, StoreApi) and kept.options == options else StoreApi(options)
    views = views_of(loaded)
    known: dict[Asked, TierAsking] = before.asked if before is not None else {}
    asking: dict[Asked, TierAsking] = {}
    for tier, view in views.items():
        source = keys.tiers.get(tier, AGENTS)
        way = (source, options, keys.fleet, view.basis.ttft_slo_seconds)
        asking[way, tier] = known.get((way, tier)) or asking_of(tier, source, view, keys.fleet, api)
    return FleetTurns(
        asking=asking,
        api=api,
        told_by_agents=frozenset(tier for tier in views if told_by_agents(keys, tier)),
        delay_seconds=keys.fleet.delay_seconds,
        leading=_leading(keys.fleet.lease, before.leading if before is not None else None),
        views=views,
        versions=versions_of(loaded),
        history=history,
        alerting=alerting,
        clock=clock,
    )


def asking_of(tier: str, source: TierSource, view: TierView, fleet: Fleet, api: Api) -> TierAsking:
    """What asks the store about a tier, in the way that fits where it is told of and its size."""
    each = each_of(tier, source, view, api)
    summed = SummedTier(tier, _summing(tier, source, view, api), fleet.turn_seconds)
    return SizedTier(each, summed, _counted(tier, source), fleet.each_up_to, api)


def each_of(tier: str, source: TierSource, view: TierView, api: Raw) -> EachReplica:
    """What asks the store about a tier replica by replica."""
    selector = selector_of(tier, source, view)
    reader = reader_of(source, view)
    if source.gpus is None or not isinstance(reader, engine_pages.EnginePages):
        return EachReplica(tier, selector, reader, api)
    exporter = EXPORTERS[source.gpus.exporter]
    with_gpus = PagesWithGpus(reader, GpuPages(exporter, source.gpus.replica_label))
    beside = (gpu_pages.selector(exporter, source.gpus.selector),)
    return EachReplica(tier, selector, with_gpus, api, beside=beside)


def _summing(tier: str, source: TierSource, view: TierView, api: Api) -> Summing:
    slo, matchers = view.basis.ttft_slo_seconds, source.selector or ""
    if source.source == "agents":
        return SummedOwn(OwnSums(tier=tier, matchers=matchers), slo, api)
    sums = EngineSums(engine=_engine(source, view), matchers=matchers, replica_label=source.replica_label)
    return SummedEngines(sums, source.pool_label or "", slo, api)


def _counted(tier: str, source: TierSource) -> str:
    """The PromQL of how many replicas a tier has."""
    if source.source == "agents":
        return own_pages.counted(tier, source.selector or "")
    return engine_sums.counted(source.selector or "", source.replica_label)


def _leading(keys: Lease | None, before: Leading | None) -> Leading | None:
    """Raises BadConfig where the API cannot be found."""
    if keys is None:
        return None
    if before is not None and before.keys == keys:
        return before
    try:
        return Leading(keys)
    except ApiTrouble as trouble:
        raise BadConfig((f"fleet.lease: {trouble.text}",)) from trouble


def selector_of(tier: str, source: TierSource, view: TierView) -> str:
    """The PromQL selector of a tier's series."""
    if source.source == "agents":
        return own_pages.selector(tier, source.selector or "")
    return engine_pages.selector(_engine(source, view), source.selector or "")


def reader_of(source: TierSource, view: TierView) -> own_pages.OwnPages | engine_pages.EnginePages:
    """What makes pages of them."""
    if source.source == "agents":
        return own_pages.OwnPages()
    return engine_pages.EnginePages(source.replica_label, source.pool_label or "", _engine(source, view))


def told_by_agents(config: Config, tier: str) -> bool:
    """Whether node agents tell of a tier, and not the store's own scrapes of its engines."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def counted_of(config: Config, tier: str) -> str:
    """The PromQL of how many replicas of a tier the store tells of."""
    return _counted(tier, config.tiers.get(tier, AGENTS))


def _engine(source: TierSource, view: TierView) -> str | None:
    return source.engine or (view.plan.engine if view.plan is not None else None)
