"""Words for readings, rates, times and money of the report.

Units are those of `rules.telemetry.wording`.
"""

from __future__ import annotations

from exporters.render.text import format_duration, format_local
from rules.plan.money import amount
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.wording import join_range, number

DASH = "–"

SIMULATED = "Simulated: none of this traffic is real, and no GPU served it."

FLEET_USE = "fleet utilisation, on average"
"""Column title of fleet shares: work by capacity over the period, neither at the peak nor of the GPUs."""

STATUS = {"unknown": "not known", "not_judged": DASH}
"""Words of a status that are not its own name."""

INSTANTS = "instants "
"""Name of the bounds of a mean level: its lowest and highest instant."""


def words(reading: SignalValue, unit: str, of: str = "") -> str:
    """Return the best estimate with its bounds, those named by `of`, or the gap."""
    if isinstance(reading, Missing):
        return reading.gap.value.replace("_", " ")
    low, high, value = reading.low, reading.high, reading.value
    if value is None:
        if low is not None and high is not None:
            return range_text(low, high, unit)
        return f"≥ {number(low, unit)}" if low is not None else f"≤ {number(high or 0.0, unit)}"
    best = number(value, unit)
    if low is None:
        return best
    if high is None:
        return f"{best} ({of}≥ {number(low, unit)})" if low < value * 0.995 else best
    return f"{best} ({of}{range_text(low, high, unit)})" if high > low * 1.005 else best


def best(reading: SignalValue, unit: str) -> str:
    """Return the best estimate alone, else the bounds or the gap."""
    if isinstance(reading, Missing) or reading.value is None:
        return words(reading, unit)
    return number(reading.value, unit)


def range_text(low: float, high: float, unit: str) -> str:
    """Return both ends, with a shared unit once."""
    last = number(high, unit)
    return f"0 to {last}" if low == 0 else join_range(number(low, unit), last)


def number_text(value: float | None, unit: str = "") -> str:
    """Return a number with its unit, or a dash for None."""
    return DASH if value is None else number(value, unit)


def money(value: float | None, currency: str) -> str:
    """Return an amount in a currency, or a dash for None."""
    return DASH if value is None else amount(value, currency)


def instant(t: float, zone: str = "UTC") -> str:
    """Return unix seconds as "Mon 17 Nov 14:05 UTC"."""
    return format_local(t, zone, "%a %d %b %H:%M %Z")


def verdict_words(status: str, certainty: str) -> str:
    text = STATUS.get(status, status)
    return f"{text}, {certainty}" if certainty else text


def seen_words(seen: float, hours: float) -> str:
    """Return "5 of 7 hours", and "12 of 20 minutes" of an hour or less."""
    if hours <= 1:
        return f"{seen * 60:.0f} of {hours * 60:.0f} minutes"
    # Of a day or less, 98 % can round to all of it.
    return f"{round(seen, 1 if hours <= 25 else 0):g} of {hours:.0f} hours"


def days_words(days: float) -> str:
    """Return "7 days" or "1 day", and shorter times to the hour."""
    if days < 1:
        return format_duration(days * 86_400.0)
    return f"{days:.3g} day{'' if days == 1 else 's'}"


def lower_first(text: str) -> str:
    """Return a sentence as a part of another."""
    return f"{text[:1].lower()}{text[1:]}"
