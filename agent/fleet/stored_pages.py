"""Pages of a tier's replicas read back from a store, in order of time, with the missing scrapes between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Protocol

from agent.errors import ScrapeFailure
from agent.gpu.collector import diff_latest
from agent.prometheus.answers import MatrixSeries
from exporters.render.text import copy_fields
from rules.evaluator.observation import ReplicaScrape
from rules.telemetry import gpu_windows
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """Page of a replica, or a failed scrape (`snapshot` None, `error` the reason). `gpus` are its GPU readouts.

    `TierPages` sets `tier`, and in `gpu_window` the GPUs since the previous page.
    """

    t: float
    replica: str
    pool: str
    snapshot: Snapshot | None = None
    gpus: tuple[GpuReadout, ...] = ()
    error: str = ""
    tier: str = ""
    gpu_window: Window | None = None

    def to_scrape(self) -> ReplicaScrape:
        """Return the page as a scrape of its replica."""
        failure = ""
        if self.snapshot is None:
            failure = ScrapeFailure.CONNECT.value
        same = copy_fields(self, "tier", "replica", "t", "snapshot", "error", "gpu_window")
        return ReplicaScrape(**same, failure=failure)


GONE_SECONDS = 300.0
"""Time without any scrape after which a replica is gone (Prometheus' staleness)."""

LATE = 2.5
"""Scrape intervals without a page that are a gap and not a late scrape."""

USUAL_SECONDS = 15.0
"""Scrape interval of a replica before several pages show it."""

ENOUGH = 3
"""Pages of one replica in a response that show its scrape interval."""

NO_SCRAPE = "the store has no scrape of it"


class PageReaderProtocol(Protocol):
    """Parser of stored series into pages."""

    def pages(self, series: Iterable[MatrixSeries]) -> Iterator[StoredPage]: ...

    def forget(self, replicas: set[str]) -> None: ...


@dataclass(slots=True)
class _Known:
    """Replica between two responses. `seen_at` is the time of its last page or failed scrape.

    Until `given_up` it counts as silent: later samples of that time are not used.
    """

    pool: str
    seen_at: float
    usual: float
    given_up: float = -math.inf
    gaps: list[float] = field(default_factory=list)
    gpus: dict[str, GpuReadout] = field(default_factory=dict)

    @property
    def interval(self) -> float:
        if len(self.gaps) > 1:
            return median(self.gaps)
        return self.usual


class TierPages:
    """Pages of the replicas of one tier, for one thread."""

    def __init__(self, tier: str, reader: PageReaderProtocol, usual_seconds: float = USUAL_SECONDS) -> None:
        self.tier = tier
        self._reader = reader
        self._usual = usual_seconds
        self._known: dict[str, _Known] = {}
        self._last_seen = -math.inf

    def take(self, series: Iterable[MatrixSeries]) -> tuple[StoredPage, ...]:
        """Return the new pages of a response in order of time, with the missing scrapes."""
        pages = list(self._reader.pages(series))
        usual = self._intervals(pages)
        new = [added for page in pages for added in self._add_page(page, usual)]
        return tuple(sorted(new, key=lambda page: page.t))

    def _intervals(self, pages: Iterable[StoredPage]) -> dict[str, float]:
        """Return the scrape interval of each new replica with enough pages."""
        times: dict[str, list[float]] = {}
        for page in pages:
            if page.replica not in self._known:
                times.setdefault(page.replica, []).append(page.t)
        intervals = {}
        for name, of_replica in times.items():
            if len(of_replica) > ENOUGH:
                intervals[name] = median(b - a for a, b in pairwise(of_replica))
        return intervals

    def missing_scrapes(self, now: float) -> tuple[StoredPage, ...]:
        """Return a missing page of each replica without a scrape for too long."""
        for known in self._known.values():
            # The clock may have been set back: ignore times in the future.
            known.seen_at, known.given_up = min(known.seen_at, now), min(known.given_up, now)
        silent = {name: known for name, known in self._known.items() if now - known.seen_at > LATE * known.interval}
        for known in silent.values():
            known.given_up = now
        return tuple(self._no_scrape(now, name, known.pool) for name, known in silent.items())

    @property
    def all_silent_since(self) -> float | None:
        """Return the time of the last scrape: -inf without any, None if a replica answers."""
        if any(known.seen_at > known.given_up for known in self._known.values()):
            return None
        return max((known.seen_at for known in self._known.values()), default=self._last_seen)

    def pop_gone_replicas(self, now: float) -> set[str]:
        """Remove and return the replicas that are gone."""
        names = {name for name, known in self._known.items() if now - known.seen_at > GONE_SECONDS}
        for name in names:
            self._last_seen = max(self._last_seen, self._known.pop(name).seen_at)
        self._reader.forget(names)
        return names

    @property
    def pools(self) -> dict[str, str]:
        """Return the pool of every known replica."""
        return {name: known.pool for name, known in self._known.items()}

    def _add_page(self, page: StoredPage, usual: Mapping[str, float]) -> Iterator[StoredPage]:
        known = self._known.get(page.replica)
        if known is None:
            known = self._known[page.replica] = _Known(
                pool=page.pool, seen_at=-math.inf, usual=usual.get(page.replica, self._usual)
            )
        elif page.t <= max(known.seen_at, known.given_up):
            return
        since = page.t - known.seen_at
        if math.isfinite(since) and since > LATE * known.interval:
            missing = page.t - known.interval
            if missing > known.given_up:
                yield self._no_scrape(missing, page.replica, page.pool)
        if math.isfinite(since):
            # Also after a gap: several long intervals in a row are the new interval.
            known.gaps = [*known.gaps[-8:], since]
        known.seen_at, known.pool = page.t, page.pool
        yield replace(page, tier=self.tier, gpu_window=self._of_gpus(known, page))

    def _no_scrape(self, t: float, replica: str, pool: str) -> StoredPage:
        return StoredPage(t=t, replica=replica, pool=pool, error=NO_SCRAPE, tier=self.tier)

    def _of_gpus(self, known: _Known, page: StoredPage) -> Window | None:
        return gpu_windows.sum_gpus(diff_latest(known.gpus, page.gpus).values())
