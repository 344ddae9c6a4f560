"""Projection: the forecast of one tier as rules read it.

`rules.methods.demand` evaluates it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPoint:
    """Arriving requests per second of the whole tier at `t` (unix seconds): median, 95 % and 99 % quantile."""

    t: float
    q50: float
    q95: float
    q99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Forecast of one tier, made at `made_at` (unix seconds) by the method named `method`.

    `horizon_seconds` is the tier's measured cold start; `points` are ordered by time. Recent quality at this lead:
    `covered` of `forecasts` separate past targets were at most their 95 % quantile. `error_ratio` is its error by that
    of the method `naive` over `compared` targets (pinball loss of the 95 % quantile, or WAPE); None without a
    comparison.
    """

    tier: str
    made_at: float
    horizon_seconds: float
    points: tuple[ForecastPoint, ...]
    method: str
    covered: int = 0
    forecasts: int = 0
    error_ratio: float | None = None
    naive: str = ""
    compared: int = 0

    def points_until(self, now: float) -> tuple[ForecastPoint, ...]:
        """Return the points from `now` to the first one at or behind the lead. Return none for an outdated forecast."""
        coming = [point for point in self.points if point.t >= now]
        within = [point for point in coming if point.t < now + self.horizon_seconds]
        return tuple(coming[: len(within) + 1])
