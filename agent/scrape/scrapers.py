"""Scraping all targets of a turn at once, each with its own deadline and back-off.

Owns the threads that wait for targets and nothing of what pages mean beyond making snapshots of them. One target's
trouble is that target's failure and nobody else's.

From the body of one target's page to a Snapshot: parse, recognise the engine, normalise.

Owns what is cached between two pages of one target: the series reader and the layout compiled from its series. It does
no network. A page that is not whole, or is no engine's page, raises ScrapeError and leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.connection import Backoff, PageFetcher
from agent.http_client.error_text import place_of
from agent.http_client.transport import TargetOptions
from agent.scrape.exposition import ParsedPage, SeriesReader
from rules.engines.coverage import FamilyUse, explain_families, version_range
from rules.engines.layout import SeriesLayout, compile_layout, is_mapped_name
from rules.engines.normalize import snapshot
from rules.engines.registry import ENGINES, detect_engine, normalize_name
from rules.engines.table import EngineTable
from rules.telemetry.snapshots import Snapshot


class PageReader:
    """Reads the pages of one target. `engine` is its configured name; without it the page tells."""

    def __init__(self, engine: str | None = None) -> None:
        self._engines = tuple(e for e in ENGINES if engine in (None, e.name))
        self._configured = engine
        self._series = SeriesReader(lambda name: is_mapped_name(name, self._engines))
        self._layout: SeriesLayout | None = None
        self._layout_id: int | None = None
        self._families: Mapping[str, str] = {}

    def read(self, body: bytes, t: float) -> Snapshot:
        """The page at `t` (unix seconds). Raises ScrapeError: syntax, duplicate, cut_off, or not an engine's page."""
        before = self._series.state
        parsed = self._series.read(body)
        if self._layout is None or parsed.layout != self._layout_id:
            try:
                self._compile(parsed)
            except ScrapeError:
                # Its format, for one: the engine's next page would be cut off by the measure of another server's.
                self._series.state = before
                raise
        assert self._layout is not None
        return snapshot(self._layout, parsed.values, t)

    @property
    def engine(self) -> EngineTable:
        """The engine of the last page. Raises ScrapeError before any."""
        if self._layout is None:
            raise ScrapeError(ScrapeFailure.INCONSISTENT, "no page has been read yet")
        return self._layout.engine

    @property
    def families(self) -> Mapping[str, str]:
        """Name and type of every family of that page."""
        return self._families

    @property
    def uses(self) -> tuple[FamilyUse, ...]:
        """What became of each family of the last page whose set of series was new."""
        return explain_families(self.engine, self._families)

    def _compile(self, parsed: ParsedPage) -> None:
        """Once for a set of series: the layout, and what the page's families tell of its release."""
        names = [(series.name, dict(series.labels)) for series in parsed.series]
        engine = self._recognise(names)
        layout = compile_layout(names, engine)
        facts = {**layout.facts, "engine_versions": version_range(engine, parsed.families)}
        self._layout, self._layout_id = replace(layout, facts=facts), parsed.layout
        self._families = parsed.families

    def _recognise(self, names: list[tuple[str, dict[str, str]]]) -> EngineTable:
        found = detect_engine(((normalize_name(name), labels) for name, labels in names), self._engines)
        if found is not None:
            return found
        known = ", ".join(sorted({e.label for e in self._engines})) or "none"
        text = f"no page of an engine that sizewatch reads ({known})"
        if self._configured is not None:
            text = f"not a page of {self._configured}, which is configured for it"
        raise ScrapeError(ScrapeFailure.INCONSISTENT, text)


MOST_THREADS = 32
"""Targets beyond it wait for a free thread; a waiting thread costs about 50 kB."""

GRACE_SECONDS = 1.0
"""Beyond a scrape's own deadline, which looking a host's name up does not heed: without its resolver that takes half a minute."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One engine endpoint. `gpus` are UUIDs or indices, or the word `auto`; none: no GPU is known to be its own."""

    tier: str
    replica: str
    pool: str
    options: TargetOptions
    engine: str | None = None
    engine_version: str | None = None
    gpus: tuple[str, ...] = ()
    pid_file: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.tier, self.replica


class Fetcher(Protocol):
    """What fetches one target's page: `agent.http_client.connection`, or a stand-in."""

    def fetch(self) -> bytes: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeResult:
    """One target's outcome of a turn. `t` is when the page was complete (unix seconds).

    Without a snapshot `error` says why; both None: the target was left alone this turn (back-off).
    """

    t: float
    seconds: float
    snapshot: Snapshot | None
    error: ScrapeError | None


class _Scraper:
    def __init__(self, target: Target, fetcher: Fetcher) -> None:
        self.target = target
        self.fetcher = fetcher
        self.reader = PageReader(target.engine)
        self.backoff = Backoff()
        self.late: Future[_Fetched] | None = None

    def is_late(self) -> bool:
        """Whether a scrape that was given up is still under way; it has the connection."""
        return self.late is not None and not self.late.done()


class _Fetched(NamedTuple):
    t: float
    seconds: float
    body: bytes | ScrapeError


Asked = Mapping[tuple[str, str], Future[_Fetched]]
"""The scrapes of one turn that are under way."""


class Scrapers:
    """The targets of one daemon. `ask` and `answers` are for one thread; `clock` gives unix seconds."""

    def __init__(
        self,
        targets: Sequence[Target],
        clock: Callable[[], float] = time.time,
        fetcher: Callable[[TargetOptions], Fetcher] = PageFetcher,
    ) -> None:
        self._clock = clock
        self._scrapers = {t.key: _Scraper(t, fetcher(t.options)) for t in targets}
        self._turns = 0
        self._threads = min(MOST_THREADS, max(1, len(targets)))
        self._pool = ThreadPoolExecutor(max_workers=self._threads, thread_name_prefix="scrape")
        self._asked_at = 0.0

    def turn(self) -> Mapping[tuple[str, str], ScrapeResult]:
        """One scrape of every target that is due, by (tier, replica)."""
        return self.collect_results(self.start_scrapes())

    def start_scrapes(self) -> Asked:
        """Begins the scrapes of a turn, and returns."""
        # Turns are counted, not timed: a clock that is set back must not leave a target alone for hours.
        self._turns += 1
        self._asked_at = time.monotonic()
        due = (
            (key, scraper)
            for key, scraper in self._scrapers.items()
            if scraper.backoff.is_due(self._turns) and not scraper.is_late()
        )
        return {key: self._pool.submit(self._fetch, scraper) for key, scraper in due}

    def collect_results(self, asked: Asked) -> Mapping[tuple[str, str], ScrapeResult]:
        """The outcome for every target, once the last scrape has ended, or is over its own deadline and given up."""
        free = max(1, self._threads - sum(scraper.is_late() for scraper in self._scrapers.values()))
        rounds = math.ceil(len(asked) / free)
        return {
            key: self._outcome(scraper, self._fetched(scraper, asked[key], rounds))
            if key in asked
            else ScrapeResult(t=self._clock(), seconds=0.0, snapshot=None, error=None)
            for key, scraper in self._scrapers.items()
        }

    def _fetched(self, scraper: _Scraper, asked: Future[_Fetched], rounds: int) -> _Fetched:
        """What came, or that nothing did within as many deadlines as scrapes had to wait for each other."""
        options = scraper.target.options
        until = self._asked_at + rounds * options.timeout_seconds + GRACE_SECONDS
        try:
            return asked.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            if not asked.cancel():
                scraper.late = asked
            waited = time.monotonic() - self._asked_at
            text = f"{place_of(options.url)} gave no page in {waited:.0f} s: looking its host's name up takes longer than that"
            return _Fetched(self._clock(), waited, ScrapeError(ScrapeFailure.TIMEOUT, text))

    def _fetch(self, scraper: _Scraper) -> _Fetched:
        start = time.monotonic()
        try:
            body: bytes | ScrapeError = scraper.fetcher.fetch()
        except ScrapeError as error:
            body = error
        except Exception as error:  # noqa: BLE001 - a defect in one target's path must not cost the others their turn
            body = _defect("scraping", scraper.target, error)
        return _Fetched(self._clock(), time.monotonic() - start, body)

    def _outcome(self, scraper: _Scraper, fetched: _Fetched) -> ScrapeResult:
        read = self._read(scraper, fetched)
        if isinstance(read, ScrapeError):
            scraper.backoff = scraper.backoff.record_failure(self._turns, 1.0)
            return ScrapeResult(t=fetched.t, seconds=fetched.seconds, snapshot=None, error=read)
        scraper.backoff = scraper.backoff.record_success()
        return ScrapeResult(t=fetched.t, seconds=fetched.seconds, snapshot=read, error=None)

    def _read(self, scraper: _Scraper, fetched: _Fetched) -> Snapshot | ScrapeError:
        if isinstance(fetched.body, ScrapeError):
            return fetched.body
        try:
            return scraper.reader.read(fetched.body, fetched.t)
        except ScrapeError as error:
            return error
        except Exception as error:  # noqa: BLE001 - as above: one strange page must not cost the other targets theirs
            return _defect("reading the page of", scraper.target, error)

    def close(self) -> None:
        """Ends the connections; a fetch that is under way ends at its own deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for scraper in self._scrapers.values():
            scraper.fetcher.close()


def _defect(doing: str, target: Target, error: Exception) -> ScrapeError:
    _log.error("defect while %s %s/%s", doing, *target.key, exc_info=error)
    return ScrapeError(ScrapeFailure.INCONSISTENT, f"defect in sizewatch: {type(error).__name__}, see its log")
