"""Series to families by a table: mechanics, on an engine that exists only here."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from making import START

from rules.engines.reader import compile_layout, is_mapped_name, snapshot
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


def at(name: str, value: float, **labels: str) -> Sample:
    return name, labels, value


def read(*samples: Sample, t: float = START, of: EngineTable = ENGINE) -> Snapshot:
    layout = compile_layout([(name, labels) for name, labels, _ in samples], of)
    return snapshot(layout, [value for _, _, value in samples], t)


def buckets(name: str, rank: str, *cumulative: float, edges: tuple[str, ...] = ("0.1", "1", "+Inf")) -> list[Sample]:
    """A histogram as printed, whose sum is 7."""
    found = [at(f"{name}_bucket", count, rank=rank, le=edge) for edge, count in zip(edges, cumulative, strict=True)]
    return [*found, at(f"{name}_sum", 7.0, rank=rank), at(f"{name}_count", cumulative[-1], rank=rank)]


def ttft(rank: str, *cumulative: float, **more: Any) -> list[Sample]:
    return buckets("toy_ttft_seconds", rank, *cumulative, **more)


def with_sum(total: float, rank: str) -> list[Sample]:
    return [(n, labels, total if n.endswith("_sum") else v) for n, labels, v in ttft(rank, 1, 2, 2)]


NEW, OLD, INFO = at("toy_new_total", 9), at("toy_old_blocks_total", 2), at("toy_info", 1, block="16")
DONE = at("toy_done_total", 1)
KV = "toy_kv_percent"
STEPS = buckets("toy_steps_total", "0", 1, 2, 4)
TRANSFER = buckets("toy_transfer_ms", "0", 1, 3, 4, edges=("10", "100", "+Inf"))
POSITIONS = [at("toy_at_total", 10 - i, position=str(i), rank=rank) for i in (0, 1) for rank in "ab"]
PROCESSES = [at("toy_running", 3, rank="0", pid="11"), at("toy_running", 4, rank="0", pid="12")]
LEVELS = [at(KV, 0, rank="0", pid="11"), at(KV, 60, rank="0", pid="12")]
FALLING = [*ttft("0", 1, 2, 2), *ttft("1", 5, 2, 6), DONE]
OTHER_EDGES = [*ttft("0", 1, 2, 2), *ttft("1", 0, 5, 6, edges=("0.1", "2", "+Inf"))]
UNIT = "prompt_tokens: is counted in units of block, which the page does not tell: ratios hold, amounts do not"
NO_EDGE = "ttft_seconds: has a bucket without a numeric le label"
FALLS = 'ttft_seconds: has a bucket le="1" (2) below the one before it (5)'
UNEQUAL = "ttft_seconds: has different bucket edges on its data-parallel engines"
ADAPTERS = [at("toy_lora", START - 40, names="a,b"), at("toy_lora", START - 5, names="")]
FUTURE = [at("toy_lora", 2 * START, names="a"), at("toy_lora", START - 5, names="")]
RANKS_DONE = [
    at("toy:done_total", 3, rank="0", reason="stop"),
    at("toy:done_total", 1, rank="0", reason="error"),
    at("toy:done_total", 5, rank="1", reason="stop"),
]
FINISHED = {"requests_finished": 1}


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (RANKS_DONE, {"counters": {"requests_finished": 9, "requests_failed": 1}, "engine": "toy", "t": START}),
        # A label's value that is absent is no zero, unless the row says so.
        (RANKS_DONE[:1], {"counters": {"requests_finished": 3}, "problems": ()}),
        ([at("http_total", 3, status="2xx")], {"counters": {"http_requests_failed": 0}}),
        ([DONE], {"counters": FINISHED, "facts": {}}),
        # The first alternative on the page wins.
        ([OLD, NEW, INFO], {"counters": {"prompt_tokens": 9}}),
        ([OLD, INFO], {"counters": {"prompt_tokens": 32}}),
        ([OLD, at("toy_info", 1)], {"counters": {"prompt_tokens": 2}, "problems": (UNIT,), "broken": set()}),
        ([OLD, at("toy_info", 1, block="None")], {"counters": {"prompt_tokens": 2}, "problems": (UNIT,)}),
        (POSITIONS, {"counters": {"spec_accepted_at_position/0": 20, "spec_accepted_at_position/1": 18}}),
        (STEPS, {"counters": {"engine_steps": 4}, "histograms": {}}),
        # Ratios average over ranks; of a rank the largest process counts.
        ([at(KV, 20, rank="0"), at(KV, 80, rank="1")], {"gauges": {"kv_utilization": 0.5, "kv_utilization_max": 0.8}}),
        ([*PROCESSES, at("toy_running", 5, rank="1", pid="13")], {"gauges": {"requests_running": 9}}),
        (LEVELS, {"gauges": {"kv_utilization": 0.6, "kv_utilization_max": 0.6}}),
        (FALLING, {"counters": FINISHED, "histograms": {}, "problems": (FALLS,)}),
        (OTHER_EDGES, {"histograms": {}, "problems": (UNEQUAL,), "broken": {"ttft_seconds"}}),
        *(
            ([at("toy_ttft_seconds_bucket", 1, **label), DONE], {"problems": (NO_EDGE,), "broken": {"ttft_seconds"}})
            for label in ({}, {"le": "wide"})
        ),
        # A sum of two numbers that overflows breaks its family alone.
        (
            [*(at("toy_new_total", 1.7e308, rank=rank) for rank in "01"), DONE],
            {"counters": FINISHED, "broken": {"prompt_tokens"}},
        ),
        # The newest set of names counts, and has a time.
        ([*ADAPTERS, at("toy_lora", START - 50, names="a,b,c")], {"gauges": {"adapters_running": 0}}),
        ([at("toy_lora", START, names="a,b"), at("toy_lora", START - 1)], {"gauges": {"adapters_running": 2}}),
        ([at("toy_lora", START + 3600, names="a")], {"gauges": {"adapters_running": 1}}),
        (FUTURE, {"gauges": {}, "broken": {"adapters_running"}}),
        # Start and readiness have two sources.
        (
            [at("process_start_time_seconds", START - 60), *(at("toy_done_created", START - n) for n in (9, 10))],
            {"started_at": START - 60, "ready_at": START - 10},
        ),
        (
            [at("toy_done_created", START - 10), at("process_start_time_seconds", math.nan)],
            {"started_at": START - 10, "ready_at": START - 10},
        ),
        ([at("toy_done_created", math.nan), DONE], {"started_at": None, "ready_at": None}),
        (
            [
                at("toy_info", 1, block="16", engine="0"),
                at("toy_running", 1, model="a"),
                at("toy_done_total", 1, model="b"),
            ],
            {"facts": {"block": "16", "model": "a,b"}},
        ),
    ],
)
def test_page_becomes_its_families(samples: list[Sample], told: dict[str, Any]) -> None:
    page = read(*samples)
    assert {name: getattr(page, name) for name in told} == told


@pytest.mark.parametrize(
    ("samples", "family", "counts", "total"),
    [
        (TRANSFER, "kv_transfer_seconds", (1, 3, 4), pytest.approx(0.007)),
        ([*ttft("0", 1, 2, 2), *ttft("1", 0, 5, 6)], "ttft_seconds", (1, 7, 8), 14),
        (ttft("0", 1, 2, 3)[:3], "ttft_seconds", (1, 2, 3), None),
        ([*with_sum(math.nan, "0"), *with_sum(math.nan, "1")], "ttft_seconds", (2, 4, 4), None),
        ([*with_sum(math.inf, "0"), *with_sum(-math.inf, "1")], "ttft_seconds", (2, 4, 4), None),
    ],
)
def test_histograms_add_up_in_base_units(
    samples: list[Sample], family: str, counts: tuple[float, ...], total: float | None
) -> None:
    found = read(*samples).histograms[family]
    assert (found.counts, found.total) == (counts, total)
    assert found.edges == ((0.01, 0.1, math.inf) if samples is TRANSFER else (0.1, 1.0, math.inf))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_number_is_named_and_absent(value: float) -> None:
    """-1 is such a value; beside another rank's 5 it must not become 4."""
    page = read(at("toy_new_total", 5, rank="0"), at("toy_new_total", value, rank="1"), DONE)
    assert (page.counters, page.broken) == (FINISHED, {"prompt_tokens"})
    assert page.problems == (f"prompt_tokens: a counter of {value}",)
    page = read(at("toy_running", 5, rank="0"), at("toy_running", value, rank="1"))
    assert (page.gauges, page.problems) == ({}, (f"requests_running: a gauge of {value}",))
    page = read(at(KV, 5, rank="0", pid="1"), at(KV, value, rank="0", pid="2"))
    assert page.broken == {"kv_utilization", "kv_utilization_max"}


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
    rows=(*ENGINE.rows, row("prefix_queried_tokens", "toy_queried_total"), row("prefix_hit_tokens", "toy_hit_total")),
)


def cached(hits: float, queried: float, t: float = START) -> Snapshot:
    queries = at("toy_queried_total", queried)
    return read(at("toy_running", 1, rank="0"), queries, at("toy_hit_total", hits), t=t, of=CACHE)


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
    levels = at("toy_running", running, rank="0"), at(KV, percent)
    return read(*levels, at("toy_queried_total", tokens), t=t, of=CACHE)


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
