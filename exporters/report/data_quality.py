"""Data quality of a report: gaps, and remarks on incomplete weeks.

Remarks cover missing data, a plan change within the period and a clock change. Findings are in
`exporters.report.findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from exporters.render.text import format_duration, format_local
from exporters.report.inputs import TierPast
from exporters.report.period_records import QualityPart, UnknownPeriod
from exporters.report.wording import instant, seen_words
from rules.evaluator.timeline import TimelineKind, join_releases
from rules.plan.schema import plan_version
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary

HOUR, HALF_HOUR = 3600.0, 1800.0
NEARLY = 0.98
"""Share of time from which a period counts as fully seen. A scrape or two are always missed."""


def quality(past: TierPast, zone: str) -> QualityPart:
    """Return the gaps of the tier and their durations."""
    seen = past.resize.seen
    return QualityPart(
        hours=(seen.until - seen.since) / HOUR,
        hours_seen=seen.observed_seconds / HOUR,
        coverage=seen.total.coverage if seen.total else None,
        plan_versions=seen.versions,
        remarks=tuple(_remarks(past, zone)),
        blind=_blind(past),
    )


def _blind(past: TierPast) -> tuple[UnknownPeriod, ...]:
    """Return unknown spans by rule and reason, longest first. Each span is clipped to the report's period."""
    seen = past.resize.seen
    sums: dict[tuple[str, str], tuple[float, str]] = {}
    for unknown in past.unknowns:
        seconds = min(unknown.ended_at or seen.until, seen.until) - max(unknown.started_at, seen.since)
        if seconds > 0:
            key = (unknown.rule, unknown.reason.value)
            sums[key] = (sums.get(key, (0.0, ""))[0] + seconds, unknown.text)
    rows = [UnknownPeriod(rule=rule, reason=why, seconds=s, text=text) for (rule, why), (s, text) in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.rule)))


MOST_BLIND = 12
"""Maximum number of lines of unknown periods, longest first."""

MOST_NAMED = 6
"""Maximum number of rules that a line names."""


def blind_lines(part: QualityPart) -> Iterator[str]:
    """Yield the unknown periods: rules, duration and reason. The text, if present, replaces the gap's name."""
    mapping: dict[str, list[str]] = {}
    for period in part.blind:
        text = f"not judged for {format_duration(period.seconds)}: {period.text or period.reason.replace('_', ' ')}"
        mapping.setdefault(text, []).append(period.rule)
    lines = [f"{_named(rules)}: {text}" for text, rules in mapping.items()]
    yield from lines[:MOST_BLIND]
    hidden = sum(len(rules) for rules in list(mapping.values())[MOST_BLIND:])
    if hidden:
        yield f"and {hidden} more of shorter times, which report.json has"


def _named(rules: Sequence[str]) -> str:
    more = f" and {len(rules) - MOST_NAMED} more" if len(rules) > MOST_NAMED else ""
    return ", ".join(rules[:MOST_NAMED]) + more


def coverage_sentence(part: QualityPart) -> str:
    """Return the seen share of the period and of its replicas."""
    text = f"{seen_words(part.hours_seen, part.hours)} were seen"
    return (
        f"{text}." if part.coverage is None else f"{text}, and in them {part.coverage:.1%} of the time of all replicas."
    )


def _remarks(past: TierPast, zone: str) -> Iterator[str]:
    seen = past.resize.seen
    hours, known = (seen.until - seen.since) / HOUR, seen.observed_seconds / HOUR
    if not seen.hours:
        yield _vanished(past, zone)
        return
    if known < NEARLY * hours:
        yield f"Only {seen_words(known, hours)} were seen{_longest_hole(seen, zone)}."
    began, last = _new_since(past), _gone_since(seen)
    if began is not None:
        yield (
            f"The tier was first seen on {instant(began, zone)} and never in as long a time before: it is new since then, "
            "or nobody watched it."
        )
    if last is not None:
        yield (
            f"Nothing of this tier was seen since {instant(last, zone)}: what is said of it ends there. "
            "Is it gone? Then take it out of the plan."
        )
    yield from _other_plans(past, zone)
    for release in join_releases(past.events):
        if release.kind == TimelineKind.RELEASE and seen.since <= release.t < seen.until:
            yield f"The engine's release changed on {instant(release.t, zone)}: {release.text}."
    changed = clock_change(seen.since, seen.until, zone)
    if changed:
        yield changed
    # A week in which the clock was set back has an extra hour.
    if seen.until - seen.since > RECENT_SECONDS + HOUR:
        yield (
            "Lengths and the comparison with the benchmark are of the last 7 days, the curve is of the 7 days to midnight (UTC), "
            "the rest is of the whole time."
        )
    if seen.minutes == 0:
        yield "Arrivals are not in the history: peak and average are not known."


def quality_summary(past: TierPast, zone: str) -> str:
    """Return the reasons why the period is no whole week, for the verdict. Return "" if there are none."""
    seen = past.resize.seen
    began, last = _new_since(past), _gone_since(seen)
    hours, known = (seen.until - seen.since) / HOUR, seen.observed_seconds / HOUR
    rows = []
    if last is not None:
        rows.append(f"not seen since {instant(last, zone)}")
    if began is not None:
        rows.append(f"new since {instant(began, zone)}")
    if known < NEARLY * hours:
        rows.append(f"seen for {seen_words(known, hours)} only")
    if (changed := _plan_changed(past)) is not None:
        rows.append(f"under another plan until {instant(changed, zone)}")
    return ", ".join(rows)


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
        return (
            f"{text}; it was last seen at {instant(past.before.end, zone)}. Is it gone? Then take it out of the plan."
        )
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


def _other_plans(past: TierPast, zone: str) -> Iterator[str]:
    """Yield remarks on a plan change within the period: its time and the data under each plan."""
    seen = past.resize.seen
    since = _plan_changed(past)
    if since is None:
        return
    if not seen.plan_hours:
        yield "The present plan is newer than every hour seen: nothing was compared with its benchmark yet."
        return
    yield (
        f"The plan changed on {instant(since, zone)}: the comparison with the benchmark, the curve and fleet utilisation "
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
            rows.append(
                f"The clock in {zone} was set {which} by {format_duration(abs(moved))} on "
                f"{format_local(t, zone, '%a %d %b')}: an hour of that night {twice} in the hours of the "
                "week, which are by that clock; rates are not affected."
            )
    return " ".join(rows)
