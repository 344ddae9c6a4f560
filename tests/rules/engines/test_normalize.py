"""Series to families by a table: mechanics, on engines that exist only here."""

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
    select_rows,
    strip_wrapper_prefix,
)
from rules.telemetry.histograms import Cumulative
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
    unique_names=("toy_own",),
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
NO_EDGE = "ttft_seconds: has no bucket, or one without a numeric le label"
FALLS = 'ttft_seconds: has a bucket le="1" (2) below the one before it (5)'
UNEQUAL = "ttft_seconds: has different bucket edges on its data-parallel engines"
ADAPTERS = [at("toy_lora", START - 40, names="a,b"), at("toy_lora", START - 5, names="")]
TWICE = "ray_toy_done_total: the page has it as toy_done_total too, which is read"
FUTURE = [at("toy_lora", 2 * START, names="a"), at("toy_lora", START - 5, names="")]
RANKS_DONE = [
    at("toy:done_total", 3, rank="0", reason="stop"),
    at("toy:done_total", 1, rank="0", reason="error"),
    at("toy:done_total", 5, rank="1", reason="stop"),
]
MODELS = [at("toy_running", 1, model="a"), at("toy_done_total", 1, model="b")]
FINISHED = {"requests_finished": 1}


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (RANKS_DONE, {"counters": {"requests_finished": 9, "requests_failed": 1}, "engine": "toy", "t": START}),
        ([DONE, at("ray_toy_done_total", 4, node="n")], {"counters": FINISHED, "problems": (TWICE,)}),
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
        ([at("toy_ttft_seconds_count", 1), DONE], {"problems": (NO_EDGE,), "broken": {"ttft_seconds"}}),
        ([at("toy_ttft_seconds_bucket", 1, le="wide"), DONE], {"problems": (NO_EDGE,), "broken": {"ttft_seconds"}}),
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
        ([*MODELS, at("toy_info", 1, block="16", engine="0")], {"facts": {"block": "16", "model": "a,b"}}),
    ],
)
def test_page_becomes_its_families(samples: list[Sample], told: dict[str, Any]) -> None:
    page = read(*samples)
    assert {name: getattr(page, name) for name in told} == told


@pytest.mark.parametrize(
    ("samples", "counts", "total"),
    [
        ([*ttft("0", 1, 2, 2), *ttft("1", 0, 5, 6)], (1, 7, 8), 14),
        (ttft("0", 1, 2, 3)[:3], (1, 2, 3), None),
        (ttft("0", 2, 1, 2, edges=("+Inf", "0.1", "1")), (1, 2, 2), 7),
        ([*with_sum(math.nan, "0"), *with_sum(math.nan, "1")], (2, 4, 4), None),
        ([*with_sum(math.inf, "0"), *with_sum(-math.inf, "1")], (2, 4, 4), None),
    ],
)
def test_histograms_add_up_in_base_units(samples: list[Sample], counts: tuple[float, ...], total: float | None) -> None:
    assert read(*samples).histograms["ttft_seconds"] == Cumulative((0.1, 1.0, math.inf), counts, total)
    transfer = read(*TRANSFER).histograms["kv_transfer_seconds"]
    assert transfer == Cumulative((0.01, 0.1, math.inf), (1, 3, 4), pytest.approx(0.007))


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
    yes = ("toy:done_total", "ray_toy_ttft_seconds_bucket", "toy_ttft_seconds_sum", "toy_steps_total_count", "toy:own")
    no = ("toy:steps_total_bucket", "toy:steps_total", "toy_running_total", "other", "toy_done_total_created")
    assert all(is_mapped_name(name, (ENGINE,)) for name in (*yes, "process_start_time_seconds", "toy_done_created"))
    assert not any(is_mapped_name(name, (ENGINE,)) for name in no)
    other = toy(LOOKED_UP, replace(TTFT, zero_with="toy_up"))
    for name in ("toy_done_total", "toy_hits_total", "toy_misses_total", "toy_up"):
        assert is_mapped_name(name, (ENGINE, other))
    assert strip_wrapper_prefix("ray_toy_x", ENGINE) == "toy_x"
    assert strip_wrapper_prefix("toy_ray_x", ENGINE) == "toy_ray_x"


TWO_LABELS = replace(ENGINE, signature_labels=("rank", "model"))


@pytest.mark.parametrize(
    ("of", "name", "labels", "is_found"),
    [
        (ENGINE, "toy_running", {"rank": "0"}, True),
        (ENGINE, "ray_toy_running", {"rank": "0"}, True),
        (ENGINE, "toy_running", {}, False),
        (ENGINE, "toy_own", {}, True),
        (ENGINE, "toy_running_total", {"rank": "0"}, False),
        (TWO_LABELS, "toy_running", {"rank": "0", "model": "m"}, True),
        (TWO_LABELS, "toy_running", {"rank": "0"}, False),
        (TWO_LABELS, "kserve_toy_own", {"rank": "0"}, True),
    ],
)
def test_signature_needs_its_labels(of: EngineTable, name: str, labels: dict[str, str], is_found: bool) -> None:
    assert detect_engine([("other", {}), (name, labels)], (of,)) is (of if is_found else None)


def test_winners_keep_the_tables_order() -> None:
    rows = ENGINE.rows[3:5]
    assert select_rows(rows, lambda row: True) == rows[:1]
    assert select_rows(rows, lambda row: row is rows[1]) == rows[1:]
    assert select_rows(rows, lambda row: False) == ()


def toy(*rows: SourceRow, **more: Any) -> EngineTable:
    return EngineTable(name="toy", generation="v1", title="Toy", signatures=("toy_running",), rows=rows, **more)


def ttft_of(label: str, **series: tuple[float, float, float]) -> list[Sample]:
    """Histograms by the value of a label: up to 1 s, in all, and the sum."""
    page: list[Sample] = []
    for value, (first, every, total) in series.items():
        page += [at("toy_ttft_bucket", first, **{label: value}, le="1"), at("toy_ttft_sum", total, **{label: value})]
        page.append(at("toy_ttft_bucket", every, **{label: value}, le="+Inf"))
    return page


ANSWERS = [
    at("toy_answers_total", 10, code="200", path="/v1"),
    at("toy_answers_total", 5, code="204", path="/metrics"),
    at("toy_answers_total", 2, code="503", path="/v1"),
    at("toy_answers_total", 1),
]
RANKED = [
    *(at("toy_tokens_total", n, dp_rank=dp, tp_rank=tp) for dp, tp, n in (("0", "0", 100), ("0", "1", 99))),
    *(at("toy_tokens_total", 50, dp_rank="1", tp_rank=tp) for tp in "23"),
    *(at("toy_running", 4, dp_rank=dp, tp_rank=tp) for dp in "01" for tp in "01"),
]
RANKED_ROWS = (
    row("prompt_tokens", "toy_tokens_total"),
    row("requests_running", "toy_running"),
    row("kv_utilization", "toy_running", across=LabelAggregation.MEAN, factor=0.01),
)
TTFT, STREAMED = row("ttft_seconds", "toy_ttft"), row("ttft_seconds", "toy_ttft", where={"streaming": "true|"})
TWICE = ttft_of("tp_rank", **{"0": (3, 4, 8), "1": (3, 4, 8)})
LOOKED_UP = row("prefix_queried_tokens", "toy_hits_total", plus=("toy_misses_total", "toy_partial_total"))
HITS, MISSES, RUNNING = at("toy_hits_total", 30), at("toy_misses_total", 70), at("toy_running", 3)
RETRACTED = row("preemptions", "toy_retracted_total", zero_with="toy_running")
RATE = row("prefix_hit_gauge", "toy_hit_rate", none=-1.0)
CAPACITY = toy(fact_gauges=(("kv_tokens", "toy_capacity"),))
IN_BLOCKS = toy(
    row("prefix_hit_tokens", "toy_blocks_total", factor_fact="block_size"),
    fact_gauges=(("block_size", "toy_tokens_per_block"),),
)
MODELS = toy(row("prompt_tokens", "toy_tokens_total"), model_label="model")
BLOCK_UNIT = "prefix_hit_tokens: is counted in units of block_size, which the page does not tell"
TWO_MODELS = "model: a,b are served by this page, and are added up: a tier is one model"


def answers(**conditions: Any) -> EngineTable:
    return toy(row("requests_finished", "toy_answers_total", lazy=True, **conditions))


@pytest.mark.parametrize(
    ("of", "samples", "told"),
    [
        # A condition matches a whole value; "200|" is also no label.
        (answers(where={"code": "200|503"}), ANSWERS, {"counters": {"requests_finished": 12}}),
        (answers(where={"code": "2.*"}), ANSWERS, {"counters": {"requests_finished": 15}}),
        (answers(where={"code": "20"}), ANSWERS, {"counters": {"requests_finished": 0}}),
        (answers(where={"code": "200|"}), ANSWERS, {"counters": {"requests_finished": 11}}),
        (answers(unless={"path": "/metrics"}), ANSWERS, {"counters": {"requests_finished": 13}}),
        (answers(where={"code": "2.*"}, unless={"code": "204"}), ANSWERS, {"counters": {"requests_finished": 10}}),
        (answers(where={"code": "2.*", "path": "/v1"}), ANSWERS, {"counters": {"requests_finished": 10}}),
        # Ranks repeat a number, engines add up.
        (
            toy(*RANKED_ROWS, repeats=("tp_rank",)),
            RANKED,
            {"counters": {"prompt_tokens": 150}, "gauges": {"requests_running": 8, "kv_utilization": 0.04}},
        ),
        (toy(*RANKED_ROWS), RANKED, {"counters": {"prompt_tokens": 299}}),
        (
            toy(TTFT, repeats=("tp_rank",)),
            TWICE,
            {"histograms": {"ttft_seconds": Cumulative((1, math.inf), (3, 4), 8)}},
        ),
        (toy(TTFT), TWICE, {"histograms": {"ttft_seconds": Cumulative((1, math.inf), (6, 8), 16)}}),
        (
            toy(STREAMED),
            ttft_of("streaming", true=(3, 4, 8), false=(0, 9, 90)),
            {"histograms": {"ttft_seconds": Cumulative((1, math.inf), (3, 4), 8)}},
        ),
        (toy(LOOKED_UP), [HITS, MISSES], {"counters": {"prefix_queried_tokens": 100}}),
        (toy(LOOKED_UP), [HITS], {"counters": {"prefix_queried_tokens": 30}}),
        # An event that is missing is zero beside its marker.
        (toy(RETRACTED), [RUNNING], {"counters": {"preemptions": 0}}),
        (toy(RETRACTED), [RUNNING, at("toy_retracted_total", 2)], {"counters": {"preemptions": 2}}),
        (toy(RETRACTED), [at("toy_other", 3)], {"counters": {}}),
        (toy(replace(TTFT, zero_with="toy_up")), [at("toy_other", 1)], {"histograms": {}}),
        (toy(RATE), [at("toy_hit_rate", -1.0)], {"gauges": {}, "problems": ()}),
        (toy(RATE), [at("toy_hit_rate", 0.4)], {"gauges": {"prefix_hit_gauge": 0.4}}),
        (toy(RATE), [at("toy_hit_rate", -2.0)], {"problems": ("prefix_hit_gauge: a gauge of -2.0",)}),
        # A gauge may hold a fact, or a unit.
        (CAPACITY, [at("toy_capacity", 65536, rank="0")], {"facts": {"kv_tokens": "65536"}}),
        (CAPACITY, [at("toy_capacity", -1)], {"facts": {}}),
        (
            IN_BLOCKS,
            [at("toy_blocks_total", 5), at("toy_tokens_per_block", 32)],
            {"counters": {"prefix_hit_tokens": 160}, "problems": ()},
        ),
        (
            IN_BLOCKS,
            [at("toy_blocks_total", 5)],
            {"counters": {"prefix_hit_tokens": 5}, "problems": (f"{BLOCK_UNIT}: ratios hold, amounts do not",)},
        ),
        (MODELS, [at("toy_tokens_total", 5, model=model) for model in ("Llama", "llama")], {"problems": ()}),
        (
            MODELS,
            [at("toy_tokens_total", 5, model=model) for model in "ab"],
            {"counters": {"prompt_tokens": 10}, "problems": (TWO_MODELS,), "broken": set()},
        ),
    ],
)
def test_row_asks_labels_and_adds_series(of: EngineTable, samples: list[Sample], told: dict[str, Any]) -> None:
    page = read(*samples, of=of)
    assert {name: getattr(page, name) for name in told} == told


def test_late_histogram_starts_at_zero() -> None:
    of = toy(replace(TTFT, zero_with="toy_up"))
    before = read(at("toy_up", 1), of=of)
    after = read(at("toy_up", 1), *ttft_of("rank", **{"0": (3, 4, 8)}), t=START + 15, of=of)
    assert diff_snapshots(before, after).histograms["ttft_seconds"][0].counts == (3.0, 1.0)


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
    told = "prefix_hit_tokens: tokens found in the prefix cache, 1,170, of 100 looked up (1170%)"
    assert page.problems == (f"{told}: cannot be, neither counter is used",)
    later = diff_snapshots(page, cached(1180, 200, START + 15))
    assert {later.gaps[family] for family in page.contradictory} == {Gap.CONTRADICTORY}
    assert read_signal(BY_NAME["prefix_hit_ratio"], later) == Missing(gap=Gap.CONTRADICTORY)
    assert cached(100, 100).contradictory == cached(0, 0).contradictory == frozenset()
    # An increase may contradict alone.
    found = read_signal(BY_NAME["prefix_hit_ratio"], diff_snapshots(cached(10, 1000), cached(40, 1010, START + 15)))
    text = "30 prefix_hit_tokens of 10 prefix_queried_tokens (300%) cannot be"
    assert found == Missing(gap=Gap.CONTRADICTORY, text=text)


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


@pytest.mark.parametrize(("grown", "is_possible"), [(1.5e11, True), (1.01 * 1.5e11, False)])
def test_token_increase_limit(grown: float, is_possible: bool) -> None:
    """1e10 tokens a second."""
    one = diff_snapshots(told(1, 1, 0.0), told(1, 1, grown, START + 15))
    assert ("prefix_queried_tokens" in one.counters) is is_possible
    assert (one.gaps.get("prefix_queried_tokens") is Gap.IMPOSSIBLE) is not is_possible


def test_impossible_increase_is_never_booked() -> None:
    pages = [told(1, 1, tokens, START + 15 * n) for n, tokens in enumerate((100.0, 5e18, 300.0, 400.0))]
    jump, back, after = (diff_snapshots(*pair) for pair in pairwise(pages))
    assert "prefix_queried_tokens" not in jump.counters
    assert jump.gaps["prefix_queried_tokens"] is Gap.IMPOSSIBLE
    assert "prefix_queried_tokens" not in back.counters
    assert after.counters["prefix_queried_tokens"] == 100
