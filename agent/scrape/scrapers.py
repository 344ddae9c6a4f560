"""Scrapers of all targets of a cycle in parallel, and the page readers that make Snapshots.

Each target has its own deadline and backoff. An error of a target affects only that target. An incomplete page, or a
page of no known engine, changes nothing that `PageReader` keeps between pages.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from urllib.parse import urlsplit, urlunsplit

from agent.config.config import Config
from agent.config.peer import Peer
from agent.durations import Backoff
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import JSON, PageFetcher, place_of
from agent.scrape.exposition import ExpositionSeries, ParsedPage, SeriesReader
from exporters.render.text import copy_fields
from rules.engines.coverage import version_range
from rules.engines.reader import SeriesLayout, SeriesName, is_mapped_name, snapshot
from rules.engines.registry import ENGINES, EngineTable
from rules.engines.several import SeveralEnginesError, is_router, split_page
from rules.telemetry.snapshots import ENGINE_VERSION, Snapshot

CLOSING_SHARE = 0.8
"""Part of the interval after which a cycle closes. What still runs has failed."""

GRACE_SECONDS = 1.0
"""Seconds beyond a scrape's deadline. DNS lookups ignore the deadline: without a resolver they take half a minute."""

VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,59}")
"""Pattern of a release: it becomes a label."""

GONE_SECONDS = 3600.0
"""Seconds after which an engine that its page no longer tells of is no replica any more: it was scaled down."""

GONE = ScrapeError(ScrapeFailure.INCONSISTENT, "the page of several engines no longer tells of this one")

_log = logging.getLogger(__name__)


class PageReader:
    """Reader of the pages of one target. `engine` is its configured name; without it the engine is detected.

    `version` is the release that the configuration or the recording names. A page does not print it. `families` has name
    and type of every family of the last page with a new set of series.
    """

    def __init__(self, engine: str | None = None, version: str | None = None) -> None:
        self._version = version or ""
        self._engines = tuple(e for e in ENGINES if engine in (None, e.name))
        self._configured = engine
        self._series = SeriesReader(lambda name: is_mapped_name(name, self._engines))
        self._layouts: Mapping[str, SeriesLayout] = {}
        self._label = ""
        self._compiled: tuple[ExpositionSeries, ...] | None = None
        self.families: Mapping[str, str] = {}

    def read(self, body: bytes, t: float) -> Snapshot:
        """Parse the page of one engine, as `read_engines` does."""
        engines = self.read_engines(body, t)
        if len(engines) > 1:
            raise ScrapeError(ScrapeFailure.NOT_ONE_ENGINE, f"{self.describe_engines()}, and one is needed")
        return next(iter(engines.values()))

    def read_engines(self, body: bytes, t: float) -> dict[str, Snapshot]:
        """Parse the page at `t` (unix seconds) into its engines by name, "" where it is of one. Raise ScrapeError."""
        parsed = self._series.read(body)
        if not self._layouts or parsed.series is not self._compiled:
            self._compile(parsed)
        return {name: snapshot(layout, parsed.values, t) for name, layout in self._layouts.items()}

    def describe_engines(self) -> str:
        """Return how many engines the last page holds and the label that tells them apart, "" for one."""
        return f"the page holds {len(self._layouts)} engines by their label {self._label}" if self._label else ""

    def set_version(self, version: str) -> None:
        """Use this release from the next page on; "" if it is not known."""
        if version != self._version:
            self._version, self._compiled = version, None

    @property
    def engine(self) -> EngineTable:
        """Return the engine of the last page, the first of several."""
        return next(iter(self._layouts.values())).engine

    def engine_of(self, name: str) -> EngineTable:
        return self._layouts[name].engine

    def _compile(self, parsed: ParsedPage) -> None:
        names = [(series.name, dict(series.labels)) for series in parsed.series]
        label, layouts = self._split(names, parsed.families)
        version = {ENGINE_VERSION: self._version} if self._version else {}
        for name, layout in layouts.items():
            versions = {"engine_versions": version_range(layout.engine, parsed.families)}
            layouts[name] = replace(layout, facts={**layout.facts, **versions, **version})
        self._label, self._layouts, self._compiled = label, layouts, parsed.series
        self.families = parsed.families

    def _split(self, names: Sequence[SeriesName], families: Iterable[str]) -> tuple[str, dict[str, SeriesLayout]]:
        """Return the label that tells the engines of a page apart, and their layouts. Raise ScrapeError."""
        if is_router(families):
            raise ScrapeError(
                ScrapeFailure.NOT_ONE_ENGINE, "a router's page (the vLLM production-stack router): no engine"
            )
        try:
            label, layouts = split_page(names, self._engines)
        except SeveralEnginesError as error:
            raise ScrapeError(ScrapeFailure.NOT_ONE_ENGINE, f"{error}: nothing of it is judged") from error
        if layouts:
            return label, layouts
        text = f"not a page of {self._configured}, which is configured for it"
        # Names of any web server apart, and a single name may be another program's.
        shared, endings = ("http_", "process_"), ("", "_total", "_bucket")
        own = [family + ending for family in families if not family.startswith(shared) for ending in endings]
        declared = (e.title for e in self._engines if sum(is_mapped_name(name, (e,)) for name in own) > 1)
        if all(name.startswith(shared) for name, _ in names) and (title := next(declared, "")):
            text = f"{title}, but no series yet: the page has HELP and TYPE lines without samples"
        elif self._configured is None:
            known = ", ".join(sorted({e.label for e in self._engines})) or "none"
            text = f"no page of an engine that sizewatch reads ({known})"
        raise ScrapeError(ScrapeFailure.INCONSISTENT, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Engine endpoint. `gpus` are UUIDs, indices or the word `auto`; empty if its GPUs are unknown."""

    tier: str
    replica: str
    pool: str
    peer: Peer
    engine: str | None = None
    engine_version: str | None = None
    gpus: tuple[str, ...] = ()
    pid_file: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.tier, self.replica


def list_targets(config: Config) -> tuple[Target, ...]:
    return tuple(
        Target(
            replica=target.name,
            peer=target.to_peer(timeout_seconds=config.timeout_seconds(target), max_bytes=target.max_bytes),
            gpus=("auto",) if target.gpus == "auto" else tuple(map(str, target.gpus)),
            **copy_fields(target, "tier", "pool", "engine", "engine_version", "pid_file"),
        )
        for target in config.targets
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeResult:
    """Result of one target in a cycle. `t` is the time of the complete page (unix seconds).

    Without a snapshot, `error` is the reason. Both are None if the target was skipped in this cycle (backoff). `engines`
    has the snapshots by name in place of one where the page holds several engines.
    """

    t: float
    seconds: float = 0.0
    snapshot: Snapshot | None = None
    error: ScrapeError | None = None
    engines: Mapping[str, Snapshot] = field(default_factory=dict)


def name_replica(replica: str, engine: str) -> str:
    return f"{replica}/{engine}" if engine else replica


def target_of_engine(target: Target, engine: str) -> Target:
    """Return the target of an engine of a page. Which GPU is whose is not known where there are several."""
    return replace(target, replica=name_replica(target.replica, engine), gpus=()) if engine else target


class PageEngines:
    """Engines of each page that holds several, with the time of the last page that told of each (unix seconds)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, float]] = {}

    def targets(self, target: Target) -> tuple[Target, ...]:
        """Return a target, or in its place those of its page's engines."""
        return tuple(target_of_engine(target, name) for name in self._seen.get(target.key) or ("",))

    def split(
        self, targets: Iterable[Target], results: Mapping[tuple[str, str], ScrapeResult]
    ) -> dict[tuple[str, str], ScrapeResult]:
        """Return the results of all targets by replica. An engine that its page no longer tells of has failed."""
        before, self._seen = self._seen, {}
        by_replica = {}
        for target in targets:
            result, names = results[target.key], before.get(target.key, {})
            if result.engines:
                names = names | dict.fromkeys(result.engines, result.t)
                names = {name: t for name, t in names.items() if result.t - t < GONE_SECONDS}
            elif result.snapshot is not None or (result.error and result.error.kind is ScrapeFailure.NOT_ONE_ENGINE):
                names = {}
            if not names:
                by_replica[target.key] = result
                continue
            self._seen[target.key] = names
            for name in names:
                error = GONE if result.engines and name not in result.engines else result.error
                alone = replace(result, snapshot=result.engines.get(name), error=error, engines={})
                by_replica[target_of_engine(target, name).key] = alone
        return by_replica


class _Scraper:
    """Scraper of one target, with a thread of its own: no target waits long for another. A daemon thread holds up no exit.

    `running` is its last scrape. While that runs, also after its cycle, it occupies the connection.
    """

    def __init__(self, target: Target, fetcher: PageFetcher) -> None:
        self.target = target
        self.fetcher = fetcher
        self.reader = PageReader(target.engine, target.engine_version)
        self.process: tuple[float | None] | None = None
        self.backoff = Backoff()
        self.running: Future[ScrapeResult] | None = None
        self._jobs: SimpleQueue[tuple[Future[ScrapeResult], Callable[[], ScrapeResult]] | None] = SimpleQueue()

    def start(self, scrape: Callable[[], ScrapeResult]) -> Future[ScrapeResult]:
        """Start a scrape in the thread: a new one costs half a millisecond. Raise RuntimeError without a thread."""
        if self.running is None:
            threading.Thread(target=self._work, name="scrape", daemon=True).start()
        self.running = Future()
        self._jobs.put((self.running, scrape))
        return self.running

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, scrape = job
            result.set_result(scrape())

    def close(self) -> None:
        self._jobs.put(None)
        self.fetcher.close()


StartedScrapes = Mapping[tuple[str, str], Future[ScrapeResult]]
"""Running scrapes of one cycle by (tier, replica)."""


class Scrapers:
    """Scrapers of all targets of one daemon, for one thread. `clock` returns unix seconds."""

    def __init__(
        self,
        targets: Sequence[Target],
        clock: Callable[[], float] = time.time,
        fetcher: Callable[..., PageFetcher] = PageFetcher,
        cycle_seconds: float = float("inf"),
    ) -> None:
        self._clock = clock
        self._cycle_seconds = cycle_seconds
        self._interrupted = threading.Event()
        self._fetcher = fetcher
        self._scrapers = {t.key: _Scraper(t, fetcher(t.peer)) for t in targets}
        self._cycles = 0
        self._started_at = 0.0

    def start_scrapes(self) -> StartedScrapes:
        """Start the scrapes of a cycle, those of quick targets one after the other."""
        # Count cycles in place of time: a clock set back must not extend a backoff by hours.
        self._cycles += 1
        self._started_at = time.monotonic()
        # Threads that compute at once cost a tenth more. A slow target needs the most of a short cycle.
        alone_until = self._started_at + min(0.2, self._cycle_seconds / 75)
        started = {}
        for key, scraper in self._scrapers.items():
            is_free = scraper.running is None or scraper.running.done()
            if is_free and scraper.backoff.is_due(self._cycles):
                started[key] = scraper.start(partial(self._scrape, scraper))
                wait((started[key],), max(0.0, alone_until - time.monotonic()))
        return started

    def collect_results(self, started: StartedScrapes) -> Mapping[tuple[str, str], ScrapeResult]:
        """Return the result of every target when the last scrape has ended or timed out, or when the cycle closes.

        Snapshot and error are None where none was started, or where the cycle was interrupted before its end.
        """
        self._wait_for(started)
        results = {}
        for key, scraper in self._scrapers.items():
            scrape = started.get(key)
            if scrape is None or (self._interrupted.is_set() and not scrape.done()):
                results[key] = ScrapeResult(t=self._clock())
                continue
            result = scrape.result() if scrape.done() else self._late_result(scraper)
            if result.error is None:
                scraper.backoff = scraper.backoff.record_success()
            else:
                scraper.backoff = scraper.backoff.record_failure(self._cycles)
            results[key] = result
        return results

    def _wait_for(self, started: StartedScrapes) -> None:
        while not self._interrupted.is_set():
            running = {key: scrape for key, scrape in started.items() if not scrape.done()}
            timeouts = (self._scrapers[key].target.peer.timeout_seconds for key in running)
            seconds = min(max(timeouts, default=0.0) + GRACE_SECONDS, CLOSING_SHARE * self._cycle_seconds)
            left = self._started_at + seconds - time.monotonic()
            if not running or left <= 0:
                return
            # An interrupt is noticed after a quarter of a second.
            wait(running.values(), min(left, 0.25))

    def _late_result(self, scraper: _Scraper) -> ScrapeResult:
        waited, place = time.monotonic() - self._started_at, place_of(scraper.target.peer.url)
        text = f"{place} gave no page in {waited:.0f} s: it is still looked up, read or parsed"
        return ScrapeResult(t=self._clock(), seconds=waited, error=ScrapeError(ScrapeFailure.TIMEOUT, text))

    def interrupt(self) -> None:
        """Close the present cycle with what came. Any thread may call it, before `close`."""
        self._interrupted.set()

    def _scrape(self, scraper: _Scraper) -> ScrapeResult:
        """Fetch and parse the page of a target, in a thread of its own: slow to parse is late."""
        start = time.monotonic()
        try:
            body = scraper.fetcher.fetch()
            t, seconds = self._clock(), time.monotonic() - start
            engines = scraper.reader.read_engines(body, t)
            if len(engines) > 1:
                return ScrapeResult(t=t, seconds=seconds, engines=engines)
            page = next(iter(engines.values()))
            if scraper.process != (page.started_at,):
                # Another process may be of another release.
                scraper.process = (page.started_at,)
                version = fetch_version(self._fetcher, scraper.target.peer, scraper.reader.engine.version_path)
                scraper.reader.set_version(version or scraper.target.engine_version or "")
                page = scraper.reader.read(body, t)
            return ScrapeResult(t=t, seconds=seconds, snapshot=page)
        except ScrapeError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a defect at one target must not stop the others
            _log.exception("unexpected error of a scrape tier=%s replica=%s", *scraper.target.key)
            text = f"defect in sizewatch: {type(error).__name__}, see its log"
            failure = ScrapeError(ScrapeFailure.INCONSISTENT, text)
        return ScrapeResult(t=self._clock(), seconds=time.monotonic() - start, error=failure)

    def close(self) -> None:
        """Close the connections. A running fetch ends at its own deadline, and holds up no exit."""
        self._interrupted.set()
        for scraper in self._scrapers.values():
            scraper.close()


def fetch_version(fetcher_of: Callable[..., PageFetcher], peer: Peer, path: str) -> str:
    """Return the release that an engine reports, or "". Its path may be missing behind a proxy, which is no error."""
    if not path:
        return ""
    page_url = urlsplit(peer.url)
    # Beside the page: a path in front of both is that of a proxy.
    url = urlunsplit(page_url._replace(path=page_url.path.rpartition("/")[0] + path, query=""))
    # Soon: the target has just answered a scrape.
    there = {"url": url, "timeout_seconds": min(peer.timeout_seconds, 2.0)}
    with closing(fetcher_of(peer.model_copy(update=there), JSON)) as fetcher:
        try:
            version = json.loads(fetcher.fetch())["version"]
            return version if VERSION.fullmatch(version) else ""
        except (ScrapeError, ValueError, LookupError, TypeError, RecursionError):
            return ""
