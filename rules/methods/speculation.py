"""Speculation: whether the tokens that a round yields pay for the drafts it needs (DESIGN 3.7; guide 6.6).

Owns the economics, with the plan's step times, and the suspicion of too perfect drafts. Tokens a round are measured; of a
draft step and a verification only the plan knows how long they take, at the batch it was measured with. A speculator can
accept well and lose: acceptance alone is another rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Speculation
from rules.sizing import acceptance_from_mean_accepted, speculation_speed_up
from rules.telemetry import windows
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent, too_early
from rules.verdicts.verdict import Action, RuleResult, Status

SUSPICION = ("If acceptance is suspiciously perfect, look at some answers: loops accept everything",)
"""Action where every draft token is accepted: shorter drafts would only slow it down."""

_FAMILIES = frozenset(
    {
        *families_of(BY_NAME["speculative_acceptance"]),
        *families_of(BY_NAME["tokens_per_round"]),
        *("requests_finished", "requests_running"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRounds:
    """Speculation in some slices: `rounds` of `drafted` tokens each on average yielded `tokens` each, bonus token included.

    `exact` says that counters tell it; averages that the engine prints itself are bounded by nothing.
    """

    rounds: float
    drafted: float
    tokens: float
    exact: bool
    speed_up: float

    @property
    def pays(self) -> bool:
        return self.speed_up >= 1.0


def judge_economics(case: RuleContext) -> RuleResult:
    """Speed-up below the break-even, and acceptance that is too good to be true."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    total = _sum(case.slices)
    accepted = read(BY_NAME["speculative_acceptance"], total)
    if isinstance(accepted, Missing):
        runs = case.view.plan is not None and case.view.plan.speculation is not None
        return case.unknown(accepted.gap, accepted.text or _not_running(planned=runs))
    if _too_perfect(case, accepted):
        return _suspicious(case, accepted)
    planned = case.view.plan.speculation if case.view.plan else None
    if planned is None or planned.draft_step_seconds is None or planned.verify_step_seconds is None:
        return _unpriced(case, accepted)
    found = _rounds(case.slices, planned)
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or "tokens a round are not known")
    if found.exact and found.rounds < case.limit("minimum_rounds"):
        needed = case.limit("minimum_rounds")
        return case.unknown(Gap.TOO_FEW_REQUESTS, f"{found.rounds:.0f} rounds of speculation, {needed:.0f} are needed")
    return _judged(case, planned, found, total)


def _unpriced(case: RuleContext, accepted: Reading) -> RuleResult:
    """Without the plan's step times; a suspicion that is over must be seen to be over."""
    text = "the plan's speculation has no draft_step_seconds and verify_step_seconds to reckon with"
    told = f"acceptance is {number(accepted.value or 0.0, 'ratio')}"
    if any(_perfect(case, group) for group in case.periods(case.slices)):
        sentence = (
            f"{told[0].upper()}{told[1:]}, not perfect any more or not for long; whether it pays is not known: {text}"
        )
        expected = Reading(value=None, low=0.0, high=case.limit("perfect"), n=accepted.n)
        return case.verdict(Status.OK, Certainty.LIKELY, accepted, expected, sentence)
    return case.unknown(Gap.NOT_IN_PLAN, f"{text}; {told}")


def _judged(case: RuleContext, planned: Speculation, found: SpeculationRounds, total: Window) -> RuleResult:
    least = case.limit("break_even")
    status, certainty = Status.OK, Certainty.CERTAIN if found.exact else Certainty.LIKELY
    if found.speed_up < least:
        each = [_known(group, planned) for group in case.periods(case.slices)]
        last = _known(case.last_quarter(case.slices), planned)
        early = too_early(case, case.slices, last, each, lambda part: part.speed_up < least)
        if early is not None:
            return early
        if is_persistent(last, each, lambda part: part.speed_up < least):
            status = Status.WARNING
    observed = Reading(value=found.speed_up, low=None, high=None, n=found.rounds)
    if found.exact:
        observed = Reading(value=found.speed_up, low=found.speed_up, high=found.speed_up, n=found.rounds)
    expected = Reading(value=None, low=least, high=None, n=found.rounds)
    return case.verdict(status, certainty, observed, expected, _sentence(planned, found, total))


def _sum(slices: Sequence[BinnedWindow]) -> Window:
    """Only what speculation is read from is added up."""
    return windows.sum_families((one.window for one in slices), _FAMILIES)


def _known(slices: Sequence[BinnedWindow], planned: Speculation) -> SpeculationRounds | None:
    found = _rounds(slices, planned)
    return None if isinstance(found, Missing) else found


def _rounds(slices: Sequence[BinnedWindow], planned: Speculation) -> SpeculationRounds | Missing:
    """Tokens a round as measured, and the speed-up they give over decoding one token a step."""
    if not slices:
        return Missing(gap=Gap.SCRAPE_FAILED)
    total = _sum(slices)
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


def _sentence(planned: Speculation, found: SpeculationRounds, total: Window) -> str:
    verdict = "speculation pays" if found.pays else "speculation loses"
    cost = (planned.draft_step_seconds or 0.0) / (planned.verify_step_seconds or 1.0)
    running = mean_level(total, "requests_running")
    batch = f", {running.value or 0.0:.2g} requests running a replica" if isinstance(running, Reading) else ""
    return (
        f"A round of {found.drafted:.2g} drafted tokens yields {found.tokens:.2f} tokens and takes as long as "
        f"{1 + found.drafted * cost:.2f} plain steps by the plan's step times: {found.speed_up:.2f}x, {verdict}{batch}; "
        f"{_break_even(found, cost)}"
    )


def _break_even(found: SpeculationRounds, cost: float) -> str:
    """The per-token acceptance from which on drafting so many tokens pays: a + a^2 + ... + a^k = k x cost."""
    drafts = max(1, round(found.drafted))
    if cost >= 1:
        return "it cannot pay at any acceptance: a draft takes as long as a step"
    return f"it pays from an acceptance of {number(acceptance_from_mean_accepted(drafts * cost, drafts), 'ratio')} on"


def _not_running(*, planned: bool) -> str:
    return "no speculation was seen, though the plan has it" if planned else "no speculation is exposed"


def _too_perfect(case: RuleContext, accepted: Reading) -> bool:
    """In many rounds that were counted, and still so at the end; by the best estimate, so never more than likely."""
    if accepted.low is None or accepted.n < case.limit("perfect_rounds"):
        return False
    if (accepted.value or 0.0) < case.limit("perfect"):
        return False
    return _perfect(case, case.last_quarter(case.slices))


def _perfect(case: RuleContext, slices: Sequence[BinnedWindow]) -> bool:
    found = read(BY_NAME["speculative_acceptance"], _sum(slices)) if slices else None
    return isinstance(found, Reading) and found.low is not None and (found.value or 0.0) >= case.limit("perfect")


def _suspicious(case: RuleContext, accepted: Reading) -> RuleResult:
    sentence = (
        f"{number(accepted.value or 0.0, 'ratio')} of the drafted tokens that were tried are accepted over "
        f"{accepted.n:,.0f} rounds: suspiciously perfect, as repeated text is (a loop, one prompt again and again, a benchmark)"
    )
    expected = Reading(value=None, low=0.0, high=case.limit("perfect"), n=accepted.n)
    found = case.verdict(Status.WARNING, Certainty.LIKELY, accepted, expected, sentence)
    return replace(found, actions=tuple(Action(text=text, runbook=found.rule) for text in SUSPICION))
