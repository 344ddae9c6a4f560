"""Forecast worker: reads a request per line on stdin and writes a response per line to stdout, until stdin ends.

With the argument `probe` it loads its libraries, reports on them, and ends. Its limits are set before they load.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent.forecasting.messages import ForecastFailure, ForecastRequest, ForecastResponse, answer_line, parse_request
from agent.worker.process import OUT_OF_MEMORY, begin_child, limit_memory

if TYPE_CHECKING:
    from agent.forecasting.history_input import HistoryForecasts

PROBE = "probe"

_log = logging.getLogger("forecasting")


def main() -> int:
    """Serve until stdin ends."""
    if sys.argv[2:3] == [PROBE]:
        limit_memory(int(sys.argv[1]))
        print(json.dumps(probe(*sys.argv[3:])))
        return 0
    results = begin_child(int(sys.argv[1]))
    try:
        serve(sys.stdin.buffer, results)
    except MemoryError:
        # The remaining memory is fragmented: the next request gets a new process.
        return OUT_OF_MEMORY
    return 0


def serve(requests: BinaryIO, results: BinaryIO) -> None:
    """Answer until the requests end. Raise ValueError for an invalid request, from another release."""
    # After the limits: the memory of these modules counts.
    from agent.forecasting.history_input import HistoryForecasts

    forecasts = HistoryForecasts()
    for line in requests:
        results.write(answer_line(_answer(forecasts, parse_request(line))))
        results.flush()


def _answer(forecasts: HistoryForecasts, asked: ForecastRequest) -> ForecastResponse | ForecastFailure:
    try:
        return replace(forecasts.respond(asked), memory_bytes=memory_bytes())
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect in one tier must not stop the other forecasts
        _log.exception("forecast failed tier=%s", asked.tier)
        forecasts.forget(asked.tier)
        return ForecastFailure(tier=asked.tier, trouble=f"{type(error).__name__}: {error}")


def memory_bytes() -> int:
    """Return the resident memory, or 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def probe(country: str = "") -> dict[str, int | str | None]:
    """Return the memory of the libraries, and why there are no trees or no holidays of the country (None: available)."""
    import agent.forecasting.history_input  # noqa: F401
    from forecast.models.learners import missing_library
    from forecast.series.calendar import public_holidays

    no_holidays = None
    try:
        if country:
            public_holidays(country, ())
    except ValueError as error:
        no_holidays = str(error)
    return {"memory_bytes": memory_bytes(), "no_trees": missing_library(), "no_holidays": no_holidays}


if __name__ == "__main__":
    sys.exit(main())
