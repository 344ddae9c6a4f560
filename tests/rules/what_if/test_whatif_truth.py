"""What-if against the simulator: bounds from what it was seen to do contain what it would do at the load that is asked for."""

from __future__ import annotations

import pytest
from whatif_samples import DAY, Simulated, simulated

from rules.resize.production_curve import SloStatus
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.what_if.answer import LATENCIES, AtLoad
from rules.what_if.limits import BENCHMARK_END
from rules.what_if.prediction import PredictionSource

RAG, CHAT = "rag-l40s", "chat-h100"


@pytest.fixture(scope="module")
def rag() -> Simulated:
    """Up to about 4 rps a replica of a benchmark that goes to 6.65; prompts as planned."""
    return simulated(RAG, 4.0)


@pytest.fixture(scope="module")
def drifting() -> Simulated:
    """Prompts grow to twice the planned ones over four days."""
    return simulated(CHAT, 3.3, days=4, longer=lambda t: 1 + t / (4 * DAY))


def contains(value: SignalValue, truth: float, rounding: float = 0.01) -> bool:
    """`rounding`: the simulator takes a load in steps of half a per cent of its range."""
    assert isinstance(value, Reading), value
    low, high = value.low or 0.0, value.high
    return low * (1 - rounding) <= truth and (high is None or truth <= high * (1 + rounding))


def production(at: AtLoad, name: str) -> SignalValue:
    return at.get_prediction(name).production


@pytest.mark.parametrize("instances", [4, 5, 6, 8, 12])
@pytest.mark.parametrize("name", [*LATENCIES, "kv_utilization"])
def test_at_a_load_that_production_served_its_bounds_contain_what_the_simulator_gives(
    rag: Simulated, instances: int, name: str
) -> None:
    found = rag.result(instances, rps=12.0)
    assert contains(production(found.asked, name), rag.truth(name, 12.0 / instances), 0.02)


@pytest.mark.parametrize("instances", [4, 6, 12])
def test_the_best_estimate_of_p99_is_near_the_truth_and_its_bounds_are_closed(rag: Simulated, instances: int) -> None:
    value = production(rag.result(instances, rps=12.0).asked, "ttft_p99_seconds")
    assert isinstance(value, Reading)
    assert value.high is not None
    assert value.value == pytest.approx(rag.truth("ttft_p99_seconds", 12.0 / instances), rel=0.1)


def test_the_peak_itself_with_the_replicas_that_carried_it_lies_on_production_s_curve(rag: Simulated) -> None:
    found = rag.result(3)
    assert found.peak is not None
    assert found.peak.at is not None
    assert found.peak.source == "reached in three stretches of five minutes"
    assert (found.peak.at - rag.seen.since) % DAY == pytest.approx(DAY / 2, abs=3 * 3600)
    assert found.rps == pytest.approx(12.0, rel=0.05)
    assert isinstance(production(found.asked, "ttft_p99_seconds"), Reading)
    assert [one.source for one in found.asked.held] == [PredictionSource.PRODUCTION] * 2
    assert found.asked.kept is SloStatus.KEPT


@pytest.mark.parametrize("name", [*LATENCIES, "kv_utilization"])
def test_beyond_production_the_benchmark_stands_beside_it_and_is_not_mixed_in(rag: Simulated, name: str) -> None:
    found = rag.result(2, rps=11.0)
    told = found.asked.get_prediction(name)
    assert isinstance(told.production, Missing)
    assert told.production.gap is Gap.LOAD_NOT_REACHED
    assert "rps a replica at most" in told.production.text
    assert contains(told.benchmark, rag.truth(name, 5.5))
    assert [one.source for one in found.asked.held] == [PredictionSource.BENCHMARK] * 2
    assert found.asked.kept is SloStatus.LIKELY_KEPT


def test_beyond_both_nothing_is_invented(rag: Simulated) -> None:
    found = rag.result(1, rps=9.0)
    for name in LATENCIES:
        told = found.asked.get_prediction(name)
        assert isinstance(told.production, Missing)
        assert isinstance(told.benchmark, Missing)
        assert (told.production.gap, told.benchmark.gap) == (Gap.LOAD_NOT_REACHED, Gap.OUTSIDE_BENCHMARK)
    # The benchmark's last point, 2.739 s, broke 2 s at 6.65 rps; 9 rps are more. TPOT was kept there and nobody knows more.
    assert {one.name: one.kept for one in found.asked.held} == {
        "ttft_p99_seconds": SloStatus.LIKELY_BROKEN,
        "tpot_p99_seconds": SloStatus.NOT_KNOWN,
    }
    assert found.asked.kept is SloStatus.LIKELY_BROKEN


def test_the_load_at_which_the_first_limit_breaks_is_that_of_the_simulator(rag: Simulated) -> None:
    found = rag.result(3)
    assert found.first_limit is not None
    assert found.first_limit.limit.name == "ttft_p99_seconds"
    load = found.first_limit.limit.earliest
    assert load is not None
    assert rag.truth("ttft_p99_seconds", load) == pytest.approx(2.0, rel=0.02)
    assert found.first_limit.tier_rps == pytest.approx(3 * load)
    end = next(one for one in found.met if one.limit.name == BENCHMARK_END)
    assert end.tier_rps == pytest.approx(3 * 6.652)


def test_a_benchmark_that_production_is_slower_than_is_not_believed_beyond_it(drifting: Simulated) -> None:
    found = drifting.result(2, rps=9.0)
    told = {one.name: one for one in found.asked.held}
    # At 4.5 rps the benchmark has about 1.12 s; with prompts half as long again as planned it is 1.12 x 1.5^1.15 = 1.78 s.
    assert drifting.truth("ttft_p99_seconds", 4.5) < 1.5 < drifting.truth("ttft_p99_seconds", 4.5, 1.5)
    assert (told["ttft_p99_seconds"].kept, told["ttft_p99_seconds"].source) == (
        SloStatus.LIKELY_BROKEN,
        PredictionSource.SLOWED,
    )
    assert found.asked.kept is SloStatus.LIKELY_BROKEN
    # What the benchmark measured is shown as it is.
    assert contains(found.asked.get_prediction("ttft_p99_seconds").benchmark, drifting.truth("ttft_p99_seconds", 4.5))
