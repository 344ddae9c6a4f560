"""What the engine tables know of a name that no page prints: its name in this release, or when it was printed.

Owns the reading of rows and markers by name. It holds no names. What the tables do not have stands in
`agent.lint.facts_names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from agent.lint.catalogue import Catalogue, Page, namespace_of, stem_of
from rules.engines.coverage import number
from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry.families import FamilyKind

NOT_YET = "only from "


class Life(Enum):
    """A name that this release can print and this page does not."""

    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """A row that a name belongs to: its `source`, and where the pages print the same under another name, that name;
    `since` which release on, if it is the newer one of the two."""

    source: str = ""
    printed: str = ""
    since: str = ""


def same_family(key: str, pages: Catalogue) -> Sibling:
    """The row of a name, and another row of the same family whose samples these pages print; empty without any."""
    mine = [(row, part) for row, part in _rows(key)]
    if not mine:
        return Sibling()
    for row, part in mine:
        for other in _printed_rows(row, pages):
            sample = other.source + part if other.kind is FamilyKind.HISTOGRAM else other.sample
            if other.source != row.source and pages.is_printed(sample):
                since = other.since if number(other.since) > number(row.since) else ""
                return Sibling(source=row.source, printed=pages.by_key[sample], since=since)
    return Sibling(source=mine[0][0].source)


def _rows(key: str) -> Iterator[tuple[SourceRow, str]]:
    """Rows of the engines of this name, with the part of a histogram that was asked for."""
    stem = stem_of(key)
    for engine in ENGINES:
        for row in engine.rows:
            if row.where or row.matches or row.part:
                continue
            if row.kind is FamilyKind.HISTOGRAM and row.source == stem and key != stem:
                yield row, key.removeprefix(stem)
            elif row.kind is not FamilyKind.HISTOGRAM and row.source == key:
                yield row, ""


def _printed_rows(row: SourceRow, pages: Catalogue) -> Iterator[SourceRow]:
    for engine in pages.engines:
        for other in engine.rows:
            plain = not (other.where or other.matches or other.part)
            same_name = namespace_of(other.source) == namespace_of(row.source)
            if plain and same_name and other.family == row.family and other.kind is row.kind:
                yield other


def life_of(key: str, pages: Catalogue) -> Life | str:
    """OPTIONAL, or when it is printed and this release is not then ("not before 0.9.2"); "" where nothing is known."""
    known: list[str] = []
    for page in pages.pages:
        namespace = namespace_of(key)
        if page.engine is None or not any(row.source.startswith(namespace) for row in page.engine.rows):
            continue
        told = _told(key, page, page.engine)
        if told is None:
            continue
        if told == "":
            return Life.OPTIONAL
        known.append(told)
    return known[0] if known else ""


def _told(key: str, page: Page, engine: EngineTable) -> str | None:
    """Why this page cannot print it, "" where it can, None where its engine's table does not know the name."""
    names = {key, stem_of(key)} | {key.removesuffix("_created")}
    spans = [(row.since, row.until) for row in engine.rows if {row.source, *row.plus, row.zero_with} & names]
    spans += [(marker.since, marker.until) for marker in engine.markers if marker.source in names]
    if not spans:
        elsewhere = any(_is_named(key, other) for other in ENGINES if other is not engine and other.name == engine.name)
        if elsewhere:
            return f"another generation of {engine.title} has"
        return "" if any(key.startswith(row.prefix) for row in engine.ignored) else None
    after, before = page.versions.after, page.versions.before
    since = min((since for since, _ in spans), key=number)
    until = "" if any(not until for _, until in spans) else max((until for _, until in spans), key=number)
    if before and number(since) >= number(before):
        return f"{NOT_YET}{since} on"
    if until and after and number(until) <= number(after):
        return f"only up to {until}"
    return ""


def _is_named(key: str, engine: EngineTable) -> bool:
    stems = {key, stem_of(key)}
    return any(row.source in stems for row in engine.rows) or any(m.source in stems for m in engine.markers)
