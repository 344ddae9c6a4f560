"""What the given pages print: every series name with its type, labels and label values, and whose pages they are.

Owns the index over parsed pages. It fetches nothing and judges nothing. A page may come twice, as Prometheus 2 and as
Prometheus 3 would be given it; both spellings are then printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agent.scrape.exposition import ExpositionSeries, SeriesReader
from rules.engines.coverage import Versions, allowed_versions
from rules.engines.registry import ENGINES, normalize_name
from rules.engines.registry import detect_engine as recognise_engine
from rules.engines.table import EngineTable
from rules.gpu_sources.registry import detect_exporter as recognise_gpus

WRAPPERS = tuple(dict.fromkeys(wrapper for engine in ENGINES for wrapper in engine.wrappers))

NAMESPACES: tuple[str, ...] = (
    *("vllm_", "sglang_", "llamacpp_", "tgi_", "trtllm_", "nv_trt_llm_", "nv_inference_", "lmdeploy_", "lmcache_"),
    *("dynamo_frontend_", "dynamo_component_", "DCGM_", "nvidia_smi_", "sizewatch_"),
)
"""Beginnings of names that belong to one kind of exporter: a name so begun is its, and its page must print it."""

PARTS = ("_bucket", "_count", "_sum")


def key_of(name: str) -> str:
    """A name as the tables spell it: ':' is '_', without what Ray or KServe puts before it."""
    spelt = normalize_name(name)
    for wrapper in WRAPPERS:
        if spelt.startswith(wrapper):
            return spelt[len(wrapper) :]
    return spelt


def namespace_of(name: str) -> str:
    """The exporter that a name belongs to, as the beginning of its names; "" for one that could be anybody's."""
    key = key_of(name)
    return next((start for start in NAMESPACES if key.startswith(start)), "")


def stem_of(key: str) -> str:
    """The family of a histogram's or summary's part; any other key itself."""
    return next((key.removesuffix(part) for part in PARTS if key.endswith(part)), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One sample name. `most` is the largest number of its series on one page; `values` are those of each label."""

    name: str
    type: str
    labels: frozenset[str]
    values: Mapping[str, frozenset[str]]
    most: int

    @property
    def last_edge(self) -> float | None:
        """The last finite bucket edge; None for what is no bucket."""
        edges = [float(edge) for edge in self.values.get("le", ())]
        return max((edge for edge in edges if math.isfinite(edge)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: where it was got from, what it is in words, its engine where it is one's, its series."""

    place: str
    title: str
    engine: EngineTable | None
    versions: Versions
    series: tuple[ExpositionSeries, ...]


def read_page(place: str, body: bytes) -> Page:
    """A page of any exporter. Raises ScrapeError where it is no exposition."""
    parsed = SeriesReader(lambda name: True).read(body)
    pairs = [(series.name, dict(series.labels)) for series in parsed.series]
    engine = recognise_engine((normalize_name(name), labels) for name, labels in pairs)
    exporter = recognise_gpus(pairs)
    versions = allowed_versions(engine, parsed.families) if engine else Versions()
    title = f"{engine.title} {versions}".strip() if engine else exporter.title if exporter else "the page"
    return Page(place=place, title=title, engine=engine, versions=versions, series=parsed.series)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All pages together. Names as printed; `by_key` finds them by the tables' spelling."""

    pages: tuple[Page, ...]

    @cached_property
    def printed(self) -> Mapping[str, Printed]:
        """Every sample name of any page."""
        found: dict[str, list[tuple[int, ExpositionSeries]]] = {}
        for number, page in enumerate(self.pages):
            for series in page.series:
                found.setdefault(series.name, []).append((number, series))
        return {name: _printed(name, entries) for name, entries in found.items()}

    @cached_property
    def by_key(self) -> Mapping[str, str]:
        """The printed name of each key; where several spellings of one are printed, that of the first page."""
        keys: dict[str, str] = {}
        for name in self.printed:
            keys.setdefault(key_of(name), name)
        return keys

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """Whose names the pages tell about."""
        return frozenset(namespace_of(name) for name in self.printed) - {""}

    @property
    def engines(self) -> tuple[EngineTable, ...]:
        """The engines whose pages these are, each once."""
        return tuple({id(page.engine): page.engine for page in self.pages if page.engine}.values())

    def is_printed(self, key: str) -> bool:
        """Whether any page prints a sample of that key."""
        return key in self.by_key

    def is_histogram(self, key: str) -> bool:
        """Whether any page prints a histogram of that key."""
        return f"{key}_bucket" in self.by_key

    def of(self, namespace: str) -> tuple[str, ...]:
        """The printed names of one namespace."""
        return tuple(name for key, name in self.by_key.items() if key.startswith(namespace))

    def title_of(self, namespace: str) -> str:
        """The pages that print a namespace, in words."""
        titles = [p.title for p in self.pages if any(namespace_of(series.name) == namespace for series in p.series)]
        return " and ".join(dict.fromkeys(titles))


def catalogue(pages: Iterable[Page]) -> Catalogue:
    """The index of these pages."""
    return Catalogue(pages=tuple(pages))


def _printed(name: str, entries: list[tuple[int, ExpositionSeries]]) -> Printed:
    values: dict[str, set[str]] = {}
    counts: dict[int, int] = {}
    for number, series in entries:
        counts[number] = counts.get(number, 0) + 1
        for label, value in series.labels:
            values.setdefault(label, set()).add(value)
    return Printed(
        name=name,
        type=entries[0][1].type,
        labels=frozenset(values),
        values={label: frozenset(found) for label, found in values.items()},
        most=max(counts.values()),
    )
