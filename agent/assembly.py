"""Putting the daemon together from a configuration: the one place where parts meet.

Owns which part is made of what, and what goes on when a configuration takes the place of another. It starts nothing;
what it makes is closed by it. What a role does not need (the history of a node, NVML where GPUs are not read through
it) is not even loaded: each is imported where it is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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

if TYPE_CHECKING:
    from agent.history.keeping import Keeping


@dataclass(slots=True)
class Assembly:
    """The parts of one configuration. `step13` holds the sentence of each tier whose first week is over."""

    loaded: Loaded
    turns: Turns
    versions: dict[str, str]
    step13: dict[str, str] = field(default_factory=dict)

    def upkeep(self, now: float) -> None:
        """The hourly work on the history; what was known stays known where the history cannot be asked."""
        if self.turns.history is not None:
            found = self.turns.history.upkeep(self.turns.watcher.views, self.versions, now)
            self.step13 = self.step13 if found is None else found

    def take_over(self, before: Assembly, now: float) -> None:
        """The memory of the configuration before, of which everything that does not go on here is given back.

        No turn may run in either meanwhile.
        """
        self.turns.take_over(before.turns)
        same = {tier for tier, version in self.versions.items() if before.versions.get(tier) == version}
        self.step13 = {tier: text for tier, text in before.step13.items() if tier in same} | self.step13
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
        """Something that explains numbers later, into the history if there is one."""
        if self.turns.history is not None:
            self.turns.history.event(t, kind, text, tier)

    def close(self, now: float) -> None:
        """Books what is open and gives everything back."""
        self.event(now, "stop", "sizewatch ended in order")
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
        clock=clock,
    )
    assembly = Assembly(loaded=loaded, turns=turns, versions=versions)
    if before is None:
        _resume(assembly, clock())
    assembly.upkeep(clock())
    return assembly


def _resume(assembly: Assembly, now: float) -> None:
    """What an earlier run of the agent left in the history."""
    turns = assembly.turns
    if turns.history is not None:
        earlier = turns.history.earlier(now - DAY_SECONDS, now)
        turns.past = list(earlier.past)
        assembly.event(now, "start", f"sizewatch {VERSION} began to watch {len(turns.targets)} targets")
        turns.resume(earlier.unfinished, now, earlier.seen)


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
