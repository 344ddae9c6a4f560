"""Builder of `exporters.status.records` from the daemon's memory, called per page request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.gpu.collector import UNREAD_SECONDS
from agent.gpu.owners import GpuAssignment
from agent.http_client.error_text import place_of
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import ReplicaRuntime
from agent.scrape.scrapers import Target
from agent.version import VERSION
from exporters.status.records import AgentHealth, AgentStatus, ForecastStatus, GpuStatus, ReplicaStatus, TierStatus
from forecast.capacity.cold_start import cold_start
from rules.evaluator import timeline
from rules.evaluator.step import Evaluator, ReplicaKey
from rules.evaluator.timeline import TimelineEntry
from rules.telemetry import windows
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window
from rules.verdicts.finding import Finding

if TYPE_CHECKING:
    from agent.forecasting.service import ForecastService

RECENT_SECONDS = 300.0
DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusInputs:
    """Status data from outside the evaluation loop. `no_forecasts` is the reason for a missing forecast."""

    role: str
    started_at: float
    health: AgentHealth
    simulated: str
    past: tuple[Finding, ...]
    step13: Mapping[str, str]
    forecasts: ForecastService | None = None
    no_forecasts: str = ""


def status(turns: EvaluationLoop, facts: StatusInputs, now: float) -> AgentStatus:
    """Return the whole status at `now` (unix seconds)."""
    watcher = turns.watcher
    workers = {worker.tier for worker in turns.pods.workers()} if turns.pods is not None else set()
    tiers = sorted({target.tier for target in turns.targets} | workers | set(watcher.views))
    return AgentStatus(
        role=facts.role,
        version=VERSION,
        started_at=facts.started_at,
        now=now,
        tiers=tuple(_tier(name, turns, facts, now) for name in tiers),
        alerts=tuple(watcher.alerts.values()),
        foreign=turns.alerting.foreign.alerts if turns.alerting is not None else (),
        timeline=_timeline(turns, facts, now),
        health=facts.health,
        simulated=facts.simulated,
    )


def _timeline(turns: EvaluationLoop, facts: StatusInputs, now: float) -> tuple[TimelineEntry, ...]:
    opened = [s.episode for s in turns.watcher.standings.values() if s.episode is not None]
    foreign = turns.alerting.foreign.alerts if turns.alerting is not None else ()
    return timeline.list_entries((*opened, *facts.past), foreign, turns.events, now - DAY_SECONDS)


def _tier(name: str, turns: EvaluationLoop, facts: StatusInputs, now: float) -> TierStatus:
    watcher = turns.watcher
    standings = [s for (_, subject), s in list(watcher.standings.items()) if subject.tier == name]
    opened = [s.episode for s in standings if s.episode is not None]
    past = [e for e in facts.past if e.subject.tier == name and (e.ended_at or now) > now - DAY_SECONDS]
    return TierStatus(
        view=watcher.view(name),
        recent=_recent(watcher, name, now),
        answers=tuple(s.answer for s in standings),
        episodes=tuple(sorted((*opened, *past), key=lambda e: -e.started_at)),
        trend=turns.ledger.trend(name),
        replicas=tuple(_replica(target, turns, now) for target in turns.targets if target.tier == name),
        parts=_parts(name, turns, now),
        tells=turns.export_scope(name),
        step13=facts.step13.get(name),
        forecast=_forecast(name, turns, facts, now),
    )


def _forecast(tier: str, turns: EvaluationLoop, facts: StatusInputs, now: float) -> ForecastStatus:
    plan = turns.watcher.view(tier).plan
    found = cold_start(turns.watcher.starts(tier), plan.cold_start_seconds if plan else None)
    ready = sum(_replica_up(target, turns) for target in turns.targets if target.tier == tier)
    if facts.forecasts is None:
        return ForecastStatus(cold_start=found, ready=ready, gap=facts.no_forecasts)
    return facts.forecasts.status(tier, found, ready, now)


def _replica_up(target: Target, turns: EvaluationLoop) -> bool:
    outcome = turns.ledger.replicas.get(target.key, ReplicaRuntime()).outcome
    return bool(outcome and outcome.snapshot is not None)


def _recent(watcher: Evaluator, tier: str, now: float) -> Window | None:
    """Return the sum of the windows of the last five minutes, including the open minute."""
    closed = [s.window for s in watcher.minutes[tier].slices] if tier in watcher.minutes else []
    still_open = [w for (t, _), replica in list(watcher.replicas.items()) if t == tier for w in replica.open]
    several = [w for w in (*closed, *still_open) if w.end > now - RECENT_SECONDS]
    return windows.sum_windows(several) if several else None


def _replica(target: Target, turns: EvaluationLoop, now: float) -> ReplicaStatus:
    key = target.key
    entry = turns.ledger.replicas.get(key, ReplicaRuntime())
    state = turns.watcher.replicas.get(key)
    page = state.track.last if state else None
    outcome, owned = entry.outcome, turns.owned.get(key, GpuAssignment(gpus=()))
    return ReplicaStatus(
        tier=target.tier,
        pool=target.pool,
        name=target.replica,
        url=place_of(target.options.url),
        up=_replica_up(target, turns),
        last_seen=entry.seen,
        misses=state.track.misses if state else 0,
        engine=page.engine if page else target.engine or "",
        versions=target.engine_version or (page.facts.get("engine_versions", "") if page else ""),
        model=page.facts.get("model", "") if page else "",
        totals=entry.sums.window(),
        gauges=page.gauges if page else {},
        problems=tuple(filter(None, (entry.trouble, *(page.problems if page else ())))),
        gpus=tuple(_gpu(turns.gpus.latest[gpu], entry, now) for gpu in owned.gpus),
        cascade_stage=state.cascade.stage if state else 0,
        scrape_seconds=outcome.seconds if outcome else None,
    )


def _parts(tier: str, turns: EvaluationLoop, now: float) -> tuple[ReplicaStatus, ...]:
    """Return replicas scraped on another machine with GPUs on this one."""
    workers = turns.pods.workers() if turns.pods is not None else ()
    return tuple(_part(worker.key, worker.pool, turns, now) for worker in workers if worker.tier == tier)


def _part(key: ReplicaKey, pool: str, turns: EvaluationLoop, now: float) -> ReplicaStatus:
    entry, owned = turns.ledger.replicas.get(key, ReplicaRuntime()), turns.owned.get(key, GpuAssignment(gpus=()))
    return ReplicaStatus(
        tier=key[0],
        pool=pool,
        name=key[1],
        url="",
        up=False,
        last_seen=None,
        misses=0,
        engine="",
        versions="",
        model="",
        totals=ReplicaRuntime().sums.window(),
        gauges={},
        problems=tuple(filter(None, (owned.missing,))),
        gpus=tuple(_gpu(turns.gpus.latest[gpu], entry, now) for gpu in owned.gpus),
    )


def _gpu(readout: GpuReadout, entry: ReplicaRuntime, now: float) -> GpuStatus:
    """Return the status of a GPU. A GPU without recent readouts keeps its sums and drops its outdated gauges."""
    age = now - readout.t
    late = dict.fromkeys(readout.gauges, f"not read for {age:.0f} s") if age > UNREAD_SECONDS else {}
    return GpuStatus(
        gpu=readout.gpu,
        product=readout.product,
        counters=dict(entry.gpu_totals.get(readout.gpu, {})),
        gauges={} if late else readout.gauges,
        gaps={**readout.gaps, **late},
        sampled=readout.sampled,
    )
