"""Results of a rule: verdict or unknown, with status, causes and actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Reading, SignalValue


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
class MissedObjective:
    """Share of a tier's requests that missed an objective; `share.n` is the number of requests.

    `objective` is TTFT, TPOT, ITL, E2E, or "" for failed requests, which have no limit in seconds.
    """

    objective: str
    limit_seconds: float | None
    share: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReplicas:
    """Ready replicas, on average over the time judged, and the surplus of them with its cost per day (None: no price).

    `needed` is the recommended count for the busiest hour, `minimum_warm` the plan's floor on the whole count.
    """

    replicas: float
    ready: float
    needed: int
    minimum_warm: int
    cost_per_day: float | None
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a rule at an instant (unix seconds). Only the cascade has a `stage`.

    `sentence` begins with a claim that stands alone, up to the first "; " or ": ". `details` are short facts with numbers.
    `missed` is what users of the tier felt when it fired, None without objectives. `idle` is what the tier wastes.
    `is_forecast` marks what is expected and not seen yet.
    """

    t: float
    rule: str
    subject: Subject
    status: Status
    certainty: Certainty
    observed: SignalValue
    expected: SignalValue
    unit: str
    sentence: str
    details: tuple[str, ...] = ()
    stage: int | None = None
    causes: tuple[Cause, ...] = ()
    actions: tuple[str, ...] = ()
    missed: MissedObjective | None = None
    idle: IdleReplicas | None = None
    is_forecast: bool = False

    def sentence_with_suspect(self) -> str:
        """Return the sentence and the first suspect, for surfaces that do not list the causes."""
        suspect = next((cause.evidence[0] for cause in self.causes[:1] if cause.evidence), "")
        return f"{self.sentence}. First suspect: {suspect}" if suspect else self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Result of a rule without enough data. It has no status, is shown and counted.

    `wait_seconds` is how long it lasts at least where time alone ends it and the rule is over minutes, else None.
    """

    t: float
    rule: str
    subject: Subject
    reason: Gap
    text: str = ""
    wait_seconds: float | None = None


RuleResult = Verdict | Unknown
