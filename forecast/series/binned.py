"""Evenly spaced series of arriving work: requests (or tokens) per bin, missing where nothing is known.

Owns the record and what may be done with it without knowing where it came from. A bin that was not seen is NaN and stays
NaN: absence is never zero traffic. Where a series comes from (a history, a CSV) is the business of whoever makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """`values[i]` is the amount in [start + i * bin_seconds, start + (i + 1) * bin_seconds); NaN where it is not known.

    `start` is unix seconds, `zone` the IANA name of the clock that people of this traffic live by (days and weeks are cut
    by it). Raises ValueError for what no series can be.
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
        """Where the last bin ends, unix seconds."""
        return self.time(len(self))

    def time(self, index: int) -> float:
        """Where the bin of this index starts, unix seconds; it may lie beyond the series."""
        return self.start + index * self.bin_seconds
