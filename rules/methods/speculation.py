"""Economics of speculation: tokens of a round against the cost of its drafts (DESIGN 3.7; guide 6.6).

Tokens per round are measured. The plan has the step times, for the batch they were measured with. A speculator can accept
well and lose; acceptance alone is another rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.confidence import Certainty
from rules.light_dataclass import light_dataclass
from rules.methods.evidence import capitalize, certain_if, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Speculation
from rules.sizing import acceptance_from_mean_accepted, speculation_speed_up
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent, too_early
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import Action, RuleResult, Status

SUSPICION = ("If acceptance is suspiciously perfect, look at some answers: loops accept everything",)
"""Actions if every draft token is accepted: shorter drafts would only slow it down."""

_FAMILIES = frozenset(
    {
        *families_of(BY_NAME["speculative_acceptance"]),
        *families_of(BY_NAME["tokens_per_round"]),
        *("requests_finished", "requests_running"),
    }
)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRounds:
    """Rounds of speculation with their mean drafted tokens and mean yielded tokens, bonus token included.

    `exact`: read from counters. Averages that the engine prints have no bounds.
    """

    rounds: float
    drafted: float
    tokens: float
    exact: bool
    speed_up: float


def judge_economics(case: RuleContext) -> RuleResult:
    """Find a speed-up below the break-even, and an acceptance that is suspiciously perfect."""
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    planned = case.context.plan.speculation if case.context.plan else None
    total = _sum(case.binned)
    accepted = read(BY_NAME["speculative_acceptance"], total)
    if isinstance(accepted, Missing):
        absent = "no speculation was seen, though the plan has it" if planned else "no speculation is exposed"
        return case.unknown(accepted.gap, accepted.text or absent)
    if _is_too_perfect(case, accepted):
        sentence = f"Speculative acceptance is suspiciously perfect; {number(accepted.value or 0.0, 'ratio')} of the drafts tried"
        details = (f"over {accepted.n:,.0f} rounds", "repeated text is so: a loop, one prompt many times, a benchmark")
        expected = range_reading(0.0, case.limit("perfect"), accepted.n)
        verdict = case.verdict(Status.WARNING, Certainty.LIKELY, accepted, expected, sentence, details=details)
        return replace(verdict, actions=tuple(Action(text=text, runbook=verdict.rule) for text in SUSPICION))
    if planned is None or planned.draft_step_seconds is None or planned.verify_step_seconds is None:
        return _judge_unpriced(case, accepted)
    found = _measure_rounds(case.binned, planned)
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or "tokens a round are not known")
    if found.exact and found.rounds < case.limit("minimum_rounds"):
        needed = case.limit("minimum_rounds")
        return case.unknown(Gap.TOO_FEW_REQUESTS, f"{found.rounds:.0f} rounds of speculation, {needed:.0f} are needed")
    return _judge_speed_up(case, planned, found, total)


def _judge_unpriced(case: RuleContext, accepted: Reading) -> RuleResult:
    """Return unknown without the step times of the plan, or ok, which ends a finding of too perfect drafts."""
    text = "the plan's speculation has no draft_step_seconds and verify_step_seconds"
    acceptance = f"acceptance is {number(accepted.value or 0.0, 'ratio')}"
    if any(_is_perfect(case, group) for group in case.periods(case.binned)):
        sentence = f"{capitalize(acceptance)}; perfect no longer, or not for long"
        expected = range_reading(0.0, case.limit("perfect"), accepted.n)
        details = (f"whether it pays is not known: {text}",)
        return case.verdict(Status.OK, Certainty.LIKELY, accepted, expected, sentence, details=details)
    return case.unknown(Gap.NOT_IN_PLAN, f"{text}; {acceptance}")


def _judge_speed_up(case: RuleContext, planned: Speculation, found: SpeculationRounds, total: Window) -> RuleResult:
    least = case.limit("break_even")
    status = Status.OK
    if found.speed_up < least:
        last, *each = (
            part if isinstance(part := _measure_rounds(group, planned), SpeculationRounds) else None
            for group in (case.last_quarter(case.binned), *case.periods(case.binned))
        )
        early = too_early(case, case.binned, last, each, lambda part: part.speed_up < least)
        if early is not None:
            return early
        if is_persistent(last, each, lambda part: part.speed_up < least):
            status = Status.WARNING
    bound = found.speed_up if found.exact else None
    observed = Reading(value=found.speed_up, low=bound, high=bound, n=found.rounds)
    expected = range_reading(least, None, found.rounds)
    cost = (planned.draft_step_seconds or 0.0) / (planned.verify_step_seconds or 1.0)
    sentence = f"Speculation runs at {found.speed_up:.2f}x plain decoding; {_describe_break_even(found, cost)}"
    details = _describe(found, cost, total)
    return case.verdict(status, certain_if(found.exact), observed, expected, sentence, details=details)


def _sum(binned: Sequence[BinnedWindow]) -> Window:
    return hold(binned).sum_families(_FAMILIES)


def _measure_rounds(binned: Sequence[BinnedWindow], planned: Speculation) -> SpeculationRounds | Missing:
    """Return tokens per round as measured, and the speed-up over decoding one token per step."""
    if not binned:
        return Missing(gap=Gap.SCRAPE_FAILED)
    total = _sum(binned)
    tokens = read(BY_NAME["tokens_per_round"], total)
    if isinstance(tokens, Missing) or tokens.value is None:
        return tokens if isinstance(tokens, Missing) else Missing(gap=Gap.NOT_EXPOSED)
    drafted = ratio(total, "spec_draft_tokens", "spec_drafts")
    exact = isinstance(drafted, Reading) and drafted.low is not None and tokens.low == tokens.value
    if isinstance(drafted, Missing):
        drafted = mean_level(total, "spec_steps")
    length = drafted.value if isinstance(drafted, Reading) and drafted.value else float(planned.draft_tokens)
    speed_up = speculation_speed_up(
        tokens.value, length, planned.draft_step_seconds or 0.0, planned.verify_step_seconds or 1.0
    )
    return SpeculationRounds(rounds=tokens.n, drafted=length, tokens=tokens.value, exact=exact, speed_up=speed_up)


def _describe(found: SpeculationRounds, cost: float, total: Window) -> tuple[str, ...]:
    running = mean_level(total, "requests_running")
    return (
        f"a round of {found.drafted:.2g} drafted tokens yields {found.tokens:.2f} tokens",
        f"it takes as long as {1 + found.drafted * cost:.2f} plain steps by the plan's step times",
        f"{number(running.value or 0.0, '')} requests running a replica" if isinstance(running, Reading) else "",
    )


def _describe_break_even(found: SpeculationRounds, cost: float) -> str:
    """Return the lowest per-token acceptance a at which k drafted tokens pay: a + a^2 + ... + a^k = k x cost."""
    drafts = max(1, round(found.drafted))
    if cost >= 1:
        return "it cannot pay at any acceptance: a draft takes as long as a step"
    return f"it pays from an acceptance of {number(acceptance_from_mean_accepted(drafts * cost, drafts), 'ratio')} on"


def _is_too_perfect(case: RuleContext, accepted: Reading) -> bool:
    """Return whether counters of many rounds show perfect drafts, and still do in the last quarter."""
    if accepted.low is None or accepted.n < case.limit("perfect_rounds"):
        return False
    if (accepted.value or 0.0) < case.limit("perfect"):
        return False
    return _is_perfect(case, case.last_quarter(case.binned))


def _is_perfect(case: RuleContext, binned: Sequence[BinnedWindow]) -> bool:
    found = read(BY_NAME["speculative_acceptance"], _sum(binned)) if binned else None
    return isinstance(found, Reading) and found.low is not None and (found.value or 0.0) >= case.limit("perfect")
