"""Results of a rule: verdict or unknown, with status, causes and actions."""

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
    """Subject of a verdict: a tier or one of its replicas."""

    tier: str
    replica: str | None = None

    def __str__(self) -> str:
        return self.tier if self.replica is None else f"{self.tier}/{self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Suspected cause with evidence for and against it, in words with numbers."""

    cause: str
    certainty: Certainty
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Recommended action and the runbook heading that explains it."""

    text: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a rule at an instant (unix seconds). Only the cascade has a `stage`."""

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
    """Result of a rule without enough data. It has no status, is shown and counted."""

    t: float
    rule: str
    subject: Subject
    reason: Gap
    text: str = ""


RuleResult = Verdict | Unknown
