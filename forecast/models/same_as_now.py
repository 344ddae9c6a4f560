"""The forecast while there is little history: the same as now, with quantiles from its own error so far.

Owns this method and its error by lead. It is also the naive one that everything else has to beat for the next minutes.
"""

from __future__ import annotations

import math

import numpy as np

from forecast.models.conformal import LEAST_RESIDUALS, LEAST_SHARE, LEVELS, highest_observation
from forecast.series.binned import Array
from forecast.series.observed import FEWEST, ObservedBins

WINDOW_DAYS = 7
LEADS = 24
"""Leads whose error is looked at; those between them are drawn in a line."""

MIDDLE = LEVELS.index(0.5)


def forecast_last_value(past: ObservedBins, bins: int) -> Array | None:
    """LEVELS by lead for the next `bins`; None while fewer than LEAST_RESIDUALS errors of the next bin are known.

    Errors of a lead are taken by the root of the level. A lead of which too few are known has those of the longest lead
    that is known, which is too narrow and the reason why little history is said.
    """
    first = max(0, len(past) - WINDOW_DAYS * past.per_day)
    values = np.where(past.observed_mask[first:], past.values[first:], np.nan)
    if not np.isfinite(values).any():
        return None
    now = float(past.values[-1])
    leads = np.unique(np.geomspace(1, bins, min(bins, LEADS)).round().astype(np.int64))
    floor = max(LEAST_SHARE * float(np.nanmean(values)), FEWEST)
    factors = [_factors(values, int(lead), floor) for lead in leads]
    known = [(lead, factor) for lead, factor in zip(leads, factors, strict=True) if factor is not None]
    if not known or known[0][0] != 1:
        return None
    at = np.array([lead for lead, _ in known], dtype=np.float64)
    table = np.stack([factor for _, factor in known])
    wanted = np.arange(1, bins + 1, dtype=np.float64)
    spread = np.stack([np.interp(wanted, at, table[:, level]) for level in range(len(LEVELS))])
    quantiles: Array = np.maximum(now + spread * math.sqrt(max(now, floor)), 0.0)
    quantiles = np.minimum(quantiles, highest_observation(past))
    quantiles[:MIDDLE] = np.minimum(quantiles[:MIDDLE], now)
    quantiles[MIDDLE] = now
    ordered: Array = np.maximum.accumulate(quantiles, axis=0)
    return ordered


def _factors(values: Array, lead: int, floor: float) -> Array | None:
    if len(values) <= lead:
        return None
    then = values[:-lead]
    ratios = (values[lead:] - then) / np.sqrt(np.maximum(then, floor))
    ratios = ratios[np.isfinite(ratios)]
    if len(ratios) < LEAST_RESIDUALS:
        return None
    below, above = (np.quantile(ratios, LEVELS, method=method) for method in ("lower", "higher"))
    return np.where(np.array(LEVELS) < LEVELS[MIDDLE], below, above)
