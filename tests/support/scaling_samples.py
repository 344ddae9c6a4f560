"""Tiers to be scaled, and what reads their manifests as the autoscalers themselves would, minute by minute of a week."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import time
from typing import Any

import yaml

from exporters.autoscaling.manifests import ObjectReference, Scaling, manifest_text
from exporters.autoscaling.schedule import ScheduleSlot
from forecast.capacity.drain import DrainTime
from rules.telemetry.signals import Reading

WORKDAYS = (0, 1, 2, 3, 4)
ALL_DAYS = tuple(range(7))
DAY, WEEK = 1440, 10080

SCHEDULE = (
    ScheduleSlot(start=time(8), weekdays=WORKDAYS, replicas=8),
    ScheduleSlot(start=time(12, 30), weekdays=WORKDAYS, replicas=11),
    ScheduleSlot(start=time(19), weekdays=WORKDAYS, replicas=3),
    ScheduleSlot(start=time(22), weekdays=ALL_DAYS, replicas=2),
    ScheduleSlot(start=time(10), weekdays=(5,), replicas=4),
)

CHAT = Scaling(
    tier="chat",
    namespace="llm",
    workload=ObjectReference(kind="Deployment", name="vllm-chat"),
    minimum_warm=2,
    maximum=14,
    zone="Europe/Berlin",
    prometheus="http://prometheus.monitoring:9090",
    lead_seconds=207.0,
    hold_seconds=600.0,
    recommended=6,
    schedule=SCHEDULE,
)
UNSCHEDULED = replace(CHAT, schedule=())
DRAINED = replace(CHAT, drain=DrainTime(e2e_p99=Reading(value=37.5, low=30.0, high=40.0, n=5000.0)))

NIGHTSHIFT = (
    ScheduleSlot(start=time(23, 50), weekdays=(4, 6), replicas=9),
    ScheduleSlot(start=time(3), weekdays=(0, 5), replicas=5),
    ScheduleSlot(start=time(0, 1), weekdays=(2,), replicas=7),
)
FLAT = (ScheduleSlot(start=time(9), weekdays=ALL_DAYS, replicas=6),)
RESTLESS = tuple(
    ScheduleSlot(
        start=time(minute // 60, minute % 60), weekdays=(day,), replicas=2 + minute // 240 + (minute // 7 + day) % 3
    )
    for day in ALL_DAYS
    for minute in range(0, DAY, 7)
)
SCHEDULES = {"days": SCHEDULE, "nights": NIGHTSHIFT, "flat": FLAT, "restless": RESTLESS}

HOSTILE = (
    'say "hi" {to} me',
    "x" * 200,
    "a\n---\nkind: Secret\n# b",
    "tier: {{ .Values }} <<.Series>>",
    "back\\slash and 'quotes'",
    "日本語 🦙\u2028\x85 end",
    "--",
    "bell \x07 and \x1b[31mred\x7f",
)


def objects(scaling: Scaling, name: str) -> list[dict[str, Any]]:
    """The objects of a manifest, read back from its text."""
    return [one for one in yaml.safe_load_all(manifest_text(scaling, name)) if one]


def needed(scaling: Scaling) -> list[int]:
    """What the schedule needs warm in each minute of the week, computed in the simplest way there is."""
    steps = sorted(
        (day * DAY + s.start.hour * 60 + s.start.minute, s.replicas) for s in scaling.schedule for day in s.weekdays
    )
    week, now = [], steps[-1][1]
    at = dict(steps)
    for minute in range(WEEK):
        now = at.get(minute, now)
        week.append(min(max(now, scaling.minimum_warm), scaling.maximum))
    return week


def asked(scaling: Scaling) -> list[int]:
    """What must be asked for in each minute: the most that is needed from now until the lead has passed."""
    week, lead = needed(scaling), -(-int(scaling.lead_seconds) // 60)
    return [max(week[(minute + ahead) % WEEK] for ahead in range(lead + 1)) for minute in range(WEEK)]


def times(cron: str) -> list[int]:
    """The minutes of the week (Monday first) at which a cron expression of numbers fires."""
    minute, hour, day, month, weekdays = cron.split()
    assert (day, month) == ("*", "*")
    on = set(range(7)) if weekdays == "*" else {day for part in weekdays.split(",") for day in _days(part)}
    return sorted((day - 1) % 7 * DAY + int(hour) * 60 + int(minute) for day in on)


def _days(part: str) -> Iterable[int]:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
