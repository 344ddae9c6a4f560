"""Demand for the tests of forecasting: a daily wave with noise, as a series, as a history file, and questions about it."""

import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from agent.forecasting.messages import ForecastRequest
from agent.history.store import HistoryStore
from forecast.series.binned import Series
from rules.plan.capacity import stated_capacity
from rules.telemetry.arrivals import MinuteSums

SETTLED = 1_780_000_200.0
"""The end of a full bin of five minutes."""

NOW = SETTLED + 30.0
TIER = "h100"
DAY_MINUTES = 1440


def rate(t: float) -> float:
    """Requests per second at a time of day: from 4 to 16."""
    return 10.0 + 6.0 * math.sin(2 * math.pi * (t % 86_400) / 86_400)


def amounts(minutes: int, end: float = SETTLED) -> list[tuple[float, float]]:
    """Start and requests of each minute up to `end`; a minute has the same, whatever is asked for around it."""
    starts = [end - 60.0 * back for back in range(minutes, 0, -1)]
    return [(t, max(0.0, random.Random(t).gauss(60 * rate(t), math.sqrt(60 * rate(t))))) for t in starts]


def series(minutes: int, end: float = SETTLED, **changes: Any) -> Series:
    """The same as a series of minutes."""
    values = np.array([amount for _, amount in amounts(minutes, end)])
    return Series(start=end - 60.0 * minutes, bin_seconds=60.0, values=values, **changes)


def keep(path: Path, minutes: int, end: float = SETTLED, tier: str = TIER, seen: float = 60.0) -> Path:
    """A history that holds this demand, `seen` seconds of each minute watched."""
    keep_amounts(path, amounts(minutes, end), tier, seen)
    return path


def keep_amounts(path: Path, rows: Iterable[tuple[float, float]], tier: str, seen: float = 60.0) -> None:
    """A history that holds the requests of minutes by their start."""
    with HistoryStore(path) as store:
        store.fill_demand(
            tier,
            (
                MinuteSums(
                    start=t,
                    first=t,
                    last=t + 60.0,
                    expected_seconds=60.0,
                    covered_seconds=seen,
                    requests=amount,
                    requests_seconds=seen,
                    completed=amount,
                )
                for t, amount in rows
            ),
        )


def question(history: Path | str = "/nowhere/history.db", minutes_later: int = 0, **changes: Any) -> ForecastRequest:
    """About the tier's demand, with a cold start of under three minutes and replicas of 2 requests per second."""
    usual: dict[str, Any] = {
        "tier": TIER,
        "now": NOW + 60.0 * minutes_later,
        "settled_until": SETTLED + 60.0 * minutes_later,
        "settling_seconds": 30.0,
        "history": str(history),
        "bin_seconds": 300.0,
        "zone": "UTC",
        "lead_seconds": 140.0,
        "lead_source": "20 starts, measured",
        "capacity": stated_capacity(2.0, "the plan"),
        "minimum_warm": 3,
    }
    return ForecastRequest(**{**usual, **changes})
