"""Row types of the engine tables, and the families that other software prints on an engine's page.

An engine generation is one file in this folder with one `EngineTable`, listed in `rules.engines.registry`. The common
ignored families apply to every engine. A Dynamo worker adds its own families to its engine's, KV managers add theirs,
Triton adds the GPU's. The reason in an engine's own table takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum

from rules.light_dataclass import light_dataclass
from rules.telemetry.families import FamilyKind


class LabelAggregation(StrEnum):
    """Aggregation of the series of a page to one number."""

    SUM = "sum"  # extensive: add over data-parallel engines and label values
    MEAN = "mean"  # intensive: mean over engines of the maximum over processes (`pid` label)
    MAX = "max"  # the largest
    NEWEST_NAMES = "newest_names"  # number of comma-separated names in a label of the series with the newest value


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Condition on a label of the series.

    `values` are the accepted values, with `starts` their prefixes ("2" fits "200"), with `without` the rejected ones.
    `optional` also accepts series without the label, as older releases print them.
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
    """Return the conditions for HTTP responses with a status prefix. Exclude 499: the client left before the
    response."""
    return Match(label=label, values=(status,), starts=True), Match(label=label, values=("499",), without=True)


@light_dataclass(frozen=True, slots=True)
class SourceRow:
    """Source of a family. The first alternative row with its source on the page wins.

    `source`: sample name with ':' written as '_', without wrapper prefixes and without a histogram's `_bucket`.
    `where`: required label values. `matches`: further label conditions. `by`: label whose value is appended to the
    family after '/'. `part`: counter taken from a histogram (its `count` or `sum`). `plus`: further samples added to a
    counter if present; `where` and `matches` do not apply to them. `lazy`: label values appear with their first event,
    so a source without the value in `where` counts zero. `zero_with`: sample that makes an absent source zero. The
    source appears with its first event in every release that prints that sample. `none`: gauge value that means none.
    `factor` converts to base units; `factor_fact` multiplies by a fact of the page. `since` and `until`: first and last
    scanned releases that print it.
    """

    kind: FamilyKind
    family: str
    source: str
    since: str = ""
    until: str = ""
    _: KW_ONLY
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
    note: str = ""

    @property
    def sample(self) -> str:
        """Return the sample name that this row reads. For a histogram it is the buckets."""
        if self.kind is FamilyKind.HISTOGRAM:
            return f"{self.source}_bucket"
        return f"{self.source}_{self.part}" if self.part else self.source

    def reads(self, labels: Mapping[str, str]) -> bool:
        """Return whether the row reads a series of its sample with these labels."""
        return all(labels.get(key) == value for key, value in self.where) and all(m.fits(labels) for m in self.matches)


def add_prefix(prefix: str, rows: Iterable[SourceRow], since: str = "") -> tuple[SourceRow, ...]:
    """Return the rows with a prefix before each sample name. `since` is for rows without a release."""
    return tuple(
        replace(
            row,
            source=f"{prefix}{row.source}",
            plus=tuple(f"{prefix}{name}" for name in row.plus),
            zero_with=f"{prefix}{row.zero_with}" if row.zero_with else "",
            since=row.since or since,
        )
        for row in rows
    )


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Family whose presence shows the release: first and last scanned release that declares it.

    Without `until`, every whole page from `since` on has samples of it, without a flag or a request. Its absence then
    shows the release too. A marker with an end is deprecated and hidden first, so its absence proves nothing.
    """

    source: str
    since: str
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineTable:
    """Table of one engine generation. It equals only itself, because it is looked up for every name of a page.

    `signatures` identify a page: one must be present with all `signature_labels` and none of `signature_without`.
    `wrappers`: prefixes that Ray or KServe add to names. `repeats`: labels whose series repeat one number (processes,
    tensor-parallel ranks); the largest counts. `rank_label`:
    label of data-parallel ranks, "" without. `info`: info series whose labels become facts. `fact_gauges` (fact,
    sample): gauges whose value becomes a fact. `born`: `_created` series that show when the engine was ready.
    `version_path`: path beside the page that returns {"version": "0.32.0"}; "" where there is none.
    `scanned`: releases behind the table, oldest first. `always`: names that every scanned release prints from its
    start. A page without one of them is an excerpt (empty: every page counts as whole).
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
    rank_label: str = ""
    info: tuple[str, ...] = ()
    fact_gauges: tuple[tuple[str, str], ...] = ()
    born: str = ""
    model_label: str = ""
    version_path: str = ""
    scanned: tuple[str, ...] = ()
    markers: tuple[Marker, ...] = ()
    always: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    not_exposed: tuple[tuple[str, str], ...] = ()
    itl_is_per_token: bool = False

    @property
    def release_line(self) -> str:
        """Return the generation as people write it: V1, 1.3, frontend."""
        return {"v0": "V0", "v1": "V1"}.get(self.generation, self.generation.removeprefix("v"))

    @property
    def label(self) -> str:
        """Return the name for people: vLLM V1, TensorRT-LLM 1.3, Dynamo frontend."""
        return f"{self.title} {self.release_line}"


C, G, H = FamilyKind.COUNTER, FamilyKind.GAUGE, FamilyKind.HISTOGRAM

KVBM_ROWS: tuple[SourceRow, ...] = (
    SourceRow(C, "external_prefix_hit_tokens", "kvbm_matched_tokens"),
    SourceRow(C, "kv_transfer_failures", "kvbm_object_read_failures", plus=("kvbm_object_write_failures",)),
    SourceRow(
        G, "external_prefix_hit_gauge", "kvbm_host_cache_hit_rate", across=LabelAggregation.MAX, note="of the host"
    ),
)
"""Dynamo's KV block manager on an engine's page (dynamo lib/llm/src/block_manager/metrics_kvbm.rs at 1.6.1). It prints
blocks and no transfer times; its own port (DYN_KVBM_METRICS_PORT) is not read."""

LMCACHE_ROWS: tuple[SourceRow, ...] = (
    SourceRow(C, "external_prefix_queried_tokens", "lmcache_num_lookup_tokens_total"),
    SourceRow(C, "external_prefix_hit_tokens", "lmcache_num_lookup_hits_total"),
    SourceRow(C, "kv_offload_load_seconds", "lmcache_time_to_retrieve", part="sum"),
    SourceRow(C, "kv_offload_load_transfers", "lmcache_time_to_retrieve", part="count"),
    SourceRow(C, "kv_offload_store_seconds", "lmcache_time_to_store", part="sum"),
    SourceRow(C, "kv_offload_store_transfers", "lmcache_time_to_store", part="count"),
    SourceRow(H, "kv_transfer_seconds", "lmcache_time_to_retrieve", note="a fetch of a request"),
    SourceRow(G, "kv_offload_used_bytes", "lmcache_local_cache_usage", note="in host memory"),
)
"""LMCache on vLLM's page (lmcache/observability.py at 0.5.6). It counts neither failed transfers nor the bytes of host
memory that it moved, and does not tell how large its cache is."""

ALONGSIDE: tuple[tuple[str, str], ...] = (
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
    ("kvbm_", "Dynamo's KV block manager: blocks and bytes by pair of tiers; hits and failures are used"),
    ("lmcache_", "LMCache, a KV connector: parts of its transfers; their time and hits are used"),
    ("nv_gpu_", "Triton's view of the GPU, which is read from the GPU itself"),
    ("nv_energy_consumption", "Triton's view of the GPU, which is read from the GPU itself"),
)
