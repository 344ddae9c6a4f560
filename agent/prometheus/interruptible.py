"""Calls that another thread can abandon: a name lookup, a connect and a read have no other early end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallInterruptedError(Exception):
    """Call that was abandoned."""


class InterruptibleCalls:
    """Calls in a daemon thread, one at a time. The first call starts the thread, `close` ends it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending: Future[Any] | None = None
        self._thread: threading.Thread | None = None
        self._interrupted = False

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call. Raise CallInterruptedError if it was, or had been, interrupted."""
        result: Future[T] = Future()
        with self._lock:
            if self._interrupted:
                raise CallInterruptedError
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
                self._thread.start()
            self._pending = result
        self._calls.put((result, call))
        return result.result()

    def interrupt(self) -> None:
        """Abandon the present call and refuse all later ones. Any thread may call it."""
        with self._lock:
            self._interrupted, pending = True, self._pending
        if pending is not None:
            with suppress(InvalidStateError):
                pending.set_exception(CallInterruptedError())

    def close(self) -> None:
        """Let the thread end. A later call starts another."""
        with self._lock:
            if self._thread is not None:
                self._calls.put(None)
                self._thread = None

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            result, call = job
            # The call may be abandoned by now, and its result with it.
            with suppress(InvalidStateError):
                try:
                    result.set_result(call())
                except InvalidStateError:
                    raise
                except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                    result.set_exception(error)
