"""Incidents and restarts in words, for report.md and report.html alike.

Owns words only; what is one line is `exporters.report.findings`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from exporters.render.time_words import format_duration
from exporters.report.period_records import ExternalAlertRow, ReportFinding, RestartRow
from exporters.report.records import TierReport
from exporters.report.wording import instant
from rules.replicas.cascade import STAGES

MOST_RESTARTED = 10
"""So many replicas are named with their restarts; the others are one line, and report.json has them all."""


def affected_replicas(one: ReportFinding) -> str:
    """Of which replicas it is; "" of the tier as a whole."""
    if one.replica is None:
        return ""
    return f"on {one.replica}" if one.replicas < 2 else f"on {one.replicas} replicas, worst on {one.replica}"


def period_text(one: ReportFinding, zone: str) -> str:
    """When it began and how long it lasted; of several how often, how long in all, the first and the last."""
    if one.times == 1:
        lasted = "not over" if one.ended_at is None else f"for {format_duration(one.ended_at - one.started_at)}"
        return f"{instant(one.started_at, zone)}, {lasted}"
    text = f"{one.times:,} times, {format_duration(one.seconds)} in all; first {instant(one.started_at, zone)}"
    text += f", last {instant(one.last_started_at, zone)}"
    return f"{text}, not over" if one.ended_at is None else text


def finding_text(one: ReportFinding, zone: str) -> str:
    """Its sentence; of several that of the worst, with its time."""
    return one.sentence if one.times == 1 else f"At its worst, {instant(one.worst_at, zone)}: {one.sentence}"


def stage_lines(one: ReportFinding, zone: str) -> list[str]:
    """When a cascade reached each stage, to the second: its stages follow each other within a minute."""
    lines: list[str] = []
    worst = 0
    for step in one.stages:
        if step.stage is not None and step.stage > worst:
            worst = step.stage
            name = STAGES[step.stage]
            lines.append(
                f"{datetime.fromtimestamp(step.t, ZoneInfo(zone)):%a %d %b %H:%M:%S %Z}: stage {worst}, {name}"
            )
    return lines


def foreign_line(one: ExternalAlertRow, zone: str) -> str:
    """An alert of others that the incident explains."""
    often = "" if one.times == 1 else f", {one.times:,} times"
    return f"{instant(one.started_at, zone)}: alert {one.name}{often}{f': {one.text}' if one.text else ''}"


def restart_lines(tier: TierReport, zone: str) -> list[str]:
    """A line for each replica that restarted, the others together."""
    named = [row for row in tier.restarts if row.replica]
    lines = [_restarts(row, zone) for row in named[:MOST_RESTARTED]]
    others = named[MOST_RESTARTED:]
    if others:
        lines.append(f"{len(others)} replicas more: {_times(others)}; {_unseen(others)}")
    lines += [f"{_times([row])} more, of which only the number is known" for row in tier.restarts if not row.replica]
    return lines


def restarts_in_all(tier: TierReport) -> str:
    """What restarts cost in windows, for the section on what was not known; "" where none was seen."""
    if not tier.restarts:
        return ""
    times = sum(row.times for row in tier.restarts)
    return f"Engines restarted {'once' if times == 1 else f'{times:,} times'}; around that {_unseen(tier.restarts)}."


def _restarts(row: RestartRow, zone: str) -> str:
    first, last = (instant(t or 0.0, zone) for t in (row.first, row.last))
    at = first if row.times == 1 else f"first {first}, last {last}"
    return f"{row.replica}: {_times([row])}, {at}; {_unseen([row])}"


def _times(rows: Sequence[RestartRow]) -> str:
    times = sum(row.times for row in rows)
    return "1 restart" if times == 1 else f"{times:,} restarts"


def _unseen(rows: Sequence[RestartRow]) -> str:
    """The time of which nothing is known, and of how many restarts that is not known."""
    times, untimed = sum(row.times for row in rows), sum(row.untimed for row in rows)
    if untimed == times:
        return (
            "how long nothing was seen of it is not known" if times == 1 else "how long nothing was seen is not known"
        )
    text = f"nothing was seen of it for {format_duration(math.fsum(row.unseen_seconds for row in rows))}"
    text += " in all" if times > 1 else ""
    return f"{text}, {untimed} of them not counted in that" if untimed else text
