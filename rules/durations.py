"""Durations in the words of all sentences and pages."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def format_duration(seconds: float) -> str:
    """Return a duration by its two largest units: "7 s", "12 min", "2 h 5 min", "3 d 4 h"."""
    whole = max(0.0, seconds)
    if whole < _MINUTE:
        return f"{whole:.0f} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE:.0f} min"
    large, small, names = (_HOUR, _MINUTE, ("h", "min")) if whole < _DAY else (_DAY, _HOUR, ("d", "h"))
    rest = whole % large // small
    return f"{whole // large:.0f} {names[0]}" + (f" {rest:.0f} {names[1]}" if rest else "")
