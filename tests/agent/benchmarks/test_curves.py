"""Measured loads become one curve: what belongs on it, in which order, and what must be said of it."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from making import plan_document
from paths import TESTS
from result_files import read_results

from agent.benchmarks.curves import ImportedCurve, curve_of, pool_points, remarks_of, round_significant
from agent.benchmarks.formats import VllmRun
from agent.benchmarks.run_model import BenchmarkRun, Statistics
from agent.errors import BenchmarkError
from exporters.documents.plan_files import curve_lines, scalar
from exporters.render.text import dump_object
from rules.plan.curve import Curve
from rules.plan.schema import BenchmarkCurve, Point, Provenance, Slo, TierPlan, parse_plan

BENCH = TESTS / "bench"
LATENCIES = {
    "ttft_p50_seconds": 0.1,
    "ttft_p99_seconds": 0.5,
    "tpot_p50_seconds": 0.01,
    "tpot_p99_seconds": 0.02,
    "itl_p99_seconds": 0.03,
    "e2e_p99_seconds": 1.5,
}


def load(
    source: str, rate: float | None = 4.0, loop: Any = "open", model: str = "m", remarks: Any = (), **more: Any
) -> BenchmarkRun:
    """An open-loop load at a rate, or a closed one where `concurrency` is given."""
    point = {"completed_rps": rate or 1.0, "requested_rps": rate, "requests": 400, **LATENCIES, **more}
    return VllmRun.model_construct(
        source=source,
        location=source,
        loop=loop,
        point=Point.model_validate(point),
        model=model,
        prompt_tokens=Statistics(mean=100),
        generation_tokens=Statistics(mean=50),
        remarks=list(remarks),
    )


def closed(source: str, clients: float, rps: float, **more: Any) -> BenchmarkRun:
    return load(source, None, "closed", concurrency=clients, completed_rps=rps, **more)


def tier(curve: BenchmarkCurve, **parts: Any) -> TierPlan:
    return parse_plan(plan_document(curve=curve.model_dump(), **parts)).tiers["t"]


def line(curve: BenchmarkCurve) -> Curve:
    found = Curve.from_plan(tier(curve))
    assert found is not None
    return found


def texts(imported: ImportedCurve, *parts: Any, **more: Any) -> str:
    return "\n".join(remark.text for remark in remarks_of(imported, *parts, **more))


def swept(folder: str, pattern: str = "bench_c*.json") -> ImportedCurve:
    return curve_of([one for file in sorted((BENCH / folder).glob(pattern)) for one in read_results(file)])


# What the six files of tests/bench/vllm-cpu say (`p99_ttft_ms` and so on, here in seconds):
#
#   max_concurrency           1        2        4        8        16       32
#   request_throughput        1.3655   1.9656   3.4229   5.8424   6.3464   7.4133
#   p99_ttft_ms  / 1000       0.09296  0.42900  0.35559  0.56206  0.96657  2.10777
#   p99_tpot_ms  / 1000       0.01242  0.02629  0.01908  0.02197  0.04228  0.07935
#
# The line never falls, so at 4 clients TTFT P99 counts as 0.42900, and TPOT P99 at 4 and 8 as 0.02629.


# TTFT P99 2 s, TPOT P99 0.15 s: TPOT ends at 0.079 and never matters. TTFT is 0.96657 s at 16 clients and 2.10777 s at 32;
# by logarithms 2 s lies ln(2 / 0.96657) / ln(2.10777 / 0.96657) = 0.72714 / 0.77962 = 0.93268 of the way.
# C_max = 16 + 0.93268 x 16 = 30.923; usable = 6.3464 + 0.93268 x (7.4133 - 6.3464) = 7.3415 rps.
#
# TPOT P99 0.03 s: TPOT is (at most, in two digits) 0.026 s up to 8 clients and 0.04228 s at 16:
# ln(0.03 / 0.026) / ln(0.04228 / 0.026) = 0.14310 / 0.48621 = 0.29432 of the way from 8 to 16 clients, before TTFT breaks.
# C_max = 8 + 0.29432 x 8 = 10.355; usable = 5.8424 + 0.29432 x (6.3464 - 5.8424) = 5.9907 rps.
@pytest.mark.parametrize(
    ("tpot", "c_max", "usable", "limit"),
    [(0.15, 30.923, 7.3415, "ttft_p99_seconds"), (0.03, 10.355, 5.9907, "tpot_p99_seconds")],
)
def test_closed_sweep_is_worked_out_by_hand(tpot: float, c_max: float, usable: float, limit: str) -> None:
    found = line(swept("vllm-cpu").curve).usable(Slo(ttft_p99_seconds=2.0, tpot_p99_seconds=tpot))
    assert found.c_max == pytest.approx(c_max, abs=0.01)
    assert found.usable_rps == pytest.approx(usable, abs=0.001)
    assert (found.limited_by, found.knee_reached) == (limit, True)


def test_rate_is_the_load_of_open_loops() -> None:
    found = swept("vllm-cpu-open", "*.json")
    assert found.curve.loop == "open"
    assert [point.requested_rps for point in found.curve.points] == [1.5, 3, 4.5, 6, 7, 8]
    assert found.curve.measured.concurrency == "littles_law"
    # Else a server that became slower, and holds more requests at the same rate, were one under another load.
    assert not line(found.curve).place(6.0, 12.0)[1]


def test_points_come_by_rising_load() -> None:
    loads = [load("c", 8.0, completed_rps=5.0), load("a", 2.0), load("b", 4.0)]
    assert [p.requested_rps for p in curve_of(loads).curve.points] == [2, 4, 8]
    assert curve_of(loads).curve.source == ("a", "b", "c")
    # Past the knee completed rps falls while the load still grows: the load decides.
    past = [closed("x", 8, 5.0), closed("y", 16, 4.8), closed("z", 2, 2.0)]
    assert [p.concurrency for p in curve_of(past).curve.points] == [2, 8, 16]
    loads = [load("all.json", rate) for rate in (2.0, 4.0)]
    assert curve_of(loads).curve.source == ("all.json",)


def test_mixed_loads_are_no_curve() -> None:
    with pytest.raises(BenchmarkError) as caught:
        curve_of([load("open.json"), closed("closed.json", 4, 3.0)])
    assert str(caught.value) == ("open.json: is of loop open, closed.json closed: a curve is of one loop")
    with pytest.raises(BenchmarkError) as caught:
        curve_of([load("a"), load("b", 5.0, model=""), load("c", 6.0, model="other")])
    assert str(caught.value) == "a: is of model m, c other: a curve is of one model"
    with pytest.raises(BenchmarkError, match="a: is of tensor_parallel 2, b 4: a curve is of one tensor_parallel"):
        curve_of([with_setup("a", 2.0, tensor_parallel=2), with_setup("b", 4.0, tensor_parallel=4)])


def test_repeated_runs_are_one_point() -> None:
    # 400 requests in 100 s and 100 in 20 s: 500 in 120 s. The median is weighted, of the P99s the larger counts.
    names = ("ttft_p50_seconds", "ttft_p99_seconds", "output_tokens_per_second", "prompt_tokens_mean")
    first, again = (dict(zip(names, row, strict=True)) for row in ((0.1, 0.3, 200, 900), (0.2, 0.9, 260, 400)))
    found = curve_of([load("a", **first), load("b", completed_rps=5.0, requests=100, **again), load("c", 8.0)])
    point = found.curve.points[0]
    assert point.requests == 500
    assert point.completed_rps == round_significant(500 / 120)
    assert point.ttft_p50_seconds == round_significant((400 * 0.1 + 100 * 0.2) / 500)
    assert point.ttft_p99_seconds == 0.9
    assert point.output_tokens_per_second == round_significant((100 * 200 + 20 * 260) / 120)
    assert point.prompt_tokens_mean == 800
    assert point.generation_tokens_mean == pytest.approx((100 * 200 + 20 * 260) / 500, rel=1e-3)
    assert len(line(found.curve).points) == 2
    assert "has the same load as b: one point" in texts(found)
    assert found.curve.source == ("a", "b", "c")


def test_pooled_runs_keep_what_all_know() -> None:
    sure, limited = load("a").point, load("b", completed_rps=3.0, censored=True).point
    assert pool_points([sure, limited]) == sure
    assert pool_points([limited, limited]).censored
    both = pool_points([load("a").point, load("b", itl_p99_seconds=None).point])
    assert both.itl_p99_seconds is None
    assert pool_points([load("a").point, load("b", requests=None).point]).requests is None


@given(
    st.lists(
        st.tuples(st.floats(0.001, 5), st.floats(1, 20), st.floats(0.1, 900), st.integers(1, 10**6)),
        min_size=1,
        max_size=5,
    )
)
def test_pooled_runs_lie_between_the_runs(runs: list[tuple[float, float, float, int]]) -> None:
    points = [
        Point(completed_rps=rps, requests=n, ttft_p50_seconds=p50, ttft_p99_seconds=p50 * tail)
        for p50, tail, rps, n in runs
    ]
    one = pool_points(points)
    for name in ("completed_rps", "ttft_p50_seconds", "ttft_p99_seconds"):
        values = [getattr(point, name) for point in points]
        assert min(values) <= getattr(one, name) <= max(values)
    assert (one.ttft_p50_seconds or 0) <= (one.ttft_p99_seconds or 0)
    assert one.requests == sum(n for *_, n in runs)


def test_burst_has_no_place_among_loads() -> None:
    burst = load("burst", None, None, completed_rps=9.0, **dict.fromkeys(LATENCIES))
    found = curve_of([load("a"), burst])
    assert [point.completed_rps for point in found.curve.points] == [4.0]
    assert "tells neither rate nor concurrency" in texts(found)
    alone = curve_of([burst])
    assert alone.curve.loop is None
    assert "loop (write curve.loop if you know it)" in texts(alone)


def test_numbers_keep_four_digits() -> None:
    for requests, p50, p99 in ((99, 0.0123, 0.023), (100, 0.01235, 0.02346), (123456, 0.01235, 0.02346)):
        run = load("a", ttft_p50_seconds=0.0123456, ttft_p99_seconds=0.0234567, requests=requests)
        point = curve_of([run]).curve.points[0]
        assert (point.ttft_p50_seconds, point.ttft_p99_seconds, point.completed_rps) == (p50, p99, 4.0)
        assert point.requests == requests


def test_remarks_name_what_is_missing() -> None:
    found = curve_of([load("a"), load("b", 5.0)])
    assert "one load is no curve" in texts(curve_of([load("a")]))
    assert "one load is no curve" not in texts(found)
    unseen = "gpu_utilization, kv_utilization, prefix_hit_ratio, eviction_rate (a client cannot see them: add"
    assert unseen in texts(found)
    assert "add them" not in texts(found, observed=True)
    found = curve_of([load("a", itl_p99_seconds=None), load("b", 5.0, itl_p99_seconds=None)])
    assert "not told and left out: itl_p99_seconds, " in texts(found)
    assert "speculative_acceptance" not in texts(found, tier(found.curve))
    assert "speculative_acceptance" in texts(found, tier(found.curve, speculation={"draft_tokens": 4}))


def test_gpu_kind_needs_a_measured_point() -> None:
    bare = curve_of([load("a")], gpu_utilization_kind="sm_active").curve
    assert bare.gpu_utilization_kind is None
    known = curve_of([load("a", gpu_utilization=0.5)], gpu_utilization_kind="sm_active").curve
    assert known.gpu_utilization_kind == "sm_active"


@pytest.mark.parametrize("margin", [2, 8])
def test_written_curve_reads_back(margin: int) -> None:
    curve = swept("vllm-cpu").curve
    lines = curve_lines(curve, margin, head=["two\nlines # and \x07 a bell"], notes=[["first"], [], ["third: {x}"]])
    text = "\n".join(lines)
    assert BenchmarkCurve.model_validate(yaml.safe_load(text)["curve"]) == curve
    # No line is folded inside the name of a file.
    assert max(len(line) for line in lines if "/" not in line) <= 120
    assert "# two lines # and a bell" in text


ODD_NAMES = ("1.5", "1e3", "no", "null", "2026-11-20", "a: b", "- a", "#x", "~", "é", "a b", "0x1f")


@given(st.sampled_from(ODD_NAMES) | st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30))
def test_any_file_name_reads_back(name: str) -> None:
    assert yaml.safe_load(f"- {scalar(name)}") == [name]


@given(st.floats(1e-9, 1e12))
def test_numbers_read_back_as_numbers(value: float) -> None:
    assert yaml.safe_load(dump_object(value)) == value


def with_setup(source: str, rps: float, **fields: Any) -> BenchmarkRun:
    return load(source, rps).model_copy(update={"setup": Provenance(**fields), "ended_at": 1.7952e9})


def test_provenance_is_what_runs_agree_on() -> None:
    runs = [
        with_setup("a", 2.0, engine_version="0.32.0", tensor_parallel=4, max_num_seqs=64),
        with_setup("b", 4.0, engine_version="0.33.0", tensor_parallel=4),
    ]
    imported = curve_of(runs)
    measured = imported.curve.measured
    assert (measured.tensor_parallel, measured.max_num_seqs, measured.engine_version) == (4, 64, None)
    assert measured.measured_on == "2026-11-20"
    said = "engine_version differs between the runs (0.32.0, 0.33.0): a curve is of one configuration"
    assert said in texts(imported)
    unknown = Statistics()
    untold = load("a").model_copy(update={"prompt_tokens": unknown, "generation_tokens": unknown})
    imported = curve_of([untold])
    assert imported.curve.measured is None
    assert "engine_version (give it with --measured engine_version=RELEASE" in texts(imported)
    told = curve_of([with_setup("a", 2.0, engine_version="0.32.0")])
    assert "release" not in texts(told)
    falling = load("a").model_copy(update={"prompt_tokens": Statistics(mean=9, p95=40, p99=20)})
    imported = curve_of([falling])
    assert (imported.curve.measured.prompt_tokens, imported.curve.measured.generation_tokens.mean) == (None, 50)
    assert "prompt_tokens: p99: must be at least p95 (40), but is 20, which cannot be; left out of measured" in texts(
        imported
    )
