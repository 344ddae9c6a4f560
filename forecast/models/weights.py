"""Weights of several forecasts by how each did lately: Bernstein online aggregation.

Owns the recursion (Wintenberger 2017, "Optimal learning with Bernstein online aggregation", with the linearised loss of
section 4 and forgetting): no method has to be chosen, none is lost for good, and the learning rate of each sets itself.
"""

from __future__ import annotations

import numpy as np

from forecast.series.binned import Array


class Weights:
    """Weights of `count` forecasters for the quantile `level`; they sum to 1 and begin even.

    `memory` is after how many updates a loss counts half, `boldest` bounds the learning rate.
    """

    def __init__(self, count: int, *, memory: float, level: float = 0.5, boldest: float = 50.0) -> None:
        self._regret, self._variance = np.zeros(count), np.full(count, 1e-8)
        self._forget, self._level, self._boldest = 0.5 ** (1 / memory), level, boldest
        self.now: Array = np.full(count, 1 / count)

    def update(self, said: Array, used: Array, actual: Array, scale: float) -> None:
        """Learns from what each said (targets by forecaster) and what came (by target) when the weights were `used`.

        The loss of a forecaster is that of moving the combination towards it: the slope of the pinball loss at the
        combination times the distance, by `scale` (the usual amount per bin).
        """
        combined = said @ used
        slope = np.where(actual < combined, 1 - self._level, -self._level)
        loss = (slope[:, None] * (said - combined[:, None])).mean(axis=0) / scale
        self._regret = self._forget * self._regret - loss
        self._variance = self._forget * self._variance + loss * loss
        rate = np.minimum(np.sqrt(np.log(len(loss)) / self._variance), self._boldest)
        power = rate * self._regret
        weights = rate * np.exp(power - power.max())
        self.now = weights / weights.sum()
