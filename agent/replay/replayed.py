"""A replay of what a store has: would it have warned us last Tuesday?

Owns the way from the steps of a past (`agent.sources.past_store`) into the walk that replays recordings too
(`agent.replay.replay`). A tier is always read replica by replica, however large: that is exact, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from agent.config.load import LoadedConfig
from agent.config.views import build_tier_contexts
from agent.fleet.each import ReplicaReader
from agent.fleet.factory import AGENTS, build_replica_reader
from agent.fleet.stored_pages import ReplicaPage
from agent.prometheus.trouble import StoreError
from agent.replay.replay import ReplayResult, ReplayRun, ReplayScrape
from agent.sources.past_store import PastQueryClient, PastStep, QueryClient, steps
from agent.sources.store import STEP_SECONDS
from rules.engines.registry import ENGINES
from rules.plan.load_bins import TierContext

JUDGED_EACH = 8
"""Of so many replicas every scrape is judged when it comes, as in a recording; of more, every 15 s, as in role fleet."""


def replay_store(
    loaded: LoadedConfig, api: QueryClient, since: float, until: float, step_seconds: float, only: str | None = None
) -> ReplayResult:
    """Judges (since, until] (unix seconds) of a store: all tiers of the configuration, or one. What the store has not is a gap;
    where it fails, the replay ends there and says so (`cut_short`)."""
    views = {tier: view for tier, view in build_tier_contexts(loaded).items() if only in (None, tier)}
    past = PastQueryClient(api, until)
    tiers = [_tier(tier, loaded, view, past) for tier, view in views.items()]
    walk = ReplayRun(views, step_seconds)
    met = _Met()
    cut_short, reached = "", since
    try:
        for step in steps(tiers, since, until):
            _feed(walk, step, met)
            reached = step.until
    except StoreError as trouble:
        cut_short = f"{trouble}; the replay ends at {_local(reached)} instead of {_local(until)}"
    problems = [f"{tier}: the store has nothing of it in that time" for tier in views if tier not in met.engines]
    return walk.replayed(" and ".join(views), met.labels(), () if cut_short else problems, cut_short)


def _local(t: float) -> str:
    return datetime.fromtimestamp(t).astimezone().isoformat(" ", "seconds")


def _tier(tier: str, loaded: LoadedConfig, view: TierContext, past: PastQueryClient) -> ReplicaReader:
    source = loaded.config.tiers.get(tier, AGENTS)
    return build_replica_reader(tier, source, view, past)


class _Met:
    """The engines that pages are from, by tier."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[tuple[str, str], None]] = {}

    def see(self, one: ReplicaPage) -> None:
        of_tier = self.engines.setdefault(one.tier, {})
        if one.page.snapshot is not None:
            of_tier[one.page.snapshot.engine, one.page.snapshot.generation] = None

    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """As people call them; agents tell no generation of theirs."""
        names = {(engine.name, engine.generation): engine.label for engine in ENGINES}
        names |= {(engine.name, ""): engine.title for engine in ENGINES}
        return {tier: tuple(names.get(key, key[0]) for key in of_tier) for tier, of_tier in self.engines.items()}


def _feed(walk: ReplayRun, step: PastStep, met: _Met) -> None:
    watcher = walk.watcher
    for tier, pools in step.pools.items():
        if watcher.view(tier).pools != pools:
            watcher.views[tier] = replace(watcher.view(tier), pools=pools)
    for t, several in _judged_together(step, sum(map(len, step.pools.values()))):
        for one in several:
            met.see(one)
            page = one.page
            walk.take(
                ReplayScrape(
                    t=page.t,
                    tier=one.tier,
                    replica=page.replica,
                    page=page.snapshot,
                    trouble=page.trouble,
                    gpus=one.gpus,
                )
            )
        walk.judge(t, step.silent)
    if step.gone:
        watcher.remove_replicas(step.gone)
    if step.gone or step.silent:
        walk.judge(step.until, step.silent)


def _judged_together(step: PastStep, replicas: int) -> Iterator[tuple[float, Sequence[ReplicaPage]]]:
    if replicas <= JUDGED_EACH:
        yield from ((one.page.t, (one,)) for one in step.told)
        return
    for place, several in groupby(step.told, key=lambda one: one.page.t // STEP_SECONDS):
        yield min(step.until, (place + 1) * STEP_SECONDS), tuple(several)
