"""A simulated tier as a what-if sees it, and what the simulator would give at any load: the truth that bounds must contain."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report_samples import measured

import agent.demo
from agent.config.files import load_plan
from agent.demo.simulation.engine import Z99, Conditions, SimulatedEngine, load_at
from agent.demo.simulation.weeks import build_window
from rules.plan import load_bins
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import TierPlan
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import arrivals, windows
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
