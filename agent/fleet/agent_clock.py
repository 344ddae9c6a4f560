"""When an agent scraped a replica, by the store's clock.

An agent tells the time of its scrape by its own clock, and the store stamps what it took with its. Where the two differ by
more than can be, the agent's clock is wrong: its times are moved, and the time between two of its scrapes stays what it was.
Owns that difference, for one replica. It must not judge whether a replica is silent: a page that is told again is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

EARLY_SECONDS = 5.0
"""A scrape that is later than the sample that tells of it: the store stamps when it begins to ask."""

LATE = 1.25
"""So many times of what lies between two scrapes of the agent its last one may be old when the store asks."""

UNKNOWN_SECONDS = 300.0
"""It may be so old while nothing is known of that time (Prometheus' staleness)."""


@dataclass(slots=True)
class AgentClock:
    """Of one replica. `behind` is what its agent's clock is behind the store's, in seconds."""

    behind: float = 0.0
    _told: float = math.nan
    _between: float = math.nan

    def scrape_times(self, t: float, told: float) -> float | None:
        """The time of the scrape that an agent told of as `told`, in a sample of `t`; None where it told of it before."""
        if not math.isfinite(told):
            return t
        if told == self._told:
            return None
        if 0.0 < told - self._told <= UNKNOWN_SECONDS:
            self._between = told - self._told
        self._told = told
        age = t - told
        if not self._can_be(age - self.behind):
            self.behind = 0.0 if self._can_be(age) else age
        return told + self.behind

    def _can_be(self, age: float) -> bool:
        most = LATE * self._between if math.isfinite(self._between) else UNKNOWN_SECONDS
        return -EARLY_SECONDS <= age <= most
