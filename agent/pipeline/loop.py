"""Evaluation cycle of the daemon: scrape every target, evaluate the tiers, store closed minutes.

Holds the order of the steps and the failures that a step may have. A failed target loses only its own scrape. A failed
GPU loses only its own readout. If the history fails, its minutes wait in a buffer. The evaluation itself is in
`rules.evaluator.step`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.gpu.collector import GpuCollector, GpuReadings
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.pipeline import change_log
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import ScrapeResult, Scrapers, Target
from exporters.status.records import ExportScope, StoreHealth
from rules.catalogue.registry import BY_NAME
from rules.evaluator import alert_state, timeline
from rules.evaluator.alert_state import AlertKey, AlertState
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert
from rules.evaluator.step import NOBODY, ClosedMinute, Evaluator, ReplicaKey
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS, ReplicaStart
from rules.telemetry import gpu_windows, windows
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts import finding
from rules.verdicts.finding import ClosedSpan, Finding, RuleState
from rules.verdicts.verdict import RuleResult, Subject, Unknown

if TYPE_CHECKING:
    # A node without history and alerts must not load these modules.
    from agent.alerting.service import AlertingService
    from agent.history.service import HistoryService
    from agent.kubernetes.discovered_targets import PodSource

DAY_SECONDS = 86400.0

MOST_EVENTS = 1_000
"""Maximum number of events of the last day in memory. A replica that restarts every minute fills it in a day."""

_log = logging.getLogger(__name__)


class EvaluationLoop:
    """Targets and GPUs of one configuration, evaluated in cycles by one thread.

    A cycle holds the lock `memory` while it changes state, never during I/O. Readers in other threads must hold it too.
    `whole_tiers`: whether results of whole tiers are exported and alerted on. It is false where a node has only some of
    a tier's replicas; role fleet then exports the tier. `defects` counts unexpected errors in cycles.
    """

    def __init__(
        self,
        *,
        targets: Sequence[Target],
        views: Mapping[str, TierContext],
        versions: Mapping[str, str],
        scrapers: Scrapers,
        gpus: GpuCollector,
        history: HistoryService | None,
        alerting: AlertingService | None = None,
        pods: PodSource | None = None,
        clock: Callable[[], float] = time.time,
        whole_tiers: bool = True,
    ) -> None:
        self.whole_tiers = whole_tiers
        self.targets = tuple(targets)
        self.watcher = Evaluator(views)
        self.ledger = RuntimeState()
        self.gpus = gpus
        self.owned: dict[ReplicaKey, GpuAssignment] = {}
        self.gpu_problems: tuple[str, ...] = ()
        self.history = history
        self.alerting = alerting
        self.pods = pods
        self.past: list[Finding] = []
        self.events: tuple[TimelineEvent, ...] = ()
        self.defects = 0
        self.memory = threading.Lock()
        self.versions = versions
        self._measured_day: float | None = None
        self._scrapers = scrapers
        self._clock = clock

    def run_cycle(self) -> None:
        """Run one cycle. Raise only for a defect."""
        asked = self._scrapers.start_scrapes()
        # Read the GPUs during the scrapes: the waits for a hung driver and a hung target then overlap.
        read = self.gpus.turn(self._clock())
        outcomes = self._scrapers.collect_results(asked)
        with self.memory:
            ended, closed = self._judged(outcomes, read)
            foreign = self._alert()
        self._book((*ended, *foreign), closed)

    def _alert(self) -> tuple[ExternalAlert, ...]:
        """Send alerts and collect incoming alerts. Return the external alerts that changed."""
        if self.alerting is None:
            return ()
        opened = [s.episode for s in self.watcher.standings.values() if s.episode is not None]
        try:
            return self.alerting.turn(
                self._spoken(), (*opened, *self.past), self._fleet, self._clock(), posts=self.is_leader
            )
        except Exception:  # noqa: BLE001 - the minutes of this cycle must be stored even if its alerts fail
            self.defects += 1
            _log.exception("alert delivery failed")
            return ()

    def _spoken(self) -> Mapping[AlertKey, AlertState]:
        if self.whole_tiers:
            return self.watcher.alerts
        return {key: state for key, state in self.watcher.alerts.items() if key.subject.replica is not None}

    def _fleet(self) -> AlertTargets:
        from agent.alerting.service import alert_targets

        pages = ((tier, replica.track.last) for (tier, _), replica in self.watcher.replicas.items())
        seen = {(tier, page.facts["model"]) for tier, page in pages if page is not None and page.facts.get("model")}
        return alert_targets(self.targets, self.watcher.views, sorted(seen))

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Record an event for the status pages and, if present, the history."""
        kept = [event for event in self.events if event.t > t - DAY_SECONDS]
        self.events = (*kept[1 - MOST_EVENTS :], TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text))
        if self.history is not None:
            self.history.event(t, kind, text, tier, replica)

    def _judged(
        self, outcomes: Mapping[ReplicaKey, ScrapeResult], read: GpuReadings
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        change_log.log_gpu_change(self.gpu_problems, read.problems)
        self.gpu_problems = read.problems
        self.owned = self._assigned()
        for target in self.targets:
            self._take(target.key, outcomes[target.key], read)
        for worker in self.pods.workers() if self.pods is not None else ():
            self.ledger.add_gpu_windows(worker.key, self._windows(worker.key, read))
        return self._concluded(self._clock())

    def _concluded(
        self, now: float, blind: Mapping[str, str] = NOBODY
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        """Evaluate at `now` and record the results. Skip the tiers in `blind`, which maps each to its reason."""
        before = {key: standing.episode for key, standing in self.watcher.standings.items() if standing.episode}
        ended, closed = self.watcher.step(now, blind)
        change_log.log_finding_changes(before, self.watcher.standings.values(), ended)
        self.ledger.record_minutes(closed, self.watcher.views, now)
        self._remember(ended)
        return ended, closed

    def _take(self, key: ReplicaKey, outcome: ScrapeResult, read: GpuReadings) -> None:
        before = self.ledger.trouble(key)
        self.ledger.record_scrape(key, outcome)
        change_log.log_target_change(key, before, self.ledger.trouble(key))
        try:
            self._follow(key, outcome, read)
        except Exception:  # noqa: BLE001 - a defect at one replica must not stop the others
            self.defects += 1
            _log.exception("page evaluation failed tier=%s replica=%s", *key)
            self.watcher.apply_failed_scrape(*key, outcome.t, trouble="defect in sizewatch, see its log")

    def _windows(self, key: ReplicaKey, read: GpuReadings) -> dict[str, Window]:
        owned = self.owned.get(key, GpuAssignment(gpus=()))
        return {gpu: read.windows[gpu] for gpu in owned.gpus if gpu in read.windows}

    def _follow(self, key: ReplicaKey, outcome: ScrapeResult, read: GpuReadings) -> None:
        if outcome.snapshot is None and self._starting(key):
            return
        owned = self.owned[key]
        self.watcher.gpu_problem(*key, self.gpus.trouble(key, owned, outcome.t))
        of_gpus = self._windows(key, read)
        if outcome.snapshot is None:
            window: Window | None = self.watcher.apply_failed_scrape(*key, outcome.t, trouble=self.ledger.trouble(key))
        else:
            page = outcome.snapshot
            page = page if self.pods is None else replace(page, pod=self.pods.times(key))
            self._note_restart(key, page)
            known = self.watcher.starts(key[0])
            window = self.watcher.apply_snapshot(*key, page, gpu_windows.sum_gpus(of_gpus.values()))
            self._note_starts(key[0], known)
        if window is not None:
            self.ledger.add_window(key, window, of_gpus)

    def _starting(self, key: ReplicaKey) -> bool:
        """Return whether the replica is still starting, so that a failed scrape is no gap.

        A StatefulSet reuses pod names. State from before the pod was created belongs to another pod and is removed."""
        if self.pods is None or not self.pods.starting(key):
            return False
        times, replica = self.pods.times(key), self.watcher.replicas.get(key)
        if replica is None or times is None or times.asked_at is None:
            return replica is None
        last = replica.track.last
        if last is None or last.t < times.asked_at:
            self.watcher.remove_replicas({key})
            return True
        return False

    def _note_restart(self, key: ReplicaKey, page: Snapshot) -> None:
        replica = self.watcher.replicas.get(key)
        last = replica.track.last if replica is not None else None
        if last is not None and windows.is_restart(last, page):
            self.event(page.t, TimelineKind.RESTART, "the engine restarted", *key)

    def _note_starts(self, tier: str, known: tuple[ReplicaStart, ...]) -> None:
        """Record new starts as events, which `restore_starts` reads after a restart of the agent.

        Starts older than KEPT_SECONDS are skipped: the page of a running process reports its start at every scrape."""
        now_known = self.watcher.starts(tier)
        for start in () if now_known is known else now_known:
            if start not in known and start.t > self._clock() - KEPT_SECONDS:
                event = timeline.start_event(tier, start)
                self.event(event.t, event.kind, event.text, event.tier, event.replica)

    def _remember(self, ended: tuple[ClosedSpan, ...]) -> None:
        """Keep the findings of the last day in memory for the status page."""
        since = self._clock() - DAY_SECONDS
        self.past = [e for e in self.past if (e.ended_at or 0.0) > since]
        self.past.extend(e for e in ended if isinstance(e, Finding))

    def set_long_term_results(self, answers: Iterable[RuleResult]) -> None:
        """Set the results of the rules over days. Any thread may call it; the next cycle evaluates them."""
        with self.memory:
            self.watcher.set_long_term_results(answers)

    def measure_capacities(self, views: Mapping[str, TierContext], now: float, *, again: bool = False) -> None:
        """Measure the capacity of a replica of each tier once a day, like the commands that read the same days.

        `again` repeats it on the same day because the history was filled with past data."""
        day = now // DAY_SECONDS
        if self.history is None or (day == self._measured_day and not again):
            return
        found = self.history.measured_views(views, self.versions, now)
        if found is not None:
            self._measured_day = day
            with self.memory:
                self.watcher.set_capacities(found)

    def inherit_state(self, before: EvaluationLoop) -> None:
        """Take over the state of the previous configuration for replicas that are still monitored."""
        watched = {target.key for target in self.targets}
        self.watcher.inherit_state(before.watcher, watched)
        if self._measured_day is None and self.versions == before.versions:
            self._measured_day = before._measured_day
        workers = {one.key for one in self.pods.workers()} if self.pods is not None else set()
        self.ledger.take_over(before.ledger, watched | workers)
        self.gpus.keep(watched)
        self.past, self.events, self.defects = before.past, before.events, before.defects
        if self.alerting is not None:
            self.alerting.take_over(before.alerting)
        elif before.alerting is not None:
            before.alerting.close()
        self.gpu_problems = before.gpu_problems
        self.owned = self._assigned()

    def _assigned(self) -> dict[ReplicaKey, GpuAssignment]:
        whose = assign_gpus if self.pods is None else self.pods.assign_gpus
        return whose(self.targets, self.gpus.latest)

    def restore_findings(self, unfinished: Iterable[Finding], now: float, seen: bool) -> None:
        """Restore findings that an earlier run left open. They last until a rule is ok, as after any gap.

        A finding of a subject that is no longer monitored ends at `now`. If that run was not `seen` recently, it ends
        at its last transition.
        """
        ended: list[ClosedSpan] = []
        for episode in unfinished:
            standing = _restarted(episode, now)
            if self.is_monitored(episode.subject) and seen and episode.rule in BY_NAME:
                self.watcher.standings[episode.rule, episode.subject] = standing
            else:
                ended += finding.close_rule_state(standing, now if seen else max(t.t for t in episode.transitions))
        self._remember(tuple(ended))
        going_on = [s.episode for s in self.watcher.standings.values() if s.episode is not None]
        self.watcher.alerts = alert_state.restore_alerts((*self.past, *going_on), now)
        self._book(tuple(ended), ())

    @property
    def tiers(self) -> frozenset[str]:
        """Return the names of the monitored tiers."""
        return frozenset(target.tier for target in self.targets)

    @property
    def is_leader(self) -> bool:
        """Return whether this agent is the leader of its fleet."""
        return True

    @property
    def describe_targets(self) -> str:
        """Return a description of the targets for the log."""
        return f"{len(self.targets)} targets"

    def export_scope(self, tier: str) -> ExportScope:
        """Return which results of a tier this agent exports and alerts on."""
        return ExportScope.ALL if self.whole_tiers else ExportScope.REPLICAS

    def store_health(self) -> StoreHealth | None:
        """Return the health of the store, or None without a store."""
        return None

    def is_monitored(self, subject: Subject) -> bool:
        """Return whether a tier or replica is monitored."""
        if subject.replica is None:
            return any(target.tier == subject.tier for target in self.targets)
        return any(target.key == (subject.tier, subject.replica) for target in self.targets)

    def restore_starts(self, events: Iterable[TimelineEvent]) -> None:
        """Restore the starts that earlier runs recorded, for tiers that are still monitored."""
        for event in events:
            start = timeline.parse_start_event(event)
            if start is not None and event.tier in self.tiers:
                self.watcher.restore_starts(event.tier, (start,))

    def _book(self, ended: tuple[ClosedSpan | ExternalAlert, ...], closed: tuple[ClosedMinute, ...]) -> None:
        if self.history is None:
            return
        closed = tuple(one for one in closed if one.kept)
        lasting = [s.episode for s in self.watcher.standings.values() if s.episode is not None]
        trouble = self.history.trouble
        pools = {target.key: target.pool for target in self.targets}
        lasting = lasting if closed or ended else []
        self.history.turn(closed, self.versions, ended, lasting, pools=pools, now=self._clock())
        change_log.log_history_change(trouble, self.history.trouble)

    def stop(self) -> None:
        """Stop in order: store the open minutes, then close connections and the GPU library."""
        try:
            with self.memory:
                closed = self.watcher.flush()
            self._book((), closed)
        finally:
            if self.alerting is not None:
                self.alerting.close()
            self.release_connections()
            self.gpus.close()

    def release_connections(self) -> None:
        """Close the connections and keep the state."""
        self._scrapers.close()


def _restarted(episode: Finding, now: float) -> RuleState:
    text = "sizewatch has just started"
    answer = Unknown(t=now, rule=episode.rule, subject=episode.subject, reason=Gap.RESTARTED, text=text)
    return RuleState(answer=answer, episode=episode, judged_at=now)
