"""Back-fill of the demand of role fleet from the store, in a thread beside the cycles.

A forecast learns from the weeks before the first start. Only minutes without demand are filled, newest day first, so that
a stop at any moment is safe and the next start continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

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

RETRY_SECONDS = 600.0
"""Retry interval in seconds after an error of the store or history."""

_log = logging.getLogger(__name__)


class BackFillService:
    """Single fill of the demand before the daemon's start.

    `text` is the progress, and `minutes` what was filled when it has ended. `done` is called at the end with a summary
    and the time, if any minute was filled."""

    def __init__(
        self,
        loaded: LoadedConfig,
        history: HistoryService,
        clock: Callable[[], float],
        done: Callable[[str, float], None],
    ) -> None:
        assert loaded.config.store is not None, "role fleet has a store"
        fleet = loaded.config.fleet
        # The first cycle reads the last few minutes itself.
        settled = clock() - fleet.delay_seconds - GONE_SECONDS - SETTLE_SECONDS
        self._until = settled // MINUTE_SECONDS * MINUTE_SECONDS
        self._begin = self._until - fleet.back_fill_seconds // MINUTE_SECONDS * MINUTE_SECONDS
        self.text = ""
        self.minutes = 0
        self._loaded = loaded
        self._history = history
        self._clock = clock
        self._done = done
        self._stopping = threading.Event()
        self._api = StoreApi(loaded.config.store)
        self._thread = threading.Thread(target=self._run, name="back-fill", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop between two queries, and in a query. Filled days stay."""
        self._stopping.set()
        self._api.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._api.close()

    def _run(self) -> None:
        filled = 0
        while not self._stopping.is_set():
            try:
                for minutes in fill_demand(self._loaded, self._api, self._history.store(), self._begin, self._until):
                    filled += minutes
                    if self._stopping.wait(REST_SECONDS):
                        return
            except SizewatchError as error:
                if self._stopping.is_set():
                    return
                self.text = f"waits: {error}"
                _log.warning('demand back-fill paused error="%s" retry=%s', error, duration_text(RETRY_SECONDS))
                self._stopping.wait(RETRY_SECONDS)
                continue
            except Exception:  # noqa: BLE001 - a defect must stop only the back-fill, not the daemon
                _log.exception("demand back-fill failed")
                self.text = "failed by a defect in sizewatch, see its log"
                return
            span = duration_text(round(self._until - self._begin))
            self.text = f"{filled} minutes of demand of the {span} before the start were filled from the store"
            self.minutes = filled
            if filled:
                _log.info("demand back-fill finished: %s", self.text)
                self._done(self.text, self._clock())
            return


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
