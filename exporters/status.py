"""What the agent knows at the end of a turn, as frozen records: the one input of every page and metric.

Owns the shape only. The agent fills it, exporters print it; nothing here reads a clock or computes a reading. What an
exporter needs to know and cannot derive from a window or an answer is a field here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporters.forecast_text import Forecast
from exporters.prewarm_text import Prewarm
from forecast.cold_start import ColdStart
from rules.alert_state import AlertState
from rules.episodes import Episode
from rules.foreign_alerts import ForeignAlert
from rules.projections import Demand
from rules.signals import SignalValue
from rules.slices import TierView
from rules.timeline import Entry
from rules.verdicts import Answer
from rules.windows import Window

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
    release as far as it is known ("0.32 or newer").
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
    def gone(self) -> bool:
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

    forecast: Forecast | None = None
    prewarm: Prewarm | None = None
    cold_start: ColdStart | None = None
    ready: int = 0
    now_rps: float | None = None
    at_lead: Demand | None = None
    for_now: Demand | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """One tier. `recent` is the sum of its windows of the last 5 minutes, None before there was any; `episodes` are
    those open and those of the last day, newest first; `trend` is the last hour, oldest first; `step13` the sentence
    in which Step 13 was answered for this version of the plan, None before it was. `forecast` is None where nobody says
    anything of forecasts (a node).
    """

    view: TierView
    recent: Window | None
    answers: tuple[Answer, ...] = ()
    episodes: tuple[Episode, ...] = ()
    trend: tuple[TrendPoint, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    step13: str | None = None
    forecast: ForecastStatus | None = None

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
class Health:
    """How the agent itself is doing. Counts are since its start; `history_trouble`, `config_trouble` and
    `gpu_problems` hold sentences for people, None or empty while all is well. `last_turn_at` is when the last turn ended
    (unix seconds): what tells a loop that hangs from one that works.

    `unbooked_minutes` wait to be written to the history, `dropped_minutes` never will be (minutes of a replica).
    `scrape_failures` counts by tier, replica and kind. The web server adds what it alone knows, `web_*`. `webhook` is None
    where none is received, `forecasting` where nothing is forecast.
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
    foreign: tuple[ForeignAlert, ...] = ()
    timeline: tuple[Entry, ...] = ()
    health: Health = field(default_factory=Health)
    simulated: str = ""
