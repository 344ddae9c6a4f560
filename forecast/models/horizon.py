"""Forecasts of a horizon from several methods: their weights, and quantiles from the errors of the past (conformal).

Weights and quantiles of an origin use only bins before it, so a backtest runs the code that runs live.

No distribution is assumed (Vovk, Gammerman, Shafer 2005). A quantile is the forecast plus that quantile of past errors
of the same part of the horizon, by their scale. Errors of some traffic grow with its level, and others do not. Upper
quantiles use the widest of the scales that served this series well lately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from forecast.series.binned import Array, Integers, divide
from forecast.series.observed import FEWEST, ObservedBins

LEVELS = (0.05, 0.5, 0.95, 0.99)
"""Levels of the quantiles. The forecast is the median."""

SHARPNESS = 8.0
"""Power of a method's mean error in its weight: a method with a tenth more error has half the weight."""

LEAST_ERRORS = 20
"""Minimum number of errors: with fewer, the highest is no 95 % quantile."""

LEADS_A_PART = 12
"""Leads recorded per part. Neighbouring leads are alike; more would only cost time."""

LEAST_SHARE = 0.05
"""Minimum level of a scale, as a share of the week's mean: errors of no traffic carry no information."""

FURTHEST, FURTHEST_DAYS = 3.0, 28
"""Upper bound of quantiles: FURTHEST times the highest amount in FURTHEST_DAYS. A spike would count twice."""

CLOSE = 1.1
"""A scale serves well while the pinball loss (Koenker, Bassett 1978) of its 95 % quantile is at most this multiple of the
least. The width for a surge is then paid only where it costs little."""

NOTHING = 1e-9

Members = Callable[[Integers, Integers], Array]
"""Function of origins and leads that returns the forecasts of each method: origins by leads by methods."""


class Horizon:
    """Forecasts of the bins 1 to `leads[-1]` after an origin, made every `stride` bins from bin `first` on.

    `parts` are slices of the leads with weights and errors of their own. `scales` of errors are powers of the level, times
    their recent mean where that is True. Quantiles are of the errors of `error_days`; half of them is the half-life of means.
    """

    def __init__(
        self,
        past: ObservedBins,
        members: Members,
        leads: Integers,
        *,
        first: int,
        stride: int = 1,
        parts: Sequence[slice] = (slice(0, 1),),
        scales: Sequence[tuple[float, bool]] = ((0.5, False),),
        error_days: float = 7,
    ) -> None:
        self._past, self._members, self.leads = past, members, leads
        self._stride, self._parts, self._scales, self._error_days = stride, parts, scales, error_days
        self.origins: Integers = np.arange(len(past) - (len(past) - first) // stride * stride, len(past) + 1, stride)
        self._made = members(self.origins, leads)
        self._solved = 0

    def follow(self) -> None:
        """Add the forecasts of new bins."""
        new = np.arange(self.origins[-1] + self._stride, len(self._past) + 1, self._stride)
        if len(new):
            self.origins = np.concatenate([self.origins, new])
            self._made = np.concatenate([self._made, self._members(new, self.leads)])

    def _solve(self) -> None:
        """Compute weights and factors of all origins, unless no origin is new."""
        if self._solved == len(self.origins):
            return
        self._solved = len(self.origins)
        actual = self._past.actual_at(self.origins[:, None] + self.leads - 1)
        half_life = self._rows(self._error_days / 2)
        self._weights = np.empty((len(actual), len(self._parts), self._made.shape[-1]))
        self._factors = np.empty((len(actual), len(self._parts), len(self._scales), len(LEVELS)))
        self._serves = np.empty(self._factors.shape[:-1], dtype=bool)
        for place, part in enumerate(self._parts):
            late = -(-int(self.leads[part][-1]) // self._stride)
            made, known = self._made[:, part], actual[:, part]
            errors = _mean_known(np.abs(made - known[:, :, None]))
            self._weights[:, place] = _weigh(_recent_means(_delayed(errors, late), half_life))
            sample = np.unique(np.linspace(0, made.shape[1] - 1, LEADS_A_PART).astype(np.int64))
            forecasts = (made[:, sample] * self._weights[:, place, None, :]).sum(axis=-1)
            level, errors = self._level(self.origins, forecasts), known[:, sample] - forecasts
            losses = np.empty((len(actual), len(self._scales)))
            for scale, (power, is_recent) in enumerate(self._scales):
                shares = errors / level**power
                size = np.ones((len(shares), 1))
                if is_recent:
                    size = _recent_means(_mean_known(np.abs(shares)[:, :, None]), half_life) + NOTHING
                quantiles = _rolling_quantiles(_delayed(shares / size, late), self._rows(self._error_days))
                self._factors[:, place, scale] = quantiles * _delayed(size, late)
                above = errors - self._factors[:, place, scale, 2, None] * level**power
                loss = np.maximum(LEVELS[2] * above, (LEVELS[2] - 1) * above)
                losses[:, scale] = _mean_known(loss[:, :, None])[:, 0]
            means = _recent_means(_delayed(losses, late), half_life)
            self._serves[:, place] = ~(means > CLOSE * means.min(axis=1, keepdims=True))
            if place:
                # The last part of a path is known only after all of it: until then the part before stands in.
                earlier, here = self._factors[:, place - 1], self._factors[:, place]
                self._factors[:, place] = np.where(np.isfinite(here), here, earlier)

    def _rows(self, days: float) -> int:
        return max(1, round(days * self._past.per_day / self._stride))

    def _level(self, origins: Integers, forecasts: Array) -> Array:
        least = np.maximum(LEAST_SHARE * self._past.week_mean(origins), FEWEST)
        return np.maximum(forecasts, least[:, None])

    def quantiles(self, origins: Integers) -> Array:
        """Return LEVELS by origin by lead, NaN while too few errors are known.

        An origin between two rows uses the weights and errors of the row before it.
        """
        self._solve()
        rows = (origins - self.origins[0]) // self._stride
        made, weights = self._made[rows], self._weights[rows]
        between = np.flatnonzero(self.origins[rows] != origins)
        if len(between):
            made[between] = self._members(origins[between], self.leads)
        forecasts, likely = np.empty(made.shape[:2]), np.empty(made.shape[:2])
        for place, part in enumerate(self._parts):
            forecasts[:, part] = (made[:, part] * weights[:, place, None, :]).sum(axis=-1)
            likely[:, part] = _weighted_quantile(made[:, part], weights[:, place, None, :], LEVELS[2])
        level = self._level(origins, forecasts)
        bounds = np.empty((len(LEVELS), *forecasts.shape))
        for place, part in enumerate(self._parts):
            scales = level[:, part, None] ** [power for power, _ in self._scales]
            factors = np.moveaxis(self._factors[rows, place], -1, 0)
            offered = forecasts[:, part, None] + factors[:, :, None, :] * scales
            upper = np.where(self._serves[rows, place, None, :], offered[2:], 0.0)
            bounds[:2, :, part], bounds[2:, :, part] = offered[:2].mean(axis=-1), upper.max(axis=-1)
        # After an odd day some methods expect another, and others a usual one: their mean is neither.
        bounds[2:] = np.maximum(bounds[2:], likely)
        bounds[0] = np.minimum(bounds[0], forecasts)
        bounds[1] = np.where(np.isfinite(bounds[2]), forecasts, np.nan)
        highest = pd.Series(self._past.values).rolling(FURTHEST_DAYS * self._past.per_day, min_periods=1).max()
        furthest = FURTHEST * np.maximum(highest.to_numpy()[origins - 1], FEWEST)
        return np.maximum.accumulate(np.clip(bounds, 0.0, furthest[:, None]), axis=0)

    @property
    def weights(self) -> Array:
        """Return the present weight of each method in the first part of the horizon; the sum is 1."""
        self._solve()
        present: Array = self._weights[-1, 0]
        return present


def _mean_known(errors: Array) -> Array:
    """Return the mean over the leads (the middle axis), NaN where none is known."""
    known = np.isfinite(errors)
    return divide(np.where(known, errors, 0.0).sum(axis=1), known.sum(axis=1))


def _delayed(rows: Array, late: int) -> Array:
    """Return each row `late` rows later: at an origin, only what was over by then is known."""
    unknown = np.full((min(late, len(rows)), *rows.shape[1:]), np.nan)
    return np.concatenate([unknown, rows])[: len(rows)]


def _recent_means(rows: Array, half_life: int) -> Array:
    """Return the mean of each column until each row, older rows weighted less."""
    means: Array = pd.DataFrame(rows).ewm(halflife=half_life, ignore_na=True).mean().to_numpy()
    return means


def _weigh(means: Array) -> Array:
    """Return weights by row: a power of each method's mean error until then, even while none is known."""
    means = np.where(np.isfinite(means), means, 1.0) + NOTHING
    weights = (means / means.min(axis=1, keepdims=True)) ** -SHARPNESS
    shares: Array = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _weighted_quantile(made: Array, weights: Array, level: float) -> Array:
    """Return the least forecast up to which the methods (the last axis) have this share of the weight."""
    order = np.argsort(made, axis=-1)
    shares = np.cumsum(np.take_along_axis(np.broadcast_to(weights, made.shape), order, axis=-1), axis=-1)
    place = np.take_along_axis(order, np.argmax(shares >= level, axis=-1)[..., None], axis=-1)
    return np.take_along_axis(made, place, axis=-1)[..., 0]


def _rolling_quantiles(rows: Array, window: int) -> Array:
    """Return LEVELS over the newest `window` rows at each row: the outer of two neighbours, as few errors are known."""
    width = rows.shape[1]
    flat = pd.Series(rows.ravel()).rolling(max(window * width, LEAST_ERRORS), min_periods=LEAST_ERRORS)
    parts = [flat.quantile(level, interpolation="higher" if level > 0.5 else "lower") for level in LEVELS]
    return np.column_stack([value.to_numpy()[width - 1 :: width] for value in parts])
