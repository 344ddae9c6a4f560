"""Back-fill of the demand of role fleet from the store: a forecast learns from the weeks before the first start.

Only minutes without demand are filled, newest day first, so that a stop at any moment is safe and the next run continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.durations import duration_text
from agent.errors import SizewatchError
from agent.fleet.stored_pages import GONE_SECONDS
from agent.fleet.tier_readers import AGENTS
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.prometheus.api import StoreApi
from agent.replay.past_demand import read_demand
from rules.telemetry.windows import MINUTE_SECONDS

DAY_SECONDS = 86_400.0

SETTLE_SECONDS = 300.0
"""Age in seconds from which the store has every sample of a minute."""

LEAST_MINUTES = 10
"""Fewest missing minutes of a day to query for. Fewer lie between two scrapes or at a restart."""

REST_SECONDS = 1.0
"""Pause in seconds after a query, so that store and cycles have their time."""

_log = logging.getLogger(__name__)


class BackFill:
    """Single fill of the demand before `now` (unix seconds), when the daemon started. `minutes` were filled at its end."""

    def __init__(self, loaded: LoadedConfig, history: HistoryService, now: float) -> None:
        assert loaded.config.store is not None, "role fleet has a store"
        fleet = loaded.config.fleet
        # The first cycle reads the last few minutes itself.
        settled = now - fleet.delay_seconds - GONE_SECONDS - SETTLE_SECONDS
        self._until = settled // MINUTE_SECONDS * MINUTE_SECONDS
        self._begin = self._until - fleet.back_fill_seconds // MINUTE_SECONDS * MINUTE_SECONDS
        self.minutes = 0
        self._loaded = loaded
        self._history = history
        self._ended = threading.Event()
        self._api = StoreApi(loaded.config.store)

    def run(self) -> str:
        """Fill all days and return a summary, or "" if nothing was filled. After an error the next call continues."""
        if self._ended.is_set():
            return ""
        filled = 0
        try:
            for minutes in fill_demand(self._loaded, self._api, self._history.store(), self._begin, self._until):
                filled += minutes
                if self._ended.wait(REST_SECONDS):
                    return ""
        except SizewatchError as error:
            if not self._ended.is_set():
                _log.warning('demand back-fill paused error="%s"', error)
            return ""
        self._ended.set()
        self.minutes = filled
        span = duration_text(round(self._until - self._begin))
        return f"{filled} minutes of demand of the {span} before the start were filled from the store" if filled else ""

    def close(self) -> None:
        """Stop between two queries, and in a query. Filled days stay."""
        self._ended.set()
        self._api.interrupt()


def fill_demand(loaded: LoadedConfig, api: StoreApi, history: HistoryStore, begin: float, end: float) -> Iterator[int]:
    """Fill the demand of all tiers in [begin, end) (unix seconds, whole minutes), day by day, newest first.

    Yield the minutes that were filled after each query. Raise StoreError or HistoryError; filled days stay.
    """
    while begin < end:
        start = max(begin, (end - 1) // DAY_SECONDS * DAY_SECONDS)
        for tier, context in build_tier_contexts(loaded).items():
            missing = (end - start) / MINUTE_SECONDS - len(history.requests(tier, start, end))
            if missing >= LEAST_MINUTES:
                source = loaded.config.tiers.get(tier, AGENTS)
                yield history.fill_demand(tier, read_demand(tier, source, context, api, start, end))
        end = start
