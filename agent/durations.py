"""Parser and formatter of durations: 500ms, 15s, 5m, 1h, 7d, 13w.

A bare number is refused: it is unclear whether it means seconds or minutes.
"""

from __future__ import annotations

import re

UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}
PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h|d|w)$"
EXPECTED = "a number with its unit, such as 500ms, 15s, 5m, 1h, 7d or 13w"


def parse_duration(text: str) -> float:
    """Return the duration in seconds. Raise ValueError for anything but a number with one unit."""
    found = re.fullmatch(PATTERN.strip("^$"), text, re.ASCII)
    if found is None:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise ValueError(f"must be {EXPECTED}, not '{shown}'")
    unit = found[2]
    return round(float(text.removesuffix(unit)) * UNITS_SECONDS[unit], 6)


def duration_text(seconds: float) -> str:
    """Format seconds in the largest unit up to days without a fraction, and below one second in milliseconds."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % UNITS_SECONDS[unit] == 0:
            return f"{seconds / UNITS_SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:g}ms"
