"""What an engine's table makes of the families of a page: read, left alone with a reason, or not known.

Owns the explanation for people (`sizewatch inspect`, the doctor, the tests that hold table and pages to each other) and
what the names tell of the release. It reads no values and no labels: `rules.layouts` decides by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rules.engines.alongside import ALONGSIDE
from rules.engines.registry import PROCESS_START, mapped, unwrapped, winners
from rules.engines.table import Engine, Marker, Row
from rules.families import Kind

CREATED = "_created"
SUMMARY = "summary"
"""Has a sum and a count as a histogram has."""

_UNTYPED = frozenset({"untyped", "unknown", ""})


class Use(StrEnum):
    """What becomes of a family of the page."""

    MAPPED = "mapped"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyUse:
    """One family as the page prints it. `families` are the names under which it is read, `text` says the same in words,
    or the reason why it is not read."""

    name: str
    type: str
    use: Use
    families: tuple[str, ...] = ()
    text: str


def explain_families(engine: Engine, families: Mapping[str, str]) -> tuple[FamilyUse, ...]:
    """What becomes of each family of a page (printed name and type of its TYPE line), in the page's order.

    Both spellings of a counter are understood: with `_total` (text format) and without (OpenMetrics).
    """
    spelt = {printed: _spellings(engine, printed, type_) for printed, type_ in families.items()}
    on_page = frozenset(name for names in spelt.values() for name in names)
    won = winners(engine.rows, lambda row: row.source in on_page)
    return tuple(_use(engine, won, printed, type_, spelt[printed]) for printed, type_ in families.items())


def _spellings(engine: Engine, printed: str, type_: str) -> tuple[str, ...]:
    name = unwrapped(mapped(printed), engine)
    return (name, f"{name}_total") if type_ == "counter" else (name,)


def _use(engine: Engine, won: tuple[Row, ...], printed: str, type_: str, names: tuple[str, ...]) -> FamilyUse:
    rows = [row for row in engine.rows if row.source in names]
    typed = [row for row in rows if type_ in _UNTYPED or type_ == _type(row) or (row.part and type_ == SUMMARY)]
    typed += [row for row in engine.rows if any(_family_of(sample) in names or sample in names for sample in row.plus)]
    read = tuple(dict.fromkeys(row.family for row in typed if row in won))
    if read:
        return FamilyUse(name=printed, type=type_, use=Use.MAPPED, families=read, text=", ".join(read))
    special = _special(engine, names[0])
    if special:
        return FamilyUse(name=printed, type=type_, use=Use.MAPPED, text=special)
    if rows and not typed and not _twin(engine, names[0]):
        text = f"a {type_} here, a {_type(rows[0])} in every release that was scanned"
        return FamilyUse(name=printed, type=type_, use=Use.UNKNOWN, text=text)
    reason = _reason(engine, names[0])
    if reason:
        return FamilyUse(name=printed, type=type_, use=Use.IGNORED, text=reason)
    return FamilyUse(name=printed, type=type_, use=Use.UNKNOWN, text="not in the table")


def _family_of(sample: str) -> str:
    return sample.removesuffix("_sum").removesuffix("_count")


def _twin(engine: Engine, name: str) -> bool:
    """Whether a name that is read is known with another type too, and why that one is not read (METRICS trap 20)."""
    return any(row.prefix == name for row in engine.ignored)


def _type(row: Row) -> str:
    return Kind.HISTOGRAM.value if row.part else row.kind.value


def _special(engine: Engine, name: str) -> str:
    """What is read from a family that feeds no family of ours; empty for all others."""
    if name == PROCESS_START:
        return "tells when the process started"
    if name == engine.born:
        return "tells when the engine was ready"
    facts = (*engine.info, *(sample for _, sample in engine.fact_gauges))
    return "facts about the engine" if name in facts else ""


def _reason(engine: Engine, name: str) -> str:
    """Why a family is left alone: the engine knows better than what is common to all, the longest prefix knows best."""
    if name.endswith(CREATED):
        return "tells when its family began to count"
    for reasons in (engine.ignored, ALONGSIDE):
        fitting = [row for row in reasons if name.startswith(row.prefix)]
        if fitting:
            return max(fitting, key=lambda row: len(row.prefix)).why
    return ""


def version_range(engine: Engine, families: Mapping[str, str]) -> str:
    """Which releases print these families, as far as their names tell: "0.20 to 0.29", "0.32 or newer"; "" if none does.

    By scanned releases: one that lies between two of them looks like the one or the other.
    """
    on_page = frozenset(name for printed, type_ in families.items() for name in _spellings(engine, printed, type_))
    fitting = [r for r in engine.scanned if all(_agrees(m, r, m.source in on_page) for m in engine.markers)]
    if not fitting:
        return ""
    first, last = _short(fitting[0], engine), _short(fitting[-1], engine)
    if fitting[-1] == engine.scanned[-1]:
        return f"{first} or newer"
    return first if first == last else f"{first} to {last}"


def _agrees(marker: Marker, release: str, present: bool) -> bool:
    declared = _number(marker.since) <= _number(release) and not (
        marker.until and _number(release) > _number(marker.until)
    )
    return declared if present else bool(marker.until) or not declared


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _short(release: str, engine: Engine) -> str:
    """Without the patch level, unless scanned releases differ in nothing else."""
    shorter = [".".join(one.split(".")[:2]) for one in engine.scanned]
    return ".".join(release.split(".")[:2]) if len(set(shorter)) == len(shorter) else release
