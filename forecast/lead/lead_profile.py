"""The outlook at minute resolution: from a bin forecaster's paths, or from a time-of-week profile where there is none.

Owns the way from bins to minutes. Only bins that are finished are used: what stands between two bins is drawn from the last
finished one to the forecast of the next, never to what the next turned out to be. How good a bin forecast is, is the
forecaster's business; a wrong outlook is weighed down by `lead_fits` and paid for in spread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forecast.lead.features import SeasonalPrior
from forecast.series.binned import Array

Minutes = NDArray[np.int64]

DAY_MINUTES = 1440
WEEK_DAYS = 7
PROFILE_WEEKS = 4
FIRST_PROFILE_DAYS = 2
SMOOTH_MINUTES = 35
"""Bins shorter than a third of this are smoothed over it: their own noise is no time of day."""


def profile_outlook(observed: Array, bin_minutes: int, lead: int, minutes: int) -> SeasonalPrior:
    """From the median of each time of the week over the last weeks, made anew every day; silent for the first two days.

    `observed[k]` is the demand of bin `k` as a rate in the unit of the minutes (no gaps).
    """
    per_day = DAY_MINUTES // bin_minutes
    silent = SeasonalPrior.silent(minutes)
    now, then = silent.now, silent.then
    for day in range(FIRST_PROFILE_DAYS, -(-minutes // DAY_MINUTES)):
        end = min(day * per_day, len(observed))
        profile = week_profile(observed[:end], per_day, bin_minutes)
        start, stop = day * DAY_MINUTES, min((day + 1) * DAY_MINUTES, minutes)
        minute = np.arange(start, stop)
        now[start:stop] = _profile_at(profile, minute - 1, bin_minutes)
        then[start:stop] = _profile_at(profile, minute + lead, bin_minutes)
    return SeasonalPrior(now=now, then=then)


def week_profile(observed: Array, per_day: int, bin_minutes: int) -> Array:
    """The robust profile of a week, by bin of the week counted from the first bin: the median of each over the last weeks,
    drawn towards the median of its time of day over the last seven days (the fewer weeks, the more)."""
    week = WEEK_DAYS * per_day
    end = len(observed)
    recent = min(end // per_day, WEEK_DAYS)
    days = np.stack([observed[end - (back + 1) * per_day : end - back * per_day] for back in range(recent)])
    of_day = np.empty(per_day)
    of_day[np.arange(end - per_day, end) % per_day] = np.median(days, axis=0)
    profile = np.tile(of_day, WEEK_DAYS)
    weeks = min(end // week, PROFILE_WEEKS)
    if weeks:
        of_week = np.empty(week)
        rows = observed[end - weeks * week :].reshape(weeks, week)
        of_week[np.arange(end - week, end) % week] = np.median(rows, axis=0)
        profile = (weeks * of_week + profile) / (weeks + 1)
    return _smooth(profile, SMOOTH_MINUTES // bin_minutes)


def _smooth(profile: Array, width: int) -> Array:
    if width < 3:
        return profile
    half = width // 2
    around = np.concatenate([profile[-half:], profile, profile[:half]])
    smooth: Array = np.convolve(around, np.full(2 * half + 1, 1.0 / (2 * half + 1)), "valid")
    return smooth


def _profile_at(profile: Array, minute: Minutes, bin_minutes: int) -> Array:
    place = (minute + 0.5) / bin_minutes - 0.5
    lower = np.floor(place).astype(np.int64)
    share = place - lower
    drawn: Array = profile[lower % len(profile)] * (1 - share) + profile[(lower + 1) % len(profile)] * share
    return drawn
