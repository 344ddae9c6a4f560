"""Role fleet's turns over the past: what the daemon would have booked, had it run then.

Owns the clock of such turns and what is kept of each instead of a history, a log and alerts. The turns are
`agent.sources.store`', so are the judgement and the way each tier is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.config.load import LoadedConfig
from agent.config.views import build_tier_contexts, plan_versions
from agent.fleet.factory import AGENTS, build_tier_reader
from agent.sources.past_store import PastQueryClient
from agent.sources.store import StoreSource
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.step import NOBODY, ClosedMinute
from rules.evaluator.timeline import TimelineEvent
from rules.verdicts.finding import ClosedSpan, Finding

UNJUDGED_SECONDS = 900.0
"""A rule that could not judge for so long says nothing of now."""


@dataclass(slots=True)
class BackFillResult:
    """What turns left, in the order in which it ended."""

    closed: list[ClosedMinute] = field(default_factory=list)
    ended: list[ClosedSpan] = field(default_factory=list)
    events: list[TimelineEvent] = field(default_factory=list)


class PastStoreSource(StoreSource):
    """Turns at times that are past: `at` is the next one's. `collected` is what they left; whoever takes of it removes it."""

    def __init__(self, loaded: LoadedConfig, api: PastQueryClient, at: float) -> None:
        self.at = at
        self.collected = BackFillResult()
        views = build_tier_contexts(loaded)
        sources = {tier: loaded.config.tiers.get(tier, AGENTS) for tier in views}
        super().__init__(
            asking={
                (None, tier): build_tier_reader(tier, sources[tier], view, loaded.config.fleet, api)
                for tier, view in views.items()
            },
            api=api,
            told_by_agents=frozenset(tier for tier, source in sources.items() if source.source == "agents"),
            delay_seconds=0.0,
            views=views,
            versions=plan_versions(loaded),
            history=None,
            alerting=None,
            clock=lambda: self.at,
        )

    def open_findings_at(self, t: float) -> tuple[Finding, ...]:
        """What has not ended, as if it did at `t`; what could not be judged for long by then, when it last was."""
        found = []
        for one in self.watcher.standings.values():
            judged = one.judged_at if one.judged_at is not None else -math.inf
            if one.episode is not None and one.episode.started_at < t:
                last = max(judged, one.episode.transitions[-1].t)
                found.append(replace(one.episode, ended_at=t if t - last < UNJUDGED_SECONDS else last))
        return tuple(found)

    def pool(self, one: ClosedMinute) -> str:
        """The part of its tier that a minute's replica belongs to."""
        return self.watcher.view(one.tier).pools.get(one.replica, "mixed")

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Kept for the history."""
        self.collected.events.append(TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text))

    def _concluded(
        self, now: float, blind: Mapping[str, str] = NOBODY
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        # Without the log, in which what is past would look as if it happened now.
        return self.watcher.step(now, blind)

    def _tell_troubles(self, blind: Mapping[str, str]) -> None:
        self.store_troubles = dict(blind)

    def _book(self, ended: tuple[ClosedSpan | ExternalAlert, ...], closed: tuple[ClosedMinute, ...]) -> None:
        self.collected.ended += [one for one in ended if not isinstance(one, ExternalAlert)]
        self.collected.closed += closed
