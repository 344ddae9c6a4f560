"""Functions that the daemon calls in a forecasting process. The daemon loads the module, and no library."""

from __future__ import annotations

import resource
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent.forecasting.messages import ForecastRequest, ForecastResponse

if TYPE_CHECKING:
    from agent.forecasting.history_input import HistoryForecasts


def answer_request(request: ForecastRequest) -> ForecastResponse:
    return replace(_forecasts().respond(request), memory_bytes=_memory_bytes())


@cache
def _forecasts() -> HistoryForecasts:
    from agent.forecasting.history_input import HistoryForecasts

    return HistoryForecasts()


def _memory_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()
