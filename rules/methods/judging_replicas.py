"""Replicas of one tier against each other: whether the routing destroys what their prefix caches hold (guide 7.2, 9.3).

Owns the answer's status and certainty; what is measured is `rules.methods.prefix_locality`'s, the words are
`rules.methods.prefix_routing`'s.
"""

from __future__ import annotations

from rules.confidence import Certainty
from rules.methods import prefix_routing
from rules.methods.prefix_locality import FINISHED, QUERIED, sum_family
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.verdicts.context import RuleContext, worst_gap
from rules.verdicts.verdict import RuleResult, Status


def judge_replicas(case: RuleContext) -> RuleResult:
    """Lost hits that fall to a single replica's share on every replica at once are the routing's (guide 7.2).

    Certain only where requests surely are given out in another way than when the hits were there.
    """
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(QUERIED in one.window.counters for one in case.slices):
        return case.unknown(worst_gap(case.slices, QUERIED), "prefix cache queries are not there")
    if sum_family(case.slices, QUERIED) <= 0:
        if sum_family(case.slices, FINISHED) <= 0:
            return case.unknown(Gap.NO_TRAFFIC, "no prompt asked the prefix cache")
        return case.unknown(Gap.NOT_EXPOSED, "no prompt asked the prefix cache: it is off")
    seen = prefix_routing.assess_routing(case.slices, case.view)
    if seen.broken is None:
        return case.unknown(seen.gap, seen.text)
    rate, reference = seen.found.rate, seen.found.reference
    observed = Reading(value=rate, low=rate, high=rate, n=seen.found.requests)
    expected: SignalValue = Missing(gap=Gap.NOT_IN_PLAN)
    if reference is not None:
        expected = Reading(value=reference.rate, low=reference.rate, high=reference.rate, n=seen.found.requests)
    if not seen.broken:
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, _sentence(seen.text))
    certainty = Certainty.CERTAIN if seen.certain else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, observed, expected, _sentence(seen.text))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
