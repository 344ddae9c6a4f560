"""State of the agent at the end of a cycle, the only input of pages and metrics. Times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from exporters.render.text import Tone, rule_title
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incident_alerts import IncidentAlert, is_lasting, step_incident_alerts
from rules.evaluator.incidents import Incident, group_incidents
from rules.evaluator.timeline import TimelineEntry, TimelineEvent, list_entries
from rules.plan.load_bins import TierContext
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Reading, SignalValue
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.verdicts.context import ForecastPoint
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import (
    FIRING,
    SEVERITY,
    Finding,
    IdleReplicas,
    RuleResult,
    Status,
    Subject,
    Unknown,
    Verdict,
    severity_of,
    severity_words,
)

if TYPE_CHECKING:
    # A node forecasts nothing, and does not load what writes a forecast.
    from exporters.documents.forecast import ForecastResult, Prewarm, Recommendation
    from forecast.capacity.cold_start import ColdStart

MISSES_UNTIL_GONE = 3
"""Scrapes that a replica may miss before its series vanish (DESIGN 6; METRICS trap 12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """Replica of a tier. `totals` are running sums since the agent started, with one grid of buckets a family.

    `url` has no credentials. `last_seen` is the time of the last good page, and `gauges` its levels. `misses` counts
    failed scrapes since then. `versions` is the release range ("after 0.29.0"). Counters of `gpus` are sums.
    """

    tier: str
    pool: str
    name: str
    url: str = ""
    up: bool = False
    last_seen: float | None = None
    misses: int = 0
    engine: str = ""
    versions: str = ""
    model: str = ""
    totals: Window
    gauges: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    gpus: tuple[GpuReadout, ...] = ()
    cascade_stage: int = 0
    scrape_seconds: float | None = None

    def __post_init__(self) -> None:
        for family, parts in self.totals.histograms.items():
            if len(parts) != 1:
                raise ValueError(f"{self.tier}/{self.name}: totals hold {len(parts)} bucket grids of {family}, not one")

    @property
    def is_gone(self) -> bool:
        """Return whether the replica's series have vanished. Only its failure to answer is then known."""
        return self.misses >= MISSES_UNTIL_GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """Readings of a closed minute of a tier, which ends at `t`."""

    t: float
    readings: Mapping[str, SignalValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastStatus:
    """Forecast of a tier and its replica counts. Outdated values are None, with the reason in `gap`.

    Rates are work per second (requests of the capacity's lengths): at present, at lead time, and forecast earlier for
    now. Those of `requests` are the requests themselves (without a forecast: work is requests). `is_burning` says that
    a finding of the SLO is open. `trouble` is the reason if no newer forecast exists.
    """

    forecast: ForecastResult | None = None
    prewarm: Prewarm | None = None
    cold_start: ColdStart | None = None
    ready: int = 0
    is_burning: bool = False
    now_rps: float | None = None
    at_lead: ForecastPoint | None = None
    for_now: ForecastPoint | None = None
    requests: ForecastResult | None = None
    now_requests: float | None = None
    requests_at_lead: ForecastPoint | None = None
    requests_for_now: ForecastPoint | None = None
    minimum_warm: int | None = None
    gap: str = ""
    trouble: str = ""

    @property
    def decision(self) -> Recommendation | None:
        """Return the recommendation for the replicas that are up, None without one."""
        if self.prewarm is None or self.prewarm.recommendation is None:
            return None
        return self.prewarm.recommendation.with_present(self.ready, is_burning=self.is_burning)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastHealth:
    """Results and failures by kind since the start, duration and memory of the last round, and troubles."""

    runs: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    last_seconds: float | None = None
    memory_bytes: int | None = None
    troubles: tuple[str, ...] = ()


class ExportScope(StrEnum):
    """Part of a tier that an agent exports. Node agents and role fleet export separate parts of a tier."""

    ALL = "all"
    WHOLE_TIER = "whole_tier"
    REPLICAS = "replicas"

    def has_series(self, subject: Subject) -> bool:
        """Return whether this agent exports the series of a subject: each has one agent."""
        return self is not (ExportScope.REPLICAS if subject.replica is None else ExportScope.WHOLE_TIER)

    def has_alerts(self, subject: Subject) -> bool:
        """Return whether this agent posts alerts of a subject. Of a replica every agent does."""
        return self is not ExportScope.REPLICAS or subject.replica is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFinding:
    """Open finding with its newest firing verdict, else its worst. `silent` is the gap of a rule without a verdict now."""

    finding: Finding
    verdict: Verdict
    silent: Unknown | None = None

    @property
    def severity(self) -> Status | None:
        """Return the status that every surface names, None for what was never certain."""
        return severity_of(self.verdict, self.finding)

    @property
    def is_reported(self) -> bool:
        """Return whether its rule is for the report only."""
        return self.verdict.rule in BY_NAME and BY_NAME[self.verdict.rule].severity is Severity.REPORT

    @property
    def is_note(self) -> bool:
        """Return whether it sends no alert: its rule is for the report, or it was never certain."""
        return self.severity is None or self.is_reported

    @property
    def tone(self) -> Tone:
        return "note" if self.severity is None or self.is_reported else self.severity

    @property
    def words(self) -> str:
        """Return "critical, certain", "warning, certain", "likely" or "note"."""
        return "note" if self.severity is not None and self.is_note else severity_words(self.severity)

    @property
    def named(self) -> str:
        """Return the words for a place that does not name the finding: a note has its title."""
        return f"{self.words}: {self.title}" if self.is_note else self.words

    @property
    def title(self) -> str:
        title = rule_title(self.verdict.rule)
        return f"{title}, by forecast" if self.verdict.is_forecast else title

    @property
    def rank(self) -> tuple[bool, int, bool, int, float]:
        """Return the sort key, worst first, notes last: status, certainty, severity of the rule, begin."""
        likely = self.verdict.certainty is not Certainty.CERTAIN
        severity = BY_NAME[self.verdict.rule].severity if self.verdict.rule in BY_NAME else Severity.REPORT
        status = -SEVERITY[self.severity or self.verdict.status]
        return self.is_note, status, likely, list(Severity).index(severity), self.finding.started_at


@dataclass(frozen=True, kw_only=True)
class TierStatus:
    """Tier of the plan. `recent` is the sum of the last 5 minutes, `trend` the last hour, oldest first. `findings` are
    open or of the last day, newest first. `step13` is the sentence of the plan's version, None before it.

    `parts` are replicas of another machine with GPUs here: only name, pool and GPUs count. `observed_seconds` is the
    observed time of the last days, None if nothing counts it.
    """

    context: TierContext
    recent: Window | None
    results: tuple[RuleResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    trend: tuple[TrendPoint, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    step13: str | None = None
    forecast: ForecastStatus | None = None
    parts: tuple[ReplicaStatus, ...] = ()
    export_scope: ExportScope = ExportScope.ALL
    observed_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.context.name

    @property
    def replicas_up(self) -> int:
        return sum(replica.up for replica in self.replicas)

    def estimate(self, signal: str) -> float | None:
        """Return the best estimate of a signal in the last minutes, else its lower bound."""
        reading = read(SIGNALS[signal], self.recent, self.context.basis) if self.recent is not None else None
        if not isinstance(reading, Reading):
            return None
        return reading.low if reading.value is None else reading.value

    @property
    def surplus(self) -> IdleReplicas | None:
        """Return the surplus replicas of the days judged (DESIGN 3.22), None before so many were seen."""
        return next((verdict.idle for verdict in self.verdicts if verdict.rule == "UtilizationTrap"), None)

    @cached_property
    def active(self) -> tuple[ActiveFinding, ...]:
        """Return the open findings, worst first. Those that send no alert are last (DESIGN 3.10)."""
        newest = {(result.rule, result.subject): result for result in self.results}
        active = []
        for finding in self.findings:
            verdict, silent = finding.worst, None
            result = newest.get((finding.rule, finding.subject))
            if isinstance(result, Unknown):
                silent = result
            elif result is not None and result.status in FIRING:
                verdict = result
            if finding.ended_at is None:
                active.append(ActiveFinding(finding=finding, verdict=verdict, silent=silent))
        return tuple(sorted(active, key=lambda finding: finding.rank))

    @property
    def likely(self) -> list[ActiveFinding]:
        """Return the findings that will alert once they are certain."""
        return [finding for finding in self.active if finding.is_note and not finding.is_reported]

    @property
    def verdicts(self) -> list[Verdict]:
        return [result for result in self.results if isinstance(result, Verdict)]

    @property
    def unknowns(self) -> list[Unknown]:
        return [result for result in self.results if isinstance(result, Unknown)]

    @property
    def tone(self) -> Tone:
        """Return the severity of the worst finding, a note where it is likely.

        Unknown if no rule has a verdict, or no replica was seen since the start: verdicts are of the last process.
        """
        for finding in self.active:
            if not finding.is_reported:
                return finding.tone
        is_unseen = self.replicas and all(replica.last_seen is None for replica in self.replicas)
        return Status.OK if self.verdicts and not is_unseen else Status.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerHealth:
    """Delivery to an Alertmanager: finished and failed rounds and accepted alerts since the start. `firing` is of the
    last round. `refused` has the reason of each refused alert. `trouble` is a sentence while posting fails.
    """

    alertmanager: str
    posts: int = 0
    alerts: int = 0
    failures: int = 0
    firing: int = 0
    refused: tuple[str, ...] = ()
    trouble: str | None = None
    last_success_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookHealth:
    """Webhook counters since start: accepted requests, refused ones by reason, alerts above the limit."""

    taken: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryHealth:
    """Discovery of engine pods, which are counted. `trouble` is a sentence while the API fails, `age_seconds` its age.
    `left_out` has a sentence for each rejected candidate, `notes` for each uncertain pod.
    """

    trouble: str | None = None
    age_seconds: float = 0.0
    watched: int = 0
    starting: int = 0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """Queries of a store since the start, incomplete ones by kind. `in_sight` has why a tier has no data, else ""."""

    place: str
    queries: int = 0
    seconds: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    in_sight: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryHealth:
    """Delivery of reports to a destination: reports sent and given up, and failed attempts, since the start. `pending`
    reports wait until `next_at`. `trouble` is why the newest report was not delivered.
    """

    destination: str
    sent: int = 0
    failed: int = 0
    given_up: int = 0
    pending: int = 0
    next_at: float | None = None
    last_success_at: float | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHealth:
    """Weekly report. `newest` is the name of the last one, `trouble` the reason why one is overdue."""

    next_at: float
    made_at: float | None = None
    newest: str = ""
    headline: str = ""
    trouble: str = ""
    failures: int = 0
    deliveries: tuple[DeliveryHealth, ...] = ()


@dataclass(kw_only=True)
class AgentHealth:
    """Health of the agent, counted from its start. Troubles and problems are sentences. The web server adds `web_*`.

    `failed_in_row` cycles failed since the last success, at `last_cycle_at`. Minutes are those of replicas:
    `unbooked_minutes` wait for the history, `dropped_minutes` are lost. `scrape_failures` counts by tier, replica
    and kind. A part that is off is None.
    """

    cycles: int = 0
    overruns: int = 0
    last_cycle_at: float | None = None
    failed_in_row: int = 0
    last_cycle_seconds: float | None = None
    cycle_errors: int = 0
    scrape_failures: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    history_trouble: str | None = None
    unbooked_minutes: int = 0
    dropped_minutes: int = 0
    config_reloads: int = 0
    config_trouble: str | None = None
    gpu_problems: tuple[str, ...] = ()
    web_errors: int = 0
    web_refusals: int = 0
    alertmanagers: tuple[AlertmanagerHealth, ...] = ()
    webhook: WebhookHealth | None = None
    forecasting: ForecastHealth | None = None
    discovery: DiscoveryHealth | None = None
    reporting: ReportHealth | None = None
    store: StoreHealth | None = None


@dataclass(frozen=True, kw_only=True)
class AgentStatus:
    """State at the end of a cycle, with alerts of others and events of the last day. `simulated` is the banner of
    simulated targets, `external_url` the page for people, `config` the absolute path of the configuration.
    Incidents are grouped once, for every page and metric.
    """

    role: str
    version: str
    started_at: float
    now: float
    tiers: tuple[TierStatus, ...]
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    health: AgentHealth = field(default_factory=AgentHealth)
    simulated: str = ""
    external_url: str = ""
    config: str = ""

    @cached_property
    def incidents(self) -> Mapping[str, tuple[Incident, ...]]:
        """Return the incidents of each tier, open ones and those of the last day, in order of their begin."""
        return {tier.name: group_incidents(tier.findings, tier.results, self.now) for tier in self.tiers}

    @cached_property
    def exported_incidents(self) -> Mapping[str, tuple[Incident, ...]]:
        """Return the incidents of each tier among the findings whose series this agent exports."""
        exported = dict(self.incidents)
        for tier in self.tiers:
            if tier.export_scope is not ExportScope.ALL:
                findings = [finding for finding in tier.findings if tier.export_scope.has_series(finding.subject)]
                exported[tier.name] = group_incidents(findings, tier.results, self.now)
        return exported

    @cached_property
    def incident_alerts(self) -> Mapping[str, tuple[IncidentAlert, ...]]:
        """Return the alerts of each tier's exported incidents, without those whose findings are over."""
        return {
            tier: tuple(filter(is_lasting, step_incident_alerts((), rows, self.now)))
            for tier, rows in self.exported_incidents.items()
        }

    @cached_property
    def timeline(self) -> tuple[TimelineEntry, ...]:
        """Return the last day, newest last."""
        incidents = chain.from_iterable(self.incidents.values())
        return list_entries(incidents, self.foreign, self.events, self.now - DAY_SECONDS)
