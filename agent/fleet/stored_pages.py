"""From a store's pages to the watcher: the pages of a tier in order of time, and the scrapes that are missing between.

Owns what is remembered of a tier's replicas between two answers of the store: when each was last told of, and the readouts
of their GPUs. The judgement is `rules.evaluator.step`'s; it sees pages as if it had scraped them.

What is read back from a store: pages of replicas with their true times.

Owns the records that the readers of stored series (`own_pages`, `engine_pages`) make and whoever watches takes. It knows
neither the store's API nor any name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Protocol

from rules.telemetry import gpu_windows
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.windows import Window


class StoredSeries(Protocol):
    """One series of a store's answer: labels with `__name__`, and samples in order of time (unix seconds)."""

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def times(self) -> tuple[float, ...]: ...

    @property
    def values(self) -> tuple[float, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """One page of a replica, or at `t` the word of whoever scraped it that there was none (`snapshot` None, `trouble`
    why). `gpus` are the readouts of its GPUs that came with it."""

    t: float
    replica: str
    pool: str
    snapshot: Snapshot | None
    gpus: tuple[GpuReadout, ...] = ()
    trouble: str = ""


GONE_SECONDS = 300.0
"""A replica of which its agent, or the store's own scrape, says nothing for so long is no more (Prometheus' staleness)."""

LATE = 2.5
"""So many scrape intervals without a page are a gap and not a late scrape."""

USUAL_SECONDS = 15.0
"""The time between two pages of a replica until several have told it."""


def _no_scrape(t: float, replica: str, pool: str) -> StoredPage:
    return StoredPage(t=t, replica=replica, pool=pool, snapshot=None, trouble="the store has no scrape of it")


ENOUGH = 3
"""Pages of one replica in an answer that tell how far apart they are."""


class PageReaderProtocol(Protocol):
    """What makes pages of a store's series: `agent.fleet.agent_series`, `agent.fleet.engine_series`."""

    def pages(self, several: Iterable[StoredSeries]) -> Iterator[StoredPage]: ...

    def forget(self, replicas: set[str]) -> None: ...


@dataclass(slots=True)
class _Known:
    """A replica between two answers. `told` is the time of the last word of it, a page or that there was none; `given_up`
    up to when it was taken to be silent: what comes later of the time before is not used any more."""

    pool: str
    told: float
    usual: float
    given_up: float = -math.inf
    gaps: list[float] = field(default_factory=list)
    gpus: dict[str, GpuReadout] = field(default_factory=dict)

    @property
    def interval(self) -> float:
        return median(self.gaps) if len(self.gaps) > 1 else self.usual


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPage:
    """One page in its place: `gpus` is what the replica's GPUs did since the page before."""

    tier: str
    page: StoredPage
    gpus: Window | None = None


class TierPages:
    """The replicas of one tier as a store tells of them. For one thread."""

    def __init__(self, tier: str, reader: PageReaderProtocol, usual_seconds: float = USUAL_SECONDS) -> None:
        self.tier = tier
        self._reader = reader
        self._usual = usual_seconds
        self._known: dict[str, _Known] = {}
        self._last_told = -math.inf

    def take(self, series: Iterable[StoredSeries]) -> tuple[ReplicaPage, ...]:
        """What an answer tells, in order of time, missing scrapes among it."""
        pages = list(self._reader.pages(series))
        usual = self._intervals(pages)
        found = [one for page in pages for one in self._told(page, usual)]
        return tuple(sorted(found, key=lambda one: one.page.t))

    def _intervals(self, pages: Iterable[StoredPage]) -> dict[str, float]:
        """The time between two pages of each replica that is met for the first time, where the answer has enough of them."""
        times: dict[str, list[float]] = {}
        for page in pages:
            if page.replica not in self._known:
                times.setdefault(page.replica, []).append(page.t)
        return {name: median(b - a for a, b in pairwise(of)) for name, of in times.items() if len(of) > ENOUGH}

    def missing_scrapes(self, now: float) -> tuple[ReplicaPage, ...]:
        """Replicas of which nothing was told for longer than a scrape may be late, as pages that are not there."""
        for known in self._known.values():
            # The clock may have gone back since: what was told, or missed, in times to come says nothing of now.
            known.told, known.given_up = min(known.told, now), min(known.given_up, now)
        silent = {name: known for name, known in self._known.items() if now - known.told > LATE * known.interval}
        for known in silent.values():
            known.given_up = now
        return tuple(
            ReplicaPage(tier=self.tier, page=_no_scrape(now, name, known.pool)) for name, known in silent.items()
        )

    @property
    def all_silent_since(self) -> float | None:
        """When the last word of any replica came, where none is known to answer; -inf where none ever came, None where one does."""
        if any(known.told > known.given_up for known in self._known.values()):
            return None
        return max((known.told for known in self._known.values()), default=self._last_told)

    def pop_gone_replicas(self, now: float) -> set[str]:
        """Replicas that are no more; they are forgotten."""
        names = {name for name, known in self._known.items() if now - known.told > GONE_SECONDS}
        for name in names:
            self._last_told = max(self._last_told, self._known.pop(name).told)
        self._reader.forget(names)
        return names

    @property
    def pools(self) -> dict[str, str]:
        """The pool of every replica that is known."""
        return {name: known.pool for name, known in self._known.items()}

    def gpus(self, replica: str) -> dict[str, GpuReadout]:
        """The last readout of each GPU of a replica."""
        known = self._known.get(replica)
        return known.gpus if known is not None else {}

    def _told(self, page: StoredPage, usual: Mapping[str, float]) -> Iterator[ReplicaPage]:
        known = self._known.get(page.replica)
        if known is None:
            known = self._known[page.replica] = _Known(
                pool=page.pool, told=-math.inf, usual=usual.get(page.replica, self._usual)
            )
        elif page.t <= max(known.told, known.given_up):
            return
        since = page.t - known.told
        if math.isfinite(since) and since > LATE * known.interval:
            missing = page.t - known.interval
            if missing > known.given_up:
                yield ReplicaPage(tier=self.tier, page=_no_scrape(missing, page.replica, page.pool))
        if math.isfinite(since):
            # Also of a gap: one is no interval, and several in a row are.
            known.gaps = [*known.gaps[-8:], since]
        known.told, known.pool = page.t, page.pool
        yield ReplicaPage(tier=self.tier, page=page, gpus=self._of_gpus(known, page))

    def _of_gpus(self, known: _Known, page: StoredPage) -> Window | None:
        several = []
        for readout in page.gpus:
            before = known.gpus.get(readout.gpu)
            window = gpu_windows.diff_readouts(before, readout) if before is not None else None
            if window is not None:
                several.append(window)
            known.gpus[readout.gpu] = readout
        return gpu_windows.sum_gpus(several)
