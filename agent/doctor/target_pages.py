"""Pages of the targets, read once each. `doctor` reads those of a configuration; a list of targets is enough."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

from agent.errors import ScrapeError
from agent.gpu.owners import GpuAssignment
from agent.http_client.page import PageFetcher, fetch_page
from agent.scrape.scrapers import PageReader, Target, target_of_engine
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import GpuReadout, Snapshot

MOST_THREADS = 32
"""Targets that are read at a time."""

FURTHER_PAGES = 2
"""Number of further pages over new connections. Behind a load balancer some of them are of other engines."""

NO_GPUS = GpuAssignment(gpus=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPage:
    """Page of a target, or the error. `t` is the unix time when it was complete. One of each engine of a shared page.

    `tier` is the plan of its tier, `gpus` are its GPUs and `readouts` all GPUs that were read.
    """

    target: Target
    t: float
    error: ScrapeError | None = None
    page_bytes: int = 0
    seconds: float = 0.0
    snapshot: Snapshot | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    """Number of engines on a shared page, in words."""
    clock_ahead_seconds: float | None = None
    """Minimum lead of the target's clock (negative: behind), None without a Date header."""
    difference: str = ""
    """Evidence that several processes answer at the address."""
    tier: TierPlan | None = None
    gpus: GpuAssignment = NO_GPUS
    readouts: Sequence[GpuReadout] = ()

    @property
    def name(self) -> str:
        return f"{self.target.tier}/{self.target.replica}"


def read_targets(targets: Sequence[Target], clock: Callable[[], float]) -> tuple[TargetPage, ...]:
    """Read all pages in parallel. Each target takes at most three times its timeout. `clock` returns unix seconds."""
    with ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="doctor") as pool:
        return tuple(itertools.chain.from_iterable(pool.map(lambda target: _read_target(target, clock), targets)))


def _read_target(target: Target, clock: Callable[[], float]) -> tuple[TargetPage, ...]:
    reader, started_at, before = PageReader(target.engine), time.monotonic(), clock()
    try:
        with closing(PageFetcher(target.peer)) as fetcher:
            body = fetcher.fetch()
            seconds, after = time.monotonic() - started_at, clock()
        engines = reader.read_engines(body, after)
    except ScrapeError as error:
        return (TargetPage(target=target, t=clock(), error=error),)
    page = TargetPage(
        target=target,
        t=after,
        page_bytes=len(body),
        seconds=seconds,
        families=dict(reader.families),
        description=reader.describe_engines(),
        clock_ahead_seconds=_clock_ahead(fetcher.date, before, after),
        difference=_find_difference(target, reader, engines[""], clock) if "" in engines else "",
    )
    return tuple(
        replace(page, target=target_of_engine(target, name), snapshot=snapshot) for name, snapshot in engines.items()
    )


def _find_difference(target: Target, reader: PageReader, first: Snapshot, clock: Callable[[], float]) -> str:
    for _ in range(FURTHER_PAGES):
        try:
            snapshot = reader.read(fetch_page(target.peer), clock())
        except ScrapeError:
            return ""
        if first.facts.get("model") != snapshot.facts.get("model"):
            return "its model changes from one answer to the next"
        if abs((first.started_at or 0.0) - (snapshot.started_at or 0.0)) > 1.0:
            return "the time at which it started changes from one answer to the next"
    return ""


def _clock_ahead(date: str, before: float, after: float) -> float | None:
    """Return the minimum lead of a clock that wrote `date`, in whole seconds, between two times of ours."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return max(theirs - after, 0.0) + min(theirs + 1.0 - before, 0.0)
