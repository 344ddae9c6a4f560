"""Tables and pages hold each other: every family is explained, every row is met; and what a file of a table may say."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from making import PAGES, START, page_text, read
from paths import SHARED
from table_checks import TABLES, openmetrics, unexplained, without_lines

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from exporters.docs.reference_pages import engines_page
from rules.engines import registry
from rules.engines.coverage import ENGINE_SIGNALS, explain_families, version_range
from rules.engines.registry import ENGINES, EngineTable, LabelAggregation, load_engine_tables, normalize_name
from rules.tables import read_tables
from rules.telemetry.families import BY_NAME, FamilyKind, stem
from rules.telemetry.snapshots import Snapshot

VLLM_V1, SGLANG = TABLES["vllm/v1"], TABLES["sglang/srt"]
MOVED = "sglang:kv_transfer_latency_ms"

SHARED_PAGES = SHARED / "pages"


@cache
def open_page(path: Path) -> tuple[EngineTable, Snapshot, dict[str, str]] | None:
    """Whose page it is, what it says, and its families with their types; None for a GPU exporter's."""
    reader = PageReader()
    try:
        page = reader.read(path.read_bytes(), START)
    except ScrapeError:
        return None
    return reader.engine, page, dict(reader.families)


def list_pages(folder: Path) -> list[Path]:
    return [page for page in sorted(folder.rglob("*.*")) if page.name.endswith((".prom", ".openmetrics.txt"))]


def engine_pages(folder: Path) -> list[Path]:
    return [page for page in list_pages(folder) if open_page(page) is not None]


def families(name: str) -> dict[str, str]:
    return open_page(PAGES / name)[2]


def readings(engine: EngineTable, printed: dict[str, str]) -> dict[str, str]:
    """What each family of a page is read as; "" where it is not read."""
    return {use.name: use.text for use in explain_families(engine, printed)}


@pytest.mark.parametrize("page", list_pages(PAGES), ids=lambda page: page.name)
def test_every_family_is_read_or_explained(page: Path) -> None:
    engine, found, printed = open_page(page)
    uses = explain_families(engine, printed)
    assert unexplained(engine, uses) == []
    said = {family for use in uses for family in use.families}
    present = {stem(family) for family in (*found.counters, *found.histograms, *found.gauges)}
    assert present - said <= {row.family for row in engine.rows if row.zero_with}
    by_label = {row.family for row in engine.rows if row.where or row.factor_fact or row.none is not None}
    assert said - present - found.contradictory <= by_label


def test_conditions_name_labels_of_their_series() -> None:
    labels: dict[tuple[str, str], set[str]] = {}
    for page in engine_pages(PAGES):
        for name, text in re.findall(r"(?m)^([\w:]+)(?:\{(.*)\})? ", page.read_text(encoding="utf-8")):
            names = labels.setdefault((open_page(page)[0].label, normalize_name(name)), set())
            names.update(re.findall(r'(\w+)="', text))
    for engine in ENGINES:
        for row in engine.rows:
            # A label without a value here may be absent, and `le` of a counter is: that row never reads its source.
            named = {label for label, pattern in row.where.items() if pattern and label != "le"} | row.unless.keys()
            if printed := labels.get((engine.label, row.sample)):
                assert named <= printed, f"{engine.label}: {row.family}"


@pytest.mark.skipif(not SHARED_PAGES.exists(), reason="../shared is absent: only our own pages were tried")
def test_shared_pages_have_no_unknown_family() -> None:
    engines = set()
    pages = engine_pages(SHARED_PAGES)
    assert len(pages) >= 45
    for page in pages:
        engine, _, printed = open_page(page)
        engines.add(engine.name)
        assert unexplained(engine, explain_families(engine, printed)) == [], page.name
    assert engines == {"vllm", "sglang", "llamacpp", "triton"}


def typed(**names: str) -> dict[str, str]:
    """Families by their type."""
    return {name: kind for kind, several in names.items() for name in several.split()}


KVBM = typed(counter="kvbm_matched_tokens kvbm_object_read_failures", gauge="kvbm_host_cache_hit_rate")
ELSEWHERE: dict[str, tuple[dict[str, str], ...]] = {
    "vllm/v1": (
        typed(
            histogram="vllm:mooncake_xfer_time_seconds",
            counter="vllm:mooncake_num_failed_transfers_total vllm:kv_offload_tiering_promotion_job_failures",
        ),
        typed(
            counter="vllm:mooncake_store_operation_failed_keys_total lmcache:num_lookup_tokens_total"
            " lmcache:num_lookup_hits_total",
            histogram="lmcache:time_to_retrieve lmcache:time_to_store",
            gauge="lmcache:local_cache_usage",
        ),
        KVBM,
        typed(counter="vllm:kv_offload_total_bytes vllm:kv_offload_total_time", histogram="vllm:kv_offload_size"),
    ),
    "sglang/srt": (
        typed(histogram="sglang:e2e_request_latency_seconds", summary="sglang:eplb_balancedness"),
        typed(
            counter="sglang:load_back_tokens_total sglang:load_back_bytes_total sglang:hicache_backup_bytes_total"
            " sglang:hicache_dropped_tokens_total sglang:storage_prefetch_unfulfilled_tokens_total",
            histogram="sglang:load_back_duration_seconds sglang:hicache_backup_duration_seconds",
            gauge="sglang:hicache_host_used_tokens sglang:hicache_host_total_tokens",
        ),
    ),
    "trtllm/v1.3": (typed(counter="kvbm_object_read_failures"),),
    "dynamo/worker": (
        KVBM,
        typed(
            gauge="dynamo_component_kvstats_total_blocks dynamo_component_kvstats_gpu_cache_usage_percent"
            " dynamo_component_kvstats_gpu_prefix_cache_hit_rate"
        ),
    ),
    "dynamo/frontend": (typed(gauge="dynamo_frontend_inflight_requests"),),
}
"""Families of older releases and of parts that need a GPU, as the wheels declare them: none of our pages has them."""


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.label)
def test_every_row_meets_a_page(engine: EngineTable) -> None:
    """Else its note names the file of the source that declares it."""
    printed = [names for of, _, names in map(open_page, engine_pages(PAGES)) if of is engine]
    assert printed
    met = set()
    for names in (*printed, *ELSEWHERE.get(f"{engine.name}/{engine.generation}", ())):
        for use in explain_families(engine, names):
            met |= {(normalize_name(use.name), family) for family in use.families}
    for row in engine.rows:
        assert (row.source, row.family) in met or ".py" in row.note or ".cpp" in row.note, row
        assert not engine.scanned or {row.since, row.until} <= {*engine.scanned, ""}, row


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            families("vllm-0.33.0.prom"),
            {
                "vllm:time_to_first_token_seconds": "ttft_seconds",
                "vllm:kv_cache_usage_perc": "kv_utilization, kv_utilization_max",
                "vllm:iteration_tokens_total": "engine_steps",
                "vllm:cache_config_info": "facts about the engine",
                "vllm:prompt_tokens_created": "facts about the engine",
                "vllm:num_preemptions_created": "",
            },
        ),
        # A replaced name is unread on a page of the new one.
        (families("vllm-0.8.5.prom"), {"vllm:time_per_output_token_seconds": "itl_seconds"}),
        (
            families("vllm-0.11.0.prom"),
            {"vllm:time_per_output_token_seconds": "", "vllm:inter_token_latency_seconds": "itl_seconds"},
        ),
        ({"vllm:request_failure_total": "counter"}, {"vllm:request_failure_total": ""}),
        ({"ray_vllm_num_preemptions_total": "untyped"}, {"ray_vllm_num_preemptions_total": "preemptions"}),
    ],
)
def test_family_says_its_reading(printed: dict[str, str], expected: dict[str, str]) -> None:
    found = readings(VLLM_V1, printed)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", sorted(page.name for page in PAGES.glob("made-*.prom")))
def test_openmetrics_reads_alike(name: str) -> None:
    """Captured twins of vLLM and SGLang have golden files of their own."""
    plain, twin = read(page_text(name)), read(openmetrics(page_text(name)))
    assert (twin.counters, twin.histograms, twin.gauges) == (plain.counters, plain.histograms, plain.gauges)


@pytest.mark.parametrize("prefix", ["{}_", "ray_{}_", "ray_{}:", "kserve_{}_", "kserve_{}:"])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("vllm-0.6.6.post1.prom", "vllm:"),
        ("vllm-0.8.5.prom", "vllm:"),
        ("vllm-0.33.0.prom", "vllm:"),
        ("steady_after_load.prom", "vllm:"),
        ("sglang-0.4.6.prom", "sglang:"),
        ("sglang_after_load.prom", "sglang:"),
        ("made-trtllm-1.3-newer.prom", "trtllm_"),
    ],
)
def test_wrapped_names_read_alike(name: str, own: str, prefix: str) -> None:
    """Ray (`ray_vllm_`, formerly `ray_vllm:`), KServe, and who writes '_' for ':'."""
    plain, wrapped = PageReader(), PageReader()
    text = page_text(name).replace(own, prefix.format(own[:-1]))
    assert wrapped.read(text.encode(), START) == plain.read(page_text(name).encode(), START)
    uses = [explain_families(reader.engine, reader.families) for reader in (plain, wrapped)]
    assert [use.text for use in uses[0]] == [use.text for use in uses[1]]


@pytest.mark.parametrize(
    ("engine", "more", "expected"),
    [
        (VLLM_V1, {}, ""),
        (VLLM_V1, {"vllm:external_prefix_cache_hits": "counter"}, "after 0.11.0"),
        (VLLM_V1, {"vllm:mooncake_xfer_time_seconds": "histogram"}, "after 0.32.0"),
        # A gauge of SGLang up to 0.5.7, a histogram from 0.5.10 on.
        (SGLANG, {MOVED: "gauge"}, ""),
        (SGLANG, {MOVED: "untyped"}, ""),
        (SGLANG, {MOVED: "histogram"}, "after 0.5.7"),
        (SGLANG, {f"{MOVED}_bucket": "untyped"}, "after 0.5.7"),
    ],
)
def test_excerpt_tells_what_it_holds(engine: EngineTable, more: dict[str, str], expected: str) -> None:
    excerpts = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}
    assert version_range(engine, {excerpts[engine.name]: "gauge", **more}) == expected


def test_deprecated_name_does_not_age_a_page() -> None:
    """--show-hidden-metrics-for-version; without it 0.12 hides time_per_output_token_seconds."""
    shown = families("vllm-0.12.0.prom")
    assert "vllm:time_per_output_token_seconds" in shown
    hidden = {name: type_ for name, type_ in shown.items() if "time_per_output_token_seconds" not in name}
    hidden["vllm:request_time_per_output_token_seconds"] = "histogram"
    assert version_range(VLLM_V1, shown) == version_range(VLLM_V1, hidden) == "after 0.11.0"


def test_types_tell_two_families_apart() -> None:
    old, new = (readings(SGLANG, families(f"sglang-0.5.{number}.prom"))[MOVED] for number in (3, 10))
    assert (old, new) == ("", "kv_transfer_seconds")


@pytest.mark.parametrize("page", sorted(PAGES.glob("vllm-0.[1238]*.prom")), ids=lambda page: page.name)
def test_releases_need_no_metadata(page: Path) -> None:
    """The golden files of the pages hold the ranges themselves."""
    expected = version_range(VLLM_V1, families(page.name))
    assert expected != ""
    assert read(without_lines(page.read_text(), "# "), engine="vllm").facts["engine_versions"] == expected


def test_family_tells_first_and_last_release() -> None:
    page = engines_page()
    head = [line.strip("| ").split(" | ") for line in page.partition("## ")[0].splitlines() if line.startswith("| `")]
    matrix = {name.strip("`"): columns for name, *columns in head}
    place = [f"{engine.name}/{engine.generation}" for engine in ENGINES].index
    assert matrix["tpot_seconds"][place("vllm/v1")] == "from 0.11.0"
    assert matrix["tpot_seconds"][place("vllm/v0")] == "-"
    assert matrix["kv_utilization"][place("llamacpp/server")] == "to 2024.9"
    assert matrix["kv_utilization"][place("vllm/v1")] == "yes", "under two names, one after the other"
    assert "| `preemptions` | llama.cpp does not preempt: a slot keeps its cache until the request ends |" in page
    names = {signal.name for signal in ENGINE_SIGNALS}
    assert {"ttft_p99_seconds", "kv_utilization", "cold_start_seconds"} <= names - {"gpu_utilization"}
    assert "gpu_utilization" not in names


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}-{e.generation}")
def test_engine_families_are_unique_and_typed(engine: EngineTable) -> None:
    for row in engine.rows:
        assert BY_NAME[row.family].kind is row.kind or row.part, f"{row.family} from {row.source}"
        assert row.kind is not FamilyKind.HISTOGRAM or not row.part
    keys = [(r.family, r.sample, *r.where.items(), *r.unless.items()) for r in engine.rows]
    assert len(keys) == len(set(keys))


TOY: dict[str, Any] = {
    "name": "toy",
    "generation": "v1",
    "title": "Toy",
    "signatures": ["toy_running"],
    "rows": [
        {"family": "requests_arrived", "source": "toy_total", "where": {"path": "generating"}},
        {"family": "kv_utilization", "source": "toy_kv", "across": "mean"},
    ],
    "patterns": {"generating": "/a|/b"},
}


def load(monkeypatch: pytest.MonkeyPatch, **keys: Any) -> registry.EngineTable:
    document = TOY | keys
    more = {"rows": [{"family": "preemptions", "source": "cache_evicted_total"}]}
    monkeypatch.setattr(registry, "read_tables", lambda package: {"toy": {**document}, "toy_cache": more})
    (engine,) = load_engine_tables()
    return engine


def test_every_file_belongs_to_an_engine() -> None:
    tables = read_tables("rules.engines")
    named = {(keys.get("name"), keys.get("generation")) for keys in tables.values()}
    assert named == {(engine.name, engine.generation) for engine in ENGINES} | {(None, None)}
    assert len(tables) == len(ENGINES) + len({"kvbm", "lmcache"})


def test_tables_tell_how_an_engine_is_read() -> None:
    assert {"dynamo", "sglang"} == registry.ITL_PER_TOKEN
    carriers = [engine.name for engine in ENGINES if engine.carries_engines]
    assert [engine.name for engine in ENGINES[-len(carriers) :]] == carriers
    assert {*carriers} == {"dynamo", "triton"}


def test_table_holds_rows_patterns_and_maxima(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, mean, maximum, included = load(monkeypatch, include=["toy_cache"]).rows
    assert included.source == "cache_evicted_total"
    assert [arrived.reads({"path": path}) for path in ("/a", "/b", "/c", "generating")] == [True, True, False, False]
    assert (mean.family, mean.source, mean.across) == ("kv_utilization", "toy_kv", LabelAggregation.MEAN)
    assert (maximum.family, maximum.source, maximum.across) == ("kv_utilization_max", "toy_kv", LabelAggregation.MAX)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rows": [{"family": "requests_arrived", "sorce": "x"}]}, "row requests_arrived = None: .*sorce"),
        ({"rows": [{"family": "requests_arrived", "source": "x", "across": "median"}]}, "row .* = x: 'median'"),
        ({"rows": [{"family": "no_family", "source": "x"}]}, "row no_family = x: no_family is no family"),
        ({"rows": [{"family": "requests_arrived", "source": "x", "where": {"a": "o(k"}}]}, "row .* = x: missing"),
        ({"sinatures": []}, "sinatures"),
        ({"include": ["no_file"]}, "no_file"),
    ],
)
def test_wrong_table_names_file_and_word(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"rules/engines/toy\.toml: .*{words}"):
        load(monkeypatch, **keys)
