"""The row types of the engine tables: how one engine generation spells each family.

Owns types only. An engine generation is one file beside this one, holding one `Engine`; it is listed in
`rules.engines.registry`. There is no branch on an engine's name anywhere else.

What others print on an engine's page, and why it is left alone: the same whatever the engine is.

Owns reasons only. A Dynamo worker puts its own families around its engine's, KV managers theirs, Triton the GPU's. An
engine that knows better says so in its own table: its reason goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rules.telemetry.families import FamilyKind


class LabelAggregation(StrEnum):
    """How the series of one page become one number."""

    SUM = "sum"  # extensive: add over data-parallel engines and label values
    MEAN = "mean"  # intensive: mean over engines of the maximum over processes (`pid` label)
    MAX = "max"  # the largest
    NEWEST_NAMES = "newest_names"  # number of comma-separated names in a label of the series with the newest value


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a label must say for its series to be read.

    `values` are the values that fit, with `starts` their beginnings ("2" fits "200"); with `without` those that do not.
    `optional` also takes series that lack the label, as older releases print them.
    """

    label: str
    values: tuple[str, ...]
    starts: bool = False
    without: bool = False
    optional: bool = False

    def fits(self, labels: Mapping[str, str]) -> bool:
        if self.label not in labels:
            return self.optional
        value = labels[self.label]
        found = value.startswith(self.values) if self.starts else value in self.values
        return found != self.without


def http_status_row(label: str, status: str) -> tuple[Match, ...]:
    """HTTP answers by the beginning of their status; 499 is none: the client left before it."""
    return Match(label=label, values=(status,), starts=True), Match(label=label, values=("499",), without=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One source of one family. Several rows of a family are alternatives: the first whose source is on the page wins.

    `source` is the sample name with ':' written as '_' and without wrapper prefixes; for a histogram without its
    `_bucket`. `where` are label values that must match, `matches` what else labels must say, `by` a label whose value is
    appended to the family after '/', `part` takes a counter from a histogram (its `count` or `sum`), `plus` names further
    samples that are added to a counter where they are on the page (`where` and `matches` are not asked of them).
    `lazy` says that label values appear with their first event: a source that is on the page without the value in
    `where` has counted none of it. `zero_with` names a sample beside which a missing source has counted nothing yet: it
    appears with its first event, in every release that prints the other. `none` is the value of a gauge that says that
    there is none. `factor` converts to base units; `factor_fact` multiplies by a fact of the page. `since` and `until`
    name the scanned releases between which the engine prints it.
    """

    family: str
    source: str
    kind: FamilyKind
    across: LabelAggregation = LabelAggregation.SUM
    where: tuple[tuple[str, str], ...] = ()
    matches: tuple[Match, ...] = ()
    by: str = ""
    part: str = ""
    plus: tuple[str, ...] = ()
    lazy: bool = False
    zero_with: str = ""
    none: float | None = None
    factor: float = 1.0
    factor_fact: str = ""
    since: str
    until: str = ""
    note: str = ""

    @property
    def sample(self) -> str:
        """Name of the samples that this row reads; of a histogram its buckets."""
        if self.kind is FamilyKind.HISTOGRAM:
            return f"{self.source}_bucket"
        return f"{self.source}_{self.part}" if self.part else self.source

    def reads(self, labels: Mapping[str, str]) -> bool:
        """Return whether a series of its sample with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.where) and all(m.fits(labels) for m in self.matches)


def source_row(
    kind: FamilyKind,
    family: str,
    source: str,
    since: str,
    until: str = "",
    *,
    across: LabelAggregation = LabelAggregation.SUM,
    where: tuple[str, str] | None = None,
    matches: tuple[Match, ...] = (),
    by: str = "",
    part: str = "",
    lazy: bool = False,
    zero_with: str = "",
    none: float | None = None,
    factor_fact: str = "",
    note: str = "",
) -> SourceRow:
    """A row as tables write it: what every row has by place, the rest by name."""
    return SourceRow(
        family=family,
        source=source,
        kind=kind,
        across=across,
        where=(where,) if where else (),
        matches=matches,
        by=by,
        part=part,
        lazy=lazy,
        zero_with=zero_with,
        none=none,
        factor_fact=factor_fact,
        since=since,
        until=until,
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredFamily:
    """Families of the page that sizewatch leaves alone, and why: `prefix` matches the start of the mapped name."""

    prefix: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A family whose presence tells the release: first and last scanned release that declares it.

    Without `until` it has samples on every whole page from `since` on, without a flag or a request, so its absence tells
    the release too. A marker that ends is deprecated and hidden before it goes: its absence tells nothing.
    """

    source: str
    since: str
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineTable:
    """One generation of one engine, which is equal to itself alone: it is looked up for every name of a page.

    A page belongs to it when one of `signatures` is on it and that series carries all of `signature_labels` and none of
    `signature_without`. `wrappers` are prefixes that others put before its names (Ray, KServe). `repeats` are labels
    whose series repeat one number (processes, tensor-parallel ranks): the largest counts. `info` are info series whose
    labels become facts, `fact_gauges` (fact, sample) gauges whose value does. `born` names the `_created` series that
    tell when the engine was ready. `scanned` are the releases whose declarations the table was made from, oldest first.
    `always` are names that every scanned release prints from its start: a page that lacks any is an excerpt
    (empty: every page counts as whole).
    """

    name: str
    generation: str
    title: str
    signatures: tuple[str, ...]
    signature_labels: tuple[str, ...] = ()
    signature_without: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    rows: tuple[SourceRow, ...]
    repeats: tuple[str, ...] = ("pid",)
    info: tuple[str, ...] = ()
    fact_gauges: tuple[tuple[str, str], ...] = ()
    born: str = ""
    model_label: str = ""
    scanned: tuple[str, ...] = ()
    markers: tuple[Marker, ...] = ()
    always: tuple[str, ...] = ()
    ignored: tuple[IgnoredFamily, ...] = ()
    not_exposed: tuple[tuple[str, str], ...] = ()
    itl_is_per_token: bool = False

    @property
    def release_line(self) -> str:
        """Its generation as people write it: V1, 1.3, frontend."""
        return {"v0": "V0", "v1": "V1"}.get(self.generation, self.generation.removeprefix("v"))

    @property
    def label(self) -> str:
        """How people are told it: vLLM V1, TensorRT-LLM 1.3, Dynamo frontend."""
        return f"{self.title} {self.release_line}"


_REASONS: tuple[tuple[str, str], ...] = (
    ("dynamo_component_", "Dynamo's count around the engine; the engine's own is used"),
    ("dynamo_component_model_load_time_seconds", "how long loading the model took: a part of a cold start"),
    ("dynamo_component_router_", "Dynamo's router"),
    ("dynamo_component_kv_publisher_", "Dynamo's events about KV blocks, for its router"),
    ("dynamo_frontend_", "Dynamo's frontend; its own page is read as the frontend's"),
    ("dynamo_preprocessor_", "Dynamo's preprocessor"),
    ("dynamo_router_", "Dynamo's router"),
    ("dynamo_routing_overhead_", "Dynamo's router"),
    ("dynamo_kvindexer_", "Dynamo's index of KV blocks"),
    ("dynamo_work_handler_", "Dynamo's own queue between frontend and engine"),
    ("dynamo_request_plane_", "Dynamo's transport"),
    ("dynamo_transport_", "Dynamo's transport"),
    ("dynamo_rejection_", "Dynamo's transport"),
    ("dynamo_lifecycle_", "how Dynamo drains a worker"),
    ("dynamo_task", "Dynamo's tasks"),
    ("dynamo_tokio_", "the runtime that Dynamo runs on"),
    ("kvbm_", "Dynamo's KV block manager: traffic between GPU, host and disk"),
    ("lmcache_", "LMCache, a KV connector: traffic between GPU, host and disk"),
    ("nv_gpu_", "Triton's view of the GPU, which is read from the GPU itself"),
    ("nv_energy_consumption", "Triton's view of the GPU, which is read from the GPU itself"),
)

ALONGSIDE: tuple[IgnoredFamily, ...] = tuple(IgnoredFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
