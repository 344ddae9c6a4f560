"""What-if against the simulator: its peak, its need, and the load at which the first limit breaks."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_samples import measured

import agent.demo
from agent.config.files import load_plan
from agent.demo.simulation.engine import Z99, Conditions, SimulatedEngine, load_at
from agent.demo.simulation.weeks import build_window
from rules.plan import load_bins
from rules.plan.curve import IN_SYSTEM, Curve
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import TierPlan
from rules.resize.production_summary import BAD, FINE, ProductionSummary
from rules.telemetry import arrivals, windows
from rules.telemetry.signals import Gap, Missing
from rules.what_if.answer import WhatIf, answer_question

HOUR, DAY, QUARTER = 3600.0, 86_400.0, 900.0
START = 1_793_577_600.0
"""Monday 2 November 2026, 0:00 UTC."""

PLANS = load_plan(Path(agent.demo.__file__).parent / "simulation" / "plan.yaml").tiers


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Days of one tier, and how many replicas served them."""

    plan: TierPlan
    seen: ProductionSummary

    def result(self, instances: int, rps: float | None = None) -> WhatIf:
        return answer_question(self.seen, instances, rps)

    def truth(self, name: str, rps: float) -> float:
        """What an engine of the simulator does at a load of one replica."""
        curve = Curve.from_plan(self.plan)
        assert curve is not None
        load = load_at(curve, rps)
        if name == "kv_utilization":
            return load.kv
        times = load.first if name.startswith("ttft") else load.each
        return times.median * math.exp(times.sigma * (Z99 if "p99" in name else 0.0))


def simulated(
    tier: str, busiest: float, days: int = 2, replicas: int = 3, longer: Callable[[float], float] = lambda t: 1.0
) -> Simulated:
    """Days with a peak of `busiest` rps of a replica in the afternoon; `longer` says how many times as long prompts are, by the
    seconds since the begin."""
    plan, rng = PLANS[tier], random.Random(tier)
    context = load_bins.build_tier_context(tier, plan)
    assert context.curve is not None
    engines = [SimulatedEngine(plan, context.curve, rng, START) for _ in range(replicas)]
    pages = [engine.snapshot() for engine in engines]
    found: list[BinnedWindow] = []
    for step in range(1, round(days * DAY / QUARTER) + 1):
        t = START + step * QUARTER
        rate = busiest * (0.55 - 0.45 * math.cos(2 * math.pi * (step % 96) / 96))
        for n, engine in enumerate(engines):
            mean = rate * QUARTER
            arrived = max(0, round(mean + rng.gauss(0.0, 1.0) * math.sqrt(mean)))
            engine.advance(t, arrived, Conditions(prompt_scale=longer(t - START)))
            after = engine.snapshot()
            found.append(load_bins.bin_window(build_window(pages[n], after), context.curve, f"r{n}"))
            pages[n] = after
    return _simulated(context, plan, found, START + days * DAY)


def _simulated(context: TierContext, plan: TierPlan, found: list[BinnedWindow], until: float) -> Simulated:
    hourly: dict[tuple[float, int | None], list[BinnedWindow]] = {}
    for one in found:
        hourly.setdefault(((one.window.start + one.window.end) / 2 // HOUR, one.bin), []).append(one)
    hours = [
        load_bins.bin_window(windows.sum_windows(one.window for one in group), None, None, bin)
        for (_, bin), group in hourly.items()
    ]
    seen = ProductionSummary(context=context, since=START, until=until, versions=("v1",))
    minutes = [part for one in found for part in arrivals.split_by_minute(one.window)]
    seen = seen.add(hours, hours, arrivals.list_demand(_summed(minutes)))
    return Simulated(plan=plan, seen=measured(seen))


def _summed(minutes: list[arrivals.MinuteSums]) -> list[arrivals.MinuteSums]:
    grouped: dict[float, list[arrivals.MinuteSums]] = {}
    for one in minutes:
        grouped.setdefault(one.start, []).append(one)
    return [arrivals.add(grouped[start]) for start in sorted(grouped)]


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
