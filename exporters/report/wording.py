"""Sentences of report.md and report.html, and conversion of readings, rates and money to data and text.

Units are those of `rules.telemetry.wording`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from exporters.render.text import format_duration, format_local
from exporters.report.records import (
    CurvePart,
    Formula,
    MonitoredValue,
    PrewarmPart,
    ProposalPart,
    Report,
    ReportNumber,
    TierReport,
    TrapPart,
)
from rules.plan.money import amount as amount_of
from rules.plan.money import figure
from rules.resize.proposal import ProposalKind
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Missing, SignalKind, SignalValue
from rules.telemetry.wording import format_count, join_range, number

DASH = "–"


def as_number(value: SignalValue) -> ReportNumber:
    """Return a reading, or the name of its gap."""
    if isinstance(value, Missing):
        return ReportNumber(gap=value.gap.value, text=value.text)
    return ReportNumber(value=_finite(value.value), low=_finite(value.low), high=_finite(value.high), n=value.n)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def exact_number(value: float | None, n: float = 1.0) -> ReportNumber:
    """Return an exact number, or the gap not_in_plan for None."""
    return ReportNumber(gap="not_in_plan") if value is None else ReportNumber(value=value, low=value, high=value, n=n)


def words(reading: ReportNumber, unit: str, of: str = "") -> str:
    """Return the best estimate with its bounds, those named by `of`, or the gap."""
    if reading.gap:
        return reading.gap.replace("_", " ")
    if reading.value is None:
        if reading.low is not None and reading.high is not None:
            return range_text(reading.low, reading.high, unit)
        return f"≥ {number(reading.low, unit)}" if reading.low is not None else f"≤ {number(reading.high or 0.0, unit)}"
    best = number(reading.value, unit)
    apart = bounds(reading, unit, of)
    return f"{best} ({apart})" if apart else best


def best_estimate(reading: ReportNumber, unit: str) -> str:
    """Return the best estimate, else the bounds or the gap."""
    return words(reading, unit) if reading.gap or reading.value is None else number(reading.value, unit)


INSTANTS = "instants "
"""Name of the bounds of a mean level: its lowest and highest instant."""


def bounds(reading: ReportNumber, unit: str, of: str = "") -> str:
    """Return "a to b" after `of` if the bounds differ, "" if they are equal or unknown."""
    if reading.gap or reading.low is None or reading.value is None:
        return ""
    if reading.high is None:
        return f"{of}≥ {number(reading.low, unit)}" if reading.low < reading.value * 0.995 else ""
    return of + range_text(reading.low, reading.high, unit) if reading.high > reading.low * 1.005 else ""


def range_text(low: float, high: float, unit: str) -> str:
    """Return both ends, with a shared unit once."""
    last = number(high, unit)
    return f"0 to {last}" if low == 0 else join_range(number(low, unit), last)


def times(factors: tuple[float, float | None] | None) -> str:
    """Return the factor of the planned value with bounds. Bounds on both sides of 1 are "not known"."""
    if factors is None:
        return DASH
    first, last = (
        None if factor is None else f"{factor:.1f}" if factor >= 1 else f"{factor:.2g}" for factor in factors
    )
    low, high = factors
    if high is None:
        return f"at least {first}x" if low > 1 else f"not known, {first}x or more"
    return f"{'not known, ' if low < 1 < high else ''}{first} to {last}x"


def number_text(value: float | None, unit: str = "") -> str:
    """Return a number with its unit, or a dash for None."""
    return DASH if value is None else number(value, unit)


def trend(ratio: float | None, observed: ReportNumber, before: ReportNumber) -> str:
    """Return the change from the previous period in per cent: a dash if a side is missing, "not known" if bounds overlap."""
    if ratio is None:
        return DASH if observed.gap or before.gap or not before.value else "not known"
    return "unchanged" if abs(ratio) < 0.005 else f"{ratio:+.0%}"


def money(amount: float | None, currency: str) -> str:
    """Return an amount in a currency, or a dash for None."""
    return DASH if amount is None else amount_of(amount, currency)


SIMULATED = "Simulated: none of this traffic is real, and no GPU served it."

BOUNDS = "Bounds are those of what was measured; “likely” is a best estimate, “certain” holds whatever lies inside the bounds."

FLEET_USE = "fleet utilisation, on average"
"""Column title of fleet shares: work by capacity over the period, neither at the peak nor of the GPUs."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

PROPOSED = {
    ProposalKind.KEEP.value: "Keep",
    ProposalKind.GROW.value: "Grow",
    ProposalKind.SHRINK.value: "Shrink",
    ProposalKind.NONE.value: "No recommendation",
}

NEXT = "What to do: read plan.next.yaml, then `sizewatch plan check plan.next.yaml`, then take it over as the plan."
UNTIL_THEN = (
    "Until then plan.next.yaml holds what production takes: read it, run `sizewatch plan check plan.next.yaml`, then take it "
    "over as the plan."
)
NOTHING_TO_DO = "Nothing is to be done: the plan stays as it is."

STATUS = {
    "ok": "as it should be",
    "warning": "warning",
    "critical": "critical",
    "unknown": "not known",
    "not_judged": DASH,
}


def instant(t: float, zone: str = "UTC") -> str:
    """Return unix seconds as "Mon 17 Nov 14:05 UTC"."""
    return format_local(t, zone, "%a %d %b %H:%M %Z")


def period(report: Report) -> str:
    """Return the period and the time of creation of the report."""
    length = days_words((report.until - report.since) / 86_400.0)
    return (
        f"{instant(report.since, report.zone)} to {instant(report.until, report.zone)} ({length}); "
        f"made by sizewatch {report.version} at {instant(report.made_at, report.zone)}."
    )


def verdict_words(status: str, certainty: str) -> str:
    text = STATUS.get(status, status)
    return f"{text}, {certainty}" if certainty else text


def lacking(proposal_part: ProposalPart) -> tuple[str, ...]:
    """Return what a proposal lacks; nothing where that is one thing, for the sentence names it."""
    return proposal_part.needed if len(proposal_part.needed) > 1 else ()


def next_step(report: Report) -> str:
    lacking = ", ".join(tier.tier for tier in report.tiers if tier.proposal.kind == ProposalKind.NONE)
    refuted = ", ".join(tier.tier for tier in report.tiers if tier.curve.benchmark_refuted)
    if refuted:
        return (
            f"What to do: first benchmark {refuted} again, production takes less than its benchmark says. {UNTIL_THEN}"
        )
    if report.plan_changes:
        return NEXT
    if lacking:
        return (
            f"What to do: the plan stays as it is. What is lacking for {lacking} stands under its proposal; "
            "then report again."
        )
    return NOTHING_TO_DO


def lengths_line(tier: TierReport) -> str:
    """Return the request lengths that all numbers of a tier hold for, and those of its curve if they differ."""
    part = tier.curve
    text = f"All numbers{':' if tier.lengths.startswith('lengths') else ''} {tier.lengths}."
    return text if part.lengths == tier.lengths else f"{text} The curve is of {curve_period(tier)}, {part.lengths}."


def curve_period(tier: TierReport) -> str:
    """Return the time of production's points: "the 7 days to Mon 17 Nov 00:00 UTC"."""
    return f"the {days_words(tier.curve.days)} to {instant(tier.curve.until, tier.trap.zone)}"


TOLD = ("warning", "critical", "unknown")
"""Statuses whose sentence always stands in the table."""


def is_told(row: MonitoredValue) -> bool:
    """Return whether the sentence of a row stands in the table, not in the appendix.

    That of a row without a finding does where the value lies outside the target.
    """
    return row.status in TOLD or (row.status == "ok" and row.meets_target is False)


def row_words(row: MonitoredValue) -> str:
    """Return the verdict of a row in words. A value outside its target is never as it should be (DESIGN 3.23)."""
    if row.status == "ok" and row.meets_target is False:
        return "outside the target, no finding"
    return verdict_words(row.status, row.certainty)


def main_rows(tier: TierReport) -> list[MonitoredValue]:
    """Return the rows of the monitoring table that were measured or that a rule found something in."""
    return [row for row in tier.monitoring if not row.observed.gap or row.status in ("warning", "critical")]


def calm_rows(tier: TierReport) -> list[MonitoredValue]:
    """Return the judged rows whose sentence is not in the table."""
    judged = (row for row in tier.monitoring if row.status != "not_judged")
    return [row for row in judged if row.rules and (row.observed.gap or not is_told(row))]


def unseen_line(tier: TierReport) -> str:
    """Return the rows that are not in the table, by reason, "" without such rows."""
    shown, names = main_rows(tier), dict[str, list[str]]()
    for row in (monitored_value for monitored_value in tier.monitoring if monitored_value not in shown):
        names.setdefault(row.observed.text or row.observed.gap.replace("_", " "), []).append(row.title)
    text = "; ".join(f"{', '.join(titles)} ({why})" for why, titles in names.items())
    return f"Not known: {text}." if text else ""


def bounds_name(row: MonitoredValue) -> str:
    """Return what the bounds of a row are, "" where they are those of the value itself."""
    return INSTANTS if SIGNALS[row.key].how in (SignalKind.LEVEL, SignalKind.TOTAL_LEVEL) else ""


def observed_text(row: MonitoredValue, currency: str, with_bounds: bool = True) -> str:
    """Return the observed value of a row, money with its currency."""
    reading, unit = row.observed, row.unit
    text = words(reading, unit, bounds_name(row)) if with_bounds else best_estimate(reading, unit)
    return text + (f" {currency}" if row.unit == "money" and not row.observed.gap else "")


def curve_sentence(part: CurvePart) -> str:
    """Return the present capacity of a replica with bounds, and the headroom."""
    if part.usable_rps is None:
        return f"What a replica can take is not known: {part.reason}."
    high = "open" if part.usable_high is None else number(part.usable_high, "per_second")
    text = f"A replica keeps the SLO up to {number(part.usable_rps, 'per_second')} now ({part.certainty}; between "
    text += f"{number(part.usable_low or 0.0, 'per_second')} and {high}), the plan says "
    text += f"{number_text(part.planned_usable_rps, 'per_second')}: {part.reason}. "
    text += "The knee was reached." if part.knee_seen else "The knee was not reached."
    if part.headroom is not None:
        left = f"{part.headroom:.0%} headroom is left" if part.headroom >= 0 else f"{-part.headroom:.0%} is missing"
        text += f" At the peak fleet utilisation is {1 - part.headroom:.0%} with the planned replicas, none of them lost: {left}."
    return text


def sum_line(formula: Formula) -> str:
    """Return the formula, its terms with values, and the result."""
    terms = "; ".join(f"{term.name} = {_value(term.value, term.unit)}" for term in formula.terms)
    return f"{formula.formula}; {terms}: {formula.result.name} = {_value(formula.result.value, formula.result.unit)}"


def _value(value: float, unit: str) -> str:
    if unit == "per_second":
        return number(value, unit)
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}" if unit and unit != "replicas" else text


def fleet_lines(tier: TierReport) -> list[str]:
    """Return step 11 with its arithmetic."""
    part = tier.fleet
    gpus = part.gpus_per_replica or 0
    planned = "not in the plan" if part.planned is None else f"{part.planned} replicas, {part.planned * gpus} GPUs"
    lines = [f"Planned: {planned}. Ready on average: {part.ready:.3g} replicas."]
    if part.needed is None or part.arithmetic is None:
        return [*lines, f"Needed: not known; {part.missing}."]
    lines.append(f"Needed: {format_count(part.needed, 'replica')}, {part.needed * gpus} GPUs.")
    lines.append(f"{sum_line(part.arithmetic)}.")
    sources = [f"{term.name}: {term.source}" for term in part.arithmetic.terms if term.name != "capacity"]
    return [*lines, f"Where from: {'; '.join(sources)}.", f"Why other counts differ: {'; '.join(_other_counts(tier))}."]


def _other_counts(tier: TierReport) -> Iterator[str]:
    """Yield every other replica count of the tier's plan, proposal or commands, with its purpose."""
    part, workload, proposal = tier.fleet, tier.workload, tier.proposal
    if part.planned is not None and part.planned != part.needed:
        made = f"the plan has {part.planned}"
        if workload.planned_peak_rps is not None and tier.curve.planned_usable_rps is not None:
            made += f", for a peak of {number(workload.planned_peak_rps, 'per_second')} at "
            made += f"{number(tier.curve.planned_usable_rps, 'per_second')} a replica"
        yield made
    if proposal.replicas is not None and proposal.replicas != part.needed:
        yield f"{proposal.replicas} is proposed: {proposal.sentence[:1].lower()}{proposal.sentence[1:]}"
    if part.for_peak is not None and part.for_peak != part.needed:
        yield f"the peak alone needs {part.for_peak}, the rest is the plan's safety factor"
    if not part.fewest == part.most == part.needed:
        fewest = "open" if part.fewest is None else part.fewest
        most = "open" if part.most is None else part.most
        yield f"{fewest} to {most} at the bounds of what a replica takes"
    yield "`sizewatch prewarm` counts for the forecast of each time, `sizewatch whatif` for the peak of the days it looks at"


def trap_sentence(part: TrapPart) -> str:
    """Return the fleet utilisation, and whether it is a utilization trap."""
    text = "" if part.status == "ok" else f" ({verdict_words(part.status, part.certainty)})"
    used = (
        ""
        if part.sentence.startswith("Fleet utilisation")
        else f"Fleet utilisation {words(part.utilization, 'ratio')} on average over the time. "
    )
    return f"{used}{part.sentence}{text}."


def busiest_idle(part: TrapPart) -> str:
    """Return the quietest four hours of the average day for batch work, and the idle replicas then."""
    hours = [
        [week_hour for week_hour in part.week if week_hour.hour == hour and week_hour.idle_replicas is not None]
        for hour in range(24)
    ]
    if not all(hours):
        return ""
    means = [sum(hour.idle_replicas or 0.0 for hour in group) / len(group) for group in hours]
    stretch = [(sum(means[(start + step) % 24] for step in range(4)) / 4, start) for start in range(24)]
    most, start = max(stretch, key=lambda pair: (pair[0], -pair[1]))
    if most < 0.05:
        return ""
    when = f"from {start}:00 to {(start + 4) % 24}:00 ({part.zone})"
    return f"Idle most {when}: {most:.1f} replicas on average; batch work fits there."


def _count(amount: float, what: str) -> str:
    """Return an amount with its noun."""
    return f"{figure(amount)} {what}{'' if figure(amount) == '1' else 's'}"


def seen_words(seen: float, hours: float) -> str:
    """Return "5 of 7 hours", and "12 of 20 minutes" of an hour or less."""
    # Of a day or less, 98 % can round to all of it.
    places = 1 if hours <= 25 else 0
    return (
        f"{round(seen, places):g} of {hours:.0f} hours" if hours > 1 else f"{seen * 60:.0f} of {hours * 60:.0f} minutes"
    )


def days_words(days: float) -> str:
    """Return "7 days" or "1 day", and shorter times to the hour."""
    return f"{days:.3g} day{'' if days == 1 else 's'}" if days >= 1 else format_duration(days * 86_400.0)


def trend_note(tier: TierReport) -> str:
    """Return the reason if no row has a trend, else ""."""
    if any(row.change is not None for row in tier.monitoring):
        return ""
    return "There is no trend: nothing that could be compared was seen in as long a time before."


def prewarm_sentences(tier: TierReport) -> list[str]:
    """Return savings or cost of pre-warming against reacting, and the forecast quality."""
    part = tier.prewarming
    if part.missing:
        return [f"Not known: {part.missing}."]
    lines = [f"When this was written: {part.decision}."] if part.decision else []
    if part.saved_replica_hours is not None:
        lines.append(_against_reacting(part, tier.currency))
    if part.method:
        text = f"Forecast by {part.method}"
        if part.covered_ratio is not None:
            text += f": {part.covered_ratio:.0%} of {part.forecasts:,} forecasts were high enough, 95% are meant to be"
        # A failed forecast is reported with this number in the sentence below.
        tell = part.error_ratio is not None and not part.failed
        text += f"; its error is {part.error_ratio:.2f} times that of the simplest one, {part.naive}" if tell else ""
        lines.append(f"{text}.")
    if part.failed:
        lines.append(f"The forecast was no better than none: {part.failed}. Do not pre-warm by it until that is over.")
    return [*lines, part.sentence] if part.sentence else lines


def _against_reacting(part: PrewarmPart, currency: str) -> str:
    hours, late = part.saved_replica_hours or 0.0, part.saved_late_requests or 0.0
    if not hours and not late:
        return "Compared with reacting to load, pre-warming saved and cost nothing."
    paid = f" ({money(abs(part.saved_money), currency)})" if part.saved_money is not None else ""
    took = f"took {_count(abs(hours), 'replica-hour')} more" if hours < 0 else f"saved {_count(hours, 'replica-hour')}"
    text = f"Compared with reacting to load, pre-warming {took}{paid} and "
    if not late:
        return f"{text}made no difference to late requests."
    return f"{text}{'spared' if late > 0 else 'made'} {_count(abs(late), 'late request')}{'' if late > 0 else ' more'}."
