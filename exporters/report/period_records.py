"""The report's records of the time itself: incidents, restarts, and what was not known.

Owns their shape, as `exporters.report.records` owns that of everything else; nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    t: float
    status: str
    stage: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAlertRow:
    """An alert of others; `times` more than once it is all of that name, from the first begin to the last end."""

    name: str
    times: int
    started_at: float
    ended_at: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFinding:
    """An episode of a rule that sends alerts, or several of them: `times`, with `seconds` in which any lasted, on so many
    `replicas` (0: it is about the tier). `started_at` is the first begin, `last_started_at` the last, `ended_at` the last end
    (null: not over). Status, replica, sentence and stages are those of the worst, which began at `worst_at`. `foreign` are the
    alerts of others that they explain."""

    rule: str
    title: str
    replica: str | None
    replicas: int
    status: str
    certainty: str
    times: int
    seconds: float
    started_at: float
    ended_at: float | None
    last_started_at: float
    worst_at: float
    sentence: str
    stages: tuple[StageRow, ...]
    foreign: tuple[ExternalAlertRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRow:
    """Restarts of a replica's engine ("" where only their number is known). `unseen_seconds` is from the last page of the old
    process to the first of the new one, in all; `untimed` of them count for nothing in it: how long they took is not known."""

    replica: str
    times: int
    first: float | None
    last: float | None
    unseen_seconds: float
    untimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPeriod:
    """What was not known, for which reason and for how long in all."""

    rule: str
    reason: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPart:
    """`hours_seen` of `hours` were seen, weighted by coverage. `remarks` are sentences about the time as a whole."""

    hours: float
    hours_seen: float
    coverage: float | None
    plan_versions: tuple[str, ...]
    remarks: tuple[str, ...]
    blind: tuple[UnknownPeriod, ...]
