"""Series to families by a table: mechanics, on an engine that exists only here."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from making import START

from rules.engines.reader import SeriesLayout, compile_layout, is_mapped_name, snapshot
from rules.engines.registry import (
    EngineTable,
    LabelAggregation,
    SourceRow,
    detect_engine,
    itl_comparable,
    select_rows,
    strip_wrapper_prefix,
)
from rules.telemetry.readings import read as read_signal
from rules.telemetry.signals import BY_NAME, Gap, Missing
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import diff_snapshots


def row(family: str, source: str, **overrides: Any) -> SourceRow:
    return SourceRow(family=family, source=source, since="1.0", **overrides)


ENGINE = EngineTable(
    name="toy",
    generation="v1",
    title="Toy",
    signatures=("toy_running",),
    signature_labels=("rank",),
    signature_without=("old",),
    wrappers=("ray_",),
    rows=(
        row("requests_finished", "toy_done_total"),
        row("requests_failed", "toy_done_total", where={"reason": "error"}),
        row("http_requests_failed", "http_total", where={"status": "5xx"}, lazy=True),
        row("prompt_tokens", "toy_new_total"),
        row("prompt_tokens", "toy_old_blocks_total", factor_fact="block"),
        row("spec_accepted_at_position", "toy_at_total", by="position"),
        row("engine_steps", "toy_steps_total", part="count"),
        row("kv_transfer_seconds", "toy_transfer_ms", factor=0.001),
        row("ttft_seconds", "toy_ttft_seconds"),
        row("requests_running", "toy_running"),
        row("kv_utilization", "toy_kv_percent", across=LabelAggregation.MEAN, factor=0.01),
        row("kv_utilization_max", "toy_kv_percent", across=LabelAggregation.MAX, factor=0.01),
        row("adapters_running", "toy_lora", across=LabelAggregation.NEWEST_NAMES, by="names"),
    ),
    info=("toy_info",),
    born="toy_done_created",
    model_label="model",
)

Sample = tuple[str, dict[str, str], float]


def laid_out(*samples: Sample) -> SeriesLayout:
    return compile_layout([(name, labels) for name, labels, _ in samples], ENGINE)


def read(*samples: Sample, t: float = START) -> Snapshot:
    return snapshot(laid_out(*samples), [value for _, _, value in samples], t)


def buckets(name: str, rank: str, *cumulative: float, edges: tuple[str, ...] = ("0.1", "1", "+Inf")) -> list[Sample]:
    """A histogram as printed, whose sum is 7."""
    found: list[Sample] = [
        (f"{name}_bucket", {"rank": rank, "le": edge}, count) for edge, count in zip(edges, cumulative, strict=True)
    ]
    return [*found, (f"{name}_sum", {"rank": rank}, 7.0), (f"{name}_count", {"rank": rank}, cumulative[-1])]


def test_counter_adds_up_over_ranks() -> None:
    page = read(
        ("toy:done_total", {"rank": "0", "reason": "stop"}, 3.0),
        ("toy:done_total", {"rank": "0", "reason": "error"}, 1.0),
        ("toy:done_total", {"rank": "1", "reason": "stop"}, 5.0),
    )
    assert page.counters == {"requests_finished": 9.0, "requests_failed": 1.0}
    assert (page.engine, page.generation, page.t) == ("toy", "v1", START)


def test_absent_label_value_is_no_zero() -> None:
    page = read(("toy_done_total", {"rank": "0", "reason": "stop"}, 3.0))
    assert page.counters == {"requests_finished": 3.0}
    assert page.problems == ()
    assert read(("http_total", {"status": "2xx"}, 3.0)).counters == {"http_requests_failed": 0.0}
    assert read(("toy_done_total", {}, 3.0)).counters == {"requests_finished": 3.0}


def test_first_alternative_on_page_wins() -> None:
    new, old, info = ("toy_new_total", {}, 9.0), ("toy_old_blocks_total", {}, 2.0), ("toy_info", {"block": "16"}, 1.0)
    assert read(old, new, info).counters["prompt_tokens"] == 9.0
    assert read(old, info).counters["prompt_tokens"] == 32.0


@pytest.mark.parametrize("fact", [{}, {"block": "None"}])
def test_counter_without_fact_keeps_unit(fact: dict[str, str]) -> None:
    page = read(("toy_old_blocks_total", {}, 2.0), ("toy_info", fact, 1.0))
    assert page.counters["prompt_tokens"] == 2.0
    assert page.broken == frozenset()
    assert page.problems == (
        "prompt_tokens: is counted in units of block, which the page does not tell: ratios hold, amounts do not",
    )


def test_counter_by_label_or_histogram_count() -> None:
    page = read(*(("toy_at_total", {"position": str(i), "rank": r}, 10.0 - i) for i in (0, 1) for r in "ab"))
    assert page.counters == {"spec_accepted_at_position/0": 20.0, "spec_accepted_at_position/1": 18.0}
    page = read(*buckets("toy_steps_total", "0", 1.0, 2.0, 4.0))
    assert page.counters == {"engine_steps": 4.0}
    assert page.histograms == {}


def test_ratios_average_over_ranks() -> None:
    page = read(
        ("toy_running", {"rank": "0"}, 3.0),
        ("toy_running", {"rank": "1"}, 4.0),
        ("toy_kv_percent", {"rank": "0"}, 20.0),
        ("toy_kv_percent", {"rank": "1"}, 80.0),
    )
    assert page.gauges == {"requests_running": 7.0, "kv_utilization": 0.5, "kv_utilization_max": 0.8}


def test_largest_process_of_a_rank_counts() -> None:
    page = read(
        ("toy_running", {"rank": "0", "pid": "11"}, 3.0),
        ("toy_running", {"rank": "0", "pid": "12"}, 4.0),
        ("toy_running", {"rank": "1", "pid": "13"}, 5.0),
        ("toy_kv_percent", {"rank": "0", "pid": "11"}, 0.0),
        ("toy_kv_percent", {"rank": "0", "pid": "12"}, 60.0),
    )
    assert page.gauges["requests_running"] == 9.0
    assert page.gauges["kv_utilization"] == 0.6


def test_a_histogram_is_read_in_base_units() -> None:
    page = read(*buckets("toy_transfer_ms", "0", 1.0, 3.0, 4.0, edges=("10", "100", "+Inf")))
    found = page.histograms["kv_transfer_seconds"]
    assert found.edges == (0.01, 0.1, math.inf)
    assert found.counts == (1.0, 3.0, 4.0)
    assert found.total == pytest.approx(0.007)


def test_histograms_of_ranks_add_up() -> None:
    page = read(*buckets("toy_ttft_seconds", "0", 1.0, 2.0, 2.0), *buckets("toy_ttft_seconds", "1", 0.0, 5.0, 6.0))
    assert page.histograms["ttft_seconds"].counts == (1.0, 7.0, 8.0)
    assert page.histograms["ttft_seconds"].total == 14.0


def test_ranks_with_different_edges_are_not_added() -> None:
    other = buckets("toy_ttft_seconds", "1", 0.0, 5.0, 6.0, edges=("0.1", "2", "+Inf"))
    page = read(*buckets("toy_ttft_seconds", "0", 1.0, 2.0, 2.0), *other, ("toy_running", {"rank": "0"}, 1.0))
    assert page.problems == ("ttft_seconds: has different bucket edges on its data-parallel engines",)
    assert page.broken == {"ttft_seconds"}
    assert page.histograms == {}
    assert page.gauges == {"requests_running": 1.0}


def test_broken_rank_breaks_its_histogram_only() -> None:
    falling = buckets("toy_ttft_seconds", "1", 5.0, 2.0, 6.0)
    page = read(*buckets("toy_ttft_seconds", "0", 1.0, 2.0, 2.0), *falling, ("toy_done_total", {}, 1.0))
    assert page.problems == ('ttft_seconds: has a bucket le="1" (2) below the one before it (5)',)
    assert page.histograms == {}
    assert page.counters == {"requests_finished": 1.0}


@pytest.mark.parametrize("label", [{}, {"le": "wide"}])
def test_bucket_without_edge_breaks_family(label: dict[str, str]) -> None:
    page = read(("toy_ttft_seconds_bucket", label, 1.0), ("toy_done_total", {}, 1.0))
    assert page.problems == ("ttft_seconds: has a bucket without a numeric le label",)
    assert page.broken == {"ttft_seconds"}


def test_histogram_needs_no_sum() -> None:
    page = read(*buckets("toy_ttft_seconds", "0", 1.0, 2.0, 3.0)[:3])
    assert page.histograms["ttft_seconds"].counts == (1.0, 2.0, 3.0)
    assert page.histograms["ttft_seconds"].total is None


@pytest.mark.parametrize("total", [math.nan, math.inf])
def test_bad_sum_keeps_buckets(total: float) -> None:
    samples = [
        (n, labels, total if n.endswith("_sum") else v) for n, labels, v in buckets("toy_ttft_seconds", "0", 1, 2, 2)
    ]
    page = read(*samples, *[(n, {**labels, "rank": "1"}, -v if math.isinf(v) else v) for n, labels, v in samples])
    assert page.histograms["ttft_seconds"].total is None
    assert page.histograms["ttft_seconds"].counts == (2.0, 4.0, 4.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_counter_is_named_and_absent(value: float) -> None:
    page = read(
        ("toy_new_total", {"rank": "0"}, 5.0), ("toy_new_total", {"rank": "1"}, value), ("toy_done_total", {}, 1.0)
    )
    assert page.counters == {"requests_finished": 1.0}
    assert page.problems == (f"prompt_tokens: a counter of {value}",)
    assert page.broken == {"prompt_tokens"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_gauge_is_named_and_absent(value: float) -> None:
    """-1 is such a value; beside another rank's 5 it must not become 4."""
    page = read(("toy_running", {"rank": "0"}, 5.0), ("toy_running", {"rank": "1"}, value))
    assert page.gauges == {}
    assert page.problems == (f"requests_running: a gauge of {value}",)
    page = read(
        ("toy_kv_percent", {"rank": "0", "pid": "1"}, 5.0), ("toy_kv_percent", {"rank": "0", "pid": "2"}, value)
    )
    assert page.broken == {"kv_utilization", "kv_utilization_max"}


def test_overflow_breaks_only_its_family() -> None:
    huge = [("toy_new_total", {"rank": r}, 1.7e308) for r in "01"]
    page = read(*huge, ("toy_done_total", {}, 1.0))
    assert page.counters == {"requests_finished": 1.0}
    assert page.broken == {"prompt_tokens"}


def test_newest_series_counts_and_has_a_time() -> None:
    page = read(
        ("toy_lora", {"names": "a,b"}, START - 40),
        ("toy_lora", {"names": ""}, START - 5),
        ("toy_lora", {"names": "a,b,c"}, START - 50),
    )
    assert page.gauges == {"adapters_running": 0.0}
    assert read(("toy_lora", {"names": "a,b"}, START), ("toy_lora", {}, START - 1)).gauges == {"adapters_running": 2.0}
    page = read(("toy_lora", {"names": "a"}, 2 * START), ("toy_lora", {"names": ""}, START - 5))
    assert page.gauges == {}
    assert page.broken == {"adapters_running"}
    assert "which is no time" in page.problems[0]
    assert read(("toy_lora", {"names": "a"}, START + 3600)).gauges == {"adapters_running": 1.0}


def test_start_and_readiness_have_two_sources() -> None:
    page = read(
        ("process_start_time_seconds", {}, START - 60),
        ("toy_done_created", {"rank": "0"}, START - 9),
        ("toy_done_created", {"rank": "1"}, START - 10),
    )
    assert (page.started_at, page.ready_at) == (START - 60, START - 10)
    page = read(("toy_done_created", {}, START - 10), ("process_start_time_seconds", {}, math.nan))
    assert (page.started_at, page.ready_at) == (START - 10, START - 10)
    page = read(("toy_done_created", {}, math.nan), ("toy_done_total", {}, 1.0))
    assert (page.started_at, page.ready_at) == (None, None)


def test_facts_are_info_labels_and_models() -> None:
    page = read(
        ("toy_info", {"block": "16", "engine": "0"}, 1.0),
        ("toy_done_total", {"model": "b"}, 1.0),
        ("toy_running", {"model": "a"}, 1.0),
    )
    assert page.facts == {"block": "16", "model": "a,b"}
    assert read(("toy_done_total", {}, 1.0)).facts == {}


def test_only_mapped_samples_are_wanted() -> None:
    yes = ("toy:done_total", "ray_toy_ttft_seconds_bucket", "toy_ttft_seconds_sum", "toy_steps_total_count", "toy:info")
    no = ("toy:steps_total_bucket", "toy:steps_total", "toy_running_total", "other", "toy_done_total_created")
    assert all(is_mapped_name(name, (ENGINE,)) for name in (*yes, "process_start_time_seconds", "toy_done_created"))
    assert not any(is_mapped_name(name, (ENGINE,)) for name in no)


def test_signature_needs_its_labels() -> None:
    assert detect_engine([("other", {}), ("toy_running", {"rank": "0"})], (ENGINE,)) is ENGINE
    assert detect_engine([("ray_toy_running", {"rank": "0"})], (ENGINE,)) is ENGINE
    assert detect_engine([("toy_running", {})], (ENGINE,)) is None
    assert detect_engine([("toy_running", {"rank": "0", "old": "1"})], (ENGINE,)) is None
    assert detect_engine([("toy_running_total", {"rank": "0"})], (ENGINE,)) is None
    two = replace(ENGINE, signature_labels=("rank", "model"), signature_without=("old", "older"))
    labels = {"rank": "0", "model": "m"}
    assert detect_engine([("toy_running", labels)], (two,)) is two
    assert detect_engine([("toy_running", {"rank": "0"})], (two,)) is None
    assert detect_engine([("toy_running", {**labels, "older": "1"})], (two,)) is None


def test_itl_comparable_unless_per_token() -> None:
    by_token = replace(ENGINE, name="other", itl_is_per_token=True)
    assert itl_comparable("toy", (ENGINE, by_token))
    assert not itl_comparable("other", (ENGINE, by_token))
    assert itl_comparable(None, (by_token,))


def test_samples_of_any_engine_are_wanted() -> None:
    other = replace(ENGINE, name="other", rows=(row("requests_finished", "other_total"),))
    assert is_mapped_name("other_total", (ENGINE, other))
    assert is_mapped_name("toy_done_total", (ENGINE, other))


def test_a_wrapper_is_taken_off_once() -> None:
    assert strip_wrapper_prefix("ray_toy_x", ENGINE) == "toy_x"
    assert strip_wrapper_prefix("toy_ray_x", ENGINE) == "toy_ray_x"


def test_winners_keep_the_tables_order() -> None:
    rows = ENGINE.rows[3:5]
    assert select_rows(rows, lambda row: True) == rows[:1]
    assert select_rows(rows, lambda row: row is rows[1]) == rows[1:]
    assert select_rows(rows, lambda row: False) == ()


CACHE = replace(
    ENGINE,
    rows=(
        *ENGINE.rows,
        row("prefix_queried_tokens", "toy_queried_total"),
        row("prefix_hit_tokens", "toy_hit_total"),
    ),
)


def cached(hits: float, queried: float, t: float = START) -> Snapshot:
    series = [("toy_running", {"rank": "0"}, 1.0), ("toy_queried_total", {}, queried), ("toy_hit_total", {}, hits)]
    layout = compile_layout([(name, labels) for name, labels, _ in series], CACHE)
    return snapshot(layout, [value for _, _, value in series], t)


def test_more_hits_than_lookups_contradict() -> None:
    page = cached(1170, 100)
    assert page.contradictory == {"prefix_hit_tokens", "prefix_queried_tokens"}
    assert page.counters.keys().isdisjoint(page.contradictory)
    assert page.problems == (
        (
            "prefix_hit_tokens: tokens found in the prefix cache, 1,170, of 100 looked up (1170%): "
            "cannot be, neither counter is used"
        ),
    )
    later = diff_snapshots(page, cached(1180, 200, START + 15))
    assert {later.gaps[family] for family in page.contradictory} == {Gap.CONTRADICTORY}
    assert read_signal(BY_NAME["prefix_hit_ratio"], later) == Missing(gap=Gap.CONTRADICTORY)
    assert cached(100, 100).contradictory == frozenset()
    assert cached(0, 0).contradictory == frozenset()


def test_increase_of_hits_contradicts_alone() -> None:
    found = read_signal(BY_NAME["prefix_hit_ratio"], diff_snapshots(cached(10, 1000), cached(40, 1010, START + 15)))
    assert found == Missing(
        gap=Gap.CONTRADICTORY, text="30 prefix_hit_tokens of 10 prefix_queried_tokens (300%) cannot be"
    )


def told(percent: float, running: float, tokens: float, t: float = START) -> Snapshot:
    series = [
        ("toy_running", {"rank": "0"}, running),
        ("toy_kv_percent", {}, percent),
        ("toy_queried_total", {}, tokens),
    ]
    layout = compile_layout([(name, labels) for name, labels, _ in series], CACHE)
    return snapshot(layout, [value for _, _, value in series], t)


def test_impossible_gauges_have_own_gap() -> None:
    page = told(1e13, 1e18, 100)
    assert page.impossible == {"kv_utilization", "kv_utilization_max", "requests_running"}
    assert page.gauges == {}
    assert "kv_utilization: a gauge of 1e+11, which is more than 1.05: cannot be" in page.problems
    later = diff_snapshots(page, told(50, 3, 200, START + 15))
    assert {later.gaps[family] for family in page.impossible} == {Gap.IMPOSSIBLE}
    assert later.counters["prefix_queried_tokens"] == 100
    assert told(100, 3, 0).impossible == frozenset()


def test_token_increase_limit() -> None:
    most, seconds = 1e10, 15.0
    for grown, is_possible in ((most * seconds, True), (1.01 * most * seconds, False)):
        one = diff_snapshots(told(1, 1, 0.0), told(1, 1, grown, START + seconds))
        assert ("prefix_queried_tokens" in one.counters) is is_possible
        assert (one.gaps.get("prefix_queried_tokens") is Gap.IMPOSSIBLE) is not is_possible


def test_impossible_increase_is_never_booked() -> None:
    pages = [told(1, 1, tokens, START + 15 * n) for n, tokens in enumerate((100.0, 5e18, 300.0, 400.0))]
    jump, back, after = (diff_snapshots(*pair) for pair in pairwise(pages))
    assert "prefix_queried_tokens" not in jump.counters
    assert jump.gaps["prefix_queried_tokens"] is Gap.IMPOSSIBLE
    assert "prefix_queried_tokens" not in back.counters
    assert after.counters["prefix_queried_tokens"] == 100
