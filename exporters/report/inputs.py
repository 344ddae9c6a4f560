"""What the report of one tier is made from: the re-sizing, what rules said over the time, and what the history tells of it.

Owns the input records only. Whoever keeps a history fills them (`agent.reporting`); a test may make them by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporters.documents.prewarm_value import PrewarmValue
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.timeline import TimelineEvent
from rules.plan.schema import Plan
from rules.resize.proposal import Resize
from rules.telemetry.windows import Window
from rules.verdicts.finding import Finding, UnknownSpan
from rules.verdicts.verdict import RuleResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarming:
    """What pre-warming did for a tier. `worth` compares strategies over its history; the rest is how the forecast did:
    `covered_ratio` of targets at or below the 95 % quantile, error by that of the method `naive`. None where it is not known."""

    worth: PrewarmValue | None = None
    method: str = ""
    naive: str = ""
    covered_ratio: float | None = None
    error_ratio: float | None = None
    forecasts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPast:
    """One tier over the report's time. `answers` are those of rules over the whole of it, `before` the sum of as long a time
    before it (None: nothing was booked then). `no_prewarming` says why there is none, where there is none."""

    resize: Resize
    step13: Step13
    answers: tuple[RuleResult, ...]
    before: Window | None = None
    episodes: tuple[Finding, ...] = ()
    unknowns: tuple[UnknownSpan, ...] = ()
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    prewarming: Prewarming | None = None
    no_prewarming: str = "forecasting is not configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """Everything of the report: the tiers in the plan's order. `remarks` are about the installation as a whole."""

    made_at: float
    since: float
    until: float
    zone: str
    version: str
    tiers: tuple[TierPast, ...]
    plan: Plan | None = None
    remarks: tuple[str, ...] = ()
    simulated: bool = False
