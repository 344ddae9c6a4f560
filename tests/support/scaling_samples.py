"""Tiers to be scaled, and what reads their manifests as the autoscalers themselves would, minute by minute of a day."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from exporters.autoscaling.manifests import ObjectReference, Scaling, manifest_text
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import ScheduleStep
from rules.telemetry.signals import Reading

DAY = 1440
MIDNIGHT = datetime(2026, 7, 6, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def steps(replicas_from: dict[int, int]) -> tuple[ScheduleStep, ...]:
    """Steps of replicas by the minutes from local midnight."""
    return tuple(
        ScheduleStep(start=MIDNIGHT + minute * 60, replicas=replicas, demand_rps=1.0)
        for minute, replicas in replicas_from.items()
    )


SCHEDULES = {
    "day": {480: 8, 750: 11, 1140: 3, 1320: 2},
    "night over midnight": {1430: 9, 1620: 5, 1800: 2},
    "early morning": {1: 9, 600: 3},
    "flat": {540: 6},
}

CHAT = Scaling(
    tier="chat",
    namespace="llm",
    workload=ObjectReference(kind="Deployment", name="vllm-chat"),
    minimum_warm=2,
    maximum=14,
    zone="Europe/Berlin",
    prometheus="http://prometheus.monitoring:9090",
    lead_seconds=207.0,
    recommended=6,
    schedule=steps(SCHEDULES["day"]),
    note="schedule of the day that follows, repeated every day",
)
UNSCHEDULED = replace(CHAT, schedule=(), note="")
DRAINED = replace(CHAT, drain=DrainTime(e2e_p99=Reading(value=37.5, low=30.0, high=40.0, n=5000.0)))

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
    return [data for data in yaml.safe_load_all(manifest_text(scaling, name)) if data]


def asked(scaling: Scaling, schedule: dict[int, int]) -> list[int]:
    """What must be asked for in each minute of a day: the most that is needed from now until the lead has passed."""
    needed, now = [], list(schedule.values())[-1]
    by_minute = {minute % DAY: replicas for minute, replicas in schedule.items()}
    now = by_minute[max(by_minute)]
    for minute in range(DAY):
        now = by_minute.get(minute, now)
        needed.append(min(max(now, scaling.minimum_warm), scaling.maximum))
    lead = -(-int(scaling.lead_seconds) // 60)
    return [max(needed[(minute + ahead) % DAY] for ahead in range(lead + 1)) for minute in range(DAY)]
