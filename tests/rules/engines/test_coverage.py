"""Tables and pages hold each other: every family of every page is explained, every row of a table is met."""

from functools import cache
from pathlib import Path

import pytest
from making import PAGES, START, page_text, read
from paths import SHARED
from table_checks import TABLES, openmetrics, unexplained

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families, version_range
from rules.engines.registry import ENGINES, EngineTable, normalize_name
from rules.telemetry.families import stem
from rules.telemetry.snapshots import Snapshot

VLLM_V1, SGLANG = TABLES["vllm/v1"], TABLES["sglang/srt"]

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


def engine_pages(folder: Path) -> list[Path]:
    pages = [page for page in sorted(folder.rglob("*.*")) if page.name.endswith((".prom", ".openmetrics.txt"))]
    return [page for page in pages if open_page(page) is not None]


def families(page: Path) -> dict[str, str]:
    opened = open_page(page)
    return opened[2]


def by_name(uses: tuple[FamilyUse, ...]) -> dict[str, FamilyUse]:
    return {use.name: use for use in uses}


@pytest.mark.parametrize("page", engine_pages(PAGES), ids=lambda page: page.name)
def test_every_family_is_read_or_explained(page: Path) -> None:
    opened = open_page(page)
    assert opened is not None
    engine, found, printed = opened
    uses = explain_families(engine, printed)
    assert unexplained(engine, uses) == []
    said = {family for use in uses for family in use.families}
    present = {stem(family) for family in (*found.counters, *found.histograms, *found.gauges)}
    assert present - said <= {row.family for row in engine.rows if row.zero_with}
    by_label = {row.family for row in engine.rows if row.where or row.factor_fact or row.none is not None}
    assert said - present - found.contradictory <= by_label


@pytest.mark.skipif(not SHARED_PAGES.exists(), reason="../shared is absent: only our own pages were tried")
def test_shared_pages_have_no_unknown_family() -> None:
    engines = set()
    pages = engine_pages(SHARED_PAGES)
    assert len(pages) >= 45
    for page in pages:
        opened = open_page(page)
        assert opened is not None
        engine, _, printed = opened
        engines.add(engine.name)
        assert unexplained(engine, explain_families(engine, printed)) == [], page.name
    assert engines == {"vllm", "sglang", "llamacpp", "triton"}


KVBM = {
    **dict.fromkeys(("kvbm_matched_tokens", "kvbm_object_read_failures"), "counter"),
    "kvbm_host_cache_hit_rate": "gauge",
}
ELSEWHERE: dict[str, tuple[dict[str, str], ...]] = {
    "vllm/v1": (
        {
            "vllm:mooncake_xfer_time_seconds": "histogram",
            "vllm:mooncake_num_failed_transfers_total": "counter",
            "vllm:kv_offload_tiering_promotion_job_failures": "counter",
        },
        {
            "vllm:mooncake_store_operation_failed_keys_total": "counter",
            **dict.fromkeys(("lmcache:num_lookup_tokens_total", "lmcache:num_lookup_hits_total"), "counter"),
            **dict.fromkeys(("lmcache:time_to_retrieve", "lmcache:time_to_store"), "histogram"),
            "lmcache:local_cache_usage": "gauge",
        },
        KVBM,
        {
            **dict.fromkeys(("vllm:kv_offload_total_bytes", "vllm:kv_offload_total_time"), "counter"),
            "vllm:kv_offload_size": "histogram",
        },
    ),
    "sglang/srt": (
        {"sglang:e2e_request_latency_seconds": "histogram", "sglang:eplb_balancedness": "summary"},
        dict.fromkeys(
            (
                *("sglang:load_back_tokens_total", "sglang:load_back_bytes_total", "sglang:hicache_backup_bytes_total"),
                *("sglang:hicache_dropped_tokens_total", "sglang:storage_prefetch_unfulfilled_tokens_total"),
            ),
            "counter",
        ),
        dict.fromkeys(("sglang:load_back_duration_seconds", "sglang:hicache_backup_duration_seconds"), "histogram"),
        dict.fromkeys(("sglang:hicache_host_used_tokens", "sglang:hicache_host_total_tokens"), "gauge"),
    ),
    "trtllm/v1.3": ({"kvbm_object_read_failures": "counter"},),
    "dynamo/worker": (
        KVBM,
        dict.fromkeys(
            (
                *("dynamo_component_kvstats_total_blocks", "dynamo_component_kvstats_gpu_cache_usage_percent"),
                "dynamo_component_kvstats_gpu_prefix_cache_hit_rate",
            ),
            "gauge",
        ),
    ),
    "dynamo/frontend": ({"dynamo_frontend_inflight_requests": "gauge"},),
}
"""Families of older releases and of parts that need a GPU, as the wheels declare them: none of our pages has them."""


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.label)
def test_every_row_meets_a_page(engine: EngineTable) -> None:
    """Else its note names the file of the source that declares it."""
    printed = [families(page) for page in engine_pages(PAGES) if (opened := open_page(page)) and opened[0] is engine]
    assert printed
    met = set()
    for names in (*printed, *ELSEWHERE.get(f"{engine.name}/{engine.generation}", ())):
        for use in explain_families(engine, names):
            met |= {(normalize_name(use.name), family) for family in use.families}
    for row in engine.rows:
        assert (row.source, row.family) in met or ".py" in row.note or ".cpp" in row.note, row
        assert not engine.scanned or {row.since, row.until} <= {*engine.scanned, ""}, row


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
    assert [(use.is_read, use.text) for use in uses[0]] == [(use.is_read, use.text) for use in uses[1]]


def test_family_says_its_reading() -> None:
    found = by_name(explain_families(VLLM_V1, families(PAGES / "vllm-0.33.0.prom")))
    assert found["vllm:time_to_first_token_seconds"].families == ("ttft_seconds",)
    assert found["vllm:time_to_first_token_seconds"].text == "ttft_seconds"
    assert found["vllm:kv_cache_usage_perc"].text == "kv_utilization, kv_utilization_max"
    assert found["vllm:iteration_tokens_total"].families == ("engine_steps",)
    assert found["vllm:cache_config_info"].text == "facts about the engine"
    assert found["vllm:prompt_tokens_created"].text == "facts about the engine"
    assert not found["vllm:num_preemptions_created"].is_read


def test_both_formats_name_the_same_uses() -> None:
    def without_total(page: str) -> dict[str, str]:
        uses = explain_families(VLLM_V1, families(PAGES / page))
        return {use.name.removesuffix("_total"): use.text for use in uses if not use.name.endswith("_created")}

    assert without_total("vllm-0.33.0.openmetrics.txt") == without_total("vllm-0.33.0.prom")


def test_replaced_name_is_unread_on_that_page() -> None:
    old = by_name(explain_families(VLLM_V1, families(PAGES / "vllm-0.8.5.prom")))
    newer = by_name(explain_families(VLLM_V1, families(PAGES / "vllm-0.11.0.prom")))
    assert old["vllm:time_per_output_token_seconds"].families == ("itl_seconds",)
    assert not newer["vllm:time_per_output_token_seconds"].is_read
    assert newer["vllm:inter_token_latency_seconds"].families == ("itl_seconds",)


def test_unknown_and_untyped_names() -> None:
    (found,) = explain_families(VLLM_V1, {"vllm:request_failure_total": "counter"})
    assert (found.is_read, found.text) == (False, "")
    (found,) = explain_families(VLLM_V1, {"ray_vllm_num_preemptions_total": "untyped"})
    assert found.families == ("preemptions",)


def test_what_an_excerpt_lacks_tells_nothing() -> None:
    excerpt = {"vllm:num_requests_running": "gauge", "vllm:prompt_tokens": "counter"}
    assert version_range(VLLM_V1, excerpt) == ""
    assert version_range(VLLM_V1, excerpt | {"vllm:external_prefix_cache_hits": "counter"}) == "after 0.11.0"
    assert version_range(VLLM_V1, excerpt | {"vllm:mooncake_xfer_time_seconds": "histogram"}) == "after 0.32.0"


def test_deprecated_name_does_not_age_a_page() -> None:
    """--show-hidden-metrics-for-version; without it 0.12 hides time_per_output_token_seconds."""
    shown = families(PAGES / "vllm-0.12.0.prom")
    assert "vllm:time_per_output_token_seconds" in shown
    hidden = {name: type_ for name, type_ in shown.items() if "time_per_output_token_seconds" not in name}
    hidden["vllm:request_time_per_output_token_seconds"] = "histogram"
    assert version_range(VLLM_V1, shown) == version_range(VLLM_V1, hidden) == "after 0.11.0"


def test_types_tell_two_families_apart() -> None:
    """kv_transfer_latency_ms of SGLang was a gauge up to 0.5.7, and is a histogram from 0.5.10 on."""
    running, moved = "sglang:num_running_reqs", "sglang:kv_transfer_latency_ms"
    for printed, text in (("gauge", ""), ("untyped", ""), ("histogram", "after 0.5.7")):
        assert version_range(SGLANG, {running: "gauge", moved: printed}) == text, printed
    assert version_range(SGLANG, {f"{moved}_bucket": "untyped"}) == "after 0.5.7"
    old, new = (by_name(explain_families(SGLANG, families(PAGES / f"sglang-0.5.{n}.prom")))[moved] for n in (3, 10))
    assert (old.is_read, new.families) == (False, ("kv_transfer_seconds",))


@pytest.mark.parametrize("page", sorted(PAGES.glob("vllm-0.[1238]*.prom")), ids=lambda page: page.name)
def test_releases_need_no_metadata(page: Path) -> None:
    """The golden files of the pages hold the ranges themselves."""
    body = page.read_text()
    bare = "".join(line for line in body.splitlines(keepends=True) if not line.startswith("#"))
    assert version_range(VLLM_V1, families(page)) != ""
    assert read(bare, engine="vllm").facts["engine_versions"] == version_range(VLLM_V1, families(page))
