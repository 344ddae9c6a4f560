"""What a row of an engine table may ask of a page's labels, and what its series add up to."""

from dataclasses import replace
from typing import Any

import pytest

from rules.engines.reader import compile_layout, is_mapped_name, snapshot
from rules.engines.registry import EngineTable, LabelAggregation, SourceRow
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import diff_snapshots

Page = list[tuple[str, dict[str, str], float]]


def engine(*rows: SourceRow, **more: Any) -> EngineTable:
    return EngineTable(name="toy", generation="v1", title="Toy", signatures=("toy_running",), rows=rows, **more)


def row_of(family: str, source: str, **more: Any) -> SourceRow:
    return SourceRow(family=family, source=source, since="1", **more)


def read(of: EngineTable, page: Page) -> Snapshot:
    layout = compile_layout([(name, labels) for name, labels, _ in page], of)
    return snapshot(layout, [value for _, _, value in page], t=1000.0)


ANSWERS: Page = [
    ("toy_answers_total", {"code": "200", "path": "/v1"}, 10),
    ("toy_answers_total", {"code": "204", "path": "/metrics"}, 5),
    ("toy_answers_total", {"code": "503", "path": "/v1"}, 2),
    ("toy_answers_total", {}, 1),
]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"where": {"code": "200|503"}}, 12),
        ({"where": {"code": "2.*"}}, 15),
        ({"where": {"code": "20"}}, 0),
        ({"where": {"code": "200|"}}, 11),
        ({"unless": {"path": "/metrics"}}, 13),
        ({"where": {"code": "2.*"}, "unless": {"code": "204"}}, 10),
        ({"where": {"code": "2.*", "path": "/v1"}}, 10),
    ],
)
def test_conditions_match_whole_label_values(conditions: dict[str, Any], expected: float) -> None:
    found = read(engine(row_of("requests_finished", "toy_answers_total", lazy=True, **conditions)), ANSWERS)
    assert found.counters == {"requests_finished": expected}


def test_ranks_repeat_and_engines_add_up() -> None:
    ranks = (("0", "0", 100), ("0", "1", 99), ("1", "2", 50), ("1", "3", 50))
    page: Page = [("toy_tokens_total", {"dp_rank": dp, "tp_rank": tp}, value) for dp, tp, value in ranks]
    page += [("toy_running", {"dp_rank": dp, "tp_rank": tp}, 4) for dp in "01" for tp in "01"]
    rows = (
        row_of("prompt_tokens", "toy_tokens_total"),
        row_of("requests_running", "toy_running"),
        row_of("kv_utilization", "toy_running", across=LabelAggregation.MEAN, factor=0.01),
    )
    found = read(engine(*rows, repeats=("tp_rank",)), page)
    assert found.counters == {"prompt_tokens": 150}
    assert found.gauges == {"requests_running": 8, "kv_utilization": 0.04}
    assert read(engine(*rows), page).counters == {"prompt_tokens": 299}


def ttft(label: str, **series: tuple[float, float, float]) -> Page:
    """Histograms by the value of a label: up to 1 s, in all, and the sum."""
    page: Page = []
    for value, (first, every, total) in series.items():
        labels = {label: value.removeprefix("rank")}
        page += [("toy_ttft_bucket", {**labels, "le": le}, count) for le, count in (("1", first), ("+Inf", every))]
        page.append(("toy_ttft_sum", labels, total))
    return page


def test_histogram_repeats_and_filters_its_series() -> None:
    page = ttft("tp_rank", rank0=(3, 4, 8), rank1=(3, 4, 8))
    row = row_of("ttft_seconds", "toy_ttft")
    once = read(engine(row, repeats=("tp_rank",)), page).histograms["ttft_seconds"]
    assert (once.counts, once.total) == ((3, 4), 8)
    assert read(engine(row), page).histograms["ttft_seconds"].counts == (6, 8)
    streamed = row_of("ttft_seconds", "toy_ttft", where={"streaming": "true|"})
    page = ttft("streaming", true=(3, 4, 8), false=(0, 9, 90))
    found = read(engine(streamed), page).histograms["ttft_seconds"]
    assert (found.counts, found.total) == ((3, 4), 8)


def test_further_samples_are_added_where_they_are() -> None:
    row = row_of("prefix_queried_tokens", "toy_hits_total", plus=("toy_misses_total", "toy_partial_total"))
    hits: Page = [("toy_hits_total", {}, 30)]
    assert read(engine(row), [*hits, ("toy_misses_total", {}, 70)]).counters == {"prefix_queried_tokens": 100}
    assert read(engine(row), hits).counters == {"prefix_queried_tokens": 30}
    assert is_mapped_name("toy_misses_total", (engine(row),))


def test_missing_event_is_zero_beside_marker() -> None:
    row = row_of("preemptions", "toy_retracted_total", zero_with="toy_running")
    assert read(engine(row), [("toy_running", {}, 3)]).counters == {"preemptions": 0}
    assert read(engine(row), [("toy_running", {}, 3), ("toy_retracted_total", {}, 2)]).counters == {"preemptions": 2}
    assert read(engine(row), [("toy_other", {}, 3)]).counters == {}


def test_late_histogram_starts_at_zero() -> None:
    row = row_of("ttft_seconds", "toy_ttft", zero_with="toy_up")
    before = read(engine(row), [("toy_up", {}, 1)])
    after = read(engine(row), [("toy_up", {}, 1), *ttft("rank", rank0=(3, 4, 8))])
    window = diff_snapshots(before, replace(after, t=1015.0))
    assert window.histograms["ttft_seconds"][0].counts == (3.0, 1.0)
    assert is_mapped_name("toy_up", (engine(row),))
    assert "ttft_seconds" not in read(engine(row), [("toy_other", {}, 1)]).histograms


def test_sentinel_gauge_is_absent() -> None:
    row = row_of("prefix_hit_gauge", "toy_hit_rate", none=-1.0)
    off = read(engine(row), [("toy_hit_rate", {}, -1.0)])
    assert (off.gauges, off.problems) == ({}, ())
    assert read(engine(row), [("toy_hit_rate", {}, 0.4)]).gauges == {"prefix_hit_gauge": 0.4}
    assert read(engine(row), [("toy_hit_rate", {}, -2.0)]).problems == ("prefix_hit_gauge: a gauge of -2.0",)


def test_gauge_may_hold_fact_or_unit() -> None:
    facts = read(engine(fact_gauges=(("kv_tokens", "toy_capacity"),)), [("toy_capacity", {"rank": "0"}, 65536)]).facts
    assert facts == {"kv_tokens": "65536"}
    of = engine(
        row_of("prefix_hit_tokens", "toy_blocks_total", factor_fact="block_size"),
        fact_gauges=(("block_size", "toy_tokens_per_block"),),
    )
    found = read(of, [("toy_blocks_total", {}, 5), ("toy_tokens_per_block", {}, 32)])
    assert (found.counters, found.problems) == ({"prefix_hit_tokens": 160}, ())
    alone = read(of, [("toy_blocks_total", {}, 5)])
    assert alone.counters == {"prefix_hit_tokens": 5}
    assert "ratios hold, amounts do not" in alone.problems[0]


def test_a_page_of_two_models_is_told() -> None:
    def served(*models: str) -> Snapshot:
        page: Page = [("toy_tokens_total", {"model": model}, 5) for model in models]
        return read(engine(row_of("prompt_tokens", "toy_tokens_total"), model_label="model"), page)

    assert served("Llama", "llama").problems == ()
    found = served("a", "b")
    assert found.problems == ("model: a,b are served by this page, and are added up: a tier is one model",)
    assert (found.counters, found.broken) == ({"prompt_tokens": 10}, frozenset())
