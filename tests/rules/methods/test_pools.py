"""PdRatioOff: a prefill replica does 1000 prompt tokens a second, a decode replica 100 output tokens a second.

Two of each are there. 1200 prompt and 120 output tokens a second want 1.2 of each; 1800 and 60 want 1.8 and 0.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from judging_samples import START, answered, each, minute, tier
from prose import explain
from report_samples import POOLED, pool_hours, tier_view

from rules.confidence import Certainty
from rules.evaluator.long_rules import evaluate_long_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

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


def told(*args: object, **more: object) -> Verdict:
    found = judged(*args, **more)  # type: ignore[arg-type]
    assert isinstance(found, Verdict), found
    return found


def unknown(*args: object, **more: object) -> Unknown:
    found = judged(*args, **more)  # type: ignore[arg-type]
    assert isinstance(found, Unknown), found
    return found


def test_prefill_ratio_is_corrected() -> None:
    found = told(1800.0, 60.0)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "The prefill pool is short, 90% of it is used; 3 and 1 replicas would fit; "
        "2 prefill and 2 decode replicas (P:D 1); the traffic wants P:D 3; "
        "do not disaggregate: prompts have 300 tokens, fewer than 500"
    )
    assert found.actions


def test_decode_pool_is_named() -> None:
    found = told(600.0, 180.0)
    assert found.status is Status.WARNING
    assert explain(found) == (
        "The decode pool is short, 90% of it is used; 1 and 3 replicas would fit; "
        "2 prefill and 2 decode replicas (P:D 1); the traffic wants P:D 0.33; "
        "do not disaggregate: prompts have 100 tokens, fewer than 500"
    )


def test_long_prompts_are_worth_two_pools() -> None:
    found = told(1200.0, 120.0, short_prompt=150)
    assert not [text for text in found.details if "disaggregate" in text]


def test_the_planned_ratio_is_fine() -> None:
    found = told(1200.0, 120.0)
    assert (found.status, found.actions) == (Status.OK, ())
    assert explain(found) == (
        "2 prefill and 2 decode replicas (P:D 1); the traffic wants P:D 1; "
        "do not disaggregate: prompts have 200 tokens, fewer than 500"
    )


def test_unfixable_ratio_is_fine() -> None:
    """A wanted ratio of 1.6 is more than the factor away, and three and one would be farther."""
    assert told(1440.0, 90.0).status is Status.OK
    assert told(1800.0, 100.0).status is Status.OK


@pytest.mark.parametrize(("factor", "status"), [(2.9, Status.WARNING), (3.1, Status.OK)])
def test_ratio_must_miss_by_factor(factor: float, status: Status) -> None:
    assert told(1800.0, 60.0, factor=factor).status is status


@pytest.mark.parametrize(("scale", "status"), [(0.45, Status.WARNING), (0.44, Status.OK)])
def test_calm_pool_is_not_short(scale: float, status: Status) -> None:
    assert told(1800.0 * scale, 60.0 * scale).status is status


def test_brief_imbalance_of_pools_passes() -> None:
    assert told(lambda n: 7000.0 if n >= 6 else 600.0, 60.0).status is Status.OK
    assert told(lambda n: 7000.0 if n >= 5 else 600.0, 60.0).status is Status.WARNING
    assert told(lambda n: 7000.0 if n < 5 else 600.0, 60.0).status is Status.OK


def test_short_burst_moves_no_replica() -> None:
    assert told(lambda n: 2300.0 if n >= 27 else 600.0, 60.0, count=30).status is Status.OK
    assert told(lambda n: 2300.0 if n >= 15 else 600.0, 60.0, count=30).status is Status.WARNING


def test_before_its_minimum_it_says_nothing() -> None:
    assert unknown(1800.0, 60.0, count=4).reason is Gap.TOO_FEW_REQUESTS


def test_joint_plan_is_not_judged() -> None:
    for plan in (tier(), None):
        found = unknown(1800.0, 60.0, context=view_of("t", plan, pools=POOLS))
        assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan has no disaggregation")


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_targets_without_pools_cannot_be_told_apart(missing: str) -> None:
    pools = {name: "mixed" if pool == missing else pool for name, pool in POOLS.items()}
    found = unknown(1800.0, 60.0, pools=pools)
    assert found.reason is Gap.NOT_EXPOSED
    assert found.text.startswith(f"no target is configured with `pool: {missing}`")


def test_unseen_pool_is_failed_scrape() -> None:
    def down(number: int) -> Window:
        return gap_window(START + 60 * number, START + 60 * (number + 1), Gap.SCRAPE_FAILED)

    seen = view_of("t", PLAN, pools=POOLS)
    replicas = {name: each(8, down if name[0] == "d" else lambda n: tokens(n, 900.0)) for name in POOLS}
    found = answered(RULE, seen, replicas)
    assert isinstance(found, Unknown)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "generation_tokens of the decode pool were not measured")


def test_without_tokens_there_is_no_ratio() -> None:
    assert unknown(1800.0, 0.0).reason is Gap.NO_TRAFFIC
    assert unknown(0.0, 60.0).reason is Gap.NO_TRAFFIC


def test_dead_replica_is_not_counted() -> None:
    pools = dict(POOLS)
    replicas = {name: each(8, lambda n: tokens(n, 900.0, 30.0)) for name in ("p0", "p1", "d0")}
    replicas["d1"] = [gap_window(START + 60 * n, START + 60 * (n + 1), Gap.SCRAPE_FAILED) for n in range(8)]
    found = answered(RULE, view_of("t", PLAN, pools=pools), replicas)
    assert isinstance(found, Verdict)
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


def sentence(*args: object, **more: object) -> str:
    found = of_load(*args, **more)  # type: ignore[arg-type]
    assert isinstance(found, Verdict), found
    return found.sentence


@pytest.mark.parametrize(
    ("prompt", "output", "said"),
    [
        (475.0, 10.0, "Prefill pool: fleet utilisation is 95.0%; 3 replicas are needed (63.3% used), 2.0 were ready"),
        (100.0, 47.5, "Decode pool: fleet utilisation is 95.0%; 3 replicas are needed (63.3% used), 2.0 were ready"),
        (300.0, 40.0, "Decode pool: fleet utilisation is 80.0%; up to 90% leaves headroom"),
    ],
)
def test_the_fuller_pool_decides_on_headroom(prompt: float, output: float, said: str) -> None:
    assert sentence("NoHeadroom", 4.0, prompt, output) == said


def test_pools_price_their_own_replicas() -> None:
    found = of_load("NoHeadroom", 4.0, 475.0, 10.0)
    assert isinstance(found, Verdict)
    assert found.status is Status.WARNING
    assert "decode pool: Fleet utilisation is 20.0%; up to 90% leaves headroom" in found.details
    assert "1 more cost 60 USD a day" in found.details


@pytest.mark.parametrize(
    ("rps", "surplus", "said", "other"),
    [(6.0, 4.0, "15.0%", "3.0 of 4.0"), (14.0, 3.0, "35.0%", "2.0 of 4.0")],
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
    assert isinstance(found, Verdict)
    assert found.idle is not None
    assert (found.idle.replicas, found.idle.ready, found.idle.cost_per_day) == (surplus, 6.0, 120 * surplus)
    assert f"pool: fleet utilisation is {said} over 7.0 days; 1.0 of " in found.sentence
    assert other in found.details[-1]


def test_blocked_pool_shows_demand() -> None:
    found = of_load("DemandExceedsCapacity", 4.0, 750.0, 10.0)
    assert isinstance(found, Verdict)
    assert found.status is Status.CRITICAL
    assert found.sentence == (
        "Prefill pool: 4 rps arrive, 2 ready replicas take 2.67 rps; at least 2 more are needed; the 2 planned would not be enough"
    )
    assert (
        sentence("DemandExceedsCapacity", 4.0, 300.0, 40.0) == "Decode pool: 4 rps arrive, 2 ready replicas take 5 rps"
    )


def test_unjudged_pool_hides_no_finding() -> None:
    found = of_load("NoHeadroom", 4.0, 475.0, 0.0)
    assert isinstance(found, Verdict)
    assert found.status is Status.WARNING
    silent = of_load("NoHeadroom", 4.0, 100.0, 0.0)
    assert isinstance(silent, Unknown)
    assert silent.text.startswith("decode pool: no mean generation tokens")


def test_missing_rates_name_lack() -> None:
    found = of_load("NoHeadroom", 4.0, 475.0, 10.0, plan=tier(pools=["prefill", "decode"]))
    assert isinstance(found, Unknown)
    assert (found.reason, found.text) == (
        Gap.NOT_IN_PLAN,
        "the plan has no `disaggregation`: tokens a second of each pool",
    )
