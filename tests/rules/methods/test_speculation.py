from __future__ import annotations

from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, unknown, verdict
from prose import explain

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Unknown, Verdict

RULE = "SpeculationUneconomic"


def planned(draft: float | None = 0.003, verify: float | None = 0.012, **parts: Any) -> TierContext:
    """Four drafts at a quarter of a step each: a round takes as long as two plain steps."""
    steps = {"draft_step_seconds": draft, "verify_step_seconds": verify}
    given = {key: value for key, value in steps.items() if value is not None}
    return context(speculation={"draft_tokens": 4, **given}, **parts)


def drafting(number: int, accepted: float, rounds: float = 200.0, drafts: float = 4.0, **more: Any) -> Window:
    """A minute of so many rounds, of which each accepted so many of its drafts on average."""
    counters = {
        "spec_drafts": rounds,
        "spec_draft_tokens": rounds * drafts,
        "spec_accepted_tokens": rounds * accepted,
        **more.pop("counters", {}),
    }
    return minute(number, counters=counters, **more)


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_rounds_that_yield_what_they_cost_pay() -> None:
    found = verdict(RULE, planned(), each(5, lambda n: drafting(n, 1.0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "Speculation runs at 1.00x plain decoding; it pays from an acceptance of 51.9% on; "
        "a round of 4 drafted tokens yields 2.00 tokens; "
        "it takes as long as 2.00 plain steps by the plan's step times; "
        "3 requests running a replica"
    )
    assert found.observed == Reading(value=1.0, low=1.0, high=1.0, n=1000)


def test_rounds_that_yield_less_than_they_cost_lose_and_are_certain_by_their_counters() -> None:
    found = verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.98)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Speculation runs at 0.99x plain decoding; it pays from an acceptance of 51.9% on; "
        "a round of 4 drafted tokens yields 1.98 tokens; "
        "it takes as long as 2.00 plain steps by the plan's step times; "
        "3 requests running a replica"
    )
    assert found.actions[0].text.startswith("Draft fewer tokens")


def test_the_speed_up_is_the_published_one() -> None:
    """0.8 a token over 5 drafts at a tenth of a step: 3.69 tokens for 1.5 steps (Leviathan et al. 2023)."""
    accepted = sum(0.8**i for i in range(1, 6))
    tier = context(speculation={"draft_tokens": 5, "draft_step_seconds": 0.001, "verify_step_seconds": 0.01})
    found = verdict(RULE, tier, each(5, lambda n: drafting(n, accepted, drafts=5.0)))
    assert found.observed.value == pytest.approx(2.4595, abs=1e-4)  # type: ignore[union-attr]


def test_what_is_drafted_counts_and_not_what_was_planned() -> None:
    """Of n-gram drafts there are often fewer: two drafts cost half as much."""
    found = verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.6, drafts=2.0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.observed.value == pytest.approx(1.6 / 1.5)  # type: ignore[union-attr]


def test_a_speculator_as_slow_as_its_target_can_never_pay() -> None:
    found = verdict(RULE, planned(draft=0.012), each(5, lambda n: drafting(n, 3.0)))
    assert found.status is Status.WARNING
    assert found.sentence.endswith("it cannot pay at any acceptance: a draft takes as long as a step")


def test_a_loss_of_two_minutes_and_one_that_is_over_are_no_finding() -> None:
    assert verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.2 if n >= 3 else 1.1))).status is Status.OK
    assert verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.2 if n >= 2 else 1.1))).status is Status.WARNING
    assert verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.2 if n < 4 else 1.1))).status is Status.OK


def test_the_rule_waits_for_its_minimum_of_time_and_rounds() -> None:
    assert unknown(RULE, planned(), [drafting(0, 0.1, seconds=59.0)]).text == "59 s seen, 60 s are needed"
    few = unknown(RULE, planned(), each(5, lambda n: drafting(n, 0.1, rounds=59.8)))
    assert (few.reason, few.text) == (Gap.TOO_FEW_REQUESTS, "299 rounds of speculation, 300 are needed")


def test_without_the_plans_step_times_only_the_acceptance_can_be_told() -> None:
    for tier in (bare("t", None), context(), planned(draft=None), planned(verify=None)):
        found = unknown(RULE, tier, each(5, lambda n: drafting(n, 1.0)))
        assert found.reason is Gap.NOT_IN_PLAN
        assert (
            found.text
            == "the plan's speculation has no draft_step_seconds and verify_step_seconds; acceptance is 51.9%"
        )


def test_speculation_that_does_not_run_is_told_by_whether_it_was_planned() -> None:
    found = unknown(RULE, planned(), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "no speculation was seen, though the plan has it")
    assert unknown(RULE, context(), each(5, minute)).text == "no speculation is exposed"
    idle = unknown(RULE, planned(), each(5, lambda n: drafting(n, 0.0, rounds=0.0)))
    assert idle.reason is Gap.NO_TRAFFIC
    never = evaluate_rule(BY_NAME[RULE], planned(), (), now=0.0)
    assert isinstance(never, Unknown)
    assert never.reason is Gap.SCRAPE_FAILED


def test_an_engine_that_prints_only_averages_is_never_certain() -> None:
    def averaged(length: float) -> list[Window]:
        gauges = {"spec_accept_length": gauge(length), "spec_steps": gauge(4.0)}
        return each(5, lambda n: minute(n, gauges=gauges))

    assert said(verdict(RULE, planned(), averaged(2.1))) == (Status.OK, Certainty.LIKELY)
    assert said(verdict(RULE, planned(), averaged(1.9))) == (Status.WARNING, Certainty.LIKELY)


def test_perfect_acceptance_over_many_rounds_is_told_as_suspicious_and_needs_no_plan() -> None:
    for accepted, wanted in ((3.95, True), (3.85, False)):
        made = each(5, lambda n, k=accepted: drafting(n, k))
        if wanted:
            found = verdict(RULE, context(), made)
            assert said(found) == (Status.WARNING, Certainty.LIKELY)
            assert explain(found) == (
                "Speculative acceptance is suspiciously perfect; 99.5% of the drafts tried; "
                "over 1,000 rounds; "
                "repeated text is so: a loop, one prompt many times, a benchmark"
            )
            assert [action.text for action in found.actions] == [BY_NAME[RULE].actions[-1]]
        else:
            assert unknown(RULE, context(), made).reason is Gap.NOT_IN_PLAN


def test_a_suspicion_that_is_over_ends_without_a_plan_too() -> None:
    over = each(5, lambda n: drafting(n, 4.0 if n < 3 else 2.0))
    found = verdict(RULE, context(), over)
    assert said(found) == (Status.OK, Certainty.LIKELY)
    assert explain(found) == (
        "Acceptance is 91.3%; perfect no longer, or not for long; "
        "whether it pays is not known: the plan's speculation has no draft_step_seconds and verify_step_seconds"
    )


def test_a_thousand_rounds_are_needed_to_be_suspicious_and_the_end_must_be_so_too() -> None:
    assert verdict(RULE, planned(), each(5, lambda n: drafting(n, 4.0, rounds=199.0))).status is Status.OK
    over = each(5, lambda n: drafting(n, 4.0, rounds=9000.0) if n < 4 else drafting(n, 2.0, rounds=50.0))
    assert verdict(RULE, planned(), over).status is Status.OK
