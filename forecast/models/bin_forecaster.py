"""Forecaster of one series: the next bins and the next day with quantiles, and the record of its recent quality.

It selects the method by the length of the history. It counts no replicas (see `forecast.capacity.prewarm`). Not
thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from forecast.models.horizon import LEAST_ERRORS, Horizon, Members
from forecast.models.methods import MEMBERS, METHODS, SAME_AS_NOW, Outlook, first_origin, forecast_all
from forecast.models.regression import Regression
from forecast.series.binned import Array, Integers, Series
from forecast.series.observed import ObservedBins

DAYS_NEEDED = 2
"""Minimum days of history. With one day nothing beats the last value (on real traffic); the second gives errors."""

MOST_LEADS = 6
"""Maximum leads with forecasts of their own. Further leads use the path of the day."""

RECORD_DAYS = 7
WARM_UP_DAYS = 16
"""Days before the record from which errors are known: those of quantiles, and some to weigh methods by."""

LEAST_RECORD = 20

HOURS, QUARTERS = 24, 4
NAIVE_PARTS, BINS_A_DAY = 24, 288

YOUNG_DAYS = 8
"""Days of history until each weekday was seen. Until then a first Monday would look like a Sunday."""

SAME_SHARE = 1e-5
"""Relative tolerance of equal amounts: with constant traffic, quantiles deviate by parts of a millionth."""

COMBINATION = "sizewatch"
REGRESSION = "regression"


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


class Forecaster:
    """Forecaster that learns from a series and then follows it bin by bin.

    `ahead_seconds` is the relevant lead (a cold start); bins up to it have forecasts of their own. `sundays` are local
    days that behave like Sundays. From bin `since` on past forecasts are known (default: of the last week). Raises
    `forecast.series.observed.NoObservationsError` for a series without an observation.
    """

    def __init__(
        self,
        series: Series,
        *,
        ahead_seconds: float = 900.0,
        sundays: Collection[date] = (),
        since: int | None = None,
    ) -> None:
        self._past = past = ObservedBins(series, sundays)
        wanted = math.ceil(ahead_seconds / series.bin_seconds - 1e-9)
        self.leads = max(1, min(MOST_LEADS, wanted, past.per_day))
        since = len(past) - RECORD_DAYS * past.per_day if since is None else since
        self._first = max(since - WARM_UP_DAYS * past.per_day, 1)
        self._short: list[Horizon] = []
        self._naive: Horizon | None = None
        self._begin()

    def _begin(self) -> None:
        past = self._past
        if len(past) < max(DAYS_NEEDED * past.per_day, first_origin(past) + LEAST_ERRORS + self.leads):
            self._naive = naive_horizon(past)
            return
        outlook, methods = Outlook(past), [method for _, method in MEMBERS]
        first = max(self._first, first_origin(past))

        def with_regression(regression: Regression, origins: Integers, leads: Integers) -> Array:
            simple = forecast_all(methods, outlook, origins, leads)
            fitted = regression.forecast(origins)[:, None, None]
            return np.concatenate([simple, np.where(np.isfinite(fitted), fitted, simple[:, :, :1])], axis=-1)

        for lead in range(1, self.leads + 1):
            members = partial(with_regression, Regression(outlook, lead))
            self._short.append(Horizon(past, members, np.array([lead]), first=first))
        self._day = day_horizon(past, partial(forecast_all, methods, outlook), first)
        self._naive = None

    @property
    def trained(self) -> bool:
        """Return whether the history is long enough for trained methods."""
        return self._naive is None

    def step(self, value: float) -> None:
        """Add a bin; NaN if it was not observed."""
        self._past.append(value)
        if self._naive is not None:
            self._begin()
            return
        for horizon in (*self._short, self._day):
            horizon.follow()

    def quantiles(self, origins: Integers, bins: int) -> Array:
        """Return LEVELS by origin by lead of the next `bins`, at most a day. NaN while too few errors are known.

        An origin is the index of the first bin that was unknown, from the first observed bin of the series.
        """
        if self._naive is not None:
            return self._naive.quantiles(origins)[:, :, :bins]
        values = self._day.quantiles(origins)
        young = origins < YOUNG_DAYS * self._past.per_day
        if young.any():
            values[2:, young] = np.maximum(values[2:, young], self._highest_of_days(origins[young]))
        for place, horizon in enumerate(self._short):
            values[:, :, place] = horizon.quantiles(origins)[:, :, 0]
        return values[:, :, :bins]

    def _highest_of_days(self, origins: Integers) -> Array:
        """Return the highest amount of the same time on the days before, by origin and lead."""
        targets = origins[:, None] + np.arange(self._past.per_day)
        backs = range(1, YOUNG_DAYS)
        days = np.stack([self._past.values_at(targets - back * self._past.per_day) for back in backs])
        highest: Array = np.nanmax(days, axis=0)
        return highest

    def path(self, bins: int) -> Path | None:
        """Return the next `bins`, at most a day. None while too few errors are known for a quantile."""
        quantiles = self.quantiles(np.array([len(self._past)]), bins)[:, 0]
        if not np.isfinite(quantiles).all():
            return None
        weights = {SAME_AS_NOW: 1.0}
        if self.trained:
            weights = {}
            families = (*(family for family, _ in MEMBERS), REGRESSION)
            for family, share in zip(families, self._short[-1].weights.tolist(), strict=True):
                weights[family] = weights.get(family, 0.0) + share
        hours = len(self._past) * self._past.bin_seconds / 3600
        has = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        note = f"needs {DAYS_NEEDED} days of history, has {has}: the same as now, with its own error"
        return Path(
            start=self._past.end,
            bin_seconds=self._past.bin_seconds,
            quantiles=quantiles,
            method=COMBINATION if self.trained else SAME_AS_NOW,
            weights=weights,
            note="" if self.trained else note,
        )

    def quality(self) -> Quality:
        """Return the quality of the last week, or of the time since the start."""
        horizon, lead = self._short[-1] if self._naive is None else self._naive, self.leads
        last = len(self._past) - lead
        recent = (horizon.origins <= last) & (horizon.origins > last - RECORD_DAYS * self._past.per_day)
        origins = horizon.origins[recent]
        actual = self._past.actual_at(origins + lead - 1)
        bounds = horizon.quantiles(origins)[:, :, -1 if self.trained else lead - 1]
        known = np.isfinite(actual) & np.isfinite(bounds[2])
        actual, bounds = actual[known], bounds[:, known]
        errors = np.abs(actual - bounds[1]).sum()
        naive = np.abs(actual - self._past.values[origins[known] - 1]).sum()
        return Quality(
            covered=int((actual <= bounds[2] + SAME_SHARE * actual).sum()),
            forecasts=len(actual),
            error_ratio=float(errors / naive) if len(actual) >= LEAST_RECORD and naive > 0 else None,
        )


DAY_SCALES = ((0.0, True), (0.5, True), (1.0, True))
"""Scales of a day's errors: growing traffic makes larger ones or not, and days when traffic is odd do."""


def day_horizon(
    past: ObservedBins, members: Members, first: int, scales: Sequence[tuple[float, bool]] = DAY_SCALES
) -> Horizon:
    """Return the forecasts of a day, made every hour, with weights and errors of two weeks by quarter of the day."""
    day = past.per_day
    edges = np.unique(np.linspace(0, day, QUARTERS + 1).astype(np.int64)).tolist()
    parts = [slice(*ends) for ends in pairwise(edges)]
    count = max(1, day // HOURS)
    return Horizon(
        past, members, np.arange(1, day + 1), first=first, stride=count, parts=parts, scales=scales, error_days=14
    )


def naive_horizon(past: ObservedBins) -> Horizon:
    """Return the forecasts of a day while the history is short: the same as now, with its own error by lead.

    Leads without enough errors use those of shorter leads. Their quantiles are too narrow, which is why a short history
    is reported.
    """
    day = past.per_day
    edges = np.unique(np.geomspace(1, day + 1, min(day, NAIVE_PARTS) + 1).round().astype(np.int64) - 1).tolist()
    members = partial(forecast_all, [METHODS[SAME_AS_NOW]], Outlook(past))
    count = max(1, day // BINS_A_DAY)
    parts = [slice(*ends) for ends in pairwise(edges)]
    return Horizon(past, members, np.arange(1, day + 1), first=1, stride=count, parts=parts)
