"""The forecasting process: reads questions on stdin, one a line, and writes the answers to stdout, until stdin ends.

Owns the loop, the limits that the process sets itself, and one forecaster per tier between questions. What it reads of the
history is `agent.history.reader`'s; what is computed, `agent.forecasting.tier_forecast`'s. Nothing that a library prints can
come between the answers: what goes to stdout otherwise is sent to stderr, which the daemon logs.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent.forecasting.messages import ForecastFailure, ForecastRequest, ForecastResponse, answer_line, parse_request
from agent.worker.process import OUT_OF_MEMORY

if TYPE_CHECKING:
    from agent.forecasting.history_input import HistoryForecasts


NICE = 5
"""Behind the collector, and behind the engine that may share the machine."""

_log = logging.getLogger("forecasting")


def main() -> int:
    """Serves until stdin ends."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.WARNING)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit_memory(sys.argv[1])
    os.nice(NICE)
    try:
        serve(sys.stdin.buffer, answers)
    except MemoryError:
        # What is left of the memory is in pieces: the next question gets a new process.
        return OUT_OF_MEMORY
    return 0


def limit_memory(limit: str) -> None:
    """No more than so many bytes of its own: what would go beyond is a MemoryError."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the questions end. Raises ValueError for what is no question: then both ends are not of one release."""
    # After the limits: what is loaded here counts.
    from agent.forecasting.history_input import HistoryForecasts

    known = HistoryForecasts()
    for line in questions:
        answers.write(answer_line(_answer(known, parse_request(line))))
        answers.flush()


def _answer(known: HistoryForecasts, asked: ForecastRequest) -> ForecastResponse | ForecastFailure:
    try:
        return replace(known.answer(asked), memory_bytes=memory_bytes())
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect costs this tier its forecast, not the others theirs
        _log.exception("forecast failed tier=%s", asked.tier)
        known.forget(asked.tier)
        return ForecastFailure(tier=asked.tier, trouble=f"{type(error).__name__}: {error}")


def memory_bytes() -> int:
    """What is resident; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
