"""What the recent minutes say: the signals from which demand one lead ahead, and its uncertainty, are read.

Owns the signals and nothing else; how they are weighed is learnt in `lead_fits`. Every signal of minute `t` is made of the
minutes before `t` (the row of `t` ends at `t - 1`), so that a row never knows its own minute. Demand may be in any unit, as
long as it is one: every signal is in that unit. A new signal is a column in `drifts` (where the level is going) or
`spreads` (how far off it may be).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecast.series.binned import Array

REACH_MINUTES = 721
"""How many minutes before `t` the signals of `t` look at, at most."""
GROWTH_BOUNDS = (0.4, 2.5)
"""A forecast's growth over one lead is believed within these: the bounds of the published baseline simulation."""
FLOOR_SHARE = 0.05
"""Of the mean demand: what is added where a ratio or a root of almost nothing would explode (same baseline)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeasonalPrior:
    """What a slower forecaster says of demand, per minute `t`, from bins finished by `t`.

    `now[t]` is its demand for minute `t - 1`, `then[t]` for minute `t + lead`; NaN where it says nothing (the signals then
    know only the level). Both in the unit of the demand.
    """

    now: Array
    then: Array

    @classmethod
    def silent(cls, minutes: int) -> SeasonalPrior:
        """An outlook that says nothing for so many minutes."""
        return cls(now=np.full(minutes, np.nan), then=np.full(minutes, np.nan))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signals:
    """One row per minute: `last` is the demand of the minute before, `level` the mean of the ten before."""

    last: Array
    level: Array
    drifts: Array
    spreads: Array

    def __len__(self) -> int:
        return len(self.last)

    def rows(self, start: int, stop: int | None = None, step: int = 1) -> Signals:
        """The rows of some minutes."""
        part = slice(start, stop, step)
        return Signals(
            last=self.last[part], level=self.level[part], drifts=self.drifts[part], spreads=self.spreads[part]
        )


def fill_gaps(minutes: Array) -> Array:
    """The minutes with the last known value carried through gaps (a gap at the beginning takes the first known one).

    A value carried says "nothing new is known", never "nothing came". Raises ValueError where nothing at all is known.
    """
    known = np.isfinite(minutes)
    if not known.any():
        raise ValueError("no minute of demand is known")
    source = np.maximum.accumulate(np.where(known, np.arange(len(minutes)), -1))
    return minutes[np.where(source < 0, np.argmax(known), source)]


def compute_features(minutes: Array, outlook: SeasonalPrior) -> Signals:
    """The signals for every minute of `minutes` (no gaps; see `filled`) and one more: the last row is the minute to come.

    `outlook` has as many rows. Row 0 knows nothing and takes the first value as its past.
    """
    past = np.concatenate([minutes[:1], minutes])
    last = past
    before, earlier = _shifted(past, 1), _shifted(past, 2)
    means = {width: _mean(past, width) for width in (3, 5, 10, 30, 60)}
    growth, gap = _growth(outlook, means[30], last)
    drifts = np.column_stack(
        [
            *(last - before, before - earlier),
            *(last - mean for mean in means.values()),
            *(gap, means[3] * (growth - 1), means[30] * (growth - 1)),
        ]
    )
    move = last - before
    spreads = np.column_stack(
        [
            means[10],
            *(_mean(np.abs(move), width) for width in (10, 60, 720)),
            *(_range(past, width) for width in (10, 60)),
            *(np.maximum(0.0, move), np.maximum(0.0, -move), np.maximum(0.0, gap)),
        ]
    )
    return Signals(last=last, level=means[10], drifts=drifts, spreads=spreads)


def scale(level: Array, mean: float) -> Array:
    """By what errors at this level are divided: the root of level times mean demand.

    Between a Poisson's root and proportionality, as in the published baselines; `mean` is the mean demand of the history.
    """
    return np.sqrt(np.maximum(level, FLOOR_SHARE * mean) * mean)


def _growth(outlook: SeasonalPrior, usual: Array, last: Array) -> tuple[Array, Array]:
    now = np.where(np.isfinite(outlook.now), outlook.now, usual)
    then = np.where(np.isfinite(outlook.then), outlook.then, usual)
    known = np.isfinite(outlook.now) & np.isfinite(outlook.then)
    floor = FLOOR_SHARE * np.maximum(usual, 1e-12)
    growth = np.where(known, np.clip((then + floor) / (now + floor), *GROWTH_BOUNDS), 1.0)
    return growth, np.where(known, then - last, 0.0)


def _shifted(values: Array, by: int) -> Array:
    return np.concatenate([np.full(min(by, len(values)), values[0]), values[:-by]])[: len(values)]


def _mean(values: Array, width: int) -> Array:
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    means: Array = (total[ends] - total[starts]) / (ends - starts)
    return np.maximum(means, 0.0)


def _range(values: Array, width: int) -> Array:
    padded = np.concatenate([np.full(width - 1, values[0]), values])
    windows = sliding_window_view(padded, width)
    spread: Array = windows.max(axis=1) - windows.min(axis=1)
    return spread
