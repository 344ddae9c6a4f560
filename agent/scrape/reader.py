"""From the body of one target's page to a Snapshot: parse, recognise the engine, normalise.

Owns what is cached between two pages of one target: the series reader and the layout compiled from its series. It does
no network. A page that is not whole, or is no engine's page, raises ScrapeError and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.errors import ScrapeError, ScrapeFailure
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
