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
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from exporters.documents.prewarm import Prewarm
from forecast.series.binned import Series, select_bins
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.work import UNTOLD, CapacityLengths

NOTHING_YET = "no demand of this tier has been kept yet"


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

    def respond(self, asked: ForecastRequest) -> ForecastResponse:
        """Return the response, with a reason if there is no forecast. Raise for defects only.

        After an error the tier restarts with the next request: a forecaster that took a part of the minutes would stay late.
        """
        why, known = NOTHING_YET, self._tiers.pop(asked.tier, None)
        try:
            with HistoryStore.open_reader(Path(asked.history)) as reader:
                if known is not None and _can_follow(known, asked):
                    minutes = _read(reader, asked, known.end - MINUTE_SECONDS)
                    known.follow(asked, *(series.values for series in minutes))
                else:
                    known = _start(asked, reader)
        except SizewatchError as error:
            known, why = None, str(error)
        if known is not None:
            response = known.respond(asked)
            self._tiers[asked.tier] = known
            return response
        prewarm = Prewarm(tier=asked.tier, zone=asked.zone, recommendation=None, reason=why)
        return ForecastResponse(
            tier=asked.tier, made_at=asked.now, bin_seconds=asked.bin_seconds, forecast=None, prewarm=prewarm, gap=why
        )


def _can_follow(known: TierForecast, asked: ForecastRequest) -> bool:
    is_in_time = known.end <= asked.settled_until < known.started_at + AHEAD_SECONDS
    return is_in_time and known.settings == asked.settings


def _start(asked: ForecastRequest, reader: Reader) -> TierForecast | None:
    """Return a forecaster that starts with the first known minute, None if there is none."""
    kinds = _read(reader, asked, asked.settled_until - KEPT_SECONDS - asked.bin_seconds)
    known = np.flatnonzero(np.isfinite(kinds[-1].values))
    return TierForecast(asked, *(select_bins(series, int(known[0])) for series in kinds)) if len(known) else None


def _read(reader: Reader, asked: ForecastRequest, since: float) -> list[Series]:
    return read_demand(reader, asked.tier, since, asked.settled_until, lengths=asked.lengths, zone=asked.zone)
