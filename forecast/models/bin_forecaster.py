"""Forecaster of one series: the next bins and the next day with quantiles, and the record of its recent quality.

It selects the method by the length of the history. It counts no replicas (see `forecast.capacity.prewarm`). Not
thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from forecast.models.bin_ahead import LeadAhead
from forecast.models.conformal import Quantiles
from forecast.models.day_ahead import DayAhead
from forecast.models.features import LEARNT_DAYS, QUICK, STEADY, Profiles, first_origin
from forecast.models.naive import forecast_last_value
from forecast.models.simple_methods import SAME_AS_NOW
from forecast.models.smoothing import Smoothed
from forecast.series.binned import Array, Series
from forecast.series.observed import ObservedBins

DAYS_NEEDED = 2
"""Minimum days of history. With one day nothing beats the last value (on real traffic); the second gives errors."""

MOST_LEADS = 6
"""Maximum leads with methods of their own. Further leads use the path of the day."""

RECORD_DAYS = 7
LEAST_RECORD = 20

SAME_SHARE = 1e-5
"""Relative tolerance of equal amounts: with constant traffic, quantiles deviate by parts of a millionth."""

COMBINATION = "sizewatch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """Quantiles (5 %, 50 %, 95 %, 99 %) by bin of the amounts per bin, from `start` (unix seconds) on.

    `weights` are the shares of the method families in the next bins. `note` is a remark for readers.
    """

    start: float
    bin_seconds: float
    quantiles: Array
    method: str
    weights: dict[str, float]
    note: str = ""


class Quality(NamedTuple):
    """Quality of the forecasts at the longest own lead in the last week.

    `covered` of `forecasts` were at most their 95 % quantile. `error_ratio` is the sum of absolute errors divided by
    that of SAME_AS_NOW."""

    covered: int
    forecasts: int
    error_ratio: float | None


class PendingForecast(NamedTuple):
    """Forecast of a future bin, with the naive forecast of the same bin."""

    target: int
    q50: float
    q95: float
    naive: float


class Forecaster:
    """Forecaster that learns from a series and then follows it bin by bin.

    `ahead_seconds` is the relevant lead (a cold start); bins up to it have methods of their own. `sundays` are local
    days that behave like Sundays. Raises `forecast.series.observed.NoObservationsError` for a series without an
    observation.
    """

    def __init__(self, series: Series, *, ahead_seconds: float = 900.0, sundays: Collection[date] = ()) -> None:
        self._past = ObservedBins(series, sundays)
        wanted = math.ceil(ahead_seconds / series.bin_seconds - 1e-9)
        self.leads = max(1, min(MOST_LEADS, wanted, self._past.per_day))
        self._waiting: deque[PendingForecast] = deque()
        self._record: deque[tuple[float, PendingForecast]] = deque(maxlen=RECORD_DAYS * self._past.per_day)
        self._quick: Profiles | None = None
        self._begin()
        self._remember()

    def _begin(self) -> None:
        past = self._past
        if len(past) < max(DAYS_NEEDED * past.per_day, first_origin(past)):
            return
        first = len(past) - (len(past) - past.per_day) // past.per_day * past.per_day
        self._quick, self._steady = Profiles(past, QUICK, first), Profiles(past, STEADY, first)
        self._smoothed = Smoothed(past, self.leads)
        self._short = [LeadAhead(past, self._quick, self._smoothed, lead + 1) for lead in range(self.leads)]
        self._day = DayAhead(past, self._quick, self._steady)

    @property
    def trained(self) -> bool:
        """Return whether the history is long enough for trained methods."""
        return self._quick is not None

    def step(self, value: float) -> None:
        """Add a bin; NaN if it was not observed."""
        self._past.append(value)
        if self._quick is None:
            self._begin()
        else:
            self._smoothed.follow()
            for one in self._short:
                one.step()
            self._day.step()
        self._score(value)
        self._remember()

    def refit(self) -> None:
        """Refit all models. Call it once a day, before a step."""
        if self._quick is None:
            return
        self._quick.fit(len(self._past))
        self._steady.fit(len(self._past))
        for one in self._short:
            one.refit()
        learnt = len(self._past) - LEARNT_DAYS * self._past.per_day
        for part in (self._quick, self._steady, self._smoothed):
            part.forget(learnt)

    def path(self, bins: int) -> Path | None:
        """Return the next `bins`, at most a day. None while too few errors are known for a quantile."""
        bins = min(bins, self._past.per_day)
        trained = self._trained_path(bins) if self.trained else None
        if trained is not None:
            return trained
        naive = forecast_last_value(self._past, bins)
        if naive is None:
            return None
        return self._as_path(naive, SAME_AS_NOW, {SAME_AS_NOW: 1.0}, self._too_short())

    def _trained_path(self, bins: int) -> Path | None:
        quantiles = self._day.path()[1]
        short = [one.quantiles for one in self._short]
        if quantiles is None or any(one is None for one in short):
            return None
        joined = quantiles[:, :bins].copy()
        for lead, one in enumerate(short[:bins]):
            joined[:, lead] = one
        return self._as_path(joined, COMBINATION, self._short[-1].shares(), "")

    def _as_path(self, quantiles: Array, method: str, weights: dict[str, float], note: str) -> Path:
        return Path(
            start=self._past.end,
            bin_seconds=self._past.bin_seconds,
            quantiles=quantiles,
            method=method,
            weights=weights,
            note=note,
        )

    def _too_short(self) -> str:
        hours = len(self._past) * self._past.bin_seconds / 3600
        has = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        if not self.trained:
            return f"needs {DAYS_NEEDED} days of history, has {has}: the same as now, with its own error"
        return f"too few errors are known after {has} of history: the same as now, with its own error"

    def _remember(self) -> None:
        """Record the forecast at the longest own lead."""
        lead, now = self.leads, float(self._past.values[-1])
        own = self._short[-1].quantiles if self.trained else None
        if own is None:
            naive = forecast_last_value(self._past, lead)
            own = Quantiles(*(float(value) for value in naive[:, -1])) if naive is not None else None
        if own is not None:
            self._waiting.append(PendingForecast(len(self._past) + lead - 1, own.q50, own.q95, now))

    def _score(self, value: float) -> None:
        while self._waiting and self._waiting[0].target < len(self._past):
            forecast = self._waiting.popleft()
            if forecast.target == len(self._past) - 1 and math.isfinite(value):
                self._record.append((value, forecast))

    def quality(self) -> Quality:
        """Return the quality of the last week, or of the time since the start."""
        errors = sum(abs(value - one.q50) for value, one in self._record)
        naive = sum(abs(value - one.naive) for value, one in self._record)
        count = len(self._record)
        return Quality(
            covered=sum(value <= one.q95 + SAME_SHARE * value for value, one in self._record),
            forecasts=count,
            error_ratio=errors / naive if count >= LEAST_RECORD and naive > 0 else None,
        )
