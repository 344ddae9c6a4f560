"""MixedTierLoadBalancing: a fast tier of usable 6 rps a replica and a slow one of 2, by their plans, of one model.

Requests follow the tiers where the fast one gets three times as many a replica; half way, by logarithm, is 1.73 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from judging_samples import START, each, minute, minutes, seen, tier
from recorded import replayed
from rule_cases import FINE, GUESSED, WARNED, Wanted, check_result, explain, outcome

from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Finding, RuleResult, Status

RULE = "MixedTierLoadBalancing"


def context(name: str, usable: float | None, model: str = "m", **limits: float) -> TierContext:
    parts = {"model": model, "gpu": {"product": "A", "per_replica": 1}, "engine": "vllm"}
    whole: dict[str, Any] = {**parts, "slo": {"ttft_p99_seconds": 2.0}}
    if usable is not None:
        whole["operating_point"] = {"usable_rps": usable, "c_max": 8}
    plan = parse_plan({"schema": 1, "tiers": {name: whole}}).tiers[name]
    return view_of(name, plan, limits={RULE: limits} if limits else None)


FAST, SLOW = context("fast", 6.0), context("slow", 2.0)


def served(number: int, rps: float, seconds: float = 0.08, prompt: float = 100.0, out: float = 100.0) -> Window:
    lengths = {"prompt_tokens_per_request": prompt, "generation_tokens_per_request": out}
    histograms = dict.fromkeys(("ttft_seconds", "tpot_seconds"), seen({seconds: rps * 60}))
    histograms |= {family: seen({value: rps * 60}, (1000.0, 10000.0)) for family, value in lengths.items()}
    return minute(number, rps=rps, histograms=histograms)


def judged(
    fast: Callable[[int], Window],
    slow: Callable[[int], Window],
    *,
    contexts: tuple[TierContext, ...] = (FAST, SLOW),
    replicas: int = 1,
    count: int = 5,
    about: int = 1,
) -> RuleResult:
    """What the rule says of one of the two tiers; the fast one has so many replicas alike."""
    booked = {
        contexts[0].name: minutes(contexts[0], {f"f{n}": each(count, fast) for n in range(replicas)}),
        contexts[1].name: minutes(contexts[1], {"s": each(count, slow)}),
    }
    fleet = {each_view.name: (each_view, booked[each_view.name].binned) for each_view in contexts}
    own = contexts[about]
    results = tier_rules.evaluate_tier_rules(booked[own.name], own, START + 60 * count, fleet)
    return next(a for a in results if a.rule == RULE)


def at(rps: float, **more: float) -> Callable[[int], Window]:
    return lambda n: served(n, rps, **more)


def busy_in(*busy: int) -> Callable[[int], Window]:
    """3 rps in these minutes, 1 in the others."""
    return lambda n: served(n, 3.0 if n in busy else 1.0)


def down(number: int) -> Window:
    return gap_window(START + 60 * number, START + 60 * (number + 1), Gap.SCRAPE_FAILED)


def unmeasured(number: int) -> Window:
    return minute(number, rps=2.0, histograms={"ttft_seconds": (), "tpot_seconds": ()})


def swept(name: str, top: float) -> TierContext:
    """A tier whose benchmark never broke the objective: its usable rps is a lower bound."""
    changes = [{"completed_rps": top * part} for part in (0.3, 0.6, 1.0)]
    return view_of(name, tier(*changes))


def row(
    name: str, fast: Callable[[int], Window], slow: Callable[[int], Window], wanted: Wanted, text: str = "", **more: Any
) -> Any:
    return pytest.param(fast, slow, wanted, text, more, id=name)


SWEPT = swept("fast", 6.0), swept("slow", 2.0)
UNPLACED = context("fast", None), context("slow", None)
BY_LENGTH = "Requests are given to fast and slow by their lengths"
NO_PAIR = "no 3 minutes with traffic on both, or no speeds to compare; others of the model: fast"

ROWS = [
    row("equal shares", at(2.0), at(2.0), WARNED),
    row("the faster tier", at(2.0), at(2.0), FINE, "is much faster than fast; usable are 6 and 2", about=0),
    # A round robin over seven fast replicas and a slow one (guide 9.5) gives the slow tier an eighth.
    row("equal shares of eight replicas", at(2.0), at(2.0), WARNED, replicas=7),
    row("a third for the slow one of eight", at(2.0), at(0.67), FINE, replicas=7),
    row("a share just near equal", at(1.7), at(1.0), WARNED),
    row("a share just not equal", at(1.76), at(1.0), FINE),
    row("a share that favours the slow tier", at(0.5), at(1.0), WARNED),
    row("tiers just unequal", at(2.0), at(2.0), WARNED, contexts=(context("fast", 2.61), SLOW)),
    row("tiers just equal", at(2.0), at(2.0), FINE, contexts=(context("fast", 2.59), SLOW)),
    *(row(f"minute {good} was good", busy_in(good), at(1.0), FINE) for good in (2, 3, 4)),
    row("earlier minutes were good", busy_in(0, 1), at(1.0), WARNED),
    row("the limit of a tier", at(2.0), at(2.0), FINE, contexts=(FAST, context("slow", 2.0, unequal=3.1))),
    row("bounded points, alike latency", at(1.0), at(1.0), GUESSED, contexts=SWEPT),
    row("bounded points, latency differs", at(1.0), at(1.0, seconds=0.4), WARNED, contexts=SWEPT),
    row("latency alone", at(2.0), at(2.0, seconds=0.4), WARNED, "tokens take 0.4 and 0.08 s", contexts=UNPLACED),
    row("slow for its load", at(1.0), at(4.0, seconds=0.4), FINE, contexts=UNPLACED),
    row("prompts nearly alike", at(2.0), at(2.0, prompt=140.0), WARNED),
    row("outputs nearly alike", at(2.0), at(2.0, out=140.0), WARNED),
    *(row(f"prompts of {n}", at(2.0), at(2.0, prompt=n), FINE, BY_LENGTH) for n in (60.0, 160.0)),
    *(row(f"outputs of {n}", at(2.0), at(2.0, out=n), FINE, BY_LENGTH) for n in (60.0, 160.0)),
    row(
        "another model",
        at(2.0),
        at(2.0),
        FINE,
        "No other tier of m is watched",
        contexts=(context("fast", 6.0, model="x"), SLOW),
    ),
    row("no plan tells the model", at(2.0), at(2.0), Gap.NOT_IN_PLAN, contexts=(FAST, view_of("slow", None))),
    row("too few requests", at(0.16), at(0.16), Gap.TOO_FEW_REQUESTS),
    row("just enough requests", at(0.17), at(0.17), WARNED),
    row("too few common minutes", lambda n: down(n) if n < 3 else served(n, 2.0), at(2.0), Gap.TOO_FEW_REQUESTS),
    row("no speed to compare", unmeasured, unmeasured, Gap.TOO_FEW_REQUESTS, NO_PAIR, contexts=UNPLACED),
    row("unseen", at(2.0), down, Gap.SCRAPE_FAILED),
]


@pytest.mark.parametrize(("fast", "slow", "wanted", "text", "more"), ROWS)
def test_shares_of_unequal_tiers(
    fast: Callable[[int], Window], slow: Callable[[int], Window], wanted: Wanted, text: str, more: dict[str, Any]
) -> None:
    check_result(judged(fast, slow, **more), wanted, text)


def test_equal_share_names_slower_tier() -> None:
    found = judged(at(2.0), at(2.0, seconds=0.4))
    assert (outcome(found), found.subject.tier) == (WARNED, "slow")
    assert explain(found) == "Each replica of slow gets 2 rps, of fast 2 rps; usable are 2 and 6 by the plan"
    assert found.observed.value == pytest.approx(0.5)  # type: ignore[union-attr]
    assert found.expected.value == pytest.approx(0.25)  # type: ignore[union-attr]


SECOND_HALF = 1795204028.963


def test_recording_names_slow_tier() -> None:
    found = {
        s.result.subject.tier: s for s in replayed("mixed_tier", "mixed-tier").rule_states if s.result.rule == RULE
    }
    slow = found["cpu-slow"]
    assert (slow.result.status, slow.result.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert slow.finding.started_at > SECOND_HALF
    assert explain(slow.result) == (
        "Each replica of cpu-slow gets 1.39 rps, of cpu-fast 1.55 rps; usable are 0.62 and 2.49 by the plan"
    )
    assert not [e for e in replayed("mixed_tier", "mixed-tier").ended if e.rule == RULE and isinstance(e, Finding)]
    assert found["cpu-fast"].finding is None
