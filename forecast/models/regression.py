"""Robust regression of one lead on signals of the recent past, fitted anew every day by statsmodels.

Signals are shares of the origin's scale, so that a fleet that grew tenfold looks the same. They use only bins before
the origin. The regression is linear in square roots, where the noise of counts is even (Huber 1964 for its weights).
"""

from __future__ import annotations

import warnings

import numpy as np
from statsmodels.robust.norms import HuberT
from statsmodels.robust.robust_linear_model import RLM
from statsmodels.tools.sm_exceptions import ModelWarning

from forecast.models.methods import Outlook, first_origin
from forecast.series.binned import Array, Integers
from forecast.series.observed import FEWEST, HOUR

LEARNT_DAYS = 21
FORGET_DAYS = 14.0
"""Half-life of an origin's weight in days."""

STRIDE = 2
"""Only every second origin is learnt from: neighbours are alike."""

HUBER_WIDTH = 0.5
"""Errors in typical errors from which they count linearly: a spike must not turn the forecast."""

PASSES = 8
LEAST_ROWS = 40
LEAST_SHARE = 0.05
"""Minimum scale, as a share of the week's mean: a day without traffic would magnify every error."""


class Regression:
    """Regression for the bin `lead` after the last observed bin, with the fits of all days so far."""

    def __init__(self, outlook: Outlook, lead: int) -> None:
        self._outlook, self._lead = outlook, lead
        self._fits: dict[int, Array] = {}

    def forecast(self, origins: Integers) -> Array:
        """Return the forecast at each origin by the fit of the whole days before it. NaN where there is none yet."""
        day = self._outlook.past.per_day
        days = origins // day
        missing = [value for value in np.unique(days).tolist() if value not in self._fits]
        if missing:
            self._fit(missing)
        design, base, scale = self._signals(origins)
        values = np.full(len(origins), np.nan)
        for each in np.unique(days).tolist():
            rows = days == each
            roots = base[rows] + design[rows] @ self._fits[each]
            values[rows] = np.maximum(roots, 0.0) ** 2 * scale[rows]
        return values

    def _fit(self, days: list[int]) -> None:
        past, day = self._outlook.past, self._outlook.past.per_day
        first = max(first_origin(past), (days[0] - LEARNT_DAYS) * day)
        origins = np.arange(first, days[-1] * day - self._lead + 1)
        targets = origins + self._lead - 1
        design, base, scale = self._signals(origins)
        aim = np.sqrt(past.actual_at(targets) / scale) - base
        for each in days:
            end = each * day
            known = np.flatnonzero((targets < end) & (targets >= end - LEARNT_DAYS * day) & np.isfinite(aim))[::-STRIDE]
            self._fits[each] = np.full(design.shape[1], np.nan)
            if len(known) >= LEAST_ROWS:
                weight = 0.5 ** ((end - targets[known]) / (2 * FORGET_DAYS * day))
                model = RLM(aim[known] * weight, design[known] * weight[:, None], M=HuberT(HUBER_WIDTH))
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    # Equal signals share their weight. Traffic that never changes has no fit, and needs none.
                    warnings.simplefilter("ignore", ModelWarning)
                    self._fits[each] = np.asarray(model.fit(maxiter=PASSES).params)

    def _signals(self, origins: Integers) -> tuple[Array, Array, Array]:
        """Return signals, the root of the level (the base of what is learnt), and the scale of each origin."""
        past, profiles = self._outlook.past, self._outlook.profiles
        day, week = past.per_day, past.per_week
        half, hour = past.bins(HOUR / 2), past.bins(HOUR)
        targets = origins + self._lead - 1
        level, daily = past.mean(origins, half), past.mean(origins, day)
        now, recently = profiles.mean_before(origins, half), profiles.mean_before(origins, hour)
        rise = profiles.amounts(origins, targets) - now
        ratio = np.clip(level / np.maximum(np.maximum(now, 0.02 * daily), 1e-9), 0.2, 5)
        around = {back: past.mean(targets - back + half // 2 + 1, half) for back in (day, 2 * day, week)}
        before = {back: past.mean(origins - back, half) for back in (day, 2 * day, week)}
        signals = np.column_stack(
            [
                *(past.values_at(origins - back) - level for back in (1, 2, 3, 4)),
                past.mean(origins, hour) - level,
                past.mean(origins, 3 * hour) - level,
                daily - level,
                rise,
                rise * ratio,
                recently - now,
                now - level,
                *(around[back] - before[back] for back in (day, 2 * day, week)),
                before[day] - level,
                before[week] - level,
                past.values_at(targets - day) - around[day],
                level - past.mean(origins - half, half),
            ]
        )
        scale = np.maximum(np.maximum(0.5 * (level + daily), LEAST_SHARE * past.week_mean(origins)), FEWEST)
        base = np.sqrt(level / scale)
        shares = np.nan_to_num(signals / scale[:, None])
        roots = np.sqrt(np.maximum(shares + (level / scale)[:, None], 0.0)) - base[:, None]
        return np.column_stack([roots, np.full(len(roots), 0.1)]), base, scale
