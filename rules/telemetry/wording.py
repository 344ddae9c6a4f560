"""How numbers are written in sentences: three significant digits, the unit, and the bounds where they matter.

Owns formatting for people only; programs read the readings themselves.
"""

from __future__ import annotations

from rules.telemetry.signals import Missing, SignalValue

_SUFFIX = {
    "seconds": " s",
    "per_second": " rps",
    "tokens_per_second": " tokens/s",
    "events_per_second": " a second",
    "watts": " W",
    "celsius": " °C",
    "tokens": " tokens",
    "tokens_per_hour": " tokens per GPU-hour",
}


SECOND = 0.9995
"""What rounds to a full second is one."""


def number(value: float, unit: str) -> str:
    """A value with its unit: ratios as per cent, short times in milliseconds."""
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "seconds" and 0 < value < SECOND:
        return f"{_three(value * 1000)} ms"
    return f"{_three(value)}{_SUFFIX.get(unit, '')}"


def _three(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or "e+" in text else text


def quantity(value: SignalValue, unit: str) -> str:
    """A reading in words: its bounds where they are apart, "above x" where it is open, the gap's name where there is none.

    An estimate that nothing bounds is "about x".
    """
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
    return _between(number(value.low, unit), number(value.high, unit))


def spread(low: float, high: float | None, unit: str) -> str:
    """What lies between two numbers: both ends, or one number where they are the same in print; "at least" where it is open."""
    if high is None:
        return f"at least {number(low, unit)}"
    first, last = number(low, unit), number(high, unit)
    if unit == "ratio" and first != last:
        return f"{first.removesuffix('%')} to {last}"
    return first if first == last else _between(first, last)


def guess(low: float, best: float, high: float, unit: str) -> str:
    """A best guess with what it lies between, where the two are apart in print."""
    between = spread(low, high, unit)
    return between if between == number(low, unit) else f"{number(best, unit)} ({between})"


def _between(low: str, high: str) -> str:
    """Both ends, with their unit once where it is the same."""
    bare, _, unit = low.partition(" ")
    return f"{bare} to {high}" if unit and high.endswith(f" {unit}") else f"{low} to {high}"
