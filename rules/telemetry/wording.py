"""Numbers and times in sentences: three significant digits, the unit, and bounds if they matter.

For people only; programs read the readings.
"""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from rules.telemetry.signals import Missing, SignalValue

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_SUFFIX = {
    "seconds": " s",
    "per_second": " rps",
    "tokens_per_second": " tokens/s",
    "events_per_second": " a second",
    "watts": " W",
    "celsius": " °C",
    "tokens": " tokens",
    "tokens_per_hour": " tokens per GPU-hour",
    "joules_per_token": " J per token",
}


def number(value: float, unit: str) -> str:
    """Return a value with its unit. Ratios are per cent, short times milliseconds, bytes 1e9 of them."""
    if unit == "ratio":
        return f"{value:.1%}"
    # From 0.9995 s on it rounds to a full second.
    if unit == "seconds" and 0 < value < 0.9995:
        return f"{_three(value * 1000)} ms"
    if unit == "bytes_per_second":
        return f"{_three(value / 1e9)} GB/s"
    return f"{_three(value)}{_SUFFIX.get(unit, '')}"


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or "e+" in text else text


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


def format_count(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 replica", "2 replicas"."""
    return f"{count:,.10g} {noun if count == 1 else plural or noun + 's'}"


def probability(value: float) -> str:
    """Return a probability in words: "a probability of 5%", "a probability below 1%"."""
    return f"a probability of {value:.0%}" if value >= 0.01 else "a probability below 1%"


def quantity(value: SignalValue, unit: str) -> str:
    """Return a reading in words: its bounds if they differ, "above x" if it is open, or the gap's name. An estimate
    without bounds is "about x"."""
    if isinstance(value, Missing):
        return value.gap.value.replace("_", " ")
    if value.high is None and value.low is None and value.value is not None:
        return f"about {number(value.value, unit)}"
    if value.high is None:
        return f"above {number(value.low or 0.0, unit)}"
    if value.low is None or value.high <= (value.low or 0.0) * 1.001:
        return number(value.high if value.value is None else value.value, unit)
    if value.low <= 0:
        return f"up to {number(value.high, unit)}"
    return join_range(number(value.low, unit), number(value.high, unit))


def spread(low: float, high: float | None, unit: str) -> str:
    """Return both ends of a range, one number if they print alike, or "at least" for an open range."""
    if high is None:
        return f"at least {number(low, unit)}"
    first, last = number(low, unit), number(high, unit)
    if unit == "ratio" and first != last:
        return f"{first.removesuffix('%')} to {last}"
    return first if first == last else join_range(first, last)


def guess(low: float, best: float, high: float, unit: str) -> str:
    """Return a best estimate, with its range if the two print differently."""
    between = spread(low, high, unit)
    return between if between == number(low, unit) else f"{number(best, unit)} ({between})"


def join_range(low: str, high: str) -> str:
    """Return both ends of a range, with a shared unit once."""
    bare, _, unit = low.partition(" ")
    return f"{bare} to {high}" if unit and high.endswith(f" {unit}") else f"{low} to {high}"


def describe_period(begin: float, end: float | None, now: float | None, zone: str = "UTC") -> str:
    """Return a time in `zone` from unix seconds, "since 10:23" without an end. The day of `now` or of the begin is omitted."""
    clock = ZoneInfo(zone)
    start = datetime.fromtimestamp(begin, clock)
    today = None if now is None else datetime.fromtimestamp(now, clock).date()
    began = f"{start:%H:%M}" if start.date() == today else f"{start:%d %b %H:%M}"
    if end is None:
        return f"since {began}"
    ended = datetime.fromtimestamp(end, clock)
    if f"{start:%d %H:%M}" == f"{ended:%d %H:%M}":
        return f"at {began}"
    return f"from {began} to {ended:{'%H:%M' if ended.date() == start.date() else '%d %b %H:%M'}}"


def split_claim(sentence: str) -> tuple[str, str]:
    """Return the claim that a sentence begins with, and its rest. They are split at the first "; " or ": "."""
    rows = re.search(r"[;:] ", sentence)
    return (sentence[: rows.start()], sentence[rows.end() :]) if rows else (sentence, "")
