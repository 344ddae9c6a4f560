"""How instants and spans are written for people: UTC, and no finer than a reader needs.

Owns formatting only; whoever calls brings both the instant and now.
"""

from __future__ import annotations

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def format_clock(t: float, now: float) -> str:
    """Unix seconds as "14:27 UTC", with the day where it is not today's."""
    instant, today = datetime.fromtimestamp(t, UTC), datetime.fromtimestamp(now, UTC)
    return instant.strftime("%H:%M UTC" if instant.date() == today.date() else "%d %b %H:%M UTC")


def format_rfc3339(t: float) -> str:
    """Unix seconds as RFC 3339, to the second."""
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_duration(seconds: float) -> str:
    """A length of time by its two largest units: "7 s", "12 min", "2 h 5 min", "3 d 4 h"."""
    whole = max(0.0, seconds)
    if whole < _MINUTE:
        return f"{whole:.0f} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE:.0f} min"
    large, small, names = (_HOUR, _MINUTE, ("h", "min")) if whole < _DAY else (_DAY, _HOUR, ("d", "h"))
    rest = whole % large // small
    return f"{whole // large:.0f} {names[0]}" + (f" {rest:.0f} {names[1]}" if rest else "")
