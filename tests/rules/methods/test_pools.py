"""PdRatioOff: a prefill replica does 1000 prompt tokens a second, a decode replica 100 output tokens a second.

Two of each are there. 1200 prompt and 120 output tokens a second want 1.2 of each; 1800 and 60 want 1.8 and 0.6.

MixedTierLoadBalancing: a fast tier of usable 6 rps a replica and a slow one of 2, by their plans, of one model.
Requests follow the tiers where the fast one gets three times as many a replica; half way, by logarithm, is 1.73 times.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, answered, each, minute, minutes, seen, tier, unseen
from outcomes import EARLY, FINE, GUESSED, HIDDEN, PAGED, UNPLANNED, UNSEEN, WARNED, Wanted
from recorded import replayed
from report_samples import POOLED, pool_hours, tier_view
from rule_cases import check_result, check_words, explain, outcome, words

from rules.evaluator import rule_evaluation
from rules.evaluator.rule_evaluation import evaluate_long_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, RuleResult

RULE = "PdRatioOff"
RATES = {"prefill_tokens_per_second": 1000, "decode_tokens_per_second": 100}
PLAN = tier(pools=["prefill", "decode"], disaggregation=RATES)
POOLS = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}


def tokens(number: int, prompt: float = 0.0, generated: float = 0.0) -> Window:
    return minute(number, counters={"prompt_tokens": 60 * prompt, "generation_tokens": 60 * generated})


def judged(
    prompt: Callable[[int], float] | float,
    generated: float,
    count: int = 8,
    context: TierContext | None = None,
    pools: dict[str, str] = POOLS,
    **limits: float,
) -> RuleResult:
    """What it says when the two pools do so many tokens a second; each replica half of its pool's."""

    def of(number: int, pool: str) -> Window:
        several = list(pools.values()).count(pool)
        asked = prompt(number) if callable(prompt) else prompt
        # A decode replica counts the prompts it is handed, a prefill replica one output token a request.
        return tokens(number, asked / several, 1.0 if pool == "prefill" else generated / several)

    seen = context or view_of("t", PLAN, limits={RULE: limits}, pools=pools)
    replicas = {name: [of(number, pool) for number in range(count)] for name, pool in pools.items()}
    return answered(RULE, seen, replicas)


def prompts_from(first: int, high: float = 7000.0) -> Callable[[int], float]:
    """Prompt tokens a second that rise in this minute."""
    return lambda n: high if n >= first else 600.0


def without(missing: str) -> dict[str, str]:
    return {name: "mixed" if pool == missing else pool for name, pool in POOLS.items()}


def row(name: str, prompt: Callable[[int], float] | float, generated: float, wanted: Wanted, **more: Any) -> Any:
    return pytest.param(prompt, generated, wanted, more, id=name)


ROWS = [
    row("prefill is short", 1800.0, 60.0, WARNED),
    row("decode is short", 600.0, 180.0, WARNED),
    row("as planned", 1200.0, 120.0, FINE),
    # A wanted ratio of 1.6 is more than the factor away, and three and one would be farther.
    row("a ratio of 1.6", 1440.0, 90.0, FINE),
    row("a ratio of 1.8", 1800.0, 100.0, FINE),
    row("just beyond the factor", 1800.0, 60.0, WARNED, factor=2.9),
    row("just within the factor", 1800.0, 60.0, FINE, factor=3.1),
    row("just busy enough", 1800.0 * 0.45, 60.0 * 0.45, WARNED),
    row("just calm", 1800.0 * 0.44, 60.0 * 0.44, FINE),
    row("two minutes of eight", prompts_from(6), 60.0, FINE),
    row("three minutes of eight", prompts_from(5), 60.0, WARNED),
    row("over since three minutes", lambda n: 7000.0 if n < 5 else 600.0, 60.0, FINE),
    row("three minutes of thirty", prompts_from(27, 2300.0), 60.0, FINE, count=30),
    row("fifteen minutes of thirty", prompts_from(15, 2300.0), 60.0, WARNED, count=30),
    row("too early", 1800.0, 60.0, EARLY, count=4),
    row("pools planned jointly", 1800.0, 60.0, UNPLANNED, context=view_of("t", tier(), pools=POOLS)),
    row("no plan", 1800.0, 60.0, UNPLANNED, context=view_of("t", None, pools=POOLS)),
    *(row(f"no {pool} target", 1800.0, 60.0, HIDDEN, pools=without(pool)) for pool in ("prefill", "decode")),
    row("no output", 1800.0, 0.0, UNSEEN),
    row("no prompts", 0.0, 60.0, UNSEEN),
]


@pytest.mark.parametrize(("prompt", "generated", "wanted", "more"), ROWS)
def test_ratio_of_two_pools(
    prompt: Callable[[int], float] | float, generated: float, wanted: Wanted, more: dict[str, Any]
) -> None:
    check_result(judged(prompt, generated, **more), wanted)


def test_long_prompts_are_worth_two_pools() -> None:
    assert "disaggregate" not in words(judged(1200.0, 120.0, short_prompt=150))


def with_down(*names: str) -> RuleResult:
    """What the rule says while these replicas are not seen."""
    replicas = {name: each(8, lambda n: tokens(n, 900.0, 30.0)) for name in POOLS}
    replicas |= {name: each(8, unseen) for name in names}
    return answered(RULE, view_of("t", PLAN, pools=POOLS), replicas)


def test_dead_replica_is_not_counted() -> None:
    assert words(with_down("d1")).startswith("2 prefill and 1 decode replicas (P:D 2)")
    check_result(with_down("d0", "d1"), Gap.SCRAPE_FAILED, "generation_tokens of the decode pool were not measured")


COUNTS = {"prefill_instances": 2, "decode_instances": 2}
COST = {"gpu_hour_price": 2.5, "currency": "USD"}
SIZED = tier(pools=["prefill", "decode"], disaggregation=RATES | COUNTS, fleet={"instances": 4}, cost=COST)


def of_load(rule: str, rps: float, prompt: float, output: float, plan: object = SIZED, count: int = 15) -> RuleResult:
    """What a rule says when 2 replicas of each pool share so many requests a second of these lengths."""
    replicas = {}
    for name, pool in POOLS.items():
        tokens = {"prompt_tokens": prompt, "generation_tokens": 1.0 if pool == "prefill" else output}
        counters = {family: 30 * rps * each_request for family, each_request in tokens.items()}
        made = each(count, lambda n, counters=counters: minute(n, rps=rps / 2, counters=counters))
        # The minute's first tokens are of other requests.
        replicas[name] = [replace(one, histograms={"tpot_seconds": one.histograms["tpot_seconds"]}) for one in made]
    return answered(rule, view_of("t", plan, pools=POOLS), replicas)  # type: ignore[arg-type]


NO_RATES = tier(pools=["prefill", "decode"])

LOADS: list[tuple[tuple[Any, ...], Wanted]] = [
    (("NoHeadroom", 4.0, 475.0, 10.0), WARNED),
    (("NoHeadroom", 4.0, 100.0, 47.5), WARNED),
    (("NoHeadroom", 4.0, 300.0, 40.0), FINE),
    # A pool that is not evaluated hides no finding.
    (("NoHeadroom", 4.0, 475.0, 0.0), WARNED),
    (("NoHeadroom", 4.0, 100.0, 0.0), UNPLANNED),
    (("NoHeadroom", 4.0, 475.0, 10.0, NO_RATES), UNPLANNED),
    (("DemandExceedsCapacity", 4.0, 750.0, 10.0), PAGED),
    (("DemandExceedsCapacity", 4.0, 300.0, 40.0), FINE),
]


@pytest.mark.parametrize(("load", "wanted"), LOADS)
def test_fuller_pool_decides(load: tuple[Any, ...], wanted: Wanted) -> None:
    check_result(of_load(*load), wanted)


@pytest.mark.parametrize(
    ("rps", "surplus", "said", "other"), [(6.0, 4.0, "15.0%", "3.0 of 4.0"), (14.0, 3.0, "35.0%", "2.0 of 4.0")]
)
def test_surplus_of_tier_is_both(rps: float, surplus: float, said: str, other: str) -> None:
    placed = []
    for pool, several in pool_hours(168, lambda _: rps).items():
        placed += [BinnedWindow(replica=pool, window=one, rps=None, in_system=None) for one in several]
    results = evaluate_long_rules(tier_view(**POOLED), placed, max(one.window.end for one in placed))
    found = next(one for one in results if one.rule == "UtilizationTrap")
    assert (found.idle.replicas, found.idle.ready, found.idle.cost_per_day) == (surplus, 6.0, 120 * surplus)
    assert f"pool: fleet utilisation is {said} over 7.0 days; 1.0 of " in found.sentence
    assert other in found.details[-1]


BALANCING = "MixedTierLoadBalancing"


def context(name: str, usable: float | None, model: str = "m", **limits: float) -> TierContext:
    parts = {"model": model, "gpu": {"product": "A", "per_replica": 1}, "engine": "vllm"}
    whole: dict[str, Any] = {**parts, "slo": {"ttft_p99_seconds": 2.0}}
    if usable is not None:
        whole["operating_point"] = {"usable_rps": usable, "c_max": 8}
    plan = parse_plan({"schema": 1, "tiers": {name: whole}}).tiers[name]
    return view_of(name, plan, limits={BALANCING: limits} if limits else None)


FAST, SLOW = context("fast", 6.0), context("slow", 2.0)


def served(number: int, rps: float, seconds: float = 0.08, prompt: float = 100.0, out: float = 100.0) -> Window:
    lengths = {"prompt_tokens_per_request": prompt, "generation_tokens_per_request": out}
    histograms = dict.fromkeys(("ttft_seconds", "tpot_seconds"), seen({seconds: rps * 60}))
    histograms |= {family: seen({value: rps * 60}, (1000.0, 10000.0)) for family, value in lengths.items()}
    return minute(number, rps=rps, histograms=histograms)


def judged_shares(
    fast: Callable[[int], Window],
    slow: Callable[[int], Window],
    contexts: tuple[TierContext, ...] = (FAST, SLOW),
    replicas: int = 1,
    about: int = 1,
) -> RuleResult:
    """What the rule says of one of the two tiers; the fast one has so many replicas alike."""
    windows = {f"f{n}": each(5, fast) for n in range(replicas)}, {"s": each(5, slow)}
    booked = [minutes(tier, replicas) for tier, replicas in zip(contexts, windows, strict=True)]
    fleet = {tier.name: (tier, kept.binned) for tier, kept in zip(contexts, booked, strict=True)}
    results = rule_evaluation.evaluate_tier_rules(booked[about], contexts[about], START + 300, fleet)
    return next(a for a in results if a.rule == BALANCING)


def at(rps: float, **more: float) -> Callable[[int], Window]:
    return lambda n: served(n, rps, **more)


def busy_in(*busy: int) -> Callable[[int], Window]:
    """3 rps in these minutes, 1 in the others."""
    return lambda n: served(n, 3.0 if n in busy else 1.0)


def unmeasured(number: int) -> Window:
    return minute(number, rps=2.0, histograms={"ttft_seconds": (), "tpot_seconds": ()})


def swept(name: str, top: float) -> TierContext:
    """A tier whose benchmark never broke the objective: its usable rps is a lower bound."""
    changes = [{"completed_rps": top * part} for part in (0.3, 0.6, 1.0)]
    return view_of(name, tier(*changes))


def share_row(
    name: str, fast: Callable[[int], Window], slow: Callable[[int], Window], wanted: Wanted, **more: Any
) -> Any:
    return pytest.param(fast, slow, wanted, more, id=name)


OTHER = context("fast", 6.0, model="x")
SWEPT = swept("fast", 6.0), swept("slow", 2.0)
UNPLACED = context("fast", None), context("slow", None)

SHARE_ROWS = [
    share_row("equal shares", at(2.0), at(2.0), WARNED),
    share_row("the faster tier", at(2.0), at(2.0), FINE, about=0),
    # A round robin over seven fast replicas and a slow one (guide 9.5) gives the slow tier an eighth.
    share_row("equal shares of eight replicas", at(2.0), at(2.0), WARNED, replicas=7),
    share_row("a third for the slow one of eight", at(2.0), at(0.67), FINE, replicas=7),
    share_row("a share just near equal", at(1.7), at(1.0), WARNED),
    share_row("a share just not equal", at(1.76), at(1.0), FINE),
    share_row("a share that favours the slow tier", at(0.5), at(1.0), WARNED),
    share_row("tiers just unequal", at(2.0), at(2.0), WARNED, contexts=(context("fast", 2.61), SLOW)),
    share_row("tiers just equal", at(2.0), at(2.0), FINE, contexts=(context("fast", 2.59), SLOW)),
    *(share_row(f"minute {good} was good", busy_in(good), at(1.0), FINE) for good in (2, 3, 4)),
    share_row("earlier minutes were good", busy_in(0, 1), at(1.0), WARNED),
    share_row("the limit of a tier", at(2.0), at(2.0), FINE, contexts=(FAST, context("slow", 2.0, unequal=3.1))),
    share_row("bounded points, alike latency", at(1.0), at(1.0), GUESSED, contexts=SWEPT),
    share_row("bounded points, latency differs", at(1.0), at(1.0, seconds=0.4), WARNED, contexts=SWEPT),
    share_row("latency alone", at(2.0), at(2.0, seconds=0.4), WARNED, contexts=UNPLACED),
    share_row("slow for its load", at(1.0), at(4.0, seconds=0.4), FINE, contexts=UNPLACED),
    share_row("prompts nearly alike", at(2.0), at(2.0, prompt=140.0), WARNED),
    share_row("outputs nearly alike", at(2.0), at(2.0, out=140.0), WARNED),
    *(share_row(f"prompts of {n}", at(2.0), at(2.0, prompt=n), FINE) for n in (60.0, 160.0)),
    *(share_row(f"outputs of {n}", at(2.0), at(2.0, out=n), FINE) for n in (60.0, 160.0)),
    share_row("another model", at(2.0), at(2.0), FINE, contexts=(OTHER, SLOW)),
    share_row("no plan tells the model", at(2.0), at(2.0), Gap.NOT_IN_PLAN, contexts=(FAST, view_of("slow", None))),
    share_row("too few requests", at(0.16), at(0.16), Gap.TOO_FEW_REQUESTS),
    share_row("just enough requests", at(0.17), at(0.17), WARNED),
    share_row(
        "too few common minutes", lambda n: unseen(n) if n < 3 else served(n, 2.0), at(2.0), Gap.TOO_FEW_REQUESTS
    ),
    share_row("no speed to compare", unmeasured, unmeasured, Gap.TOO_FEW_REQUESTS, contexts=UNPLACED),
    share_row("unseen", at(2.0), unseen, Gap.SCRAPE_FAILED),
]


@pytest.mark.parametrize(("fast", "slow", "wanted", "more"), SHARE_ROWS)
def test_shares_of_unequal_tiers(
    fast: Callable[[int], Window], slow: Callable[[int], Window], wanted: Wanted, more: dict[str, Any]
) -> None:
    check_result(judged_shares(fast, slow, **more), wanted)


def test_words_read_as_the_golden() -> None:
    ratios = ((one.id, judged(*one.values[:2], **one.values[3])) for one in ROWS)
    loads = ((load[:4], of_load(*load)) for load, _ in LOADS)
    shares = ((one.id, judged_shares(*one.values[:2], **one.values[3])) for one in SHARE_ROWS)
    check_words(__file__, (*ratios, *loads, *shares))


def test_equal_share_names_slower_tier() -> None:
    found = judged_shares(at(2.0), at(2.0, seconds=0.4))
    assert (outcome(found), found.subject.tier) == (WARNED, "slow")
    assert explain(found) == "Each replica of slow gets 2 rps, of fast 2 rps; usable are 2 and 6 by the plan"
    assert (found.observed.value, found.expected.value) == pytest.approx((0.5, 0.25))  # type: ignore[union-attr]


def test_recording_names_slow_tier() -> None:
    done = replayed("mixed_tier", "mixed-tier")
    found = {state.result.subject.tier: state for state in done.rule_states if state.result.rule == BALANCING}
    slow = found["cpu-slow"]
    text = "Each replica of cpu-slow gets 1.39 rps, of cpu-fast 1.55 rps; usable are 0.62 and 2.49 by the plan"
    check_result(slow.result, WARNED, text)
    assert slow.finding.started_at > 1795204028.963, "in the second half"
    assert not [one for one in done.ended if one.rule == BALANCING and isinstance(one, Finding)]
    assert found["cpu-fast"].finding is None
