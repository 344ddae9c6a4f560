"""Divergence: production against the benchmark at equal load (guide 9.1, steps 7 and 13; DESIGN 3.3, 3.4).

A divergence is summed over load bins: shares of slow requests (`tails`), means below the benchmark's (`means`), time in the
system (`representative`). Each kind says what exceeds its limit; when that is a finding is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, explain_not_lasting
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.signals import Gap
from rules.verdicts.context import BenchmarkComparison, is_persistent, too_early
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Number of production beside the benchmark's, over load bins, by independent `requests`.

    `exceeds`: the best estimate is beyond what is allowed; `is_significant`: chance is unlikely, too. `surely_exceeds`: it is
    beyond that at the end of each bin that favours production. `is_proven`: well-measured bins alone show it, beyond
    chance, and hold most of the traffic. `report` makes the verdict, with a reason why it is ok.
    """

    requests: float
    exceeds: bool
    is_significant: bool
    surely_exceeds: bool
    is_proven: bool
    report: Callable[[Status, Certainty, str], Verdict]


def judge_divergence(
    of: BenchmarkComparison,
    measure: Callable[[BenchmarkComparison, Iterable[BinnedWindow]], Divergence | None],
    explain_missing: Callable[[BenchmarkComparison], Unknown],
) -> RuleResult:
    """Return a warning for a divergence over the hold, in its last quarter and in separate minutes, else ok.

    Certain if it is proven over the hold, and against the favourable ends of the bins in all of these times.
    """
    case = of.case
    needed = case.limit("minimum_requests") if "minimum_requests" in case.rule.thresholds else 0.0
    whole = measure(of, of.binned)
    if whole is None:
        return explain_missing(of)
    if whole.requests < needed:
        return case.too_few_requests(whole.requests, needed)
    if not whole.is_significant:
        return whole.report(Status.OK, Certainty.CERTAIN, "this may be chance" if whole.exceeds else "")
    last, *each = (measure(of, part) for part in (of.last_quarter(), *case.periods(of.binned)))
    ended = of.end_unknown(0.0 if last is None else last.requests) if needed else None
    if last is None and not needed:
        ended = case.unknown(Gap.NO_TRAFFIC, "nothing to compare was seen in the last quarter of the time")
    early = ended or too_early(case, of.binned, last, each, lambda part: part.exceeds)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.exceeds):
        reason = explain_not_lasting(case, is_over=last is not None and not last.exceeds)
        return whole.report(Status.OK, Certainty.CERTAIN, reason)
    certain = whole.is_proven and is_persistent(last, each, lambda part: part.surely_exceeds)
    return whole.report(Status.WARNING, certain_if(certain), "")
