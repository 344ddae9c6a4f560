"""Signals of recent minutes for the demand one lead ahead, and the two regressions that weigh them.

The signals of minute `t` use only the minutes before `t` (their row ends at `t - 1`). All signals have the unit of the
demand, which is arbitrary. A new signal is a column in `drifts` (direction of the level) or `spreads` (uncertainty).

The first regression predicts the demand one lead ahead (weighted, robust least squares). The second predicts how far
above that demand may be (non-negative weights on the spreads, by pinball loss at a high level). `forecast.lead.online`
calibrates the certainty afterwards, on out-of-sample errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecast.series.binned import Array

REACH_MINUTES = 721
"""Maximum minutes before `t` that the signals of `t` use."""
GROWTH_BOUNDS = (0.4, 2.5)
"""Bounds of a forecast's growth over one lead, from the published baseline simulation."""
FLOOR_SHARE = 0.05
"""Share of the mean demand, added where a ratio or root of almost nothing would explode (same baseline)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeasonalPrior:
    """Outlook of a slower forecaster, per minute `t`, from bins finished by `t`; in the unit of the demand.

    `now[t]` is its demand for minute `t - 1`, `then[t]` for minute `t + lead`. NaN means no outlook; signals then use
    only the level.
    """

    now: Array
    then: Array

    @classmethod
    def silent(cls, minutes: int) -> SeasonalPrior:
        """Return an outlook of NaN for the given minutes."""
        return cls(now=np.full(minutes, np.nan), then=np.full(minutes, np.nan))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signals:
    """Signals, a row per minute: `last` is the demand of the minute before, `level` the mean of the ten before."""

    last: Array
    level: Array
    drifts: Array
    spreads: Array

    def __len__(self) -> int:
        return len(self.last)

    def rows(self, start: int, stop: int | None = None, step: int = 1) -> Signals:
        """Return the rows of some minutes."""
        part = slice(start, stop, step)
        return Signals(
            last=self.last[part], level=self.level[part], drifts=self.drifts[part], spreads=self.spreads[part]
        )


def fill_gaps(minutes: Array) -> Array:
    """Return the minutes with gaps filled by the last known value. A gap at the start takes the first known value.

    A filled value means that nothing new is known, not that demand was zero. Raise ValueError if no value is known.
    """
    known = np.isfinite(minutes)
    if not known.any():
        raise ValueError("no minute of demand is known")
    source = np.maximum.accumulate(np.where(known, np.arange(len(minutes)), -1))
    return minutes[np.where(source < 0, np.argmax(known), source)]


def compute_features(minutes: Array, outlook: SeasonalPrior) -> Signals:
    """Return the signals for every minute (no gaps; see `fill_gaps`) and, in the last row, for the next minute.

    `outlook` has as many rows. Row 0 has no past and uses the first value.
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
    """Return the divisor of errors at this level: the root of level times mean demand.

    It lies between a Poisson root and proportionality, as in the published baselines. `mean` is the mean of the
    history.
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


HALF_LIFE_MINUTES = 5 * 1440.0
FIT_LEVEL = 0.98
RIDGE = 1e-3
ROBUST_PASSES = 4
ROBUST_WIDTH = 3.0
DESCENT_STEPS = 150
STRIDE = 1 + 5**0.5
"""Stride of the minutes used for the spread: neighbours are alike. Irrational, so that no bin length is in step with
it."""
LEAST_UNIT = 1e-3
"""Minimum unit of a signal, as a share of the mean demand. Smaller signals could explode later."""
MOST_WEIGHT = 3.0
"""Logarithm of the maximum weight of a signal, in typical errors per typical signal."""
NOTHING = 1e-9
"""Minimum spread, as a share of the mean: spreads divide errors and must not be zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeadRegression:
    """Weights of the drifts and spreads, and the mean demand that scaled them."""

    drifts: Array
    spreads: Array
    mean: float

    def centre(self, rows: Signals) -> Array:
        """Return the expected demand one lead after each row, in the unit of demand, at least zero."""
        expected: Array = rows.last + _drifts(rows, self.mean) @ self.drifts
        return np.maximum(expected, 0.0)

    def spread(self, rows: Signals) -> Array:
        """Return how far above the centre demand may be, up to a factor of `forecast.lead.online`; above zero."""
        wide: Array = _spreads(rows, self.mean) @ self.spreads
        return np.maximum(wide, NOTHING * self.mean)


def fit(rows: Signals, targets: Array) -> LeadRegression:
    """Fit both regressions to rows (oldest first) and the demand one lead after each. NaN targets are skipped.

    Raise ValueError if no target is known or all demand is zero.
    """
    known = np.isfinite(targets)
    mean = float(targets[known].mean()) if known.any() else 0.0
    if mean <= 0:
        raise ValueError("nothing to learn from: no demand is known, or all of it is zero")
    age = np.arange(len(targets) - 1, -1, -1.0)
    weight = np.where(known, 0.5 ** (age / HALF_LIFE_MINUTES), 0.0)
    moves = np.where(known, targets - rows.last, 0.0)
    drifts = _robust(_drifts(rows, mean), moves, weight, scale(rows.level, mean))
    errors = moves - _drifts(rows, mean) @ drifts
    places = np.flatnonzero(known)
    chosen = places[np.arange(0.0, len(places), STRIDE).astype(np.int64)]
    spreads = _upper(_spreads(rows, mean)[chosen], errors[chosen], weight[chosen], mean)
    return LeadRegression(drifts=drifts, spreads=spreads, mean=mean)


def _drifts(rows: Signals, mean: float) -> Array:
    return np.column_stack([rows.drifts, scale(rows.level, mean)])


def _spreads(rows: Signals, mean: float) -> Array:
    return np.column_stack([rows.spreads, scale(rows.level, mean), np.full(len(rows), mean)])


def _robust(signals: Array, moves: Array, weight: Array, width: Array) -> Array:
    design, wanted = signals / width[:, None], moves / width
    penalty = RIDGE * weight.sum() * np.eye(design.shape[1])
    trusted, values = weight, np.zeros(design.shape[1])
    for _ in range(ROBUST_PASSES):
        weighted = design * trusted[:, None]
        values = np.linalg.solve(weighted.T @ design + penalty, weighted.T @ wanted)
        off = np.abs(wanted - design @ values)
        bound = ROBUST_WIDTH * float(np.median(off[weight > 0])) + 1e-3
        trusted = weight * np.minimum(1.0, bound / np.maximum(off, 1e-9))
    return values


def _upper(spreads: Array, errors: Array, weight: Array, mean: float) -> Array:
    """Return the non-negative weights of least pinball loss at FIT_LEVEL: Adam (Kingma and Ba 2015) on their
    logarithms."""
    unit = np.maximum(spreads.mean(axis=0), LEAST_UNIT * mean)
    typical = max(float(np.quantile(errors, FIT_LEVEL)), NOTHING * mean)
    design, wanted = spreads / unit, errors / typical
    share = weight / weight.sum()
    logs = np.full(design.shape[1], -np.log(design.shape[1]))
    first, second = np.zeros_like(logs), np.zeros_like(logs)
    for step in range(1, DESCENT_STEPS + 1):
        missed = wanted > design @ np.exp(logs)
        slope = (np.where(missed, -FIT_LEVEL, 1 - FIT_LEVEL) * share) @ design * np.exp(logs) / (1 - FIT_LEVEL)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        pace = 0.1 if step < 0.6 * DESCENT_STEPS else 0.02
        stride = pace * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-6)
        logs = np.clip(logs - stride, -8.0, MOST_WEIGHT)
    values: Array = np.exp(logs) * typical / unit
    return values
