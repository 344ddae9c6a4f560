"""The daemon's turn: scrape everything, judge it, book what is over.

Owns the order of a turn's steps and what may fail in them: a target costs its own scrape, a GPU its own readout, the
history waits in a buffer. The judgement is `agent.cycle`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from agent import news
from agent.collect.gpu_owners import Owned, assigned
from agent.collect.gpus import Gpus, GpuTurn
from agent.collect.scrapers import Scraped, Scrapers, Target
from agent.cycle import Closed, Key, Watcher
from agent.ledger import Ledger
from rules import episodes, gpu_windows
from rules.catalogue import BY_NAME
from rules.episodes import Ended, Episode, Standing
from rules.signals import Gap
from rules.slices import TierView
from rules.verdicts import Unknown
from rules.windows import Window

if TYPE_CHECKING:
    # A node that keeps no history loads none of it.
    from agent.history.keeping import Keeping

DAY_SECONDS = 86400.0

_log = logging.getLogger(__name__)


class Turns:
    """The targets and GPUs of one configuration, turn by turn. For one thread.

    `memory` is held while what is remembered changes, never while something is waited for: who reads it from another
    thread takes it too. `defects` counts targets that cost a turn their share of it by an unexpected error.
    """

    def __init__(
        self,
        *,
        targets: Sequence[Target],
        views: Mapping[str, TierView],
        versions: Mapping[str, str],
        scrapers: Scrapers,
        gpus: Gpus,
        history: Keeping | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.targets = tuple(targets)
        self.watcher = Watcher(views)
        self.ledger = Ledger()
        self.gpus = gpus
        self.owned: dict[Key, Owned] = {}
        self.gpu_problems: tuple[str, ...] = ()
        self.history = history
        self.past: list[Episode] = []
        self.defects = 0
        self.memory = threading.Lock()
        self.versions = versions
        self._scrapers = scrapers
        self._clock = clock

    def turn(self) -> None:
        """One turn. Raises only for a defect."""
        asked = self._scrapers.ask()
        # While the pages are on their way: a driver that hangs and a target that hangs are waited for together.
        read = self.gpus.turn(self._clock())
        outcomes = self._scrapers.answers(asked)
        with self.memory:
            ended, closed = self._judged(outcomes, read)
        self._book(ended, closed)

    def _judged(self, outcomes: Mapping[Key, Scraped], read: GpuTurn) -> tuple[tuple[Ended, ...], tuple[Closed, ...]]:
        news.of_gpus(self.gpu_problems, read.problems)
        self.gpu_problems = read.problems
        self.owned = assigned(self.targets, self.gpus.latest)
        for target in self.targets:
            self._take(target.key, outcomes[target.key], read)
        before = {key: standing.episode for key, standing in self.watcher.standings.items() if standing.episode}
        ended, closed = self.watcher.turn(self._clock())
        news.of_episodes(before, self.watcher.standings.values(), ended)
        self.ledger.closed(closed, self.watcher.views)
        self._remember(ended)
        return ended, closed

    def _take(self, key: Key, outcome: Scraped, read: GpuTurn) -> None:
        before = self.ledger.trouble(key)
        self.ledger.scraped(key, outcome)
        news.of_target(key, before, self.ledger.trouble(key))
        try:
            self._follow(key, outcome, read)
        except Exception:  # noqa: BLE001 - what one replica says must not cost the others their turn
            self.defects += 1
            _log.exception("defect while judging the page of %s/%s; its scrape is left out", *key)
            self.watcher.no_page(*key, outcome.t, trouble="defect in sizewatch, see its log")

    def _follow(self, key: Key, outcome: Scraped, read: GpuTurn) -> None:
        owned = self.owned[key]
        self.watcher.gpu_problem(*key, self.gpus.trouble(key, owned, outcome.t))
        of_gpus = {gpu: read.windows[gpu] for gpu in owned.gpus if gpu in read.windows}
        if outcome.snapshot is None:
            window: Window | None = self.watcher.no_page(*key, outcome.t, trouble=self.ledger.trouble(key))
        else:
            window = self.watcher.page(*key, outcome.snapshot, gpu_windows.together(of_gpus.values()))
        if window is not None:
            self.ledger.booked(key, window, of_gpus)

    def _remember(self, ended: tuple[Ended, ...]) -> None:
        """Episodes of the last day stay in memory for the status page."""
        since = self._clock() - DAY_SECONDS
        self.past = [e for e in self.past if (e.ended_at or 0.0) > since]
        self.past.extend(e for e in ended if isinstance(e, Episode))

    def take_over(self, before: Turns) -> None:
        """The memory of another configuration's turns: replicas that are still watched go on as if nothing happened."""
        self.watcher.take_over(before.watcher, {target.key for target in self.targets})
        self.ledger.take_over(before.ledger, {target.key for target in self.targets})
        self.past, self.defects = before.past, before.defects
        self.gpu_problems = before.gpu_problems
        self.owned = assigned(self.targets, self.gpus.latest)

    def resume(self, unfinished: Iterable[Episode], now: float, seen: bool) -> None:
        """Episodes that an earlier run left open: they go on until a rule says ok, as after any gap.

        One that nobody watches any more ends at `now`; where that run was not `seen` of late, at its last change.
        """
        keys = {target.key for target in self.targets}
        tiers = {target.tier for target in self.targets}
        ended: list[Ended] = []
        for episode in unfinished:
            tier, replica = episode.subject.tier, episode.subject.replica
            watched = tier in tiers if replica is None else (tier, replica) in keys
            standing = _restarted(episode, now)
            if watched and seen and episode.rule in BY_NAME:
                self.watcher.standings[episode.rule, episode.subject] = standing
            else:
                ended += episodes.end(standing, now if seen else max(t.t for t in episode.transitions))
        self._remember(tuple(ended))
        self._book(tuple(ended), ())

    def _book(self, ended: tuple[Ended, ...], closed: tuple[Closed, ...]) -> None:
        if self.history is None:
            return
        lasting = [s.episode for s in self.watcher.standings.values() if s.episode is not None]
        trouble = self.history.trouble
        self.history.turn(closed, self.versions, ended, lasting if closed or ended else [])
        news.of_history(trouble, self.history.trouble)

    def stop(self) -> None:
        """An orderly end: the open minutes are booked, connections and the GPU library given back."""
        try:
            with self.memory:
                closed = self.watcher.flush()
            self._book((), closed)
        finally:
            self.give_back()
            self.gpus.close()

    def give_back(self) -> None:
        """The connections; what is remembered stays."""
        self._scrapers.close()


def _restarted(episode: Episode, now: float) -> Standing:
    text = "sizewatch has just started"
    answer = Unknown(t=now, rule=episode.rule, subject=episode.subject, reason=Gap.RESTARTED, text=text)
    return Standing(answer=answer, episode=episode)
