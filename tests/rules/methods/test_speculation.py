"""Acceptance of speculation, and what its rounds are worth by the plan's step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status

RULE = "SpeculationAcceptanceLow"


def planned(draft: float | None = 0.003, verify: float | None = 0.012, **parts: Any) -> TierContext:
    """Four drafts at a quarter of a step each: a round takes as long as two plain steps."""
    steps = {"draft_step_seconds": draft, "verify_step_seconds": verify}
    given = {key: value for key, value in steps.items() if value is not None}
    return context(speculation={"draft_tokens": 4, **given}, **parts)


def drafting(number: int, accepted: float, rounds: float = 200.0, drafts: float = 4.0) -> Window:
    """A minute of so many rounds, of which each accepted so many of its drafts on average."""
    counted = {"spec_drafts": 1.0, "spec_draft_tokens": drafts, "spec_accepted_tokens": accepted}
    return minute(number, counters={family: rounds * count for family, count in counted.items()})


def test_losing_rounds_tell_what_pays() -> None:
    found = verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.98)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Speculative acceptance is 51.3%; 60.0% or more is healthy; "
        "speculation runs at 0.99x plain decoding; it pays from an acceptance of 51.9% on"
    )


def test_accepting_loser_says_so() -> None:
    found = verdict(RULE, planned(draft=0.012), each(5, lambda n: drafting(n, 3.0)))
    assert found.status is Status.OK
    assert found.details[0] == (
        "speculation runs at 0.80x plain decoding; it cannot pay at any acceptance: a draft takes as long as a step"
    )


def test_the_speed_up_is_the_published_one() -> None:
    """0.8 a token over 5 drafts at a tenth of a step: 3.69 tokens for 1.5 steps (Leviathan et al. 2023)."""
    accepted = sum(0.8**i for i in range(1, 6))
    tier = context(speculation={"draft_tokens": 5, "draft_step_seconds": 0.001, "verify_step_seconds": 0.01})
    found = verdict(RULE, tier, each(5, lambda n: drafting(n, accepted, drafts=5.0)))
    assert found.details[0].startswith("speculation runs at 2.46x plain decoding")


def test_drafted_tokens_count() -> None:
    """Of n-gram drafts there are often fewer: two drafts cost half as much."""
    found = verdict(RULE, planned(), each(5, lambda n: drafting(n, 0.6, drafts=2.0)))
    assert found.details[0].startswith(f"speculation runs at {1.6 / 1.5:.2f}x plain decoding")


def test_averages_are_read_too() -> None:
    gauges = {
        name: replace(gauge(level), samples=60) for name, level in (("spec_accept_length", 2.1), ("spec_steps", 4.0))
    }
    found = verdict(RULE, planned(), each(15, lambda n: minute(n, gauges=gauges)))
    assert found.details[0].startswith("speculation runs at 1.05x plain decoding")


@pytest.mark.parametrize("tier", [context(), planned(draft=None), planned(verify=None)])
def test_missing_step_times_tell_acceptance(tier: TierContext) -> None:
    found = verdict(RULE, tier, each(5, lambda n: drafting(n, 3.0)))
    assert (found.status, found.details) == (Status.OK, ())


def test_stopped_speculation_is_not_judged() -> None:
    assert unknown(RULE, planned(), each(5, minute)).text
