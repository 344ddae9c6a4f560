"""Thread that prepares a new configuration, so that a signal need not wait for a large file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from agent.errors import SizewatchError

T = TypeVar("T")

MOST_SHOWN = 20
"""Maximum number of problems of a configuration in one log line and on the status page."""


def prepare_in_thread(prepare: Callable[[], T], done: Callable[[], None]) -> Future[T]:
    """Return the future result of `prepare`, run in a daemon thread: the end of the process does not wait for it.

    `done` is called in the end, whatever the result.
    """
    prepared: Future[T] = Future()

    def run() -> None:
        try:
            prepared.set_result(prepare())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
            prepared.set_exception(error)
        done()

    try:
        threading.Thread(target=run, name="reload", daemon=True).start()
    except (RuntimeError, MemoryError) as error:
        prepared.set_exception(error)
        done()
    return prepared


def join_problems(error: SizewatchError) -> str:
    """Return the first problems of an error in one line."""
    problems = str(error).splitlines()
    more = f"; and {len(problems) - MOST_SHOWN} more" if len(problems) > MOST_SHOWN else ""
    return "; ".join(problems[:MOST_SHOWN]) + more
