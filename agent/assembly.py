"""Putting the daemon together from a configuration: the one place where parts meet.

Owns which part is made of what. It starts nothing; what it makes is closed by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.collect.gpus import DcgmPage, Gpus, Source
from agent.collect.nvml import NvmlReader
from agent.collect.pages import PageFetcher
from agent.collect.scrapers import Scrapers
from agent.config import Config, Loaded
from agent.errors import BadConfig
from agent.history.keeping import Keeping
from agent.history.store import Store
from agent.turns import DAY_SECONDS, Turns
from agent.views import versions_of, views_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Assembly:
    """The parts of one configuration. `step13` holds the sentence of each tier whose first week is over."""

    loaded: Loaded
    turns: Turns
    versions: dict[str, str]
    step13: dict[str, str] = field(default_factory=dict)

    def upkeep(self, now: float) -> None:
        """The hourly work on the history."""
        if self.turns.history is not None:
            self.step13 = self.turns.history.upkeep(self.turns.watcher.views, self.versions, now)

    def take_over(self, before: Assembly) -> None:
        """The memory of the configuration before, whose connections are given back.

        A history in the same folder goes on with what still waits in its buffer.
        """
        self.turns.take_over(before.turns)
        self.step13 = {
            tier: text for tier, text in before.step13.items() if self.versions.get(tier) == before.versions.get(tier)
        }
        before.turns.give_back()
        old, new = before.turns.history, self.turns.history
        if old is not None and new is not None and self.loaded.config.data_dir == before.loaded.config.data_dir:
            self.turns.history = old
            new.close()
        elif old is not None:
            old.close()

    def close(self) -> None:
        """Books what is open and gives everything back."""
        self.turns.stop()
        if self.turns.history is not None:
            self.turns.history.close()


def assemble(loaded: Loaded, *, clock: Callable[[], float] = time.time, gpu_source: Source | None = None) -> Assembly:
    """All parts for a configuration. Raises HistoryProblem or HistoryTrouble where the history cannot be opened."""
    config = loaded.config
    targets = config.watched()
    keeping = _history(config)
    turns = Turns(
        targets=targets,
        views=views_of(loaded),
        versions=versions_of(loaded),
        scrapers=Scrapers(targets, clock=clock),
        gpus=Gpus(gpu_source or _gpu_source(config)),
        history=keeping,
        interval_seconds=config.scrape_interval_seconds,
        clock=clock,
    )
    if keeping is not None:
        turns.past = keeping.recent(clock() - DAY_SECONDS)
    assembly = Assembly(loaded=loaded, turns=turns, versions=versions_of(loaded))
    assembly.upkeep(clock())
    return assembly


def _gpu_source(config: Config) -> Source | None:
    if config.gpus.source == "nvml":
        return NvmlReader()
    if config.gpus.source == "dcgm" and config.gpus.dcgm is not None:
        return DcgmPage(PageFetcher(config.gpus.dcgm.options(config.timeout_seconds())))
    return None


def _history(config: Config) -> Keeping | None:
    if config.history_path is None:
        return None
    path = Path(config.history_path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig((f"data_dir: {path.parent} cannot be made: {error.strerror}",)) from error
    return Keeping(Store(path))
