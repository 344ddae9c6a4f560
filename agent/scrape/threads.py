"""Threads of the scrapes that run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class ScrapeThreads:
    """Threads of the scrapes that run, at most one a target. As daemon threads they hold up no exit."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        # Threads without a scrape; below 0 scrapes without a thread. A scrape takes its thread when it is submitted.
        self._idle = self.count = 0

    def submit(self, scrape: Callable[[], Any]) -> Future[Any]:
        """Start a scrape. Raise RuntimeError if the machine gives no thread at all."""
        result: Future[Any] = Future()
        with self._lock:
            self._idle -= 1
            if self._idle < 0:
                try:
                    threading.Thread(target=self._work, name="scrape", daemon=True).start()
                    self.count += 1
                    self._idle += 1
                except (RuntimeError, MemoryError):
                    if not self.count:
                        self._idle += 1
                        raise
            self._waiting.put((result, scrape))
        return result

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            result, scrape = job
            if result.set_running_or_notify_cancel():
                result.set_result(scrape())
            with self._lock:
                self._idle += 1
        with self._lock:
            self.count -= 1

    def stop(self) -> None:
        """Let every thread end after its scrape."""
        for _ in range(self.count):
            self._waiting.put(None)
