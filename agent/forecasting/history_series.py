"""A tier's demand in the history as Series of minutes: requests, prompt tokens, generation tokens.

Owns the way from booked minutes to the forecast's records. What arrived is `rules.telemetry.arrivals`'s, how minutes become longer
bins `forecast.series.binning`'s. A minute that nothing was booked of, or too little, is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecast.series.binned import Array, Series
from forecast.series.binning import bin_events, resample
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.windows import MINUTE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSeries:
    """What arrived at a tier, on one grid; tokens None where the engine counts none."""

    requests: Series
    prompt_tokens: Series | None
    generation_tokens: Series | None


def demand_series(
    minutes: Sequence[MinuteDemand], *, zone: str = "UTC", bin_seconds: float = MINUTE_SECONDS
) -> DemandSeries | None:
    """The Series of minutes as `Reader.demand` gives them; None where no minute has a known number of requests.

    They begin and end with the first and the last minute whose requests are known. Raises ValueError for bins that are no
    whole minutes.
    """
    known = [place for place, one in enumerate(minutes) if one.requests is not None]
    if not known:
        return None
    used = minutes[known[0] : known[-1] + 1]
    starts = np.array([one.start for one in used], dtype=np.float64)
    columns = {
        "requests": _column([one.requests for one in used]),
        "prompt_tokens": _column([one.prompt_tokens for one in used]),
        "generation_tokens": _column([one.generation_tokens for one in used]),
    }
    made = {
        name: resample(bin_events(starts, amounts, MINUTE_SECONDS, zone=zone), bin_seconds)
        for name, amounts in columns.items()
        if not np.isnan(amounts).all()
    }
    return DemandSeries(
        requests=made["requests"],
        prompt_tokens=made.get("prompt_tokens"),
        generation_tokens=made.get("generation_tokens"),
    )


def settled_time(now: float, scrape_interval_seconds: float) -> float:
    """Up to where minutes are whole at `now` (unix seconds): the last full minute that every replica has booked.

    A minute is booked when a window begins in the one after it, so that its last part comes two intervals after its end.
    """
    return (now - 2 * scrape_interval_seconds) // MINUTE_SECONDS * MINUTE_SECONDS


def _column(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
