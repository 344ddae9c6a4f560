"""PdRatioOff: a prefill replica does 1000 prompt tokens a second, a decode replica 100 output tokens a second.

Two of each are there. 1200 prompt and 120 output tokens a second want 1.2 of each; 1800 and 60 want 1.8 and 0.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, answered, each, minute, tier
from report_samples import POOLED, pool_hours, tier_view
from rule_cases import EARLY, FINE, HIDDEN, UNPLANNED, UNSEEN, WARNED, Wanted, check_result, outcome, words

from rules.confidence import Certainty
from rules.evaluator.long_rules import evaluate_long_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import RuleResult, Status

RULE = "PdRatioOff"
PLAN = tier(
    pools=["prefill", "decode"], disaggregation={"prefill_tokens_per_second": 1000, "decode_tokens_per_second": 100}
)
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

    def made(name: str) -> Callable[[int], Window]:
        several = list(pools.values()).count(pools[name]) or 1

        def of(number: int) -> Window:
            asked = prompt(number) if callable(prompt) else prompt
            prefill = pools[name] == "prefill"
            # A decode replica counts the prompts it is handed, a prefill replica one output token a request.
            return tokens(number, asked / several, 1.0 if prefill else generated / several)

        return of

    seen = context or view_of("t", PLAN, limits={RULE: limits}, pools=pools)
    return answered(RULE, seen, {name: each(count, made(name)) for name in pools})


def prompts_from(first: int, high: float = 7000.0) -> Callable[[int], float]:
    """Prompt tokens a second that rise in this minute."""
    return lambda n: high if n >= first else 600.0


def without(missing: str) -> dict[str, str]:
    return {name: "mixed" if pool == missing else pool for name, pool in POOLS.items()}


def row(
    name: str, prompt: Callable[[int], float] | float, generated: float, wanted: Wanted, text: str = "", **more: Any
) -> Any:
    return pytest.param(prompt, generated, wanted, text, more, id=name)


FITTING = "pool is short, 90% of it is used; {} replicas would fit; 2 prefill and 2 decode replicas (P:D 1)"
WANTED = "the traffic wants P:D {}; do not disaggregate: prompts have {} tokens, fewer than 500"
PREFILL_SHORT = f"The prefill {FITTING.format('3 and 1')}; {WANTED.format(3, 300)}"
DECODE_SHORT = f"The decode {FITTING.format('1 and 3')}; {WANTED.format(0.33, 100)}"
AS_IT_IS = f"2 prefill and 2 decode replicas (P:D 1); {WANTED.format(1, 200)}"

ROWS = [
    row("prefill is short", 1800.0, 60.0, WARNED, PREFILL_SHORT),
    row("decode is short", 600.0, 180.0, WARNED, DECODE_SHORT),
    row("as planned", 1200.0, 120.0, FINE, AS_IT_IS),
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
    row(
        "pools planned jointly",
        1800.0,
        60.0,
        UNPLANNED,
        "the plan has no disaggregation",
        context=view_of("t", tier(), pools=POOLS),
    ),
    row("no plan", 1800.0, 60.0, UNPLANNED, "the plan has no disaggregation", context=view_of("t", None, pools=POOLS)),
    *(
        row(f"no {pool} target", 1800.0, 60.0, HIDDEN, f"configured with `pool: {pool}`", pools=without(pool))
        for pool in ("prefill", "decode")
    ),
    row("no output", 1800.0, 0.0, UNSEEN),
    row("no prompts", 0.0, 60.0, UNSEEN),
]


@pytest.mark.parametrize(("prompt", "generated", "wanted", "text", "more"), ROWS)
def test_ratio_of_two_pools(
    prompt: Callable[[int], float] | float, generated: float, wanted: Wanted, text: str, more: dict[str, Any]
) -> None:
    check_result(judged(prompt, generated, **more), wanted, text)


def test_long_prompts_are_worth_two_pools() -> None:
    assert "disaggregate" not in words(judged(1200.0, 120.0, short_prompt=150))


def test_unseen_pool_is_failed_scrape() -> None:
    def down(number: int) -> Window:
        return gap_window(START + 60 * number, START + 60 * (number + 1), Gap.SCRAPE_FAILED)

    seen = view_of("t", PLAN, pools=POOLS)
    replicas = {name: each(8, down if name[0] == "d" else lambda n: tokens(n, 900.0)) for name in POOLS}
    found = answered(RULE, seen, replicas)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "generation_tokens of the decode pool were not measured")


def test_dead_replica_is_not_counted() -> None:
    pools = dict(POOLS)
    replicas = {name: each(8, lambda n: tokens(n, 900.0, 30.0)) for name in ("p0", "p1", "d0")}
    replicas["d1"] = [gap_window(START + 60 * n, START + 60 * (n + 1), Gap.SCRAPE_FAILED) for n in range(8)]
    found = answered(RULE, view_of("t", PLAN, pools=pools), replicas)
    assert found.sentence.startswith("2 prefill and 1 decode replicas (P:D 2)")


def load(number: int, rps: float, prompt: float, output: float) -> Window:
    counters = {"requests_finished": rps, "in_system_change": 0.0, "prompt_tokens": rps * prompt}
    made = minute(number, counters={name: 60 * each for name, each in counters.items()} | {OUT: 60 * rps * output})
    # The minute's first tokens are of other requests.
    return replace(made, histograms={name: part for name, part in made.histograms.items() if name != "ttft_seconds"})


OUT = "generation_tokens"
SIZED = tier(
    pools=["prefill", "decode"],
    disaggregation={
        "prefill_tokens_per_second": 1000,
        "decode_tokens_per_second": 100,
        "prefill_instances": 2,
        "decode_instances": 2,
    },
    fleet={"instances": 4},
    cost={"gpu_hour_price": 2.5, "currency": "USD"},
)


def of_load(rule: str, rps: float, prompt: float, output: float, plan: object = SIZED, count: int = 15) -> RuleResult:
    """What a rule says when 2 replicas of each pool share so many requests a second of these lengths."""
    seen = view_of("t", plan, pools=POOLS)  # type: ignore[arg-type]

    def made(name: str) -> Callable[[int], Window]:
        return lambda n: load(n, rps / 2, prompt, 1.0 if POOLS[name] == "prefill" else output)

    return answered(rule, seen, {name: each(count, made(name)) for name in POOLS})


LOADS = [
    (
        ("NoHeadroom", 4.0, 475.0, 10.0),
        WARNED,
        (
            "Prefill pool: fleet utilisation is 95.0%; 3 replicas are needed (63.3% used), 2.0 were ready",
            "decode pool: Fleet utilisation is 20.0%; up to 90% leaves headroom",
            "1 more cost 60 USD a day",
        ),
    ),
    (("NoHeadroom", 4.0, 100.0, 47.5), WARNED, ("Decode pool: fleet utilisation is 95.0%; 3 replicas are needed",)),
    (("NoHeadroom", 4.0, 300.0, 40.0), FINE, ("Decode pool: fleet utilisation is 80.0%; up to 90% leaves headroom",)),
    # A pool that is not evaluated hides no finding.
    (("NoHeadroom", 4.0, 475.0, 0.0), WARNED, ()),
    (("NoHeadroom", 4.0, 100.0, 0.0), UNPLANNED, ("decode pool: no mean generation tokens",)),
    (
        ("NoHeadroom", 4.0, 475.0, 10.0, tier(pools=["prefill", "decode"])),
        UNPLANNED,
        ("the plan has no `disaggregation`: tokens a second of each pool",),
    ),
    (
        ("DemandExceedsCapacity", 4.0, 750.0, 10.0),
        (Status.CRITICAL, Certainty.CERTAIN),
        (
            "Prefill pool: 4 rps arrive, 2 ready replicas take 2.67 rps; at least 2 more are needed",
            "the 2 planned would not be enough",
        ),
    ),
    (("DemandExceedsCapacity", 4.0, 300.0, 40.0), FINE, ("Decode pool: 4 rps arrive, 2 ready replicas take 5 rps",)),
]


@pytest.mark.parametrize(("load", "wanted", "texts"), LOADS)
def test_fuller_pool_decides(load: tuple[Any, ...], wanted: Wanted, texts: tuple[str, ...]) -> None:
    found = of_load(*load)
    assert outcome(found) == wanted
    for text in texts:
        assert text in words(found)


@pytest.mark.parametrize(
    ("rps", "surplus", "said", "other"), [(6.0, 4.0, "15.0%", "3.0 of 4.0"), (14.0, 3.0, "35.0%", "2.0 of 4.0")]
)
def test_surplus_of_tier_is_both(rps: float, surplus: float, said: str, other: str) -> None:
    seen = tier_view(**POOLED)
    placed = [
        BinnedWindow(replica=pool, window=one, rps=None, in_system=None)
        for pool, several in pool_hours(168, lambda _: rps).items()
        for one in several
    ]
    results = evaluate_long_rules(seen, placed, max(one.window.end for one in placed))
    found = next(one for one in results if one.rule == "UtilizationTrap")
    assert (found.idle.replicas, found.idle.ready, found.idle.cost_per_day) == (surplus, 6.0, 120 * surplus)
    assert f"pool: fleet utilisation is {said} over 7.0 days; 1.0 of " in found.sentence
    assert other in found.details[-1]
