"""What the agent knows at the end of a turn, as frozen records: the one input of every page and metric.

Owns the shape only. The agent fills it, exporters print it; nothing here reads a clock or computes a reading. What an
exporter needs to know and cannot derive from a window or an answer is a field here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import Prewarm
from forecast.capacity.cold_start import ColdStart
from rules.evaluator.alert_state import AlertState
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.timeline import TimelineEntry
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import SignalValue
from rules.telemetry.windows import Window
from rules.verdicts.finding import Finding
from rules.verdicts.projection import ForecastPoint
from rules.verdicts.verdict import RuleResult

MISSES_UNTIL_GONE = 3
"""Scrapes a replica may miss before its series vanish (DESIGN 6; METRICS trap 12: targets are gone after 2-3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """One GPU of a replica. `counters` are the agent's running sums of its accepted increases, `gauges` its levels now,
    by family name; `gaps` says in words why a family is missing; `sampled` names what comes from a plain poll.
    """

    gpu: str
    product: str
    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    sampled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One replica. `totals` are the running sums of its accepted increases since the agent started: counters, and one
    histogram part a family; when an engine's bucket edges change, the family starts anew.

    `url` holds no user and no password: it is shown. `last_seen` is the time of the last good page (unix seconds, None
    before any), `misses` the failed scrapes since; `gauges` are the levels of that page. `versions` says the
    release as far as it is known ("after 0.29.0").
    """

    tier: str
    pool: str
    name: str
    url: str
    up: bool
    last_seen: float | None
    misses: int
    engine: str
    versions: str
    model: str
    totals: Window
    gauges: Mapping[str, float]
    problems: tuple[str, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    cascade_stage: int = 0
    scrape_seconds: float | None = None

    def __post_init__(self) -> None:
        for family, parts in self.totals.histograms.items():
            if len(parts) != 1:
                raise ValueError(f"{self.tier}/{self.name}: totals hold {len(parts)} bucket grids of {family}, not one")

    @property
    def is_gone(self) -> bool:
        """Whether its series have vanished: nothing is known of it any more but that it does not answer."""
        return self.misses >= MISSES_UNTIL_GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """The readings of one closed minute of a tier; `t` is its end, unix seconds."""

    t: float
    readings: Mapping[str, SignalValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastStatus:
    """What is forecast of one tier, and what follows for its replicas. All of it still stands: what was outlived is None, and
    `gap` then says why.

    `now_rps` is what arrives now, `at_lead` what is forecast for one lead from now, `for_now` what was said of this moment a
    lead ago (requests per second). `prewarm` holds the recommendation, the day's schedule and what it was worth lately;
    `minimum_warm` are replicas, `ready` those that are up. `trouble` says why there is no newer forecast.
    """

    forecast: ForecastResult | None = None
    prewarm: Prewarm | None = None
    cold_start: ColdStart | None = None
    ready: int = 0
    now_rps: float | None = None
    at_lead: ForecastPoint | None = None
    for_now: ForecastPoint | None = None
    minimum_warm: int | None = None
    gap: str = ""
    trouble: str = ""

    @property
    def recommended(self) -> int | None:
        """The replicas that are recommended; None while nothing is, never 0 for that."""
        found = self.prewarm.recommendation if self.prewarm is not None else None
        return found.replicas if found is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastHealth:
    """How forecasting goes since the start: answers that came, and those that did not, by kind. `last_seconds` is how long the
    last round took, `memory_bytes` what the process held then; None without one. `troubles` are sentences.
    """

    runs: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    last_seconds: float | None = None
    memory_bytes: int | None = None
    troubles: tuple[str, ...] = ()


class ExportScope(StrEnum):
    """What of a tier an agent exports: where node agents and role fleet watch one tier, each tells its own part."""

    ALL = "all"
    WHOLE_TIER = "whole_tier"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """One tier. `recent` is the sum of its windows of the last 5 minutes, None before there was any; `episodes` are
    those open and those of the last day, newest first; `trend` is the last hour, oldest first; `step13` the sentence
    in which Step 13 was answered for this version of the plan, None before it was. `forecast` is None where nobody says
    anything of forecasts (a node). `parts` are replicas that answer on another machine and have GPUs here: of these only
    name, pool and GPUs count. `tells` says what of it this agent exports.
    """

    view: TierContext
    recent: Window | None
    answers: tuple[RuleResult, ...] = ()
    episodes: tuple[Finding, ...] = ()
    trend: tuple[TrendPoint, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    step13: str | None = None
    forecast: ForecastStatus | None = None
    parts: tuple[ReplicaStatus, ...] = ()
    tells: ExportScope = ExportScope.ALL

    @property
    def name(self) -> str:
        return self.view.tier


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerHealth:
    """How posting to one Alertmanager goes. `posts` are rounds that ended, `alerts` what was taken in them, `failures`
    rounds that did not end; `firing` of the last round. `refused` says of each alert that it does not take why not;
    `trouble` holds a sentence while nothing can be posted. `last_success_at` is unix seconds, None before any.
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
    """What came in by the webhook since the start: requests taken, refused (by reason), alerts that were ours (a loop),
    alerts left out because too many fire at once.
    """

    taken: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    own: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryHealth:
    """How finding engine pods goes. `trouble` holds a sentence while the API does not tell of them, `age_seconds` is how long
    that is so. Pods: `watched`, of these and of those that are on their way (`later`) `starting`, and a sentence for each
    candidate that is `left_out`. `notes` are sentences about what is known less well.
    """

    trouble: str | None = None
    age_seconds: float = 0.0
    watched: int = 0
    starting: int = 0
    later: int = 0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """How asking the store goes, counted since the start. `failures` are queries without a whole answer, by kind; `in_sight`
    says of every tier why it cannot be seen, empty where it can. `leads`: None where there is only one agent of role fleet.
    """

    place: str
    queries: int = 0
    seconds: float = 0.0
    received_bytes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    in_sight: Mapping[str, str] = field(default_factory=dict)
    leads: bool | None = None
    lease_trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryHealth:
    """How sending reports to one destination goes. Counts are since the start: reports taken, attempts that failed and are made
    again, reports given up. `pending` reports wait, until `next_at` (unix seconds). `trouble` is why the newest did not arrive.
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
    """How the weekly report goes. Times are unix seconds; `newest` is the name of the last report, "" before any. `trouble` is
    why the one that is due is not there, `failures` how often that was tried since the start in vain.
    """

    next_at: float
    made_at: float | None = None
    newest: str = ""
    headline: str = ""
    trouble: str = ""
    failures: int = 0
    memory_bytes: int = 0
    deliveries: tuple[DeliveryHealth, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHealth:
    """How the agent itself is doing. Counts are since its start; `history_trouble`, `config_trouble` and
    `gpu_problems` hold sentences for people, None or empty while all is well. `last_turn_at` is when the last turn ended
    (unix seconds): what tells a loop that hangs from one that works.

    `unbooked_minutes` wait to be written to the history, `dropped_minutes` never will be (minutes of a replica).
    `scrape_failures` counts by tier, replica and kind. The web server adds what it alone knows, `web_*`. `webhook` is None
    where none is received, `forecasting` where nothing is forecast, `discovery` where targets stand in the file alone,
    `reporting` where no weekly report is written, `store` where none is read.
    """

    turns: int = 0
    overruns: int = 0
    last_turn_at: float | None = None
    last_turn_seconds: float | None = None
    turn_errors: int = 0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """Everything at the end of a turn. `foreign` are alerts of others that fire or did in the last day, `timeline` is that
    day, the newest last. `simulated` is what a banner says where targets are not real ones, "" in
    production.
    """

    role: str
    version: str
    started_at: float
    now: float
    tiers: tuple[TierStatus, ...]
    alerts: tuple[AlertState, ...] = ()
    foreign: tuple[ExternalAlert, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    health: AgentHealth = field(default_factory=AgentHealth)
    simulated: str = ""
