"""Batch tiers: what is judged, what is not asked, and the spare capacity of online tiers."""

from __future__ import annotations

from typing import Any

import pytest
import recorded
from judging_samples import answered, context, each, minute, minutes, tier, unknown
from paths import ROOT
from rule_cases import EARLY, FINE, GUESSED, UNPLANNED, UNSEEN, WARNED, Wanted, check_result

from agent.cli import main
from exporters.documents.replay import check_text
from rules.catalogue.registry import BATCH_WORK
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.schema import plan_version
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

EXAMPLE = ROOT / "examples" / "batch" / "plan.yaml"
TOKENS = {"output_tokens_per_second": 400.0}


def batch(*points: dict[str, Any], slo: dict[str, Any] | None = None, **job: Any) -> Any:
    """A batch tier whose job is `job`; START is 08:00 UTC."""
    return context(*points, slo=slo or {}, workload={"archetype": "batch"}, batch=job)


def work(waiting: float, rps: float = 3.0, tokens: float = 0.0, count: int = 20) -> list[Window]:
    made = {"generation_tokens": tokens * 60.0} if tokens else {}
    return each(count, lambda n: minute(n, rps=rps, waiting=waiting, in_system=waiting + 8, counters=made))


def judged(view: TierContext, windows: list[Window]) -> RuleResult:
    binned = minutes(view, {"a": windows}).binned
    return evaluate_rule(BATCH_WORK, view, binned, binned[-1].window.end)


DUE, TIMED = batch(deadline="12:00"), batch(TOKENS, TOKENS, TOKENS)
IDLE = each(20, lambda n: minute(n, in_system=0.0))
PRESENT_RATE = "h at this rate; 8 h are planned"
SLOW = "200 tokens/s a replica while work waits; 400 in the benchmark"

ROWS = [
    (DUE, work(72_000.0), WARNED, "The 72,008 requests in the system end at 15:00; they are due at 12:00 UTC"),
    (DUE, work(30_000.0), FINE, "The 30,008 requests in the system end at 11:06; they are due at 12:00 UTC"),
    (DUE, work(40_000.0), GUESSED, ""),
    (batch(hours=8, requests=200_000), work(100.0, tokens=300.0), WARNED, PRESENT_RATE),
    (batch(hours=8, requests=80_000), work(100.0, tokens=300.0), FINE, PRESENT_RATE),
    (batch(hours=8, tokens=20_000_000), work(100.0, tokens=300.0), GUESSED, PRESENT_RATE),
    (batch(hours=8, tokens=8_000_000), work(100.0, tokens=300.0), FINE, PRESENT_RATE),
    (TIMED, work(100.0, tokens=200.0), WARNED, SLOW),
    (TIMED, work(100.0, tokens=320.0), FINE, ""),
    (TIMED, work(0.0, tokens=200.0), UNPLANNED, ""),
    (batch(deadline="12:00", hours=1, requests=10**6), IDLE, UNSEEN, ""),
    (batch(), work(100.0), UNPLANNED, ""),
    (DUE, work(100.0, rps=0.01), EARLY, ""),
    (context(), work(100.0), UNPLANNED, "the plan's workload is no batch work"),
]


@pytest.mark.parametrize(("view", "windows", "wanted", "text"), ROWS)
def test_batch_work_against_its_plan(view: TierContext, windows: list[Window], wanted: Wanted, text: str) -> None:
    check_result(judged(view, windows), wanted, text)


def test_batch_tier_skips_online_rules() -> None:
    for name in ("TtftDivergence", "QueueGrowing", "NoHeadroom", "LoadBeyondBenchmark"):
        found = unknown(name, batch(deadline="12:00"), work(72_000.0))
        assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "not asked: batch tier"), name
        online = answered(name, context(), work(72_000.0))
        assert not isinstance(online, Unknown) or "batch" not in online.text


def test_batch_step_13_asks_for_work() -> None:
    view = batch(deadline="12:00")
    binned = minutes(view, {"a": work(72_000.0)}).binned
    now = binned[-1].window.end
    found = check_benchmark(view, binned, now, 60.0)
    assert found.status is Status.WARNING
    assert "BatchWork, certain: The 72,008 requests in the system end at 15:00" in check_text([found], "1h", 1200.0)
    assert "runbook: docs/special-tiers.md" in check_text([found], "1h", 1200.0)
    asked = check_benchmark(context(), binned, now, 60.0).results
    assert BATCH_WORK.name not in {one.rule for one in asked}


def test_batch_promises_no_first_token() -> None:
    plan = tier(slo={}, workload={"archetype": "batch"})
    assert plan.slo.ttft_p99_seconds is None
    # The highest load of the curve is usable where nothing limits it.
    assert context(slo={}, workload={"archetype": "batch"}).capacity.rps == 6.0  # type: ignore[union-attr]
    assert plan_version(plan) != plan_version(tier())
    with pytest.raises(Exception, match=r"slo\.ttft_p99_seconds: is missing"):
        tier(slo={})
    with pytest.raises(Exception, match=r"batch: is for workload\.archetype: batch"):
        tier(batch={"hours": 8})


def test_example_plan_is_valid_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "check", str(EXAMPLE)]) == 0
    assert main.main(["plan", "show", str(EXAMPLE)]) == 0
    assert "no latency: batch work" in capsys.readouterr().out
    main.main(["replay", str(recorded.folder("steady")), "--plan", str(EXAMPLE)])
    assert "not asked: batch tier" in " ".join(capsys.readouterr().out.split())
