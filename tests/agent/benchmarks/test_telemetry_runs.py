"""Telemetry of runs over the samples of recordings and real sweeps, against pages read by hand and their clients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from result_files import read_results
from telemetry_samples import BENCH, page_samples, pages_of, ratio, run, stored, sweep_samples, value

from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry import open_telemetry
from agent.benchmarks.telemetry_merge import TelemetryFields
from rules.plan.schema import Point

HITS, LOOKUPS = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def found_in(pages: Iterable[tuple[float, str]], measured: BenchmarkMeasurement) -> TelemetryFields:
    """What a server with these pages gives for a run."""
    with stored(page_samples(pages, {"instance": "10.0.0.5:8000"})) as address:
        return open_telemetry(address).read_run(measured)


def ended_in(name: str, start: float, end: float) -> int:
    """How many requests the clients saw end in a span."""
    rows = recorded.requests(name)
    return sum(not row["error"] and start < float(row["t_start"]) + float(row["e2e"]) <= end for row in rows)


def test_a_run_is_read_as_its_pages_by_hand() -> None:
    pages = pages_of("prefix")
    (start, first), (end, last) = pages[10], pages[40]
    asked = ended_in("prefix", start, end)
    found = found_in(pages, run(requests=asked, started_at=start, ended_at=end))
    levels = [(t, value(page, "vllm:kv_cache_usage_perc")) for t, page in pages[10:41]]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(levels))
    assert found.values["prefix_hit_ratio"] == pytest.approx(ratio(first, last, HITS, LOOKUPS))
    assert found.values["kv_utilization"] == pytest.approx(area / (end - start))
    assert found.values["eviction_rate"] == 0.0
    assert found.setup is not None
    assert found.setup.kv_tokens == 32_768


def test_scrapes_too_far_apart_tell_no_mean_of_a_gauge_and_say_so() -> None:
    pages = pages_of("prefix")[::24]
    found = found_in(pages, run(started_at=pages[0][0], ended_at=pages[-1][0]))
    assert "prefix_hit_ratio" in found.values
    assert "kv_utilization" not in found.values
    assert any("kv_utilization: is a gauge of this engine, and scrapes too far" in remark for remark in found.remarks)


def test_a_run_that_begins_before_the_samples_gets_nothing_and_both_spans() -> None:
    pages = pages_of("steady")
    found = found_in(pages, run(started_at=pages[0][0] - 300, ended_at=pages[0][0] + 200))
    assert found.values == {}
    assert "covers 40% of this run" in found.remarks[0]
    assert "it spans 2026-11-20 18:17:" in found.remarks[0]


@pytest.mark.parametrize(
    ("requests", "reason"), [(10, "not of this run alone"), (None, "other traffic would not show")]
)
def test_other_traffic_in_the_span_is_refused_where_it_shows(requests: int | None, reason: str) -> None:
    pages = pages_of("steady")
    found = found_in(pages, run(requests=requests, started_at=pages[5][0], ended_at=pages[-5][0]))
    assert (found.values == {}) is (requests is not None)
    assert reason in found.remarks[0]


def test_an_engine_that_served_nothing_in_the_run_tells_nothing() -> None:
    page = pages_of("steady")[20][1]
    found = found_in([(1000.0 + 5 * place, page) for place in range(10)], run(started_at=1000.0, ended_at=1045.0))
    assert found.values == {}
    assert found.remarks == ("the engine finished no request in this run: nothing was taken from its telemetry",)


def test_a_silence_of_a_third_of_the_run_is_no_telemetry_of_it() -> None:
    pages = pages_of("restart")
    found = found_in(pages, run(started_at=pages[0][0], ended_at=pages[-1][0]))
    assert found.values == {}
    assert "covers 63% of this run" in found.remarks[0]


def test_a_quick_restart_in_the_run_is_said() -> None:
    pages = [(1000.0 + 5 * place, page) for place, (_, page) in enumerate(pages_of("restart"))]
    found = found_in(pages, run(started_at=1000.0, ended_at=pages[-1][0]))
    assert found.remarks[0] == "the engine restarted during this run"
    assert "prefix_hit_ratio" in found.values


def test_any_span_ends_in_an_answer() -> None:
    with stored(page_samples(pages_of("steady"), {"instance": "10.0.0.5:8000"})) as address:

        @settings(max_examples=10)
        @given(start=st.floats(-100, 200), length=st.floats(1, 300), requests=st.none() | st.integers(1, 10**6))
        def answered(start: float, length: float, requests: int | None) -> None:
            begin = pages_of("steady")[0][0] + start
            found = open_telemetry(address).read_run(run(requests=requests, started_at=begin, ended_at=begin + length))
            assert found.values or found.remarks

        answered()


def test_pages_of_another_sweep_with_as_many_requests_show_in_the_tokens() -> None:
    (own,) = read_results(BENCH / "vllm-cpu-cached" / "bench_r6.json")
    (other,) = read_results(BENCH / "vllm-cpu-open" / "bench_r6.json")
    with stored(sweep_samples(BENCH / "vllm-cpu-cached")) as address:
        telemetry = open_telemetry(address)
        assert telemetry.read_run(own).values["prefix_hit_ratio"] == pytest.approx(19648 / 24643)
        assert not any("tokens in this run" in remark for remark in telemetry.read_run(own).remarks)
        few = replace(own, point=own.point.model_copy(update={"requests": 290}))
        assert (
            "finished 300 requests in this run, the result file has 290 (warm-up" in telemetry.read_run(few).remarks[0]
        )
        remarks = telemetry.read_run(replace(other, started_at=own.started_at, ended_at=own.ended_at)).remarks
    said = "the engine generated 13289 tokens in this run, the result file has 12964: make sure"
    assert any(remark.startswith(said) for remark in remarks)


def ttft_run(name: str, later: float = 0.0) -> BenchmarkMeasurement:
    """A run over a whole recording with the TTFT that its clients measured, so many seconds later."""
    pages = pages_of(name)
    start, end = pages[0][0], pages[-1][0]
    rows = [row for row in recorded.requests(name) if not row["error"] and row["e2e"]]
    waited = sorted(
        float(row["ttft"]) + later for row in rows if start < float(row["t_start"]) + float(row["e2e"]) <= end
    )
    p50, p99 = (waited[math.ceil(q * len(waited)) - 1] for q in (0.5, 0.99))
    point = Point(completed_rps=1.0, requests=len(waited), ttft_p50_seconds=p50, ttft_p99_seconds=p99)  # type: ignore[call-arg]
    return BenchmarkMeasurement(source="x.json", tool="test", loop="open", point=point, started_at=start, ended_at=end)


@pytest.mark.parametrize("name", ["steady", "prefix", "specdecode", "kv_cascade", "lora", "diurnal", "sglang"])
def test_recorded_clients_agree_with_their_engines_ttft_and_held_back_chunks_do_not(name: str) -> None:
    with stored(page_samples(pages_of(name), {"instance": "10.0.0.5:8000"})) as address:
        telemetry = open_telemetry(address)
        assert [text for text in telemetry.read_run(ttft_run(name)).remarks if text.startswith("TTFT")] == []
        (remark,) = [text for text in telemetry.read_run(ttft_run(name, later=13.0)).remarks if text.startswith("TTFT")]
    assert remark.startswith("TTFT P50 is 1")
