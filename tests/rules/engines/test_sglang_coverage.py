"""SGLang's table and pages hold each other: every family of every page is explained, every row of the table is met."""

from __future__ import annotations

from pathlib import Path

import pytest
from making import PAGES, START, page_text, read
from paths import SHARED
from sglang_pages import DOCS, NEWEST, OURS, REAL, STARTUP, TRIMMED, absent
from table_checks import TABLES, unexplained

from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families, version_range
from rules.telemetry.families import BY_NAME, stem

SGLANG = TABLES["sglang/srt"]

TWINS = sorted(page.name for page in PAGES.glob("sglang*.openmetrics.txt"))


def families(page: Path) -> dict[str, str]:
    reader = PageReader("sglang")
    reader.read(page.read_bytes(), START)
    return dict(reader.families)


def by_name(uses: tuple[FamilyUse, ...]) -> dict[str, FamilyUse]:
    return {use.name: use for use in uses}


@pytest.mark.parametrize("name", [*OURS, *TWINS])
def test_every_family_is_read_or_left_alone_for_a_reason(name: str) -> None:
    assert unexplained(SGLANG, explain_families(SGLANG, families(PAGES / name))) == []


@absent
def test_so_is_every_family_of_every_page_there_is() -> None:
    pages = sorted((SHARED / "pages").rglob("sglang*"))
    assert len(pages) == 12
    for page in pages:
        assert unexplained(SGLANG, explain_families(SGLANG, families(page))) == [], page.name


HICACHE = {
    **{f"sglang:{name}_total": "counter" for name in ("load_back_tokens", "load_back_bytes", "hicache_backup_bytes")},
    **{f"sglang:{name}_duration_seconds": "histogram" for name in ("load_back", "hicache_backup")},
    "sglang:hicache_dropped_tokens_total": "counter",
    "sglang:storage_prefetch_unfulfilled_tokens_total": "counter",
    **{f"sglang:hicache_host_{word}_tokens": "gauge" for word in ("used", "total")},
}
"""No page has a hierarchical cache with traffic; names and types are those of the wheel of 0.5.23."""


def test_every_row_is_met_on_some_page() -> None:
    seen = [explain_families(SGLANG, families(PAGES / name)) for name in OURS]
    seen.append(explain_families(SGLANG, {"sglang:e2e_request_latency_seconds": "histogram"}))
    # Only of mixtures of experts that are told to export it.
    seen.append(explain_families(SGLANG, {"sglang:eplb_balancedness": "summary"}))
    seen.append(explain_families(SGLANG, HICACHE))
    met = {(use.name.replace(":", "_"), family) for uses in seen for use in uses for family in use.families}
    assert {(row.source, row.family) for row in SGLANG.rows} <= met


MADE_UP = {"prefix_hit_tokens", "prefix_queried_tokens", "external_prefix_queried_tokens"}
"""The generated page of 0.5.23 has modes of prefill_effective_tokens_total that no release prints."""


@pytest.mark.parametrize("name", OURS)
def test_what_is_said_to_be_read_is_read(name: str) -> None:
    page = read(page_text(name))
    said = {family for use in explain_families(SGLANG, families(PAGES / name)) for family in use.families}
    present = {stem(family) for family in (*page.counters, *page.contradictory, *page.histograms, *page.gauges)}
    zero = {row.family for row in SGLANG.rows if row.zero_with}
    assert present - said <= zero
    assert said - present <= (MADE_UP if name == NEWEST else set())


def test_every_row_feeds_a_family_of_its_kind_from_a_scanned_release() -> None:
    for row in SGLANG.rows:
        assert BY_NAME[row.family].kind is row.kind, row
        assert {row.since, row.until} <= {*SGLANG.scanned, ""}, row


def test_a_name_of_two_types_is_explained_by_its_type() -> None:
    old = by_name(explain_families(SGLANG, families(PAGES / "sglang-0.5.3.prom")))["sglang:kv_transfer_latency_ms"]
    new = by_name(explain_families(SGLANG, families(PAGES / "sglang-0.5.10.prom")))["sglang:kv_transfer_latency_ms"]
    assert (old.is_read, new.families) == (False, ("kv_transfer_seconds",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sglang-0.4.6.prom", "after 0.4.1"),
        ("sglang-0.5.3.prom", "after 0.4.6 and before 0.5.23"),
        ("sglang-0.5.10.prom", "after 0.5.7 and before 0.5.23"),
        ("sglang-0.5.10.openmetrics.txt", "after 0.5.7 and before 0.5.23"),
        ("sglang-0.5.23.prom", "after 0.5.10"),
        (STARTUP, "after 0.5.10"),
        (REAL, "after 0.5.10"),
    ],
)
def test_the_names_of_a_page_tell_its_release(name: str, text: str) -> None:
    assert version_range(SGLANG, families(PAGES / name)) == text


def test_a_name_of_another_type_does_not_tell_the_release_of_ours() -> None:
    """kv_transfer_latency_ms was a gauge up to 0.5.7, and is a histogram from 0.5.10 on."""
    running, moved = "sglang:num_running_reqs", "sglang:kv_transfer_latency_ms"
    for printed, text in (("gauge", ""), ("untyped", ""), ("histogram", "after 0.5.7")):
        assert version_range(SGLANG, {running: "gauge", moved: printed}) == text, printed
    assert version_range(SGLANG, {f"{moved}_bucket": "untyped"}) == "after 0.5.7"


@absent
def test_so_do_those_of_trimmed_pages() -> None:
    assert [version_range(SGLANG, families(page)) for page in (DOCS, TRIMMED)] == [
        "before 0.4.6",
        "after 0.5.3 and before 0.5.23",
    ]
