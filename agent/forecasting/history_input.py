"""Forecasts from a history file: the demand of each tier as series of minutes, and a forecaster per tier.

A forecaster takes only the new minutes of each request. It restarts after a change of settings, a clock that went back,
or more than a day without requests. The file is opened for each request, because it may have been replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.responses import KEPT_SECONDS
from agent.forecasting.tier_forecast import TierForecast
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from exporters.documents.prewarm import Prewarm
from forecast.series.binned import Array, Series, bin_events, resample
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.work import UNTOLD, CapacityLengths

LONGEST_STEP_SECONDS = 86_400.0
"""Maximum absence in seconds to step through. After a longer absence the forecaster restarts from the history."""

NOTHING_YET = "no demand of this tier has been kept yet"


def demand_series(
    minutes: Sequence[MinuteDemand],
    *,
    zone: str = "UTC",
    bin_seconds: float = MINUTE_SECONDS,
    lengths: CapacityLengths = UNTOLD,
) -> list[Series]:
    """Return the work of minutes as `Reader.demand` returns them, and the requests beside it; [] if no minute is known.

    Work is in requests of `lengths`; without any there are the requests alone. A series begins and ends with a known
    minute. Raise ValueError for bins that are not whole minutes.
    """
    known = [place for place, one in enumerate(minutes) if one.requests is not None]
    if not known:
        return []
    used = minutes[known[0] : known[-1] + 1]
    starts = np.array([one.start for one in used], dtype=np.float64)
    kinds = [np.array([_amount(one, unit) for one in used], dtype=np.float64) for unit in _units(lengths)]
    return [resample(bin_events(starts, amounts, MINUTE_SECONDS, zone=zone), bin_seconds) for amounts in kinds]


def _units(lengths: CapacityLengths) -> tuple[CapacityLengths, ...]:
    """Return the lengths that demand is weighed by: for the work, and (without any) for the requests beside it."""
    return (UNTOLD,) if lengths == UNTOLD else (lengths, UNTOLD)


def _amount(one: MinuteDemand, lengths: CapacityLengths) -> float:
    found = one.work(lengths)
    return np.nan if found is None else found


class HistoryForecasts:
    """Forecasters by tier, kept between requests."""

    def __init__(self) -> None:
        self._tiers: dict[str, TierForecast] = {}

    def forget(self, tier: str) -> None:
        """Restart the tier with the next request."""
        self._tiers.pop(tier, None)

    def respond(self, asked: ForecastRequest) -> ForecastResponse:
        """Return the response, with a reason if there is no forecast. Raise for defects only."""
        try:
            with HistoryStore.open_reader(Path(asked.history)) as reader:
                known = self._follow(asked, reader) or self._start(asked, reader)
        except SizewatchError as error:
            self.forget(asked.tier)
            return no_forecast(asked, str(error))
        return no_forecast(asked, NOTHING_YET) if known is None else known.respond(asked)

    def _follow(self, asked: ForecastRequest, reader: Reader) -> TierForecast | None:
        known = self._tiers.get(asked.tier)
        if known is None or known.settings != asked.settings:
            return None
        if not 0 <= asked.settled_until - known.end <= LONGEST_STEP_SECONDS:
            return None
        # Keep no forecaster that took only a part of the minutes: it would stay a minute late.
        del self._tiers[asked.tier]
        known.use(asked)
        kinds = _minutes(reader, asked, known.end - MINUTE_SECONDS)
        known.revise(*(amounts[0] for amounts in kinds))
        known.add(*(amounts[1:] for amounts in kinds))
        self._tiers[asked.tier] = known
        return known

    def _start(self, asked: ForecastRequest, reader: Reader) -> TierForecast | None:
        since = asked.settled_until - KEPT_SECONDS - asked.bin_seconds
        minutes = reader.demand(asked.tier, since, asked.settled_until)
        kinds = demand_series(minutes, zone=asked.zone, lengths=asked.lengths)
        if not kinds:
            return None
        silent = np.full(max(0, round((asked.settled_until - kinds[0].end) / MINUTE_SECONDS)), np.nan)
        whole = [replace(one, values=np.concatenate([one.values, silent])) for one in kinds]
        self._tiers[asked.tier] = TierForecast(asked, *whole)
        return self._tiers[asked.tier]


def no_forecast(asked: ForecastRequest, why: str) -> ForecastResponse:
    """Return a response without a forecast, with the reason."""
    prewarm = Prewarm(tier=asked.tier, zone=asked.zone, recommendation=None, reason=why)
    return ForecastResponse(
        tier=asked.tier, made_at=asked.now, bin_seconds=asked.bin_seconds, forecast=None, prewarm=prewarm, gap=why
    )


def _minutes(reader: Reader, asked: ForecastRequest, since: float) -> list[Array]:
    """Return the demand of each minute of [since, settled_until) in each unit; NaN if unknown."""
    units = _units(asked.lengths)
    kinds = [np.full(round((asked.settled_until - since) / MINUTE_SECONDS), np.nan) for _ in units]
    for one in reader.demand(asked.tier, since, asked.settled_until):
        for amounts, lengths in zip(kinds, units, strict=True):
            amounts[round((one.start - since) / MINUTE_SECONDS)] = _amount(one, lengths)
    return kinds
