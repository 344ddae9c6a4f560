"""What it takes to read one kind of GPU exporter: the rows of its table, what a page of it says, the exporter itself.

Owns types only. An exporter is one file beside this one, holding one `GpuExporter`; it is listed in
`rules.gpu_sources.registry`. There is no branch on an exporter's name anywhere else.

What an exporter's table makes of the families of a page: read, left alone with a reason, or not known.

Owns the explanation for people (`sizewatch inspect`, the tests that hold tables and pages to each other). It reads no
values and no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rules.engines.coverage import FamilyUse, Use
from rules.telemetry.snapshots import GpuReadout

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value of one series."""

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One source of one of our names. Several rows of a name are alternatives: the first that has a value gives it.

    `theirs` is the series' name, `plus` are others that must be there too and are added to it. `factor` converts to our
    unit. `sampled` says that it is a plain poll of what could be summed over time. `whole_gpu` marks a sensor of which a
    GPU has one, however it is partitioned. `zero_is_blank`: the exporter prints 0 where it could not measure, and 0 is
    nothing that can be measured. `many` says that one GPU has several series, and what they become. `off` says why a
    series that is not on the page may be missing on purpose. `source` is the file that documents the name where no page
    at hand shows it.
    """

    theirs: str
    ours: str
    plus: tuple[str, ...] = ()
    factor: float = 1.0
    sampled: bool = False
    whole_gpu: bool = False
    zero_is_blank: bool = False
    many: str = ""
    off: str = ""
    source: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every series it reads."""
        return (self.theirs, *self.plus)


MEAN = "mean"
"""`Field.many`: the mean over the GPU's series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredGpuFamily:
    """Families of the page that are left alone, and why: `prefix` matches the start of the name, the longest knows best."""

    prefix: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Throttling told as counts of a firmware's clock: how many ticks there were, and in how many of them it throttled."""

    total: float
    of: Mapping[str, float]
    """By our name (`gpu_throttled_power_seconds`): ticks since the driver started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExporterPage:
    """What one page says. What shows only by a change between pages is left for `rules.gpu_sources.devices`."""

    readouts: tuple[GpuReadout, ...]
    problems: tuple[str, ...]
    faults: Mapping[str, frozenset[str] | None]
    """By GPU: codes of the last faults, as long as they stand; none of them: all was taken back. None: the exporter would
    print a fault and prints none. A GPU that is not in it does not tell its faults."""
    ticks: Mapping[str, Ticks]
    """By GPU, where the exporter counts throttling in ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExporter:
    """One kind of exporter.

    `name` is the word of the configuration and of this program's output, `title` the project's own name. A page belongs
    to it when `signature` says so of the name and labels of a series. `wanted` are the series that `read` needs (by
    their printed name); `plain` is a printed name as the table and `ignored` spell it. `keeps_values`: it measures on a
    clock of its own and shows the same values until then.
    """

    name: str
    title: str
    signature: Callable[[str, Mapping[str, str]], bool]
    wanted: Callable[[str], bool]
    plain: Callable[[str], str]
    read: Callable[[Iterable[Sample], float], GpuExporterPage]
    fields: tuple[Field, ...]
    also_read: Mapping[str, str]
    """Names beyond the fields that are read, and what they give."""
    ignored: tuple[IgnoredGpuFamily, ...]
    not_exposed: Mapping[str, str]
    """Of our names those that no page of it can tell, and why."""
    keeps_values: bool = False

    @property
    def a_title(self) -> str:
        """The title with its article."""
        return f"{'an' if self.title[0] in 'Aan' else 'a'} {self.title}"


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
