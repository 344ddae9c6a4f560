"""How the signals are weighed: two small regressions, refitted on the recent past of the same tier.

Owns the fits. The first says where demand is one lead ahead (weighted, robust least squares), the second how far above
that it may be (non-negative weights on the spreads, by pinball loss at a high level). Neither is trusted with the level of
certainty: that is measured afterwards, on errors that were made without knowing the answer (`lead`). No clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecast.lead.features import Signals, scale
from forecast.series.binned import Array

HALF_LIFE_MINUTES = 5 * 1440.0
FIT_LEVEL = 0.98
RIDGE = 1e-3
ROBUST_PASSES = 4
ROBUST_WIDTH = 3.0
DESCENT_STEPS = 150
STRIDE = 1 + 5**0.5
"""Of the minutes learnt from for the spread: neighbours tell the same. Irrational, so that no bin length is in step with it."""
LEAST_UNIT = 1e-3
"""Share of the mean demand: a signal that is smaller on average is weighed as if it were this, and may not explode later."""
MOST_WEIGHT = 3.0
"""Logarithm of the most that one signal may count, in typical errors per typical signal."""
NOTHING = 1e-9
"""Share of the mean below which a spread is taken to be this share: what divides errors must not be zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeadRegression:
    """Weights of the drifts and spreads, and the mean demand by which they were scaled."""

    drifts: Array
    spreads: Array
    mean: float

    def centre(self, rows: Signals) -> Array:
        """Expected demand one lead after each row, in the unit of demand; not below zero."""
        expected: Array = rows.last + _drifts(rows, self.mean) @ self.drifts
        return np.maximum(expected, 0.0)

    def spread(self, rows: Signals) -> Array:
        """How far above the centre demand may be, up to a factor that `lead` measures; above zero."""
        wide: Array = _spreads(rows, self.mean) @ self.spreads
        return np.maximum(wide, NOTHING * self.mean)


def fit(rows: Signals, targets: Array) -> LeadRegression:
    """Learns both from rows (oldest first) and the demand one lead after each; NaN targets are left out.

    Raises ValueError where no target is known or all demand is zero.
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
    trusted, found = weight, np.zeros(design.shape[1])
    for _ in range(ROBUST_PASSES):
        weighted = design * trusted[:, None]
        found = np.linalg.solve(weighted.T @ design + penalty, weighted.T @ wanted)
        off = np.abs(wanted - design @ found)
        bound = ROBUST_WIDTH * float(np.median(off[weight > 0])) + 1e-3
        trusted = weight * np.minimum(1.0, bound / np.maximum(off, 1e-9))
    return found


def _upper(spreads: Array, errors: Array, weight: Array, mean: float) -> Array:
    """Non-negative weights that minimise the pinball loss at FIT_LEVEL: Adam (Kingma and Ba 2015) on their logarithms."""
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
    found: Array = np.exp(logs) * typical / unit
    return found
