"""Assembly of the daemon from a configuration by `agent.daemon.factory`, and its change at a reload."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from agent.config.load import LoadedConfig
from agent.config.targets import default_replica
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.interfaces import Closable
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from rules.evaluator import long_rules
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.telemetry.signals import Gap
from rules.telemetry.wording import format_count
from rules.verdicts.error_budget import Budget
from rules.verdicts.verdict import RuleResult

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.forecasting.service import ForecastService
    from agent.history.service import HistoryService
    from agent.kubernetes.discovery import DiscoveredPod
    from agent.kubernetes.node_pods import PodSource
    from agent.replay.back_fill import BackFill
    from agent.reporting.service import ReportService


@dataclass(slots=True)
class Assembly:
    """Parts of one configuration.

    `step13` holds the first-week sentence of each tier, `long_results` the results of the rules over days. A part is
    None where the configuration wants none. `loaded` includes discovered pods, `given` does not.
    """

    loaded: LoadedConfig
    loop: EvaluationLoop
    runtime: RuntimeState
    log: ChangeLog
    versions: dict[str, str]
    history: HistoryService | None = None
    alerting: AlertingService | None = None
    pods: PodSource | None = None
    step13: dict[str, str] = field(default_factory=dict)
    long_results: tuple[RuleResult, ...] = ()
    forecasts: ForecastService | None = None
    reports: ReportService | None = None
    back_fill: BackFill | None = None
    given: LoadedConfig | None = None

    def upkeep(self, now: float) -> None:
        """Run the hourly work on the history and set its results. Keep the previous results if the history fails."""
        self.read_history(now)
        with self.loop.memory:
            self.loop.state.set_long_term_results(self.long_results)

    def read_history(self, now: float) -> None:
        """Read the first-week sentences, capacities and results of the rules over days."""
        if self.history is None:
            text, contexts = "this agent keeps no history", self.loop.monitored_contexts().values()
            unknown = (long_rules.unknown_results(context, now, Gap.NOT_EXPOSED, text) for context in contexts)
            self.long_results = tuple(chain.from_iterable(unknown))
            return
        self.step13 = self.step13 | self.history.upkeep(self.loop.evaluator.tiers, self.versions, now)
        self.measure_capacities(now)
        self.long_results = self.history.long_answers(self.loop.monitored_contexts(), self.versions, now)

    def measure_capacities(self, now: float) -> None:
        """Measure the capacity of a replica of each tier, like the commands that read the same hours."""
        if self.history is not None:
            measured = self.history.measured_views(self.loop.monitored_contexts(), self.versions, now)
            with self.loop.memory:
                self.loop.evaluator.set_capacities(measured or {})

    def forecast(self, now: float) -> None:
        """Forecast every watched tier and set the projections for the rules. Block until the forecasts are done."""
        self.measure_capacities(now)
        if self.forecasts is None:
            return
        from agent.forecasting.messages import build_request

        config, path = self.loaded.config, self.loaded.config.history_path
        assert path is not None
        contexts = self.loop.monitored_contexts()
        with self.loop.memory:
            starts = {tier: self.loop.state.of_tier(tier).starts for tier in contexts}
        filled = self.back_fill.minutes if self.back_fill is not None else 0
        requests = [build_request(context, starts[t], config, path, now, filled) for t, context in contexts.items()]
        events = self.forecasts.run(requests)
        with self.loop.memory:
            for event in events:
                self.event(event.t, event.kind, event.text, event.tier)
            self.loop.state.projections = self.forecasts.projections()

    def read_error_budgets(self, tiers: Container[str], now: float) -> dict[str, Budget]:
        """Return the error budgets of three days that the history has of these tiers."""
        if self.history is None:
            return {}
        contexts = self.loop.monitored_contexts().items()
        known = {tier: self.history.budget(context, now) for tier, context in contexts if tier in tiers}
        return {tier: budget for tier, budget in known.items() if budget is not None}

    def fill_demand(self, now: float) -> None:
        """Fill the demand of the weeks before the start from the store. Block until it is done or the store fails."""
        if self.back_fill is not None and (text := self.back_fill.run()):
            with self.loop.memory:
                self.event(now, TimelineKind.BACK_FILL, text)

    def write_reports(self, now: float) -> None:
        """Write the weekly reports that are due. Block until they are done."""
        if self.reports is not None:
            self.reports.run(self.loaded, now)

    def take_state(self, before: Assembly, now: float, reason: str) -> None:
        """Go on in place of the previous configuration, and close its parts that do not go on.

        Both share what holds state; what is monitored no more is dropped from it. No cycle may run in either of them.
        """
        loop, source = self.loop, self.loop.source
        changed = {tier for tier, version in self.versions.items() if before.versions.get(tier) != version}
        # Before the lock, which the pages wait for: it reads three days.
        budgets = self.read_error_budgets(changed, now)
        with loop.memory:
            contexts, earlier = self.loop.monitored_contexts(), before.loop.evaluator.tiers
            same = [tier for tier in contexts if tier in earlier and earlier[tier].plan == contexts[tier].plan]
            loop.evaluator.set_capacities({tier: earlier[tier] for tier in same})
            hosts = {target.key: default_replica(target.peer.url) for target in before.loop.source.targets}
            # A name at another address is another process.
            keys = {t.key for t in source.targets if hosts.get(t.key) == default_replica(t.peer.url)}
            loop.state.retain(keys, loop.evaluator.tiers)
            loop.state.set_long_term_results(self.long_results)
            self.runtime.retain(keys | {worker.key for worker in self.workers()}, source.agent_tiers)
            self.log.retain(keys)
            loop.defects = before.loop.defects
            for tier, budget in budgets.items():
                loop.state.restore_error_budget(tier, budget)
            self.step13 = {tier: text for tier, text in before.step13.items() if tier not in changed} | self.step13
            if self.forecasts is None:
                loop.state.projections = {}
            self.event(now, "reload", f"{reason}: {format_count(len(source.targets), 'target')}")
            for tier in sorted(changed & before.versions.keys()):
                text = f"the plan of {tier} changed from version {before.versions[tier]} to {self.versions[tier]}"
                self.event(now, "plan", text, tier)
        continued = {id(part) for part in self._parts()}
        for part in before._parts():
            if id(part) not in continued:
                part.close()

    def _parts(self) -> Iterator[Closable]:
        """Yield the parts that must be closed, in this order."""
        yield from self._services()
        yield from self.loop.source.parts()
        if self.alerting is not None:
            yield from self.alerting.deliveries
        if self.history is not None:
            yield self.history

    def _services(self) -> Iterator[Closable]:
        """Yield the parts with threads or processes that use the others."""
        for part in (self.back_fill, self.forecasts, self.reports, self.pods):
            if part is not None:
                yield part

    def workers(self) -> tuple[DiscoveredPod, ...]:
        """Return pods here whose replica another agent scrapes."""
        return self.pods.workers() if self.pods is not None else ()

    def event(self, t: float, kind: str, text: str, tier: str | None = None) -> None:
        """Record a timeline event."""
        self.loop.record_event(TimelineEvent(t=t, kind=kind, tier=tier, replica=None, text=text))

    def interrupt(self) -> None:
        """End the services and the present cycle: an end waits for nothing that hangs."""
        self.loop.source.interrupt()
        for part in self._services():
            part.close()

    def close(self, now: float) -> None:
        """Record what is open and release everything."""
        self.interrupt()
        self.event(now, "stop", "sizewatch ended in order")
        self.loop.stop()
