"""Forecasts from a history file: of each tier the minutes that are whole by now, and of those only the new ones each time.

Owns the reading, and when a tier's forecaster is made anew: other settings, a clock that went back, or more than a day that
was not looked at. The file is opened for each question: it may have been replaced.

A tier's demand in the history as Series of minutes: requests, prompt tokens, generation tokens.

Owns the way from booked minutes to the forecast's records. What arrived is `rules.telemetry.arrivals`'s, how minutes become longer
bins `forecast.series.binned`'s. A minute that nothing was booked of, or too little, is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.tier_forecast import KEPT_SECONDS, TierForecast
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from exporters.documents.prewarm import Prewarm
from forecast.series.binned import Array, Series, bin_events, resample
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.windows import MINUTE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSeries:
    """What arrived at a tier, on one grid; tokens None where the engine counts none."""

    requests: Series
    prompt_tokens: Series | None
    generation_tokens: Series | None


def demand_series(
    minutes: Sequence[MinuteDemand], *, zone: str = "UTC", bin_seconds: float = MINUTE_SECONDS
) -> DemandSeries | None:
    """The Series of minutes as `Reader.demand` gives them; None where no minute has a known number of requests.

    They begin and end with the first and the last minute whose requests are known. Raises ValueError for bins that are no
    whole minutes.
    """
    known = [place for place, one in enumerate(minutes) if one.requests is not None]
    if not known:
        return None
    used = minutes[known[0] : known[-1] + 1]
    starts = np.array([one.start for one in used], dtype=np.float64)
    columns = {
        "requests": _column([one.requests for one in used]),
        "prompt_tokens": _column([one.prompt_tokens for one in used]),
        "generation_tokens": _column([one.generation_tokens for one in used]),
    }
    made = {
        name: resample(bin_events(starts, amounts, MINUTE_SECONDS, zone=zone), bin_seconds)
        for name, amounts in columns.items()
        if not np.isnan(amounts).all()
    }
    return DemandSeries(
        requests=made["requests"],
        prompt_tokens=made.get("prompt_tokens"),
        generation_tokens=made.get("generation_tokens"),
    )


def settled_time(now: float, scrape_interval_seconds: float) -> float:
    """Up to where minutes are whole at `now` (unix seconds): the last full minute that every replica has booked.

    A minute is booked when a window begins in the one after it, so that its last part comes two intervals after its end.
    """
    return (now - 2 * scrape_interval_seconds) // MINUTE_SECONDS * MINUTE_SECONDS


def _column(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


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
