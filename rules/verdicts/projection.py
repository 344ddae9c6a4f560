"""What a forecast hands to the rules: the record `Projection` of one tier, and what may be read from it.

Owns the type only. Who makes a projection, and by which method, is the forecast's business; what a projection means for a
tier is judged in `rules.methods.demand`. A new fact about a forecast that a rule needs is a field here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPoint:
    """Arriving requests per second of the whole tier at `t` (unix seconds): median, 95 % and 99 % quantile."""

    t: float
    q50: float
    q95: float
    q99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The forecast of one tier that was made at `made_at` (unix seconds), by the method named `method`.

    `horizon_seconds` is its lead: how long the tier's measured cold start takes. `points` are ordered by time. How it did
    lately on this tier, at this lead: `covered` of `forecasts` past targets were at most their 95 % quantile (targets that
    do not overlap, so that they can be counted as separate), and `error_ratio` is its error by that of the naive method
    `naive` over `compared` targets (pinball loss of the 95 % quantile or WAPE: below 1 it is the better one); None while
    nothing could be compared. Raises ValueError for what no forecast can be.
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

    def __post_init__(self) -> None:
        if self.horizon_seconds <= 0:
            raise ValueError(f"a lead of {self.horizon_seconds} s is none")
        if any(later.t <= earlier.t for earlier, later in pairwise(self.points)):
            raise ValueError("points must be ordered by time, each time once")
        for point in self.points:
            if not 0 <= point.q50 <= point.q95 <= point.q99:
                raise ValueError(f"quantiles must rise from 0, not {point.q50}, {point.q95}, {point.q99}")
        if not 0 <= self.covered <= self.forecasts:
            raise ValueError(f"{self.covered} of {self.forecasts} is no share")
        if self.error_ratio is not None and not 0 <= self.error_ratio < float("inf"):
            raise ValueError(f"an error ratio of {self.error_ratio} cannot be")

    def points_until(self, now: float) -> tuple[ForecastPoint, ...]:
        """The points from `now` to the lead, the first one at or behind it included: what can still be warmed for.

        Empty where the forecast has been outlived.
        """
        coming = [point for point in self.points if point.t >= now]
        within = [point for point in coming if point.t < now + self.horizon_seconds]
        return tuple(coming[: len(within) + 1])
