"""A replay of what a store has: would it have warned us last Tuesday?

Owns the way from the steps of a past (`agent.fleet.past`) into the walk that replays recordings too (`agent.replay`). A tier is
always read replica by replica, however large: that is exact, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from agent.config import Loaded
from agent.fleet.each import EachReplica
from agent.fleet.pages import Told
from agent.fleet.parts import AGENTS, each_of
from agent.fleet.past import Api, PastApi, Step, steps
from agent.fleet.turns import STEP_SECONDS
from agent.replay import Replayed, Seen, Walk
from agent.store.trouble import StoreTrouble
from agent.views import views_of
from rules.engines.registry import ENGINES
from rules.slices import TierView

JUDGED_EACH = 8
"""Of so many replicas every scrape is judged when it comes, as in a recording; of more, every 15 s, as in role fleet."""


def replay_store(
    loaded: Loaded, api: Api, since: float, until: float, step_seconds: float, only: str | None = None
) -> Replayed:
    """Judges (since, until] (unix seconds) of a store: all tiers of the configuration, or one. What the store has not is a gap;
    where it fails, the replay ends there and says so (`cut_short`)."""
    views = {tier: view for tier, view in views_of(loaded).items() if only in (None, tier)}
    past = PastApi(api, until)
    tiers = [_tier(tier, loaded, view, past) for tier, view in views.items()]
    walk = Walk(views, step_seconds)
    met = _Met()
    cut_short, reached = "", since
    try:
        for step in steps(tiers, since, until):
            _feed(walk, step, met)
            reached = step.until
    except StoreTrouble as trouble:
        cut_short = f"{trouble}; the replay ends at {_local(reached)} instead of {_local(until)}"
    problems = [f"{tier}: the store has nothing of it in that time" for tier in views if tier not in met.engines]
    return walk.replayed(" and ".join(views), met.labels(), () if cut_short else problems, cut_short)


def _local(t: float) -> str:
    return datetime.fromtimestamp(t).astimezone().isoformat(" ", "seconds")


def _tier(tier: str, loaded: Loaded, view: TierView, past: PastApi) -> EachReplica:
    source = loaded.config.tiers.get(tier, AGENTS)
    return each_of(tier, source, view, past)


class _Met:
    """The engines that pages are from, by tier."""

    def __init__(self) -> None:
        self.engines: dict[str, dict[tuple[str, str], None]] = {}

    def see(self, one: Told) -> None:
        of_tier = self.engines.setdefault(one.tier, {})
        if one.page.snapshot is not None:
            of_tier[one.page.snapshot.engine, one.page.snapshot.generation] = None

    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """As people call them; agents tell no generation of theirs."""
        names = {(engine.name, engine.generation): engine.label for engine in ENGINES}
        names |= {(engine.name, ""): engine.title for engine in ENGINES}
        return {tier: tuple(names.get(key, key[0]) for key in of_tier) for tier, of_tier in self.engines.items()}


def _feed(walk: Walk, step: Step, met: _Met) -> None:
    watcher = walk.watcher
    for tier, pools in step.pools.items():
        if watcher.view(tier).pools != pools:
            watcher.views[tier] = replace(watcher.view(tier), pools=pools)
    for t, several in _judged_together(step, sum(map(len, step.pools.values()))):
        for one in several:
            met.see(one)
            page = one.page
            walk.take(
                Seen(
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
        watcher.forget(step.gone)
    if step.gone or step.silent:
        walk.judge(step.until, step.silent)


def _judged_together(step: Step, replicas: int) -> Iterator[tuple[float, Sequence[Told]]]:
    if replicas <= JUDGED_EACH:
        yield from ((one.page.t, (one,)) for one in step.told)
        return
    for place, several in groupby(step.told, key=lambda one: one.page.t // STEP_SECONDS):
        yield min(step.until, (place + 1) * STEP_SECONDS), tuple(several)
