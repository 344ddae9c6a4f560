"""The workload that production shows, beside plan and benchmark."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, quantiles

import pytest
import recorded
from recorded import read_recorded
from report_samples import hours, seen_of, tier_view

from rules.plan.guardrails import Guardrail
from rules.plan.load_bins import TierContext
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import APART, BenchmarkWorkload, derive_benchmark, list_guardrails, measure_workload
from rules.telemetry.histograms import Histogram, draw


def fitting(context: TierContext, **more: object) -> dict[str, Guardrail]:
    seen = seen_of(context, hours(24, **more))
    return {guardrail.key: guardrail for guardrail in list_guardrails(seen, measure_workload(seen))}


def test_breaker_uses_larger_peak() -> None:
    assert fitting(tier_view())["queue_breaker"].proposed == 85
    assert fitting(tier_view(), rps=lambda number: 100.0)["queue_breaker"].proposed == 170


def test_limits_follow_observed_quantiles() -> None:
    found = fitting(tier_view())
    # All prompts lie in 500 to 1000 and all outputs in 50 to 100, falling by a constant factor to half of one of them.
    n = 24 * 3600 * 20.0
    p95, p99 = 500 * (1 + math.log(20) / math.log(2 * n)), 50 * (1 + math.log(100) / math.log(2 * n))
    for key, best in (("max_prompt_tokens", p95), ("max_generation_tokens", p99)):
        assert (found[key].low, found[key].high) == (pytest.approx(2 * best, abs=1), pytest.approx(3 * best, abs=1))
        assert found[key].proposed == pytest.approx(2.5 * best, abs=1)


def test_what_the_plan_has_stands_beside_it() -> None:
    found = fitting(tier_view(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 300}))
    assert [(one.planned, one.state) for one in found.values()] == [
        (2500, "too_high"),
        (None, "missing"),
        (300, "ineffective"),
    ]


def test_too_few_requests_leave_the_planned_lengths() -> None:
    few = fitting(tier_view(), rps=lambda number: 0.001)
    assert few["max_prompt_tokens"].sentence.endswith("2 to 3 x the planned P95, 1,900 tokens")


def benchmark(seen: ProductionSummary, requests: int = 300, top: float | None = None) -> BenchmarkWorkload:
    found = derive_benchmark(seen, requests, top)
    assert isinstance(found, BenchmarkWorkload), found
    return found


@pytest.mark.parametrize("name", ["prefix", "routing", "lora", "steady", "sglang"])
def test_lengths_are_those_that_the_clients_sent(name: str) -> None:
    found = benchmark(read_recorded(name))
    rows = [row for row in recorded.requests(name) if not row["error"] and row["completion_tokens"]]
    sent = [(int(row["prompt_tokens"]), int(row["completion_tokens"])) for row in rows]
    for drawn, truth in ((found.prompts, [p for p, _ in sent]), (found.generations, [g for _, g in sent])):
        assert fmean(drawn) == pytest.approx(fmean(truth), rel=0.05)
        # A bucket is a factor of 2.5 wide at most: the median is in the bucket of the true one, or the next.
        assert 1 / 2.5 < drawn[len(drawn) // 2] / quantiles(truth, n=2)[0] < 2.5


def test_the_mean_is_the_engines() -> None:
    part = Histogram(edges=(50.0, 100.0, 200.0, math.inf), counts=(20.0, 70.0, 10.0, 0.0), total=7300.0)
    drawn, above = draw((part,), 73.0, 1000)
    assert (len(drawn), above, drawn) == (1000, 0, tuple(sorted(drawn)))
    assert fmean(drawn) == pytest.approx(73.0, abs=0.2)


def test_draws_above_edge_or_without_buckets() -> None:
    part = Histogram(edges=(100.0, math.inf), counts=(50.0, 50.0), total=None)
    drawn, above = draw((part,), None, 10)
    assert (above, drawn[-5:]) == (5, (100,) * 5)
    assert draw((), 12.4, 3) == ((12, 12, 12), 0)


def test_shared_prefix_from_hit_ratio() -> None:
    for name in ("prefix", "routing"):
        found = benchmark(read_recorded(name))
        seen = getattr(found.prefix_hit_ratio, "value", 0.0)
        assert found.shared_ratio == pytest.approx(seen, abs=0.02)


def test_prompts_share_nothing_where_nothing_was_hit() -> None:
    found = benchmark(read_recorded("diurnal_quiet"))
    assert (found.shared_blocks, found.shared_ratio) == (0, 0.0)


def test_loads_span_half_to_twice() -> None:
    found = benchmark(seen_of(tier_view(), hours(24, rps=lambda number: 20.0 if number < 20 else 40.0)))
    rates = found.loads
    average, peak = (20 * 20 + 4 * 40) / 24 / 10, 40 / 10
    assert rates[0] == pytest.approx(average / 2, rel=0.01)
    assert rates[-1] == pytest.approx(2 * peak, rel=0.1)
    assert any(rate == pytest.approx(peak, rel=0.1) for rate in rates)
    assert all(later >= APART * earlier * 0.99 for earlier, later in pairwise(rates))


def test_unwatched_time_keeps_replicas() -> None:
    seen = read_recorded("prefix")
    gap = replace(seen.hours[0], start=seen.hours[0].start - 600, expected_seconds=seen.hours[0].expected_seconds + 600)
    holed = benchmark(replace(seen, hours=(gap, *seen.hours[1:])))
    assert holed.loads == benchmark(seen).loads


@pytest.mark.parametrize("top", [1.0, 0.1, 1.9, 9.0])
def test_the_highest_load_can_be_given(top: float) -> None:
    assert benchmark(read_recorded("prefix"), 10, top).loads[-1] == top


def test_nothing_is_made_up_where_nothing_arrived() -> None:
    found = (derive_benchmark(seen, 300) for seen in (seen_of(tier_view(), []), read_recorded("llamacpp")))
    assert set(found) == {"no arrivals were seen, or the engine counts no requests"}


def test_pools_have_no_load_of_one_replica() -> None:
    apart = tier_view(pools=["prefill", "decode"])
    assert "prefill and decode are served apart" in str(derive_benchmark(seen_of(apart, hours(24)), 300))


def test_lengths_without_buckets_are_means() -> None:
    seen = read_recorded("prefix")
    assert seen.lately is not None
    found = benchmark(replace(seen, lately=replace(seen.lately, histograms={})), 5)
    assert set(found.prompts) == {found.prompts[0]}
    assert found.prompts[0] == pytest.approx(676, rel=0.05)
    assert "prompts: only their mean is exposed; all have that length" in found.remarks
    nothing = replace(seen, lately=replace(seen.lately, histograms={}, counters={}))
    assert derive_benchmark(nothing, 5) == "the engine exposes no lengths of prompts"


def test_long_prompts_get_larger_blocks() -> None:
    found = benchmark(seen_of(tier_view(), hours(2)))
    assert fmean(found.prompts) / found.block_tokens <= 64
    assert found.block_tokens % 16 == 0
