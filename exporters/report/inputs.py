"""Inputs of the report of a tier: the re-sizing, rule results over the period, and history.

`agent.reporting` fills the records from the history.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporters.documents.forecast import PrewarmValue, Strategy
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.timeline import TimelineEvent
from rules.plan.schema import Plan
from rules.resize.proposal import Resize
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, RuleResult, UnknownSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarming:
    """Effect of pre-warming on a tier. `worth` compares strategies over the tier's history. `covered_ratio` is the
    share of targets at or below the 95 % quantile. `error_ratio` is relative to the error of the method `naive`. None
    means unknown. `decision` is the recommendation of that time in words.

    `saved` is what the best strategy without a forecast needed more than ours. `missing` is the reason if nothing is
    known, `failed` the reason if the forecast was no better than none.
    """

    worth: PrewarmValue | None = None
    decision: str = ""
    method: str = ""
    naive: str = ""
    covered_ratio: float | None = None
    error_ratio: float | None = None
    forecasts: int = 0
    saved: Strategy | None = None
    missing: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPast:
    """Tier over the report's period. `results` are rule results over the whole period. `before` summarises an equal
    period before it (None: no data). `no_prewarming` is the reason if pre-warming is absent.
    """

    resize: Resize
    step13: Step13
    results: tuple[RuleResult, ...]
    before: Window | None = None
    findings: tuple[Finding, ...] = ()
    unknowns: tuple[UnknownSpan, ...] = ()
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    prewarming: Prewarming | None = None
    no_prewarming: str = "forecasting is not configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """Inputs of the whole report, tiers in plan order. `remarks` are about the installation."""

    made_at: float
    since: float
    until: float
    zone: str
    version: str
    tiers: tuple[TierPast, ...]
    plan: Plan | None = None
    remarks: tuple[str, ...] = ()
    simulated: bool = False
