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
        self._idle = self.count = 0

    def submit(self, scrape: Callable[[], Any]) -> Future[Any]:
        """Start a scrape. Raise RuntimeError if the machine gives no thread at all."""
        result: Future[Any] = Future()
        with self._lock:
            if self._waiting.qsize() >= self._idle:
                try:
                    threading.Thread(target=self._work, name="scrape", daemon=True).start()
                    self.count += 1
                except (RuntimeError, MemoryError):
                    if not self.count:
                        raise
            self._waiting.put((result, scrape))
        return result

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._waiting.get()
            with self._lock:
                self._idle -= 1
                if job is None:
                    self.count -= 1
                    return
            result, scrape = job
            if result.set_running_or_notify_cancel():
                result.set_result(scrape())

    def stop(self) -> None:
        """Let every thread end after its scrape."""
        for _ in range(self.count):
            self._waiting.put(None)
