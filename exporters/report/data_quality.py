"""Data quality of a report: gaps, and remarks on incomplete weeks.

Remarks cover missing data, a plan change within the period and a clock change. Findings are in
`exporters.report.findings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from exporters.render.text import format_duration, format_local
from exporters.report.findings import total_duration
from exporters.report.inputs import TierPast
from exporters.report.wording import instant, seen_words
from rules.evaluator.timeline import TimelineKind, join_releases
from rules.plan.schema import plan_version
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary
from rules.telemetry.windows import group_by

HOUR, HALF_HOUR = 3600.0, 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPeriod:
    """Unknown period: subject, reason and total duration."""

    rule: str
    reason: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuality:
    """Data quality: `hours_seen` of `hours`, weighted by coverage. `remarks` are about the whole period."""

    hours: float
    hours_seen: float
    coverage: float | None
    plan_versions: tuple[str, ...]
    remarks: tuple[str, ...]
    blind: tuple[UnknownPeriod, ...]


GONE = "Is it gone? Then take it out of the plan."

PARTS = (
    "Lengths and the comparison with the benchmark are of the last 7 days, the curve is of the 7 days to midnight "
    "(UTC), the rest is of the whole time."
)

NEARLY = 0.98
"""Share of time from which a period counts as fully seen. A scrape or two are always missed."""


def quality(past: TierPast, zone: str) -> DataQuality:
    """Return the gaps of the tier and their durations."""
    seen = past.resize.seen
    return DataQuality(
        hours=(seen.until - seen.since) / HOUR,
        hours_seen=seen.observed_seconds / HOUR,
        coverage=seen.total.coverage if seen.total else None,
        plan_versions=seen.versions,
        remarks=tuple(sentence for _, sentence in _remarks(past, zone)),
        blind=_blind(past),
    )


def _blind(past: TierPast) -> tuple[UnknownPeriod, ...]:
    """Return unknown spans by rule and reason, longest first. Spans of several replicas at one time count once."""
    seen = past.resize.seen
    rows = []
    for (rule, reason), spans in group_by(past.unknowns, lambda span: (span.rule, span.reason.value)).items():
        seconds = total_duration(spans, seen.since, seen.until)
        if seconds > 0:
            rows.append(UnknownPeriod(rule=rule, reason=reason, seconds=seconds, text=spans[-1].text))
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.rule)))


MOST_BLIND = 5
"""Maximum number of lines of unknown periods, longest first."""

MOST_NAMED = 6
"""Maximum number of rules that a line names."""


def blind_lines(part: DataQuality) -> Iterator[str]:
    """Yield the unknown periods: rules, duration and reason. The text, if present, replaces the gap's name."""
    periods = group_by(part.blind, lambda period: (period.seconds, period.text or period.reason.replace("_", " ")))
    for (seconds, why), rows in list(periods.items())[:MOST_BLIND]:
        rules = [row.rule for row in rows]
        more = f" and {len(rules) - MOST_NAMED} more" if len(rules) > MOST_NAMED else ""
        yield f"{', '.join(rules[:MOST_NAMED])}{more}: not judged for {format_duration(seconds)}: {why}"
    hidden = sum(len(rows) for rows in list(periods.values())[MOST_BLIND:])
    if hidden:
        yield f"and {hidden} more of shorter times, which report.json has"


def _remarks(past: TierPast, zone: str) -> Iterator[tuple[str, str]]:
    """Yield what makes the period no usual one: in few words for the verdict ("": not there), and as a sentence."""
    seen = past.resize.seen
    hours, known = (seen.until - seen.since) / HOUR, seen.observed_seconds / HOUR
    if not seen.hours:
        yield "", _vanished(past, zone)
        return
    began, last = _new_since(past), _gone_since(seen)
    if last is not None:
        text = f"Nothing of this tier was seen since {instant(last, zone)}: what is said of it ends there. {GONE}"
        yield f"not seen since {instant(last, zone)}", text
    if began is not None:
        text = f"The tier was first seen on {instant(began, zone)} and never in as long a time before: it is new."
        yield f"new since {instant(began, zone)}", text
    if known < NEARLY * hours:
        text = seen_words(known, hours)
        yield f"seen for {text} only", f"Only {text} were seen{_longest_hole(seen, zone)}."
    changed = _plan_changed(past)
    if changed is not None:
        yield f"under another plan until {instant(changed, zone)}", _other_plan(seen, changed, zone)
    for release in join_releases(past.events):
        if release.kind == TimelineKind.RELEASE and seen.since <= release.t < seen.until:
            yield "", f"The engine's release changed on {instant(release.t, zone)}: {release.text}."
    if clock := clock_change(seen.since, seen.until, zone):
        yield "", clock
    # A week in which the clock was set back has an extra hour.
    if seen.until - seen.since > RECENT_SECONDS + HOUR:
        yield "", PARTS
    if seen.minutes == 0:
        yield "", "Arrivals are not in the history: peak and average are not known."


def quality_summary(past: TierPast, zone: str) -> str:
    """Return the reasons why the period is no whole week, for the verdict. Return "" if there are none."""
    return ", ".join(short for short, _ in _remarks(past, zone) if short)


def _new_since(past: TierPast) -> float | None:
    """Return when the tier was first seen, if that is well within the period and nothing was seen before it."""
    seen = past.resize.seen
    first = min((hour.start for hour in seen.hours), default=None)
    known_before = past.before is not None and past.before.covered_seconds > 0
    return first if first is not None and first - seen.since > 2 * HOUR and not known_before else None


def _gone_since(seen: ProductionSummary) -> float | None:
    """Return when the tier was last seen, if that is well before the end."""
    last = max((hour.end for hour in seen.hours), default=None)
    return last if last is not None and seen.until - last > 2 * HOUR else None


def _vanished(past: TierPast, zone: str) -> str:
    seen = past.resize.seen
    text = f"Nothing of this tier was seen from {instant(seen.since, zone)} to {instant(seen.until, zone)}"
    if past.before is not None and past.before.covered_seconds > 0:
        return f"{text}; it was last seen at {instant(past.before.end, zone)}. {GONE}"
    return f"{text}, nor in as long a time before. Was sizewatch running, and does the tier have targets?"


def _longest_hole(seen: ProductionSummary, zone: str) -> str:
    """Return the longest gap in words if it is at least two hours, else ""."""
    ends = [seen.since, *(hour.end for hour in seen.hours)]
    starts = [*(hour.start for hour in seen.hours), seen.until]
    holes = [(b - a, a, b) for a, b in zip(ends, starts, strict=True)]
    length, begin, end = max(holes)
    if length < 2 * HOUR:
        return ""
    return f"; the longest hole is {format_duration(length)}, {instant(begin, zone)} to {instant(end, zone)}"


def _other_plan(seen: ProductionSummary, changed: float, zone: str) -> str:
    """Return the remark on a plan change within the period: its time and the data under each plan."""
    if not seen.plan_hours:
        return "The present plan is newer than every hour seen: nothing was compared with its benchmark yet."
    return (
        f"The plan changed on {instant(changed, zone)}: the comparison with the benchmark, the curve and fleet utilisation "
        f"rest on the {len(seen.plan_hours)} hours since then; traffic, cost and incidents on the whole time."
    )


def _plan_changed(past: TierPast) -> float | None:
    """Return when the plan changed, None if only the present plan was seen. Return the end without present hours."""
    seen = past.resize.seen
    present = plan_version(seen.context.plan) if seen.context.plan else ""
    if not set(seen.versions) - {present}:
        return None
    if not seen.plan_hours:
        return seen.until
    events = [event for event in past.events if event.kind == TimelineKind.PLAN and seen.since <= event.t < seen.until]
    return events[-1].t if events else seen.plan_hours[0].start


def clock_change(since: float, until: float, zone: str) -> str:
    """Return a sentence for each clock change of `zone` in [since, until), "" if there was none."""
    place = ZoneInfo(zone)
    # Every zone changes its clock on a full or half hour of UTC.
    instants = [since + HALF_HOUR * step for step in range(round((until - since) / HALF_HOUR) + 1)]
    offsets = [datetime.fromtimestamp(t, place).utcoffset() or timedelta() for t in instants]
    rows = []
    for t, before, after in zip(instants[1:], offsets, offsets[1:], strict=False):
        moved = (after - before).total_seconds()
        if moved:
            which, twice = ("forward", "is missing") if moved > 0 else ("back", "comes twice")
            day = format_local(t, zone, "%a %d %b")
            text = (
                f"The clock in {zone} was set {which} by {format_duration(abs(moved))} on {day}: an hour of that night"
            )
            rows.append(f"{text} {twice} in the hours of the week; rates are not affected.")
    return " ".join(rows)
