"""What a rule answers: a verdict, or that it cannot know.

Owns the record types and their order of severity. Judgements make them, episodes and alert states are built from them,
exporters print them. They hold words for people and readings for programs, never thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.telemetry.signals import Gap, SignalValue


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


SEVERITY = {Status.UNKNOWN: 0, Status.OK: 0, Status.WARNING: 1, Status.CRITICAL: 2}
"""Exported as `sizewatch_verdict` (unknown exports nothing)."""

FIRING = frozenset({Status.WARNING, Status.CRITICAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a verdict is about: a tier, or one replica of it."""

    tier: str
    replica: str | None = None

    def __str__(self) -> str:
        return self.tier if self.replica is None else f"{self.tier}/{self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A suspected cause with what speaks for it and against it, in words with numbers."""

    cause: str
    certainty: Certainty
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do, and the heading of the runbook that says how."""

    text: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A rule's answer at an instant (unix seconds). `stage` is used by the cascade only."""

    t: float
    rule: str
    subject: Subject
    status: Status
    certainty: Certainty
    observed: SignalValue
    expected: SignalValue
    unit: str
    sentence: str
    stage: int | None = None
    causes: tuple[Cause, ...] = ()
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A rule that could not judge, and why. It leads to no status, is shown and counted."""

    t: float
    rule: str
    subject: Subject
    reason: Gap
    text: str = ""


RuleResult = Verdict | Unknown
