"""Acceptance of speculation, and what its rounds are worth by the plan's step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, verdict
from rule_cases import FINE, HIDDEN, WARNED, Case, check_case

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


def rounds(accepted: float, drafts: float = 4.0) -> list[Window]:
    return each(5, lambda n: drafting(n, accepted, drafts=drafts))


AVERAGES = {
    name: replace(gauge(level), samples=60) for name, level in (("spec_accept_length", 2.1), ("spec_steps", 4.0))
}
AVERAGED = each(15, lambda n: minute(n, gauges=AVERAGES))
# 0.8 a token over 5 drafts at a tenth of a step: 3.69 tokens for 1.5 steps (Leviathan et al. 2023).
PUBLISHED = context(speculation={"draft_tokens": 5, "draft_step_seconds": 0.001, "verify_step_seconds": 0.01})
LOSING = (
    "Speculative acceptance is 51.3%; 60.0% or more is healthy; "
    "speculation runs at 0.99x plain decoding; it pays from an acceptance of 51.9% on"
)
NEVER = "runs at 0.80x plain decoding; it cannot pay at any acceptance: a draft takes as long as a step"

CASES = [
    Case("losing", planned(), rounds(0.98), WARNED, LOSING),
    Case("drafts as slow as steps", planned(draft=0.012), rounds(3.0), FINE, NEVER),
    Case("published", PUBLISHED, rounds(sum(0.8**i for i in range(1, 6)), 5.0), FINE, "2.46x plain decoding"),
    # Of n-gram drafts there are often fewer: two drafts cost half as much.
    Case("two drafts", planned(), rounds(0.6, 2.0), (Status.CRITICAL, Certainty.CERTAIN), f"{1.6 / 1.5:.2f}x plain"),
    Case("averages", planned(), AVERAGED, WARNED, "runs at 1.05x plain decoding"),
    Case("not measured", planned(), each(5, minute), HIDDEN),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounds_against_plain_steps(case: Case) -> None:
    check_case(RULE, case)


@pytest.mark.parametrize("tier", [context(), planned(draft=None), planned(verify=None)])
def test_missing_step_times_tell_acceptance(tier: TierContext) -> None:
    found = verdict(RULE, tier, rounds(3.0))
    assert (found.status, found.details) == (Status.OK, ())
