"""How readings, rates and money of the report are written, as data and in words.

Owns conversions only. Units are those of `rules.telemetry.wording`.
"""

from __future__ import annotations

import math

from exporters.report.records import ReportNumber
from rules.plan.money import amount as amount_of
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.wording import number

DASH = "–"


def as_number(value: SignalValue) -> ReportNumber:
    """A reading, or the name of its gap."""
    if isinstance(value, Missing):
        return ReportNumber(gap=value.gap.value, text=value.text)
    return ReportNumber(value=_finite(value.value), low=_finite(value.low), high=_finite(value.high), n=value.n)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def exact_number(value: float | None, n: float = 1.0) -> ReportNumber:
    """A number that nothing leaves open; not measured where there is none."""
    return ReportNumber(gap="not_in_plan") if value is None else ReportNumber(value=value, low=value, high=value, n=n)


def words(found: ReportNumber, unit: str) -> str:
    """The best estimate with its bounds, or the gap."""
    if found.gap:
        return found.gap.replace("_", " ")
    if found.value is None:
        if found.low is not None and found.high is not None:
            return range_text(found.low, found.high, unit)
        return f"≥ {number(found.low, unit)}" if found.low is not None else f"≤ {number(found.high or 0.0, unit)}"
    best = number(found.value, unit)
    apart = bounds(found, unit)
    return f"{best} ({apart})" if apart else best


def best_estimate(found: ReportNumber, unit: str) -> str:
    """The best estimate alone; what is known instead, where there is none."""
    return words(found, unit) if found.gap or found.value is None else number(found.value, unit)


def bounds(found: ReportNumber, unit: str) -> str:
    """ "a to b" where the two are apart; "" where they are not, or not known."""
    if found.gap or found.low is None or found.value is None:
        return ""
    if found.high is None:
        return f"≥ {number(found.low, unit)}" if found.low < found.value * 0.995 else ""
    if found.high <= found.low * 1.005:
        return ""
    return range_text(found.low, found.high, unit)


def range_text(low: float, high: float, unit: str) -> str:
    """Both ends, with their unit once where it is the same."""
    first, last = number(low, unit), number(high, unit)
    bare, _, suffix = first.partition(" ")
    if low == 0:
        return f"0 to {last}"
    return f"{bare} to {last}" if suffix and last.endswith(f" {suffix}") else f"{first} to {last}"


def times(factors: tuple[float, float | None] | None) -> str:
    """How many times as much as planned, between its bounds; where 1 lies between them it is not known whether it is more."""
    if factors is None:
        return DASH
    low, high = factors
    if high is None:
        return f"at least {low:.2f}x" if low > 1 else f"not known, {low:.2f}x or more"
    between = f"{low:.2f} to {high:.2f}x"
    return f"not known, {between}" if low < 1 < high else between


def number_text(value: float | None, unit: str = "") -> str:
    """A number with its unit, a dash where there is none."""
    return DASH if value is None else number(value, unit)


def change(ratio: float | None) -> str:
    """A change in per cent with its sign."""
    if ratio is None:
        return DASH
    return "unchanged" if abs(ratio) < 0.005 else f"{ratio:+.0%}"


def trend(ratio: float | None, observed: ReportNumber, before: ReportNumber) -> str:
    """A change against the time before; a dash where one of the two is missing, "not known" where their bounds overlap."""
    apart = ratio is not None or observed.gap or before.gap or not before.value
    return change(ratio) if apart else "not known"


def money(amount: float | None, currency: str) -> str:
    """An amount in a currency, a dash where there is none."""
    return DASH if amount is None else amount_of(amount, currency)


def certainty(text: str) -> str:
    return f", {text}" if text else ""
