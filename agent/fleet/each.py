"""One tier asked of the store replica by replica: one query a turn, with the true times of every scrape.

Owns the question; what its answer means is the readers' of `agent.store`. A tier of many replicas is asked as sums instead
(`agent.fleet.summed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agent.fleet.pages import USUAL_SECONDS, Pages, TierPages, Told
from agent.store.found import StoredSeries
from rules.slices import Slice, TierView
from rules.windows import Window


class Raw(Protocol):
    """What gives the samples of a selector: `agent.store.api.StoreApi`."""

    def raw(self, selector: str, start: float, end: float) -> tuple[StoredSeries, ...]: ...


class EachReplica:
    """The replicas of one tier, page by page. `beside` is what else is asked and given to the reader with the rest, such as
    the series of a GPU exporter."""

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: Pages,
        api: Raw,
        usual_seconds: float = USUAL_SECONDS,
        beside: tuple[str, ...] = (),
    ) -> None:
        self.tier = tier
        self._selectors = (selector, *beside)
        self._api = api
        self.pages = TierPages(tier, reader, usual_seconds)

    sums = False

    def minute(
        self, seen: Mapping[str, Window], view: TierView, before: Mapping[str | None, Slice]
    ) -> tuple[tuple[Slice, ...], tuple[Slice, ...]]:
        """None by itself: its replicas' pages close their minutes."""
        return (), ()

    def ask(self, since: float, until: float) -> tuple[Told, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble."""
        return self.pages.take(one for asked in self._selectors for one in self._api.raw(asked, since, until))
