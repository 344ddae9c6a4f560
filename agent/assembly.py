"""Putting the daemon together from a configuration: the one place where parts meet.

Owns which part is made of what, and what goes on when a configuration takes the place of another. It starts nothing;
what it makes is closed by it. What a role does not need (the history of a node, NVML where GPUs are not read through
it) is not even loaded: each is imported where it is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.collect.gpus import ExporterPage, Gpus, Source
from agent.collect.pages import PageFetcher
from agent.collect.scrapers import Scrapers
from agent.config import Config, Loaded
from agent.data_dir import DataDir
from agent.turns import DAY_SECONDS, Turns
from agent.version import VERSION
from agent.views import versions_of, views_of
from rules import watch_long
from rules.signals import Gap
from rules.slices import TierView
from rules.starts import KEPT_SECONDS

if TYPE_CHECKING:
    from agent.alerting.both_ways import Alerting
    from agent.forecasting.forecasts import Forecasts
    from agent.history.keeping import Keeping


@dataclass(slots=True)
class Assembly:
    """The parts of one configuration. `step13` holds the sentence of each tier whose first week is over; `forecasts` is None
    where nothing is forecast.
    """

    loaded: Loaded
    turns: Turns
    versions: dict[str, str]
    step13: dict[str, str] = field(default_factory=dict)
    forecasts: Forecasts | None = None

    def upkeep(self, now: float) -> None:
        """The hourly work on the history; what was known stays known where the history cannot be asked."""
        if self.turns.history is not None:
            found = self.turns.history.upkeep(self.turns.watcher.views, self.versions, now)
            self.step13 = self.step13 if found is None else found
            self.turns.told(self.turns.history.long_answers(self._watched(), self.versions, now))

    def _watched(self) -> dict[str, TierView]:
        return {tier: self.turns.watcher.views[tier] for tier in sorted({t.tier for t in self.turns.targets})}

    @property
    def no_forecasts(self) -> str:
        """Why nothing is forecast, in words."""
        if self.loaded.config.history_path is None:
            return "not exposed: this agent keeps no history"
        return "forecasting is off (forecast.enabled: false)" if self.forecasts is None else ""

    def forecast(self, now: float) -> None:
        """Asks about every watched tier, and hands on what rules may rely on; takes as long as the forecasting process."""
        if self.forecasts is None:
            return
        from agent.forecasting.asking import question

        config, path = self.loaded.config, self.loaded.config.history_path
        assert path is not None
        with self.turns.memory:
            starts = {tier: self.turns.watcher.starts(tier) for tier in self._watched()}
        questions = [
            question(
                view,
                starts[tier],
                config.forecast,
                history=path,
                now=now,
                scrape_interval_seconds=config.scrape_interval_seconds,
            )
            for tier, view in self._watched().items()
        ]
        told = self.forecasts.run(questions)
        with self.turns.memory:
            for event in told:
                self.turns.event(event.t, event.kind, event.text, event.tier)
            self.turns.watcher.projected(self.forecasts.projections())

    def recall(self, tiers: Container[str], now: float) -> None:
        """Error budgets of three days from the history, in place of what is in memory."""
        for tier, view in self._watched().items():
            known = self.turns.history.budget(view, now) if self.turns.history is not None and tier in tiers else None
            if known is not None:
                self.turns.watcher.budget_known(tier, known)

    def keeps_nothing(self, now: float) -> None:
        """Where no history is kept, rules over days say so, once."""
        if self.turns.history is None:
            for view in self._watched().values():
                self.turns.told(watch_long.unanswered(view, now, Gap.NOT_EXPOSED, "this agent keeps no history"))

    def take_over(self, before: Assembly, now: float) -> None:
        """The memory of the configuration before, of which everything that does not go on here is given back.

        No turn may run in either meanwhile.
        """
        self.turns.take_over(before.turns)
        self.recall({tier for tier, version in self.versions.items() if before.versions.get(tier) != version}, now)
        same = {tier for tier, version in self.versions.items() if before.versions.get(tier) == version}
        self.step13 = {tier: text for tier, text in before.step13.items() if tier in same} | self.step13
        if self.forecasts is not None:
            self.forecasts.keep(self._watched())
        else:
            self.turns.watcher.projected({})
        if before.forecasts is not None and before.forecasts is not self.forecasts:
            before.forecasts.close()
        before.turns.give_back()
        if before.turns.gpus is not self.turns.gpus:
            before.turns.gpus.close()
        if before.turns.history is not None and before.turns.history is not self.turns.history:
            before.turns.history.close()
        self.event(now, "reload", f"the configuration was read again: {len(self.turns.targets)} targets")
        for tier, version in self.versions.items():
            if before.versions.get(tier, version) != version:
                self.event(
                    now, "plan", f"the plan of {tier} changed from version {before.versions[tier]} to {version}", tier
                )

    def event(self, t: float, kind: str, text: str, tier: str | None = None) -> None:
        """Something that explains numbers later."""
        self.turns.event(t, kind, text, tier)

    def close(self, now: float) -> None:
        """Books what is open and gives everything back."""
        self.event(now, "stop", "sizewatch ended in order")
        if self.forecasts is not None:
            self.forecasts.close()
        try:
            self.turns.stop()
        finally:
            if self.turns.history is not None:
                self.turns.history.close()


Assemble = Callable[[Loaded, Assembly | None], Assembly]
"""`assemble`, or what a demo or a test puts in its place."""


def assemble(
    loaded: Loaded,
    before: Assembly | None = None,
    *,
    clock: Callable[[], float] = time.time,
    gpu_source: Source | None = None,
) -> Assembly:
    """All parts for a configuration. History and GPUs of `before` go on where the configuration of them is the same.

    Raises BadConfig or HistoryProblem where the history cannot be opened; then nothing was made, and `before` is whole.
    """
    # Before the history is opened: a token file that cannot be used leaves nothing to be closed.
    alerting = _alerting(loaded.config, clock)
    keeping = _history(loaded, before)
    targets, versions = loaded.config.watched(), versions_of(loaded)
    same_gpus = before is not None and before.loaded.config.gpus == loaded.config.gpus
    turns = Turns(
        targets=targets,
        views=views_of(loaded),
        versions=versions,
        scrapers=Scrapers(targets, clock=clock),
        gpus=before.turns.gpus if before is not None and same_gpus else Gpus(gpu_source or _gpu_source(loaded.config)),
        history=keeping,
        alerting=alerting,
        clock=clock,
    )
    assembly = Assembly(loaded=loaded, turns=turns, versions=versions, forecasts=_forecasts(loaded.config, before))
    if before is None:
        _resume(assembly, clock())
    assembly.upkeep(clock())
    assembly.keeps_nothing(clock())
    return assembly


def _resume(assembly: Assembly, now: float) -> None:
    """What an earlier run of the agent left in the history."""
    turns = assembly.turns
    if turns.history is not None:
        earlier = turns.history.earlier(now - DAY_SECONDS, now)
        turns.past, turns.events = list(earlier.past), earlier.events
        if turns.alerting is not None:
            turns.alerting.foreign.resume(earlier.foreign, now)
        else:
            # Nobody will hear of their end any more.
            ended = [replace(one, ended_at=one.heard_at) for one in earlier.foreign if one.ended_at is None]
            turns.history.turn((), {}, ended, ())
        turns.resume_starts(turns.history.earlier(now - KEPT_SECONDS, now).events)
        assembly.event(now, "start", f"sizewatch {VERSION} began to watch {len(turns.targets)} targets")
        turns.resume(earlier.unfinished, now, earlier.seen)
        assembly.recall({target.tier for target in turns.targets}, now)


def _alerting(config: Config, clock: Callable[[], float]) -> Alerting | None:
    keys = config.alerting
    if keys.path == "rules" and keys.receiver is None:
        return None
    from agent.alerting.both_ways import Alerting

    return Alerting(keys, clock)


def _forecasts(config: Config, before: Assembly | None) -> Forecasts | None:
    """Those of the configuration before go on, whatever has changed: each question says what it depends on."""
    if config.history_path is None or not config.forecast.enabled:
        return None
    if before is not None and before.forecasts is not None:
        return before.forecasts
    from agent.forecasting.forecasts import Forecasts

    return Forecasts()


def _gpu_source(config: Config) -> Source | None:
    if config.gpus.source == "nvml":
        from agent.collect.nvml import NvmlReader

        return NvmlReader()
    if config.gpus.exporter is not None:
        exporter, connection = config.gpus.exporter
        return ExporterPage(PageFetcher(connection.options(config.timeout_seconds())), exporter)
    return None


def _history(loaded: Loaded, before: Assembly | None) -> Keeping | None:
    if loaded.config.history_path is None:
        return None
    if before is not None and before.loaded.config.data_dir == loaded.config.data_dir:
        return before.turns.history
    from agent.history.keeping import Keeping
    from agent.history.store import Store

    path = Path(loaded.config.history_path)
    ours = DataDir(path.parent, loaded.path)
    try:
        return Keeping(lambda: Store(path), ours.close)
    except BaseException:
        ours.close()
        raise
