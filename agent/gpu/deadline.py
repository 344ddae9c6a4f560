"""Thread with a deadline for jobs that can hang."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class NotAnsweringError(Exception):
    """Job without a result, ``seconds`` after its start."""

    def __init__(self, seconds: float, *, just_started: bool) -> None:
        super().__init__(f"no answer for {seconds:.0f} s")
        self.seconds = seconds
        self.just_started = just_started


class DeadlineThread:
    """Daemon thread for one job at a time, for one caller.

    It is for foreign code that can hang and cannot be interrupted, such as a driver library. A hanging job costs its
    caller the deadline once. Until it returns, no other job or thread starts.
    """

    def __init__(self, name: str, deadline_seconds: float) -> None:
        self._name = name
        self._deadline = deadline_seconds
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: Future[Any] | None = None
        self._started_at = 0.0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Return whether ``stop`` was called."""
        return self._stopped

    def run(self, job: Callable[[], T]) -> T:
        """Run ``job`` in the thread and return its result, or raise its exception.

        Raise NotAnsweringError after the deadline, or at once while an earlier job still hangs. A late result is
        dropped; a late exception is raised by the next call.
        """
        self._give_up_late()
        if self._stopped:
            raise RuntimeError(f"thread {self._name} was stopped")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        result: Future[T] = Future()
        self._started_at = time.monotonic()
        self._jobs.put((job, result))
        if not wait([result], self._deadline).done:
            self._late = result
            raise NotAnsweringError(time.monotonic() - self._started_at, just_started=True)
        return result.result()

    def _give_up_late(self) -> None:
        if self._late is None:
            return
        if not self._late.done():
            raise NotAnsweringError(time.monotonic() - self._started_at, just_started=False)
        late, self._late = self._late, None
        late.result()

    def _work(self) -> None:
        while (order := self._jobs.get()) is not None:
            job, answer = order
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 (raised again by the caller)
                answer.set_exception(error)
            else:
                answer.set_result(result)
            del job, answer, order

    def stop(self) -> None:
        """End the thread after the current job, without waiting."""
        self._stopped = True
        self._jobs.put(None)
