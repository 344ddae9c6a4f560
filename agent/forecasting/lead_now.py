"""Demand one lead ahead for a tier, minute by minute as they come: the live prediction with the outlook it needs.

Owns the minutes that are kept, and the outlook for the day to come: the time-of-week profile, as in the simulations that say
what pre-warming is worth (docs/cold-start.md). Rates are requests per second without what known events add.
"""

from __future__ import annotations

import numpy as np

from forecast.capacity.simulation_minutes import MINUTE_SECONDS, rates
from forecast.lead.features import SeasonalPrior
from forecast.lead.lead import DAY_MINUTES
from forecast.lead.lead_profile import FIRST_PROFILE_DAYS, profile_outlook
from forecast.lead.online import OnlineLeadForecaster
from forecast.series.binned import Array, Series

KEPT_DAYS = 34
"""Four weeks of profile, and what the beginning of a day loses of them."""

AHEAD_MINUTES = 3 * DAY_MINUTES
"""The outlook reaches so far: refits are daily, and one may come late."""


class LiveLeadForecast:
    """The prediction `lead` whole minutes ahead; `usual` begins at a whole bin of `bin_minutes` and has one known minute."""

    def __init__(self, usual: Array, bin_minutes: int, lead: int) -> None:
        self._minutes = usual[-KEPT_DAYS * DAY_MINUTES :].tolist()
        self._bin_minutes, self._lead = bin_minutes, lead
        whole = self._outlook()
        rows = len(self._minutes) + 1
        self._live = OnlineLeadForecaster(
            np.array(self._minutes), SeasonalPrior(now=whole.now[:rows], then=whole.then[:rows]), lead
        )
        self._ahead, self._next = whole, rows

    def step(self, rate: float) -> None:
        """One minute more; NaN where it is not known."""
        self._minutes.append(rate)
        if self._next >= len(self._ahead.now):
            self._look_ahead()
        self._live.step(rate, float(self._ahead.now[self._next]), float(self._ahead.then[self._next]))
        self._next += 1

    def refit(self) -> None:
        """Everything anew from what is kept, to be done daily."""
        del self._minutes[: max(0, len(self._minutes) // DAY_MINUTES - KEPT_DAYS) * DAY_MINUTES]
        self._look_ahead()
        self._live.refit()

    def quantile(self, level: float) -> float | None:
        """Requests per second that are not passed with this certainty (0-1) one lead after the last minute; None while too
        little is known."""
        return self._live.quantile(level)

    @property
    def expected(self) -> float | None:
        """Requests per second that are expected then, without a margin; None while too little is known."""
        return self._live.expected

    def _look_ahead(self) -> None:
        self._ahead, self._next = self._outlook(), len(self._minutes)

    def _outlook(self) -> SeasonalPrior:
        return outlook(np.array(self._minutes), self._bin_minutes, self._lead, len(self._minutes) + AHEAD_MINUTES)


def outlook(usual: Array, bin_minutes: int, lead: int, rows: int) -> SeasonalPrior:
    """The profile's outlook over `rows` minutes from the first of `usual`, which may reach beyond its last; silent for the
    first two days, and all of it while there are no more."""
    count = len(usual) // bin_minutes
    if count * bin_minutes < FIRST_PROFILE_DAYS * DAY_MINUTES or not np.isfinite(usual[: count * bin_minutes]).any():
        return SeasonalPrior.silent(rows)
    parts = usual[: count * bin_minutes].reshape(count, bin_minutes)
    known = np.isfinite(parts)
    seen = known.any(axis=1)
    sums = np.where(known, parts, 0.0).sum(axis=1)
    bins = np.where(seen, sums / np.maximum(known.sum(axis=1), 1), np.nan)
    series = Series(start=0.0, bin_seconds=bin_minutes * MINUTE_SECONDS, values=bins * bin_minutes * MINUTE_SECONDS)
    return profile_outlook(rates(series), bin_minutes, lead, rows)
