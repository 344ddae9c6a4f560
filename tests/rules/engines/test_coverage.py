"""Table and pages hold each other: every family of every page is explained, every row of the table is met."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
from making import PAGES, START
from paths import SHARED
from table_checks import TABLES, unexplained

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families, version_range
from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable
from rules.telemetry.families import BY_NAME, stem

VLLM_V1 = TABLES["vllm/v1"]

SHARED_PAGES = SHARED / "pages"


@cache
def engine_of(page: Path) -> EngineTable | None:
    """Whose page it is; None for a GPU exporter's."""
    reader = PageReader()
    try:
        reader.read(page.read_bytes(), START)
    except ScrapeError:
        return None
    return reader.engine


def engine_pages(folder: Path) -> list[tuple[Path, EngineTable]]:
    return [(page, engine) for page in pages_in(folder) if (engine := engine_of(page)) is not None]


def pages_in(folder: Path) -> list[Path]:
    return [page for page in sorted(folder.rglob("*.*")) if page.name.endswith((".prom", ".openmetrics.txt"))]


def ours() -> list[Path]:
    return [page for page, engine in engine_pages(PAGES) if engine is VLLM_V1]


MOONCAKE = {
    "vllm:mooncake_xfer_time_seconds": "histogram",
    "vllm:mooncake_num_failed_transfers_total": "counter",
}
"""No page has this connector; its names and types are those of the wheel of 0.33.0."""
STORES = {
    "vllm:mooncake_store_operation_failed_keys_total": "counter",
    **dict.fromkeys(("lmcache:num_lookup_tokens_total", "lmcache:num_lookup_hits_total"), "counter"),
    **dict.fromkeys(("lmcache:time_to_retrieve", "lmcache:time_to_store"), "histogram"),
    "lmcache:local_cache_usage": "gauge",
}
"""On a page of 0.9.2, which does not count external hits itself: LMCache 0.5.6, and Mooncake's store of 0.32.0."""
KVBM = {
    **dict.fromkeys(("kvbm_matched_tokens", "kvbm_object_read_failures"), "counter"),
    "kvbm_host_cache_hit_rate": "gauge",
}
DEPRECATED = {"vllm:kv_offload_total_bytes": "counter", "vllm:kv_offload_total_time": "counter"} | {
    "vllm:kv_offload_size": "histogram"
}
JOBS = {"vllm:kv_offload_tiering_promotion_job_failures": "counter"}


def families(page: Path, engine: EngineTable = VLLM_V1) -> dict[str, str]:
    reader = PageReader(engine.name)
    reader.read(page.read_bytes(), START)
    return dict(reader.families)


def by_name(uses: tuple[FamilyUse, ...]) -> dict[str, FamilyUse]:
    return {use.name: use for use in uses}


@pytest.mark.parametrize("page", pages_in(PAGES), ids=lambda one: one.name)
def test_every_family_of_our_pages_is_read_or_left_alone_for_a_reason(page: Path) -> None:
    engine = engine_of(page)
    assert engine is not None
    assert unexplained(engine, explain_families(engine, families(page, engine))) == []


@pytest.mark.skipif(not SHARED_PAGES.exists(), reason="../shared is absent: only our own pages were tried")
def test_so_is_every_family_of_every_engine_page_there_is() -> None:
    theirs = engine_pages(SHARED_PAGES)
    assert len(theirs) >= 45
    assert {engine.name for _, engine in theirs} == {"vllm", "sglang", "llamacpp", "triton"}
    for page, engine in theirs:
        assert unexplained(engine, explain_families(engine, families(page, engine))) == [], page.name


def test_every_engine_has_a_page() -> None:
    assert {engine.name for _, engine in engine_pages(PAGES)} == {engine.name for engine in ENGINES}


def test_every_row_of_the_table_is_met_on_some_page() -> None:
    seen = [explain_families(VLLM_V1, families(page)) for page in ours()]
    seen += [explain_families(VLLM_V1, names) for names in (MOONCAKE, STORES, KVBM, DEPRECATED, JOBS)]
    met = {(use.name.replace(":", "_"), family) for uses in seen for use in uses for family in use.families}
    assert {(row.source, row.family) for row in VLLM_V1.rows} <= met


def test_every_row_is_read_from_a_page_that_has_it() -> None:
    """What is called read is read: the families of the explanation and those of the snapshot agree, but for labels."""
    for page in ours():
        reader = PageReader("vllm")
        found = reader.read(page.read_bytes(), START)
        said = {family for use in explain_families(VLLM_V1, reader.families) for family in use.families}
        present = {stem(family) for family in (*found.counters, *found.contradictory, *found.histograms, *found.gauges)}
        assert present <= said
        by_label = {row.family for row in VLLM_V1.rows if row.where}
        assert said - present <= by_label


def test_every_row_feeds_a_family_of_its_kind() -> None:
    for row in VLLM_V1.rows:
        assert BY_NAME[row.family].kind is row.kind, row


def test_a_family_says_what_it_is_read_as() -> None:
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


def test_the_process_of_a_real_page_tells_its_start() -> None:
    found = by_name(explain_families(VLLM_V1, families(PAGES / "steady_after_load.prom")))
    assert (found["process_start_time_seconds"].is_read, found["process_start_time_seconds"].families) == (True, ())
    assert not found["process_cpu_seconds_total"].is_read
    assert found["http_requests_total"].families == (
        "http_requests_ok",
        "http_requests_refused",
        "http_requests_failed",
    )


def test_a_name_that_another_replaces_is_left_alone_on_that_page_only() -> None:
    old = by_name(explain_families(VLLM_V1, families(PAGES / "vllm-0.8.5.prom")))
    newer = by_name(explain_families(VLLM_V1, families(PAGES / "vllm-0.11.0.prom")))
    assert old["vllm:time_per_output_token_seconds"].families == ("itl_seconds",)
    assert not newer["vllm:time_per_output_token_seconds"].is_read
    assert newer["vllm:inter_token_latency_seconds"].families == ("itl_seconds",)


def test_what_nobody_knows_is_said_to_be_unknown() -> None:
    (found,) = explain_families(VLLM_V1, {"vllm:request_failure_total": "counter"})
    assert (found.is_read, found.text) == (False, "")


def test_a_name_without_a_type_is_taken_at_its_word() -> None:
    (found,) = explain_families(VLLM_V1, {"ray_vllm_num_preemptions_total": "untyped"})
    assert found.families == ("preemptions",)


# --- releases


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("vllm-0.8.5.prom", "before 0.9.2"),
        ("vllm-0.9.2.prom", "after 0.8.5 and before 0.11.0"),
        ("vllm-0.11.0.prom", "after 0.10.2"),
        ("vllm-0.12.0.prom", "after 0.11.0"),
        ("vllm-0.15.1.prom", "after 0.11.0"),
        ("vllm-0.20.2.prom", "after 0.18.1"),
        ("vllm-0.29.0.prom", "after 0.18.1"),
        ("vllm-0.33.0.prom", "after 0.29.0"),
        ("vllm-0.33.0.openmetrics.txt", "after 0.29.0"),
        ("steady_after_load.prom", "after 0.29.0"),
    ],
)
def test_the_names_of_a_page_tell_a_range_with_metadata_and_without(page: str, text: str) -> None:
    """The true first release of a name lies between two scans, so the range reaches to the scan before and the scan after."""
    body = (PAGES / page).read_text()
    assert version_range(VLLM_V1, families(PAGES / page)) == text
    assert [range_of(without_lines(body, start)) for start in ("# HELP", "#")] == [text, text]


def without_lines(body: str, *starts: str) -> str:
    return "".join(line for line in body.splitlines(keepends=True) if not line.startswith(starts))


def range_of(body: str) -> str:
    return PageReader("vllm").read(body.encode(), START).facts["engine_versions"]


WAITING_BY_REASON = ("# HELP vllm:num_requests_waiting_by", "# TYPE vllm:num_requests_waiting_by")


def test_what_an_excerpt_lacks_tells_nothing() -> None:
    excerpt = {"vllm:num_requests_running": "gauge", "vllm:prompt_tokens": "counter"}
    assert version_range(VLLM_V1, excerpt) == ""
    assert version_range(VLLM_V1, excerpt | {"vllm:external_prefix_cache_hits": "counter"}) == "after 0.11.0"
    assert version_range(VLLM_V1, excerpt | {"vllm:mooncake_xfer_time_seconds": "histogram"}) == "after 0.32.0"


@pytest.mark.skipif(not SHARED_PAGES.exists(), reason="../shared is absent: no public page of 0.25.1 was read")
def test_the_range_holds_the_release_that_a_public_page_was_pinned_at() -> None:
    recordings = sorted((SHARED_PAGES.parent / "recordings" / "public").rglob("metrics.jsonl.gz"))
    assert len(recordings) >= 9
    for path in recordings:
        with gzip.open(path, "rt") as lines:
            page = json.loads(next(lines))["text"]
        ranges = [range_of(without_lines(page, start)) for start in ("# HELP", "#")]
        assert ranges == ["after 0.18.1"] * 2
    assert range_of((SHARED_PAGES / "vllm-v1-specdecode-created-derate.prom").read_text()) == "after 0.11.0"


def test_a_deprecated_name_that_is_shown_again_does_not_make_a_page_older() -> None:
    """--show-hidden-metrics-for-version; without it 0.12 hides time_per_output_token_seconds."""
    shown = families(PAGES / "vllm-0.12.0.prom")
    assert "vllm:time_per_output_token_seconds" in shown
    hidden = {name: type_ for name, type_ in shown.items() if "time_per_output_token_seconds" not in name}
    hidden["vllm:request_time_per_output_token_seconds"] = "histogram"
    assert version_range(VLLM_V1, shown) == version_range(VLLM_V1, hidden) == "after 0.11.0"


@pytest.mark.parametrize("engine", [one for one in ENGINES if one.scanned], ids=lambda one: one.label)
def test_every_marker_and_row_names_scanned_releases(engine: EngineTable) -> None:
    for one in engine.rows:
        assert {one.since, one.until} <= {*engine.scanned, ""}, one
