"""What-if against the simulator: its peak, its need, and the load at which the first limit breaks."""

import pytest
from whatif_samples import DAY, Simulated, simulated

from rules.plan.curve import IN_SYSTEM
from rules.resize.production_summary import BAD, FINE
from rules.telemetry.signals import Gap, Missing


@pytest.fixture(scope="module")
def rag() -> Simulated:
    """Up to about 4 rps a replica of a benchmark that goes to 6.65; prompts as planned."""
    return simulated("rag-l40s", 4.0)


@pytest.fixture(scope="module")
def drifting() -> Simulated:
    """Prompts grow to twice the planned ones over four days."""
    return simulated("chat-h100", 3.3, days=4, longer=lambda t: 1 + t / (4 * DAY))


def test_peak_matches_simulated_afternoon(rag: Simulated) -> None:
    found = rag.result(3)
    assert found.peak.at is not None
    assert found.peak.source == "reached in three stretches of five minutes"
    assert (found.peak.at - rag.seen.since) % DAY == pytest.approx(DAY / 2, abs=3 * 3600)
    assert found.rps == pytest.approx(12.0, rel=0.05)


@pytest.mark.parametrize("name", ["ttft_p50_seconds", "ttft_p99_seconds", "tpot_p99_seconds", "kv_utilization"])
def test_curve_holds_simulated_latency(rag: Simulated, name: str) -> None:
    """The simulator takes a load in steps of half a per cent of its range."""
    found = rag.result(2, rps=11.0)
    value = found.asked.benchmark[name]
    truth = rag.truth(name, 5.5)
    assert (value.low or 0.0) * 0.99 <= truth <= (value.high or 0.0) * 1.01
    assert found.asked.kept in FINE


def test_beyond_the_benchmark_nothing_is_invented(rag: Simulated) -> None:
    found = rag.result(1, rps=9.0)
    gaps = {value.gap for value in found.asked.benchmark.values() if isinstance(value, Missing)}
    assert gaps <= {Gap.OUTSIDE_BENCHMARK, Gap.NOT_IN_PLAN}
    assert isinstance(found.asked.benchmark[IN_SYSTEM], Missing)
    assert found.asked.kept in BAD


def test_breaking_load_matches_simulator(rag: Simulated) -> None:
    limits = {one.name: one for one in rag.result(3).limits}
    load = limits["ttft_p99_seconds"].best
    assert load is not None
    assert rag.truth("ttft_p99_seconds", load) == pytest.approx(2.0, rel=0.05)


def test_the_fewest_replicas_that_hold_are_needed(rag: Simulated) -> None:
    needed = rag.result(3).needed
    assert rag.result(needed.replicas).asked.kept in FINE
    assert rag.truth("ttft_p99_seconds", 12.0 / needed.replicas) < 2.0


def test_longer_prompts_change_the_verdict(drifting: Simulated) -> None:
    """4.5 rps keep the SLO with planned prompts, not with twice as long ones."""
    assert drifting.truth("ttft_p99_seconds", 4.5) < 1.5
    found = drifting.result(2, rps=9.0)
    assert found.asked.kept in BAD
    assert found.curve_work > 1.2
