"""Speculative acceptance, and what its rounds are worth (DESIGN 3.7; guide 6.6, 9.3).

Tokens per round are measured. The plan has the step times, for the batch they were measured with. A speculator can accept
well and lose.
"""

from __future__ import annotations

from dataclasses import replace

from rules.methods.bands import judge_band
from rules.sizing import acceptance_from_mean_accepted, speculation_speed_up
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Missing, Reading
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Unknown

_FAMILIES = families_of(BY_NAME["tokens_per_round"]) | {"spec_draft_tokens", "spec_steps"}


def judge_acceptance(case: RuleContext) -> RuleResult:
    """Compare the acceptance with its limits. The details have the speed-up, where the plan has the step times."""
    result = judge_band(case)
    if isinstance(result, Unknown):
        return result
    return replace(result, details=(*result.details, *_describe_economics(case)))


def _describe_economics(case: RuleContext) -> tuple[str, ...]:
    """Return the speed-up over plain decoding, and the acceptance from which on drafts of this length pay.

    That is the lowest a at which k drafted tokens pay: a + a^2 + ... + a^k = k x draft step / verify step.
    """
    planned = case.context.plan.speculation if case.context.plan else None
    if planned is None or planned.draft_step_seconds is None or planned.verify_step_seconds is None:
        return ()
    total = hold(case.binned).sum_families(_FAMILIES)
    tokens, drafted = read(BY_NAME["tokens_per_round"], total), ratio(total, "spec_draft_tokens", "spec_drafts")
    if isinstance(tokens, Missing) or tokens.value is None:
        return ()
    if isinstance(drafted, Missing):
        drafted = mean_level(total, "spec_steps")
    length = drafted.value if isinstance(drafted, Reading) and drafted.value else float(planned.draft_tokens)
    speed_up = speculation_speed_up(tokens.value, length, planned.draft_step_seconds, planned.verify_step_seconds)
    cost, drafts = planned.draft_step_seconds / planned.verify_step_seconds, max(1, round(length))
    pays = "it cannot pay at any acceptance: a draft takes as long as a step"
    if cost < 1:
        least = acceptance_from_mean_accepted(drafts * cost, drafts)
        pays = f"it pays from an acceptance of {number(least, 'ratio')} on"
    return (
        f"speculation runs at {speed_up:.2f}x plain decoding; {pays}",
        f"a round of {length:.2g} drafted tokens yields {tokens.value:.2f} tokens",
        f"it takes as long as {1 + length * cost:.2f} plain steps by the plan's step times",
    )
