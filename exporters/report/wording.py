"""Words for readings, rates, times and money of the report.

Units are those of `rules.telemetry.wording`.
"""

from __future__ import annotations

from exporters.render.text import format_duration, format_local, format_reading
from rules.plan.money import amount
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.wording import number

DASH = "–"

SIMULATED = "Simulated: none of this traffic is real, and no GPU served it."

FLEET_USE = "fleet utilisation, on average"
"""Column title of fleet shares: work by capacity over the period, neither at the peak nor of the GPUs."""

STATUS = {"unknown": "not known", "not_judged": DASH}
"""Words of a status that are not its own name."""


def best(reading: SignalValue, unit: str) -> str:
    """Return the best estimate alone, else the bounds or the gap."""
    if isinstance(reading, Missing) or reading.value is None:
        return format_reading(reading, unit).replace("_", " ")
    return number(reading.value, unit)


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
