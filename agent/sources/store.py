"""Evaluation cycle of role fleet: query the store for every tier, evaluate, store closed minutes.

Holds the order of the steps and their failures. A store that is unavailable, slow or partial hides only the queried
tiers; known state stays. The evaluation is in `rules.evaluator.step`, as in every role.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.config.store_keys import Lease
from agent.errors import ConfigError, ScrapeError, ScrapeFailure, SizewatchError
from agent.fleet.factory import AGENTS, LeaderElection, build_tier_reader, uses_agent_series
from agent.fleet.stored_pages import GONE_SECONDS, ReplicaPage
from agent.fleet.tier_readers import TierReader, TierReaderKey
from agent.gpu.collector import GpuCollector
from agent.gpu.owners import GpuAssignment
from agent.http_client.transport import TargetOptions
from agent.kubernetes.api import KubernetesApiError
from agent.pipeline.loop import EvaluationLoop
from agent.prometheus.answers import collector_resting
from agent.prometheus.api import QueryCounters, StoreApi
from agent.scrape.scrapers import ScrapeResult, Scrapers, Target
from exporters.status.records import ExportScope, StoreHealth
from rules.evaluator.step import ClosedMinute, ReplicaKey
from rules.evaluator.timeline import TimelineKind
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.finding import ClosedSpan
from rules.verdicts.verdict import Subject

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.history.service import HistoryService

STEP_SECONDS = 15.0
"""Evaluation step in seconds within one response, as if pages were scraped. It dates the start of findings."""

OVERLAP_SECONDS = 60.0
"""Query overlap in seconds. Samples of one scrape may arrive at different times."""

MOST_BEHIND_SECONDS = 3600.0
"""Maximum span in seconds of a query. After a longer outage of the store the time before is a gap."""

_log = logging.getLogger(__name__)


class StoreInfo(Protocol):
    """Status of a store: `agent.prometheus.api.StoreApi`."""

    place: str
    counts: QueryCounters


class StoreSource(EvaluationLoop):
    """Evaluation loop over the tiers of a store, for one thread. `targets` are the replicas with recent samples.

    `asking` maps each tier and the options of its reader to the reader.
    """

    def __init__(
        self,
        *,
        asking: Mapping[TierReaderKey, TierReader],
        api: StoreInfo,
        told_by_agents: frozenset[str],
        delay_seconds: float,
        leading: LeaderElection | None = None,
        views: Mapping[str, TierContext],
        versions: Mapping[str, str],
        history: HistoryService | None,
        alerting: AlertingService | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(
            targets=(),
            views=views,
            versions=versions,
            scrapers=Scrapers(()),
            gpus=GpuCollector(None),
            history=history,
            alerting=alerting,
            clock=clock,
        )
        self.store_troubles: dict[str, str] = {}
        self.asked = dict(asking)
        self._asking = tuple(asking.values())
        self.api = api
        self.leading = leading
        self._told_by_agents = told_by_agents
        self._delay = delay_seconds
        self._asked_until: dict[str, float] = {}
        self._seen: dict[str, dict[str, Window]] = {}

    @collector_resting()
    def run_cycle(self) -> None:
        """Run one cycle. Raise only for a defect."""
        until = self._clock() - self._delay
        told, blind, unanswered = self._ask(until)
        with self.memory:
            self._seen = {}
            ended, closed = self._fed(told, blind, until)
            views = {one.tier: self.watcher.view(one.tier) for one in self._asking if one.sums}
            before = {tier: self.watcher.last_minute_by_replica(tier, until) for tier in views}
        # The lock is free here: readers of pages must not wait for the queries of sums.
        minutes = {tier: self._minute(tier, view, before[tier], blind) for tier, view in views.items()}
        with self.memory:
            for tier, (groups, each) in minutes.items():
                self.watcher.add_aggregated_minute(tier, groups, each)
            self._leave_out(until, unanswered)
            over, more = self._concluded(until, blind)
            foreign = self._alert()
        self._tell_troubles(blind)
        self._book((*ended, *over, *foreign), (*closed, *more))

    def _minute(
        self, tier: str, view: TierContext, before: Mapping[str | None, BinnedWindow], blind: dict[str, str]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        seen = self._seen.get(tier, {})
        one = next(one for one in self._asking if one.tier == tier)
        if tier in blind or not seen:
            return (), ()
        try:
            return one.minute(seen, view, before)
        except SizewatchError as trouble:
            blind[tier] = str(trouble)
            missing = (windows.gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in seen.values())
            return (load_bins.bin_window(windows.sum_windows(missing), None, None),), ()

    @property
    def describe_targets(self) -> str:
        """Return a description of the tiers for the log."""
        return f"{len(self._asking)} tiers through {self.api.place}"

    def store_health(self) -> StoreHealth:
        """Return the health of the store."""
        counts = self.api.counts
        return StoreHealth(
            place=self.api.place,
            queries=counts.queries,
            seconds=counts.seconds,
            received_bytes=counts.bytes,
            failures={kind.value: number for kind, number in counts.troubles.items()},
            in_sight={one.tier: self.store_troubles.get(one.tier, "") for one in self._asking},
            leads=self.leading.leads if self.leading is not None else None,
            lease_trouble=self.leading.trouble if self.leading is not None else "",
        )

    def export_scope(self, tier: str) -> ExportScope:
        """Return which results of a tier to export. Node agents export their own replicas."""
        return ExportScope.WHOLE_TIER if tier in self._told_by_agents else ExportScope.ALL

    @property
    def is_leader(self) -> bool:
        """Return whether this agent is the leader of its fleet."""
        return self.leading is None or self.leading.leads

    def stop(self) -> None:
        """Stop in order, the lease last: the next leader must start only when this agent is silent."""
        try:
            super().stop()
        finally:
            if self.leading is not None:
                self.leading.stop()

    def is_monitored(self, subject: Subject) -> bool:
        """Return whether a tier is monitored. Its replicas count as present until the first query."""
        return any(one.tier == subject.tier for one in self._asking)

    @property
    def tiers(self) -> frozenset[str]:
        """Return the names of the monitored tiers, also without replicas."""
        return frozenset(one.tier for one in self._asking)

    def inherit_state(self, before: EvaluationLoop) -> None:
        """Take over the state of the previous configuration for tiers that are still monitored."""
        if isinstance(before, StoreSource):
            self.targets = tuple(target for target in before.targets if target.tier in self.tiers)
            self._asked_until = {t: until for t, until in before._asked_until.items() if t in self.tiers}
            self.gpus.latest = dict(before.gpus.latest)
            owned = {target.key: before.owned[target.key] for target in self.targets if target.key in before.owned}
        super().inherit_state(before)
        if isinstance(before, StoreSource):
            self.owned = owned
            if before.leading is not None and before.leading is not self.leading:
                before.leading.stop()

    def _ask(self, until: float) -> tuple[tuple[ReplicaPage, ...], dict[str, str], frozenset[str]]:
        """Query all tiers. Return the pages, the reasons of blind tiers, and the tiers whose query failed."""
        told: list[ReplicaPage] = []
        blind: dict[str, str] = {}
        unanswered: set[str] = set()
        for one in self._asking:
            # The clock may have been set back. Do not query future times.
            known = min(self._asked_until.get(one.tier, until - GONE_SECONDS), until)
            since = max(known, until - MOST_BEHIND_SECONDS)
            try:
                found = one.ask(since - OVERLAP_SECONDS, until)
            except SizewatchError as trouble:
                blind[one.tier] = str(trouble)
                unanswered.add(one.tier)
                continue
            self._asked_until[one.tier] = until
            absent = one.pages.missing_scrapes(until)
            silent_since = one.pages.all_silent_since
            if silent_since is not None:
                blind[one.tier] = _silent(until - silent_since)
            told += found if silent_since is not None else (*found, *absent)
        return tuple(sorted(told, key=lambda one: one.page.t)), blind, frozenset(unanswered)

    def _tell_troubles(self, blind: Mapping[str, str]) -> None:
        """Log a line when a tier becomes blind and when it recovers."""
        for tier, text in blind.items():
            if tier not in self.store_troubles:
                _log.warning("store read failed tier=%s error=%s", tier, text)
        for tier in self.store_troubles.keys() - blind.keys():
            _log.info("store read recovered tier=%s", tier)
        self.store_troubles = dict(blind)

    def _fed(
        self, told: tuple[ReplicaPage, ...], blind: Mapping[str, str], until: float
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        ended: list[ClosedSpan] = []
        closed: list[ClosedMinute] = []
        for asked in self._asking:
            self.watcher.set_aggregated(asked.tier, asked.sums)
        for step, several in groupby(told, key=lambda one: one.page.t // STEP_SECONDS):
            for one in several:
                self._take_told(one)
            over, minutes = self._concluded(min(until, (step + 1) * STEP_SECONDS), blind)
            ended.extend(over)
            closed.extend(minutes)
        return tuple(ended), tuple(closed)

    def _take_told(self, one: ReplicaPage) -> None:
        key, page = (one.tier, one.page.replica), one.page
        error = None if page.snapshot is not None else ScrapeError(ScrapeFailure.CONNECT, page.trouble)
        self.ledger.record_scrape(key, ScrapeResult(t=page.t, seconds=0.0, snapshot=page.snapshot, error=error))
        if page.gpus:
            self.gpus.latest |= {readout.gpu: readout for readout in page.gpus}
            self.owned[key] = GpuAssignment(gpus=tuple(readout.gpu for readout in page.gpus))
        try:
            self._follow_told(one)
        except Exception:  # noqa: BLE001 - a defect at one replica must not stop the others
            self.defects += 1
            _log.exception("series evaluation failed tier=%s replica=%s", *key)
            self.watcher.apply_failed_scrape(*key, page.t, trouble="defect in sizewatch, see its log")

    def _follow_told(self, one: ReplicaPage) -> None:
        key, page = (one.tier, one.page.replica), one.page
        if page.snapshot is None:
            window = self.watcher.apply_failed_scrape(*key, page.t, trouble=page.trouble)
        else:
            self._note_restart(key, page.snapshot)
            known = self.watcher.starts(key[0])
            window = self.watcher.apply_snapshot(*key, page.snapshot, one.gpus)
            self._note_starts(key[0], known)
        if window is not None:
            self._seen.setdefault(one.tier, {})[page.replica] = window
            if one.tier not in self._told_by_agents:
                # Agents export the sums of their own tiers.
                self.ledger.add_window(key, window, {})

    def _leave_out(self, now: float, unanswered: Container[str]) -> None:
        """Remove replicas that are gone; keep the others as targets. A failed query is no evidence that a replica is
        gone."""
        for one in self._asking:
            names = sorted(one.pages.pop_gone_replicas(now)) if one.tier not in unanswered else ()
            if names:
                gone = {(one.tier, name) for name in names}
                self.watcher.remove_replicas(gone)
                self.ledger.forget(gone)
                self._without_gpus_of(gone)
                self.event(now, TimelineKind.GONE, f"the store tells nothing more of {_named(names)}", one.tier)
            view = self.watcher.view(one.tier)
            if view.pools != one.pages.pools:
                self.watcher.views[one.tier] = replace(view, pools=one.pages.pools)
        self.targets = tuple(self._targets())

    def _without_gpus_of(self, gone: set[ReplicaKey]) -> None:
        """Drop readings of GPUs that no present replica has."""
        if not gone.isdisjoint(self.owned):
            self.owned = {key: owned for key, owned in self.owned.items() if key not in gone}
            had = {gpu for owned in self.owned.values() for gpu in owned.gpus}
            self.gpus.latest = {gpu: readout for gpu, readout in self.gpus.latest.items() if gpu in had}

    def _targets(self) -> Iterator[Target]:
        for one in self._asking:
            for name, pool in sorted(one.pages.pools.items()):
                yield Target(tier=one.tier, replica=name, pool=pool, options=TargetOptions(url=self.api.place))


NAMED = 5
"""Maximum number of replicas named in a sentence."""


def _silent(seconds: float) -> str:
    ever = (
        f"has had no sample of the tier for {seconds:.0f} s" if math.isfinite(seconds) else "has no sample of the tier"
    )
    return f"the store {ever}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def fleet_turns(
    loaded: LoadedConfig,
    before: StoreSource | None,
    *,
    history: HistoryService | None,
    alerting: AlertingService | None,
    clock: Callable[[], float],
) -> StoreSource:
    """Build the loop of a configuration of role fleet. Unchanged readers keep their state."""
    keys = loaded.config
    assert keys.store is not None, "role fleet has a store"
    options = keys.store.options(keys.turn_seconds)
    kept = before.api if before is not None else None
    api = kept if isinstance(kept, StoreApi) and kept.options == options else StoreApi(options)
    views = build_tier_contexts(loaded)
    known: dict[TierReaderKey, TierReader] = before.asked if before is not None else {}
    asking: dict[TierReaderKey, TierReader] = {}
    for tier, view in views.items():
        source = keys.tiers.get(tier, AGENTS)
        way = (source, options, keys.fleet, view.basis.ttft_slo_seconds)
        asking[way, tier] = known.get((way, tier)) or build_tier_reader(tier, source, view, keys.fleet, api)
    return StoreSource(
        asking=asking,
        api=api,
        told_by_agents=frozenset(tier for tier in views if uses_agent_series(keys, tier)),
        delay_seconds=keys.fleet.delay_seconds,
        leading=_leading(keys.fleet.lease, before.leading if before is not None else None),
        views=views,
        versions=plan_versions(loaded),
        history=history,
        alerting=alerting,
        clock=clock,
    )


def _leading(keys: Lease | None, before: LeaderElection | None) -> LeaderElection | None:
    """Return the leader election of a lease. Raise ConfigError if the Kubernetes API is not found."""
    if keys is None:
        return None
    if before is not None and before.keys == keys:
        return before
    try:
        return LeaderElection(keys)
    except KubernetesApiError as trouble:
        raise ConfigError((f"fleet.lease: {trouble.text}",)) from trouble
