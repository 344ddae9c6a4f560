"""Report records of findings, restarts and unknown periods.

Other report records are in `exporters.report.records`.
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
    """Foreign alert. With `times` above 1 it covers all alerts of the name, from first begin to last end."""

    name: str
    times: int
    started_at: float
    ended_at: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFinding:
    """Finding of an alerting rule, or several findings of a rule. `times` counts them, and `seconds` is the time in
    which any lasted. `replicas` is the number of affected replicas (0: whole tier). `started_at` is the first begin,
    `last_started_at` the last, `ended_at` the last end (null: still active). Status, replica, sentence and stages are
    of the worst finding, which began at `worst_at`. `foreign` are the explained foreign alerts.
    """

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
class SymptomRow:
    """Findings of a rule in an incident. `started_at` is the first begin."""

    rule: str
    title: str
    times: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportIncident:
    """Incident: its root, the other rules that found something in order of time, and what users felt.

    `severity` is page, ticket or report (a note). `missed_share` is of `requests`, and 0-1; both are null without
    objectives. `missed` names the objective. `idle_replicas` and their cost per day are null where none idles.
    """

    id: str
    root: str
    title: str
    severity: str
    started_at: float
    ended_at: float | None
    sentence: str
    action: str
    symptoms: tuple[SymptomRow, ...]
    missed: str
    missed_share: float | None
    requests: float | None
    replicas: tuple[str, ...]
    idle_replicas: float | None
    idle_cost_per_day: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRow:
    """Engine restarts of a replica ("" if only their number is known). `unseen_seconds` is the total from the last page
    of an old process to the first page of the new. It excludes `untimed` restarts of unknown duration.
    """

    replica: str
    times: int
    first: float | None
    last: float | None
    unseen_seconds: float
    untimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPeriod:
    """Unknown period: subject, reason and total duration."""

    rule: str
    reason: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPart:
    """Data quality: `hours_seen` of `hours`, weighted by coverage. `remarks` are about the whole period."""

    hours: float
    hours_seen: float
    coverage: float | None
    plan_versions: tuple[str, ...]
    remarks: tuple[str, ...]
    blind: tuple[UnknownPeriod, ...]
