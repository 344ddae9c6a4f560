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
        self._pages = TierPages(tier, reader, usual_seconds)

    sums = False

    def minute(
        self, seen: Mapping[str, Window], view: TierView, before: Mapping[str | None, Slice]
    ) -> tuple[tuple[Slice, ...], tuple[Slice, ...]]:
        """None by itself: its replicas' pages close their minutes."""
        return (), ()

    def ask(self, since: float, until: float) -> tuple[Told, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble."""
        return self._pages.take(one for asked in self._selectors for one in self._api.raw(asked, since, until))

    def absent(self, now: float) -> tuple[Told, ...]:
        """Replicas that should have been told of by `now` and were not."""
        return tuple(Told(tier=self.tier, page=page) for page in self._pages.silent(now))

    def gone(self, now: float) -> set[str]:
        """Replicas that are no more; they are forgotten."""
        return self._pages.gone(now)

    @property
    def all_silent_since(self) -> float | None:
        return self._pages.all_silent_since

    @property
    def pools(self) -> Mapping[str, str]:
        return self._pages.pools
