"""The row types of the engine tables: how one engine generation spells each family.

Owns types only. An engine generation is one file beside this one, holding one `Engine`; it is listed in
`rules.engines.registry`. There is no branch on an engine's name anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.families import Kind


class Across(StrEnum):
    """How the series of one page become one number."""

    SUM = "sum"  # extensive: add over data-parallel engines and label values
    MEAN = "mean"  # intensive: mean over engines of the maximum over processes (`pid` label)
    MAX = "max"  # the largest
    NEWEST_NAMES = "newest_names"  # number of comma-separated names in a label of the series with the newest value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One source of one family. Several rows of a family are alternatives: the first whose source is on the page wins.

    `source` is the sample name with ':' written as '_' and without wrapper prefixes; for a histogram without its
    `_bucket`. `where` are label values that must match, `by` a label whose value is appended to the family after '/',
    `part` takes a counter from a histogram (its `count`). `lazy` says that label values appear with their first event:
    a source that is on the page without the value in `where` has counted none of it. `factor` converts to base units;
    `factor_fact` multiplies by a fact of the page. `since` and `until` name the scanned releases between which the
    engine prints it.
    """

    family: str
    source: str
    kind: Kind
    across: Across = Across.SUM
    where: tuple[tuple[str, str], ...] = ()
    by: str = ""
    part: str = ""
    lazy: bool = False
    factor: float = 1.0
    factor_fact: str = ""
    since: str
    until: str = ""
    note: str = ""

    @property
    def sample(self) -> str:
        """Name of the samples that this row reads; of a histogram its buckets."""
        if self.kind is Kind.HISTOGRAM:
            return f"{self.source}_bucket"
        return f"{self.source}_{self.part}" if self.part else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Families of the page that sizewatch leaves alone, and why: `prefix` matches the start of the mapped name."""

    prefix: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A family whose presence tells the release: first and last scanned release that declares it.

    Without `until` it stands on every page from `since` on, so its absence tells the release too. One that ends is
    deprecated and hidden before it goes: its absence tells nothing.
    """

    source: str
    since: str
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One generation of one engine.

    A page belongs to it when `signature` is on it and that series carries all of `signature_labels` and none of
    `signature_without`. `wrappers` are prefixes that others put before its names (Ray, KServe). `info` are info series
    whose labels become facts. `born` names the `_created` series that tell when the engine was ready. `scanned` are the
    releases whose declarations the table was made from, oldest first.
    """

    name: str
    generation: str
    title: str
    signature: str
    signature_labels: tuple[str, ...] = ()
    signature_without: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    rows: tuple[Row, ...]
    info: tuple[str, ...] = ()
    born: str = ""
    model_label: str = ""
    scanned: tuple[str, ...] = ()
    markers: tuple[Marker, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    not_exposed: tuple[tuple[str, str], ...] = ()
    itl_is_per_token: bool = False
