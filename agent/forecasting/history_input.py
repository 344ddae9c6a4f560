"""Forecasts from a history file: of each tier the minutes that are whole by now, and of those only the new ones each time.

Owns the reading, and when a tier's forecaster is made anew: other settings, a clock that went back, or more than a day that
was not looked at. The file is opened for each question: it may have been replaced.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.history_series import demand_series
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.tier_forecast import KEPT_SECONDS, TierForecast
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from exporters.documents.prewarm import Prewarm
from forecast.series.binned import Array, Series
from rules.telemetry.windows import MINUTE_SECONDS

LONGEST_STEP_SECONDS = 86_400.0
"""A longer absence is not stepped through: the tier begins anew from what the history holds."""

NOTHING_YET = "no demand of this tier has been kept yet"


class HistoryForecasts:
    """One forecaster per tier, kept between questions."""

    def __init__(self) -> None:
        self._tiers: dict[str, TierForecast] = {}

    def forget(self, tier: str) -> None:
        """The tier begins anew with the next question."""
        self._tiers.pop(tier, None)

    def answer(self, asked: ForecastRequest) -> ForecastResponse:
        """The answer; where there is no forecast it says why. Raises for defects only."""
        try:
            with HistoryStore.open_reader(Path(asked.history)) as reader:
                known = self._followed(asked, reader) or self._begun(asked, reader)
        except SizewatchError as error:
            self.forget(asked.tier)
            return no_forecast(asked, str(error))
        return no_forecast(asked, NOTHING_YET) if known is None else known.answer(asked)

    def _followed(self, asked: ForecastRequest, reader: Reader) -> TierForecast | None:
        known = self._tiers.get(asked.tier)
        if known is None or known.settings != asked.settings:
            return None
        if not 0 <= asked.settled_until - known.end <= LONGEST_STEP_SECONDS:
            return None
        # Taken out meanwhile: one that could take only a part of the minutes would be a minute off for ever.
        del self._tiers[asked.tier]
        known.use(asked)
        known.add(_minutes(reader, asked, known.end))
        self._tiers[asked.tier] = known
        return known

    def _begun(self, asked: ForecastRequest, reader: Reader) -> TierForecast | None:
        since = asked.settled_until - KEPT_SECONDS - asked.bin_seconds
        found = demand_series(reader.demand(asked.tier, since, asked.settled_until), zone=asked.zone)
        if found is None:
            return None
        self._tiers[asked.tier] = TierForecast(asked, _until(found.requests, asked.settled_until))
        return self._tiers[asked.tier]


def no_forecast(asked: ForecastRequest, why: str) -> ForecastResponse:
    """That there is none, and why."""
    prewarm = Prewarm(tier=asked.tier, zone=asked.zone, recommendation=None, reason=why)
    return ForecastResponse(
        tier=asked.tier, made_at=asked.now, bin_seconds=asked.bin_seconds, forecast=None, prewarm=prewarm, gap=why
    )


def _until(minutes: Series, t: float) -> Series:
    """The same with the minutes up to `t` that nothing is known of."""
    silent = np.full(max(0, round((t - minutes.end) / MINUTE_SECONDS)), np.nan)
    return replace(minutes, values=np.concatenate([minutes.values, silent]))


def _minutes(reader: Reader, asked: ForecastRequest, since: float) -> Array:
    """Requests of each minute of [since, settled_until); NaN where nothing is known of it."""
    amounts = np.full(round((asked.settled_until - since) / MINUTE_SECONDS), np.nan)
    for one in reader.demand(asked.tier, since, asked.settled_until):
        if one.requests is not None:
            amounts[round((one.start - since) / MINUTE_SECONDS)] = one.requests
    return amounts
