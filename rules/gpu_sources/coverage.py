"""What an exporter's table makes of the families of a page: read, left alone with a reason, or not known.

Owns the explanation for people (`sizewatch inspect`, the tests that hold tables and pages to each other). It reads no
values and no labels.
"""

from __future__ import annotations

from collections.abc import Mapping

from rules.engines.coverage import FamilyUse, Use
from rules.gpu_sources.exporter import GpuExporter


def explain_families(exporter: GpuExporter, families: Mapping[str, str]) -> tuple[FamilyUse, ...]:
    """What becomes of each family of a page (printed name and type of its TYPE line), in the page's order."""
    read: dict[str, list[str]] = {}
    for row in exporter.fields:
        for name in row.names:
            read.setdefault(name, []).append(row.ours)
    return tuple(_use(exporter, read, printed, type_) for printed, type_ in families.items())


def _use(exporter: GpuExporter, read: Mapping[str, list[str]], printed: str, type_: str) -> FamilyUse:
    name = exporter.plain(printed)
    if name in read:
        ours = tuple(dict.fromkeys(read[name]))
        return FamilyUse(name=printed, type=type_, use=Use.MAPPED, families=ours, text=", ".join(ours))
    if name in exporter.also_read:
        return FamilyUse(name=printed, type=type_, use=Use.MAPPED, text=exporter.also_read[name])
    fitting = [row for row in exporter.ignored if name.startswith(row.prefix)]
    if fitting:
        why = max(fitting, key=lambda row: len(row.prefix)).why
        return FamilyUse(name=printed, type=type_, use=Use.IGNORED, text=why)
    return FamilyUse(name=printed, type=type_, use=Use.UNKNOWN, text="not in the table")
