"""Evenly spaced series of arriving work: requests or tokens per bin, NaN where unknown.

An unobserved bin stays NaN: absence is never zero traffic. A partly observed bin is scaled up if at least KNOWN_SHARE
of it was observed, else it is NaN. Nothing is interpolated between bins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MINUTE_SECONDS, DAY_MINUTES = 60.0, 1440

KNOWN_SHARE = 0.5
"""Minimum observed share of a bin with a known amount. Below it more than half would be a guess."""

SAME_SECONDS = 1e-6
"""Tolerance in seconds: unix times in doubles are exact to a microsecond."""

SAME = pd.Timedelta(seconds=2 * SAME_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Amounts: `values[i]` covers [start + i * bin_seconds, start + (i + 1) * bin_seconds); NaN if unknown.

    `start` is unix seconds. `zone` is the IANA time zone of the users, which defines days and weeks. Raises ValueError
    for invalid values.
    """

    start: float
    bin_seconds: float
    values: Array
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if not self.bin_seconds > 0:
            raise ValueError(f"a bin of {self.bin_seconds} s is none")
        if self.values.ndim != 1 or self.values.dtype != np.float64:
            raise ValueError("values must be one row of float64")
        if np.isinf(self.values).any() or (self.values < 0).any():
            raise ValueError("amounts must be finite and not negative")
        ZoneInfo(self.zone)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end(self) -> float:
        """Return the end of the last bin, unix seconds."""
        return self.time(len(self))

    def time(self, index: int) -> float:
        """Return the start of a bin in unix seconds, also beyond the series."""
        return self.start + index * self.bin_seconds


def bin_events(starts: Array, amounts: Array, bin_seconds: float, *, zone: str = "UTC") -> Series:
    """Return the Series of amounts counted in [start, start + bin_seconds). Missing times are NaN.

    `starts` are unix seconds in ascending order. Raise ValueError for unordered or repeated times, and for times that
    are not whole bins apart.
    """
    if not bin_seconds > 0:
        raise ValueError(f"a bin of {bin_seconds} s is none")
    if len(starts) != len(amounts):
        raise ValueError("every amount needs its time")
    if len(starts) == 0:
        raise ValueError("a series needs at least one amount")
    index = pd.to_datetime(np.rint(starts * 1e6).astype(np.int64), unit="us", utc=True)
    if not (index.is_monotonic_increasing and index.is_unique):
        late = np.flatnonzero(np.diff(starts) <= 0)[0]
        raise ValueError(f"{starts[late + 1]} does not come after {starts[late]}")
    width = pd.Timedelta(seconds=bin_seconds)
    grid = pd.date_range(index[0], index[-1] + width / 2, freq=width)
    places = grid.get_indexer(index, method="nearest", tolerance=SAME)
    if (places < 0).any():
        off = starts[np.argmin(places)]
        raise ValueError(f"{off} is not whole bins of {bin_seconds:g} s after {starts[0]}")
    values = pd.Series(amounts, places, dtype=np.float64).reindex(range(len(grid)))
    return Series(start=float(starts[0]), bin_seconds=bin_seconds, values=np.asarray(values, np.float64), zone=zone)


def resample(series: Series, bin_seconds: float) -> Series:
    """Return the series in coarser bins, which begin at whole multiples of their length since the epoch.

    For a series off that grid, they begin as near before its start as its own bins allow. A partly known coarse bin is
    scaled up by its known share if that is at least KNOWN_SHARE, else NaN. Raise ValueError for finer bins and for bins
    that are no multiple.
    """
    factor = _factor(series.bin_seconds, bin_seconds)
    if factor == 1 or not len(series):
        return replace(series, bin_seconds=bin_seconds)
    before = int((series.start % bin_seconds + SAME_SECONDS) // series.bin_seconds) % factor
    fine = pd.Series(series.values, pd.RangeIndex(before, before + len(series)))
    coarse = fine.groupby(fine.index // factor)
    coverage = coarse.count() / factor
    values = (coarse.sum() / coverage).where(coverage >= KNOWN_SHARE)
    start = series.start - before * series.bin_seconds
    return replace(series, start=start, bin_seconds=float(bin_seconds), values=np.asarray(values, np.float64))


def _factor(fine: float, coarse: float) -> int:
    if coarse < fine:
        raise ValueError(f"bins of {fine:g} s cannot be cut into bins of {coarse:g} s: only coarser ones can be made")
    factor = round(coarse / fine)
    if abs(factor * fine - coarse) > SAME_SECONDS:
        raise ValueError(f"bins of {coarse:g} s are no multiple of bins of {fine:g} s; ask for one")
    return factor


def select_bins(series: Series, first: int = 0, end: int | None = None) -> Series:
    """Return the bins from `first` on, before `end`."""
    return replace(series, start=series.time(first), values=series.values[first:end])


def truncate_at(series: Series, t: float) -> Series:
    """Return the bins that are over at `t` (unix seconds)."""
    return select_bins(series, end=max(0, int((t - series.start + SAME_SECONDS) // series.bin_seconds)))


def last_bins(series: Series, seconds: float) -> Series:
    """Return the bins within the last `seconds` of the series, or all of a shorter series."""
    count = max(0, int((seconds + SAME_SECONDS) // series.bin_seconds))
    return select_bins(series, max(0, len(series) - count))


def bin_minutes(series: Series) -> int:
    """Return the bin length in minutes. Raise ValueError if it is not whole or does not divide a day."""
    minutes = round(series.bin_seconds / MINUTE_SECONDS)
    if minutes < 1 or minutes * MINUTE_SECONDS != series.bin_seconds or DAY_MINUTES % minutes:
        raise ValueError(f"bins of {series.bin_seconds:g} s do not make whole minutes and whole days")
    return minutes


def rates(series: Series) -> Array:
    """Return the requests per second of every bin, with gaps filled: for a simulation, never for a score.

    A gap takes the same bin a day before, else a straight line between neighbours. Raise ValueError without observed
    bins.
    """
    per_day = DAY_MINUTES // bin_minutes(series)
    values = pd.Series(series.values / series.bin_seconds)
    if not values.notna().any():
        raise ValueError("no bin of this series was seen")
    of_the_day_before = values.groupby(values.index % per_day).ffill()
    return np.asarray(of_the_day_before.interpolate(limit_direction="both"), np.float64)


def smooth_circular(profile: Array, half: int) -> Array:
    """Return the mean of each value and `half` values on both sides. The first value follows the last."""
    around = np.concatenate([profile[len(profile) - half :], profile, profile[:half]])
    return np.asarray(np.convolve(around, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid"))


def divide(above: Array, below: Array) -> Array:
    """Return the quotients, NaN where the divisor is not above zero."""
    return np.asarray(np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0))


def per_minute(bins: Array, width: int) -> Array:
    """Return the rate of every minute in bins of `width` minutes: straight lines between their middles."""
    if width == 1:
        return bins
    middles = (np.arange(len(bins)) + 0.5) * width
    return np.asarray(np.interp(np.arange(len(bins) * width) + 0.5, middles, bins))
