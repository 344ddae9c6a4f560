"""Back-fill of an empty history of role fleet from the store, in a thread beside the cycles.

Holds the thread and its share of the CPU. `agent.replay.back_fill_writer` selects the minutes and makes the work
resumable at the next start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from agent.config.load import LoadedConfig
from agent.durations import duration_text
from agent.fleet.stored_pages import GONE_SECONDS
from agent.history.errors import HistoryError, HistoryOpenError
from agent.history.service import HistoryService
from agent.prometheus.api import StoreApi
from agent.replay.back_fill_writer import BackFillProgress, Stretch, fill_history, last_whole_minute
from agent.sources.past_store import MOST_SAMPLES

SHARE = 0.2
"""Maximum share of one CPU, so that cycles stay on time."""

MOST_REST_SECONDS = 10.0

AGAIN_SECONDS = 600.0
"""Retry interval in seconds after an error of the store or history."""

TOLD_SECONDS = 600.0

_log = logging.getLogger(__name__)


class BackFillService:
    """Single fill of the history before the daemon's start. `text` reports the progress.

    `done` is called at the end with a summary and the time."""

    def __init__(
        self,
        loaded: LoadedConfig,
        history: HistoryService,
        clock: Callable[[], float],
        done: Callable[[str, float], None],
    ) -> None:
        fleet = loaded.config.fleet
        # The first cycle reads the last few minutes itself.
        until = last_whole_minute(clock() - fleet.delay_seconds - GONE_SECONDS)
        self.loaded = loaded
        self.text = ""
        self.done = done
        self._span: Stretch = (until - fleet.back_fill_seconds, until)
        self._history = history
        self._clock = clock
        self._stopping = threading.Event()
        self._api: StoreApi | None = None
        self._next_word = time.monotonic() + TOLD_SECONDS
        self._thread = threading.Thread(target=self._run, name="back-fill", daemon=True)

    def fills(self, loaded: LoadedConfig) -> bool:
        """Return whether a configuration leads to the same back-fill."""
        ours, other = self.loaded, loaded
        keys = ("store", "tiers", "fleet", "thresholds", "data_dir")
        return ours.plan == other.plan and all(getattr(ours.config, k) == getattr(other.config, k) for k in keys)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop between two cycles, and in a query. Stored minutes stay."""
        self._stopping.set()
        if self._api is not None:
            self._api.interrupt()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._fill()
            except (HistoryError, HistoryOpenError) as error:
                found = BackFillProgress(error=str(error))
            except Exception:  # noqa: BLE001 - a defect must stop only the back-fill, not the daemon
                _log.exception("history back-fill failed")
                self.text = "failed by a defect in sizewatch, see its log"
                return
            if not found.error:
                self._finished(found)
                return
            if not self._stopping.is_set():
                self.text = f"waits: {found.error}"
                _log.warning('history back-fill paused error="%s" retry=%s', found.error, _AGAIN)
            self._stopping.wait(AGAIN_SECONDS)

    def _fill(self) -> BackFillProgress:
        keys = self.loaded.config.store
        assert keys is not None, "role fleet has a store"
        options = keys.options()
        api = self._api = StoreApi(replace(options, most_samples=min(options.most_samples, MOST_SAMPLES)))
        if self._stopping.is_set():
            api.interrupt()
        try:
            return fill_history(
                self.loaded,
                api,
                self._history.store(),
                self._span,
                told=self._told,
                rest=self._rest,
                stopped=self._stopping.is_set,
            )
        finally:
            api.close()

    def _rest(self, worked: float) -> None:
        self._stopping.wait(min(MOST_REST_SECONDS, worked * (1 - SHARE) / SHARE))

    def _told(self, piece: Stretch, so_far: BackFillProgress) -> None:
        self.text = f"{so_far.hours} hours read, {so_far.minutes} minutes of replicas booked"
        if time.monotonic() >= self._next_word:
            self._next_word = time.monotonic() + TOLD_SECONDS
            _log.info("history back-fill progress: %s", self.text)

    def _finished(self, found: BackFillProgress) -> None:
        begin = duration_text(round(self._span[1] - self._span[0]))
        self.text = f"{found.minutes} minutes of replicas of the {begin} before the start were booked from the store"
        if found.minutes:
            _log.info("history back-fill finished: %s", self.text)
            self.done(self.text, self._clock())


_AGAIN = duration_text(AGAIN_SECONDS)
