"""Forecasts from a history file: the demand of each tier as series of minutes, and a forecaster per tier.

A forecaster takes only the new minutes of each request. It restarts from the history after a day, a change of settings, or
a clock that went back. The file is opened for each request, because it may have been replaced.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.responses import AHEAD_SECONDS, KEPT_SECONDS
from agent.forecasting.tier_forecast import TierForecast
from agent.history.store import HistoryStore, Reader
from exporters.documents.forecast import Prewarm
from forecast.series.binned import Series, select_bins
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.work import UNTOLD, CapacityLengths


def read_demand(
    reader: Reader, tier: str, since: float, until: float, *, lengths: CapacityLengths = UNTOLD, zone: str = "UTC"
) -> list[Series]:
    """Return the work of each minute of [since, until) (unix seconds), and the requests beside it; NaN if unknown.

    Work is in requests of `lengths`; without any there are the requests alone. Raise HistoryError.
    """
    units = (UNTOLD,) if lengths == UNTOLD else (lengths, UNTOLD)
    kinds = [np.full(round((until - since) / MINUTE_SECONDS), np.nan) for _ in units]
    for minute in reader.demand(tier, since, until):
        for amounts, unit in zip(kinds, units, strict=True):
            work = minute.work(unit)
            if work is not None:
                amounts[round((minute.start - since) / MINUTE_SECONDS)] = work
    return [Series(start=since, bin_seconds=MINUTE_SECONDS, values=amounts, zone=zone) for amounts in kinds]


class HistoryForecasts:
    """Forecasters by tier, kept between requests."""

    def __init__(self) -> None:
        self._tiers: dict[str, TierForecast] = {}

    def respond(self, request: ForecastRequest) -> ForecastResponse:
        """Return the response, with a reason if there is no forecast. Raise for defects only.

        After an error the tier restarts with the next request: a forecaster that took a part of the minutes would stay late.
        """
        gap, known = "no demand of this tier has been kept yet", self._tiers.pop(request.tier, None)
        try:
            with HistoryStore.open_reader(Path(request.history)) as reader:
                if (
                    known is not None
                    and known.end <= request.settled_until < known.started_at + AHEAD_SECONDS
                    and known.settings == request.settings
                ):
                    minutes = _read(reader, request, known.end - MINUTE_SECONDS)
                    known.follow(request, *(series.values for series in minutes))
                else:
                    known = _start(request, reader)
        except SizewatchError as error:
            known, gap = None, str(error)
        if known is not None:
            response = known.respond(request)
            self._tiers[request.tier] = known
            return response
        t, width = request.now, request.bin_seconds
        prewarm = Prewarm(tier=request.tier, zone=request.zone, recommendation=None, reason=gap)
        return ForecastResponse(
            tier=request.tier, made_at=t, bin_seconds=width, forecast=None, prewarm=prewarm, gap=gap
        )


def _start(request: ForecastRequest, reader: Reader) -> TierForecast | None:
    kinds = _read(reader, request, request.settled_until - KEPT_SECONDS - request.bin_seconds)
    known = np.flatnonzero(np.isfinite(kinds[-1].values))
    if len(known):
        return TierForecast(request, *(select_bins(series, int(known[0])) for series in kinds))
    return None


def _read(reader: Reader, request: ForecastRequest, since: float) -> list[Series]:
    return read_demand(reader, request.tier, since, request.settled_until, lengths=request.lengths, zone=request.zone)
