"""One tier asked of the store in the way that fits its size: replica by replica, or as sums by load.

Owns the count of replicas (one query now and then, of a tier that is read replica by replica) and when the way changes. A
tier whose size goes to and fro around the limit does not change with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from agent.fleet.each import ReplicaReader
from agent.fleet.stored_pages import ReplicaPage, TierPages
from agent.fleet.tier_readers import AggregatedTierReader
from agent.prometheus.answers import InstantSample
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.windows import Window

BACK_SHARE = 0.75
"""Of the limit: a tier that shrank below it is read replica by replica again."""


COUNT_SECONDS = 300.0
"""How often the replicas of a tier that is read one by one are counted: a few turns of too many cost time, and no truth."""


class InstantQueryClient(Protocol):
    """What gives an expression's value: `agent.prometheus.api.StoreApi`."""

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]: ...


class AdaptiveTierReader:
    """The replicas of one tier; `counted` is the PromQL of how many there are, `most` the limit for one by one."""

    def __init__(
        self, each: ReplicaReader, summed: AggregatedTierReader, counted: str, most: int, api: InstantQueryClient
    ) -> None:
        self.tier = each.tier
        self._each, self._summed = each, summed
        self._now: ReplicaReader | AggregatedTierReader = each
        self._counted = counted
        self._counted_at = -math.inf
        self._most = most
        self._api = api

    @property
    def sums(self) -> bool:
        """Whether it is seen as sums now."""
        return self._now is self._summed

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble."""
        self._choose(until)
        return self._now.ask(since, until)

    def _choose(self, t: float) -> None:
        # A tier that is seen as sums is known replica by replica already.
        known = float(len(self._summed.pages.pools)) if self.sums else 0.0
        if not known and self._counted_at <= t < self._counted_at + COUNT_SECONDS:
            return
        self._counted_at = t
        count = known or sum(one.value for one in self._api.query(self._counted, t))
        if not self.sums and count > self._most:
            self._now = self._summed
        elif self.sums and count <= BACK_SHARE * self._most:
            self._now = self._each

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """The minute of a tier that is seen as sums. Raises StoreTrouble."""
        return self._summed.minute(seen, view, before)

    @property
    def pages(self) -> TierPages:
        """What is known of the replicas in the way that they are seen now."""
        return self._now.pages
