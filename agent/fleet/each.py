"""One tier asked of the store replica by replica: one query a turn, with the true times of every scrape.

Owns the question; what its answer means is the readers' of `agent.prometheus`. A tier of many replicas is asked as sums instead
(`agent.fleet.tier_readers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agent.fleet.found import StoredSeries
from agent.fleet.stored_pages import USUAL_SECONDS, PageReaderProtocol, ReplicaPage, TierPages
from agent.prometheus.trouble import StoreError, StoreErrorKind
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.windows import Window

PIECE_SECONDS = 900.0
"""So much is asked for at once after a silence of the store."""

OVERLAP_SECONDS = 60.0
"""So much of a piece is asked for again with the next: a sum that is new is then seen to have been nothing before."""

LEAST_SECONDS = 4 * OVERLAP_SECONDS
"""Half of less would be mostly what is asked for twice."""

TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})
"""What half as much may do better."""


class RawQueryClient(Protocol):
    """What gives the samples of a selector: `agent.prometheus.api.StoreApi`."""

    def query_samples(self, selector: str, start: float, end: float) -> tuple[StoredSeries, ...]: ...


class ReplicaReader:
    """The replicas of one tier, page by page. `beside` is what else is asked and given to the reader with the rest, such as
    the series of a GPU exporter."""

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: PageReaderProtocol,
        api: RawQueryClient,
        usual_seconds: float = USUAL_SECONDS,
        beside: tuple[str, ...] = (),
    ) -> None:
        self.tier = tier
        self._selectors = (selector, *beside)
        self._api = api
        self._taken: list[ReplicaPage] = []
        self.pages = TierPages(tier, reader, usual_seconds)

    sums = False

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """None by itself: its replicas' pages close their minutes."""
        return (), ()

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble.

        A long time is asked for in pieces, for an hour of many replicas is more than a store gives at once. What was taken of
        them before one failed is told with the next answer.
        """
        at = since
        while at < until:
            end = min(until, at + PIECE_SECONDS)
            self._take(at - OVERLAP_SECONDS if at > since else at, end)
            at = end
        found, self._taken = tuple(self._taken), []
        return found

    def _take(self, since: float, until: float) -> None:
        try:
            found = [one for asked in self._selectors for one in self._api.query_samples(asked, since, until)]
        except StoreError as trouble:
            if trouble.kind not in TOO_LARGE or until - since <= LEAST_SECONDS:
                raise
            middle = (since + until) / 2.0
            self._take(since, middle)
            self._take(middle - OVERLAP_SECONDS, until)
        else:
            self._taken += self.pages.take(found)
