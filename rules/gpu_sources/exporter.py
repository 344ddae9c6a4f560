"""Types of a GPU exporter: table rows, page, exporter, and the use of each family of its page.

An exporter is a table (`<name>.toml`) and a module in this folder with one `GpuExporter`, listed in
`rules.gpu_sources.registry`. The use of families is for people: only names count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rules.engines.coverage import FamilyUse
from rules.tables import freeze, read_table
from rules.telemetry.snapshots import GpuReadout

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value of one series."""

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Source of one of our names. The first alternative row with a value wins.

    `theirs`: name of the series. `plus`: other required series that are added to it. `factor` converts to our unit.
    `sampled`: a plain poll of a quantity that could be summed over time. `whole_gpu`: a sensor that a GPU has once,
    however it is partitioned. `zero_is_blank`: the exporter prints 0 for no measurement, and 0 is no possible value.
    `merge`: "mean" of several series of one GPU. `off`: reason why the series may be absent on purpose. `source`:
    file that documents a name without an available page.
    """

    theirs: str
    ours: str
    plus: tuple[str, ...] = ()
    factor: float = 1.0
    sampled: bool = False
    whole_gpu: bool = False
    zero_is_blank: bool = False
    merge: str = ""
    off: str = ""
    source: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return every series that the row reads."""
        return (self.theirs, *self.plus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Throttling in counts of a firmware's clock: all ticks, and by our name the throttled ticks since the driver started."""

    total: float
    of: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExporterPage:
    """Data of one page. `rules.gpu_sources.devices` adds quantities that need a change between pages.

    `faults`, by GPU: codes of the last faults while they are active. Empty: all were cleared. None: the exporter would
    print a fault and prints none. An absent GPU does not report its faults. `ticks`, by GPU, where an exporter counts them.
    """

    readouts: tuple[GpuReadout, ...]
    problems: tuple[str, ...]
    faults: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    ticks: Mapping[str, Ticks] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExporter:
    """GPU exporter. `name` is its word in configuration and output, `title` the project's own name.

    `signature` recognises a page by the name and labels of a series. `wanted`: printed names of the series that `read`
    needs. `plain`: printed name as the table spells it. `also_read`: further names that are read, and their use.
    `not_exposed`: our names that no page can give, and why.
    """

    name: str
    title: str
    signature: Callable[[str, Mapping[str, str]], bool]
    wanted: Callable[[str], bool]
    plain: Callable[[str], str]
    read: Callable[[Iterable[Sample], float], GpuExporterPage]
    fields: tuple[Field, ...]
    also_read: Mapping[str, str]
    not_exposed: Mapping[str, str]

    @property
    def a_title(self) -> str:
        return f"{'an' if self.title[0] in 'Aan' else 'a'} {self.title}"


def explain_families(exporter: GpuExporter, families: Mapping[str, str]) -> tuple[FamilyUse, ...]:
    """Return the use of each family of a page (printed name and type of its TYPE line), in the page's order."""
    uses = []
    for printed in families:
        name = exporter.plain(printed)
        ours = tuple(dict.fromkeys(row.ours for row in exporter.fields if name in row.names))
        text = ", ".join(ours) or exporter.also_read.get(name, "")
        uses.append(FamilyUse(name=printed, families=ours, text=text))
    return tuple(uses)


def load_exporter_keys(name: str) -> dict[str, Any]:
    """Return the keys of `GpuExporter` that an exporter's table gives."""
    keys = read_table("rules.gpu_sources", name)
    missing = dict.fromkeys(keys.pop("missing"), f"{keys['title']} does not expose it")
    fields = tuple(Field(**freeze(row)) for row in keys.pop("rows"))
    return {"name": name, "fields": fields, **keys, "not_exposed": missing | keys["not_exposed"]}
