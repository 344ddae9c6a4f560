"""Forecast of a single bin at one lead: weighted simple methods, and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.models.conformal import Quantiles, Spread
from forecast.models.features import LEARNT_DAYS, Features, Profiles, build_features, first_origin
from forecast.models.regression import Regression, Space
from forecast.models.simple_methods import BIN_METHODS, BinMethodInput, columns
from forecast.models.smoothing import Smoothed, Weights
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

REGRESSION = "regression"
FAMILIES = (*(family for family, _ in BIN_METHODS), *(REGRESSION for _ in Space))

REPLAYED_DAYS = 7
"""Days of the past that the start replays bin by bin for weights and residuals; both remember no more."""


class BinForecast(NamedTuple):
    """Forecast made at an origin: the value of each method, the weights used, and the combination."""

    by_method: Array
    weights: Array
    forecast: float


class LeadAhead:
    """Forecaster of the bin `lead` after the last observed bin. Call `step` after each bin, `refit` after each day.

    `quantiles` belong to the present forecast; None while too few errors are known.
    """

    def __init__(self, past: ObservedBins, profiles: Profiles, smoothed: Smoothed, lead: int) -> None:
        self._past, self._profiles, self._smoothed, self.lead = past, profiles, smoothed, lead
        self._regressions = tuple(Regression(space) for space in Space)
        self._weights = Weights(len(FAMILIES), memory=7 * past.per_day)
        self._issued: dict[int, BinForecast] = {}
        self.quantiles: Quantiles | None = None
        now, first = len(past), first_origin(past)
        begin = max(first, now - REPLAYED_DAYS * past.per_day)
        self._spread = Spread(past, lead, begin)
        features = self._features(first, now)
        ends = range(now - (now - first) // past.per_day * past.per_day, now + 1, past.per_day)
        for end in ends:
            self._fit_regressions(features, end)
        forecasts = self._method_forecasts(features)[begin - first :]
        for origin in range(begin, now):
            self._learn(origin)
            self._issue(origin, forecasts[origin - begin])
        self._learn(now)
        self._issue(now, forecasts[-1])
        self.quantiles = self._spread.quantiles(now)

    def _features(self, first: int, last: int) -> Features:
        return build_features(self._past, self._profiles, np.arange(first, last + 1), self.lead)

    def _fit_regressions(self, features: Features, end: int) -> None:
        for regression in self._regressions:
            regression.fit(self._past, features, self.lead, end)

    def _method_forecasts(self, features: Features) -> Array:
        asked = BinMethodInput(self._past, self._profiles, self._smoothed, features.origins, self.lead)
        return np.column_stack([columns(asked), *(one.predict(features) for one in self._regressions)])

    def refit(self) -> None:
        """Refit the regressions on the last weeks."""
        now = len(self._past)
        features = self._features(max(first_origin(self._past), now - LEARNT_DAYS * self._past.per_day), now)
        self._fit_regressions(features, len(self._past))

    def step(self) -> None:
        """Learn from a new bin and forecast at the new origin."""
        now = len(self._past)
        features = self._features(now, now)
        self._learn(now)
        self._issue(now, self._method_forecasts(features)[0])
        self.quantiles = self._spread.quantiles(now)

    def _learn(self, now: int) -> None:
        """Learn from the forecast of the last bin, made `lead` bins ago."""
        origin, target = now - self.lead, now - 1
        issued = self._issued.pop(origin, None)
        if issued is None:
            return
        actual = float(self._past.values[target]) if self._past.observed_mask[target] else np.nan
        self._spread.learn(origin, actual)
        if np.isfinite(actual):
            week = min(target, self._past.per_week)
            usual = max(float(self._past.mean(np.array([target]), week)[0]), 1e-12)
            self._weights.update(issued.by_method[None], issued.weights, np.array([actual]), usual)

    def _issue(self, origin: int, by_method: Array) -> None:
        weights = self._weights.now
        forecast = float(by_method @ weights)
        self._issued[origin] = BinForecast(by_method, weights, forecast)
        self._spread.note(origin, forecast)

    def shares(self) -> dict[str, float]:
        """Return the present weight of each family of methods; the sum is 1."""
        shares: dict[str, float] = {}
        for family, weight in zip(FAMILIES, self._weights.now, strict=True):
            shares[family] = shares.get(family, 0.0) + float(weight)
        return shares
