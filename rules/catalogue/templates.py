"""Templates of rows that many rules share."""

from __future__ import annotations

from typing import Any

from rules.methods.bands import judge_band
from rules.verdicts.rule import Rule, Scope

BAND_SECONDS, BAND_MINIMUM_SECONDS = 900.0, 180.0


def band(name: str, *, unit: str = "ratio", **row: Any) -> Rule:
    """Return a tier's rule of 15 minutes of a reading against fixed limits, evaluated from three minutes on."""
    return Rule(
        name=name,
        method=judge_band,
        scope=Scope.TIER,
        window_seconds=BAND_SECONDS,
        minimum_seconds=BAND_MINIMUM_SECONDS,
        unit=unit,
        **row,
    )
