"""How many requests a second people send to a simulated tier: hour of the day, day of the week, chance. Pure.

Owns the pattern and its changes. A rate is a function of the time and the seed alone, so that any part of the weeks can
be simulated by itself, at any step.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

HOUR, DAY = 3600.0, 86_400.0

THURSDAY = 3
"""The weekday (Monday is 0) on which unix time began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Requests per second of a tier, in UTC.

    `busiest` is the rate of an ordinary workday at `peak_hour`; at night `night` (0-1) of it is left, at weekends `weekend`
    of every hour. `batch` is a job's rate between the hours `batch_from` and `batch_until` of each day.
    """

    busiest: float
    peak_hour: float
    night: float = 0.15
    weekend: float = 0.5
    chance: float = 0.06
    batch: float = 0.0
    batch_from: float = 0.0
    batch_until: float = 0.0

    def rate(self, t: float, seed: str) -> float:
        """Requests per second expected at `t` (unix seconds)."""
        hour = t % DAY / HOUR
        near = math.exp(1.8 * (math.cos(2 * math.pi * (hour - self.peak_hour) / 24) - 1))
        people = self.busiest * (self.night + (1 - self.night) * near)
        if weekday(t) >= 5:
            people *= self.weekend
        job = self.batch if self.batch_from <= hour < self.batch_until else 0.0
        return (people + job) * (1 + self.chance * _slow(t, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedDemand:
    """A pattern, and another one from `changes_at` (unix seconds) on."""

    pattern: Pattern
    changes_at: float = math.inf
    then: Pattern | None = None

    def rate(self, t: float, seed: str) -> float:
        """Requests per second expected at `t`."""
        pattern = self.then if self.then is not None and t >= self.changes_at else self.pattern
        return pattern.rate(t, seed)


def weekday(t: float) -> int:
    """Monday is 0."""
    return int(t // DAY + THURSDAY) % 7


def _slow(t: float, seed: str) -> float:
    """Normal noise that takes an hour to become another: between two hours' values, evenly."""
    hour, place = divmod(t / HOUR, 1.0)
    before, after = (random.Random(f"{seed}/{int(hour) + more}").gauss(0.0, 1.0) for more in (0, 1))
    return before + place * (after - before)
