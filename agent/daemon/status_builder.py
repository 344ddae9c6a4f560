"""`exporters.status.records` from the memory of the daemon, built per page request."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.daemon.assembly import Assembly
from agent.gpu.collector import UNREAD_SECONDS
from agent.http_client.client import place_of
from agent.pipeline.runtime_state import ReplicaRuntime, RuntimeState
from agent.scrape.scrapers import Target
from agent.version import VERSION
from exporters.status.records import AgentHealth, AgentStatus, ForecastStatus, ReplicaStatus, TierStatus
from forecast.capacity.cold_start import cold_start
from rules.evaluator.alert_severity import list_open_burns
from rules.evaluator.state import EvaluatorState
from rules.telemetry import windows
from rules.telemetry.snapshots import ENGINE_VERSION, GpuReadout
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.verdicts.error_budget import count_observed_seconds

if TYPE_CHECKING:
    from agent.kubernetes.discovery import DiscoveredPod

_UNSEEN = ReplicaRuntime()


def health(counts: AgentHealth, parts: Assembly, now: float) -> AgentHealth:
    history, alerting = parts.history, parts.alerting
    posting, webhook = alerting.health() if alerting is not None else ((), None)
    return replace(
        counts,
        cycle_errors=counts.cycle_errors + parts.loop.defects,
        scrape_failures=dict(parts.runtime.failures),
        history_trouble=history.error if history else None,
        unbooked_minutes=history.waiting_minutes if history else 0,
        dropped_minutes=history.dropped_minutes if history else 0,
        gpu_problems=parts.runtime.gpu_problems,
        alertmanagers=posting,
        webhook=webhook,
        forecasting=parts.forecasts.health() if parts.forecasts is not None else None,
        reporting=parts.reports.health(parts.loaded, now) if parts.reports is not None else None,
        store=parts.loop.source.store_health(),
        discovery=parts.pods.health() if parts.pods is not None else None,
    )


def status(
    parts: Assembly, now: float, health: AgentHealth, *, started_at: float = 0.0, simulated: str = ""
) -> AgentStatus:
    """Return the whole status at `now` (unix seconds). The caller holds the lock of the loop."""
    loop = parts.loop
    tiers = {target.tier for target in loop.source.targets} | {worker.tier for worker in parts.workers()}
    return AgentStatus(
        role=parts.loaded.config.role,
        started_at=started_at,
        health=health,
        simulated=simulated,
        external_url=(parts.loaded.config.alerting.external_url or "").rstrip("/"),
        version=VERSION,
        config=os.path.abspath(parts.loaded.path),
        now=now,
        tiers=tuple(_tier(name, parts, now) for name in sorted(tiers | set(loop.evaluator.tiers))),
        foreign=parts.alerting.foreign.alerts if parts.alerting is not None else (),
        events=tuple(parts.runtime.events),
    )


def _tier(name: str, parts: Assembly, now: float) -> TierStatus:
    loop, runtime = parts.loop, parts.runtime
    rules = [state for (_, subject), state in loop.state.rules.items() if subject.tier == name]
    opened = [state.finding for state in rules if state.finding is not None]
    past = [e for e in runtime.past if e.subject.tier == name and (e.ended_at or now) > now - DAY_SECONDS]
    targets = [target for target in loop.source.targets if target.tier == name]
    plan = loop.evaluator.tier(name).plan
    start = cold_start(loop.state.of_tier(name).starts, plan.cold_start_seconds if plan else None)
    ready = sum(runtime.replicas.get(target.key, _UNSEEN).is_up for target in targets)
    if parts.forecasts is not None:
        forecast = parts.forecasts.status(name, start, ready, now)
    else:
        is_off = parts.history is not None
        gap = "forecasting is off (forecast.enabled: false)" if is_off else "not exposed: this agent keeps no history"
        forecast = ForecastStatus(cold_start=start, ready=ready, gap=gap)
    return TierStatus(
        context=loop.evaluator.tier(name),
        recent=_recent(loop.state, name, now),
        results=tuple(state.result for state in rules),
        findings=tuple(sorted((*opened, *past), key=lambda e: -e.started_at)),
        trend=runtime.trend(name),
        replicas=tuple(_replica(target, loop.state, runtime, now) for target in targets),
        parts=tuple(_part(worker, runtime, now) for worker in parts.workers() if worker.tier == name),
        export_scope=loop.source.export_scope(name),
        step13=parts.step13.get(name),
        forecast=replace(forecast, is_burning=bool(list_open_burns(opened))),
        observed_seconds=count_observed_seconds(loop.state.minutes[name].budget) if name in loop.state.minutes else 0.0,
    )


def _recent(state: EvaluatorState, tier: str, now: float) -> Window | None:
    """Return the sum of the windows of the last five minutes, including the open minute."""
    closed = [s.window for s in state.minutes[tier].binned] if tier in state.minutes else []
    still_open = [window for (t, _), replica in state.replicas.items() if t == tier for window in replica.open]
    recent = [window for window in (*closed, *still_open) if window.end > now - 300.0]
    return windows.sum_windows(recent) if recent else None


def _replica(target: Target, evaluation: EvaluatorState, runtime: RuntimeState, now: float) -> ReplicaStatus:
    entry = runtime.replicas.get(target.key, _UNSEEN)
    state = evaluation.replicas.get(target.key)
    page = state.track.last if state else None
    facts = page.facts if page else {}
    return ReplicaStatus(
        tier=target.tier,
        pool=target.pool,
        name=target.replica,
        url=place_of(target.peer.url),
        up=entry.is_up,
        last_seen=entry.seen,
        misses=state.track.misses if state else 0,
        engine=page.engine if page else target.engine or "",
        # As told by the engine or the configuration, else the releases that the page's names allow.
        versions=facts.get(ENGINE_VERSION, "") or target.engine_version or facts.get("engine_versions", ""),
        model=facts.get("model", ""),
        totals=entry.sums.window(),
        gauges=page.gauges if page else {},
        problems=tuple(filter(None, (entry.error, *(page.problems if page else ())))),
        gpus=tuple(_gpu(readout, entry, now) for readout in entry.gpus.readouts),
        cascade_stage=state.cascade.stage if state else 0,
        scrape_seconds=entry.scrape.seconds if entry.scrape is not None else None,
    )


def _part(worker: DiscoveredPod, runtime: RuntimeState, now: float) -> ReplicaStatus:
    entry = runtime.replicas.get(worker.key, _UNSEEN)
    return ReplicaStatus(
        tier=worker.tier,
        pool=worker.pool,
        name=worker.key[1],
        totals=_UNSEEN.sums.window(),
        problems=tuple(filter(None, (entry.gpus.missing,))),
        gpus=tuple(_gpu(readout, entry, now) for readout in entry.gpus.readouts),
    )


def _gpu(readout: GpuReadout, entry: ReplicaRuntime, now: float) -> GpuReadout:
    """Return the status of a GPU. A GPU without recent readouts keeps its sums and drops its outdated gauges."""
    age = now - readout.t
    late = dict.fromkeys(readout.gauges, f"not read for {age:.0f} s") if age > UNREAD_SECONDS else {}
    gauges = {} if late else readout.gauges
    sums = dict(entry.gpu_totals.get(readout.gpu, {}))
    return replace(readout, counters=sums, gauges=gauges, gaps={**readout.gaps, **late})
