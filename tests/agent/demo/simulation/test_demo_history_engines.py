"""The simulated engines of a fleet with a past: pure, by their seed, and as the plan's curve says they are."""

import random

import pytest

from agent.config.files import load_plan
from agent.demo.simulation.engine import Conditions, SimulatedEngine
from agent.demo.simulation.scenario import DAY, QUARTER, TierRun, stories
from agent.demo.simulation.weeks import PLAN
from rules.plan import load_bins
from rules.plan.curve import Curve
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

END = 1_795_248_000.0
"""Saturday, 21 November 2026, 08:00 UTC."""

BEGIN = END - 14 * DAY
CHAT, RAG, CODE = "chat-h100", "rag-l40s", "code-h100"


def test_seed_decides_the_pages() -> None:
    def pages(seed: int) -> list[Snapshot]:
        plan = load_plan(PLAN)
        story = stories(BEGIN, END, seed)[0]
        run = TierRun(story, plan.tiers[story.tier], BEGIN, seed)
        for quarter in range(1, 20):
            run.advance(BEGIN + quarter * QUARTER)
        return list(run.pages().values())

    assert pages(3) == pages(3)
    assert pages(3) != pages(4)
    assert stories(BEGIN, END, 3) == stories(BEGIN, END, 3)


def test_reading_agrees_with_curve() -> None:
    tier = load_plan(PLAN).tiers[CODE]
    curve = Curve.from_plan(tier)
    engine = SimulatedEngine(tier, curve, random.Random(1), BEGIN)
    engine.advance(BEGIN + 60.0, 90, Conditions())
    before = engine.snapshot()
    engine.advance(BEGIN + 3660.0, 5400, Conditions())
    window = windows.diff_snapshots(before, engine.snapshot())
    context = load_bins.build_tier_context(CODE, tier)
    bin, _ = curve.place(1.5, None)
    for signal, metric in (("ttft_p99_seconds", "ttft_p99_seconds"), ("tpot_p99_seconds", "tpot_p99_seconds")):
        assert bin is not None
        expected = curve.expectation(bin, metric, 1.5)
        found = _read(signal, window, context)
        assert (found.low or 0.0) <= expected.value <= (found.high or 0.0)
    assert _read("prefix_hit_ratio", window, context).value == pytest.approx(0.55, abs=0.01)
    assert _read("completed_rps", window, context).value == pytest.approx(1.5, rel=0.05)


def _read(signal: str, window: Window, context: load_bins.TierContext) -> Reading:
    found = read(BY_NAME[signal], window, context.basis)
    assert isinstance(found, Reading), found
    return found
