"""The simple methods for the next bins, as columns: the same as now, smoothed levels, the profile at the recent level.

Owns the table of them and the family each belongs to, by which their weights are shown. Learning methods are elsewhere. A
new one is a row in METHODS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from forecast.models.profile import Profiles
from forecast.models.smoothing import LEVELS, SEASONALS, Smoothed
from forecast.series.binned import Array
from forecast.series.observed import Integers, ObservedBins

LEAST_LEVEL = 0.02
"""Added to profile and amounts alike, as a share of the profile's mean: a ratio of two empty hours says nothing."""

STEEPEST = 10.0
NEWER = 0.85
"""The weight of a bin by that of the one after it, where the recent level is taken."""


class LevelWindow(NamedTuple):
    """Over how many seconds the recent level is taken, and after how many half of its departure from usual has gone."""

    seconds: float
    half_life: float


LEVELLED = (LevelWindow(3600, 10_800), LevelWindow(1800, 3600), LevelWindow(10_800, 43_200), LevelWindow(900, 3600))
SHIFTED = (LevelWindow(3600, 10_800),)

SAME_AS_NOW, SMOOTHED, PROFILE, HOLT_WINTERS = "same as now", "smoothed level", "profile x level", "Holt-Winters"


class BinMethodInput(NamedTuple):
    """The question to a method: the bin `lead` after the last one seen, at each of `origins`, consecutive."""

    past: ObservedBins
    profiles: Profiles
    smoothed: Smoothed
    origins: Integers
    lead: int


BinMethod = Callable[[BinMethodInput], Array]


def _now(asked: BinMethodInput) -> Array:
    return asked.past.values_at(asked.origins - 1)


def _smoother(column: int) -> BinMethod:
    def said(asked: BinMethodInput) -> Array:
        return asked.smoothed.features_at(int(asked.origins[0]), int(asked.origins[-1]), asked.lead)[:, column]

    return said


def _recent_weights(past: ObservedBins, how: LevelWindow) -> Array:
    weights = np.power(NEWER, np.arange(past.bins(how.seconds), dtype=np.float64)[::-1])
    shares: Array = weights / weights.sum()
    return shares


def _last(asked: BinMethodInput, width: int) -> Array:
    return asked.past.values_at(asked.origins[:, None] + np.arange(-width, 0)[None, :])


def _fading(asked: BinMethodInput, how: LevelWindow) -> float:
    return float(0.5 ** (asked.lead / max(1.0, how.half_life / asked.past.bin_seconds)))


def _levelled(how: LevelWindow) -> BinMethod:
    """The profile times the ratio of what came lately to what the profile had said of it, which fades."""

    def said(asked: BinMethodInput) -> Array:
        weights = _recent_weights(asked.past, how)
        floor = LEAST_LEVEL * asked.profiles.typical(asked.origins)
        usual = asked.profiles.past_profile(asked.origins, len(weights)) @ weights + floor
        came = _last(asked, len(weights)) @ weights
        ratio = np.clip(came / np.maximum(usual, 1e-12), 1 / STEEPEST, STEEPEST)
        ahead: Array = (asked.profiles.forecast_profile(asked.origins, asked.lead) + floor) * ratio ** _fading(
            asked, how
        )
        return ahead

    return said


def _shifted(how: LevelWindow) -> BinMethod:
    """The profile plus what came lately beyond it, which fades."""

    def said(asked: BinMethodInput) -> Array:
        weights = _recent_weights(asked.past, how)
        beyond = (_last(asked, len(weights)) - asked.profiles.past_profile(asked.origins, len(weights))) @ weights
        return np.maximum(
            asked.profiles.forecast_profile(asked.origins, asked.lead) + beyond * _fading(asked, how), 0.0
        )

    return said


BIN_METHODS: tuple[tuple[str, BinMethod], ...] = (
    (SAME_AS_NOW, _now),
    *((SMOOTHED, _smoother(column)) for column in range(len(LEVELS))),
    *((HOLT_WINTERS, _smoother(len(LEVELS) + column)) for column in range(len(SEASONALS))),
    *((PROFILE, _levelled(how)) for how in LEVELLED),
    *((PROFILE, _shifted(how)) for how in SHIFTED),
)
"""Family and method, a column each."""


def columns(asked: BinMethodInput) -> Array:
    """What each method says: origins by METHODS, amounts per bin."""
    return np.column_stack([method(asked) for _, method in BIN_METHODS])
