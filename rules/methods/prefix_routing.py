"""What became of the prefix cache's locality: kept, lost by the routing, or lost by something else; in one sentence.

Owns the questions in the order in which they are asked, and the words of the answers. What each question measures is
`rules.methods.prefix_locality`'s; thresholds stand in the catalogue's row PrefixRoutingBroken. A new reason why lost hits are
not the routing's doing is a row of EXCUSES.

Replicas of one tier against each other: whether the routing destroys what their prefix caches hold (guide 7.2, 9.3).

Owns the answer's status and certainty; what is measured is `rules.methods.prefix_locality`'s, the words are
`rules.methods.prefix_routing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from rules.confidence import Certainty
from rules.methods import prefix_locality
from rules.methods.prefix_locality import FINISHED, QUERIED, CurrentHitRate, LocalityThresholds, sum_family
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, worst_gap
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status

RULE = "PrefixRoutingBroken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """`broken` None: not to be told, for the reason `gap`. `certain` only where it is broken."""

    broken: bool | None
    text: str
    found: CurrentHitRate
    certain: bool = False
    gap: Gap = Gap.NOT_IN_PLAN


def limits_of(rule: Rule, overrides: Mapping[str, Mapping[str, float]]) -> LocalityThresholds:
    """Return the thresholds of PrefixRoutingBroken, or the overrides of the tier's configuration."""
    return LocalityThresholds(**{field.name: rule.limit(field.name, overrides) for field in fields(LocalityThresholds)})


def planned_hits(view: TierContext) -> tuple[float, str] | None:
    """The hit rate that was counted on, and whose word that is; the workload's before the benchmark's."""
    workload = view.plan.workload if view.plan else None
    if workload is not None and workload.prefix_hit_ratio is not None:
        return workload.prefix_hit_ratio, "in the plan"
    measured = [p.prefix_hit_ratio for p in (view.curve.points if view.curve else ()) if p.prefix_hit_ratio is not None]
    return (min(measured), "in the benchmark") if measured else None


def assess_routing(slices: Sequence[BinnedWindow], view: TierContext, rule: Rule) -> Routing:
    """What the last minutes of the tier's replicas say, against the minutes before them and the plan."""
    limits, planned = limits_of(rule, view.limits), planned_hits(view)
    found = prefix_locality.measure_hit_rate(slices, planned, limits)
    if found.requests < limits.minimum_requests:
        text = f"{found.requests:.0f} requests of warm replicas in the last minutes, {limits.minimum_requests:.0f} are needed"
        return Routing(broken=None, text=text, found=found, gap=Gap.TOO_FEW_REQUESTS)
    excuse = next((words(found, limits) for applies, words in EXCUSES if applies(found, limits)), "")
    if excuse:
        return Routing(broken=False, text=excuse, found=found)
    if not prefix_locality.is_locality_lost(found, limits):
        return _not_lost(found, limits, planned is not None)
    return Routing(broken=True, text=_broken(found), found=found, certain=prefix_locality.spread_changed(found, limits))


def _not_lost(found: CurrentHitRate, limits: LocalityThresholds, planned: bool) -> Routing:
    """Without a plan a rate that was low all the time may have been broken all the time."""
    best = found.reference.rate if found.reference else found.rate
    if best <= limits.near / len(found.replicas) and not planned:
        text = f"{_rate(found)}, as before, and the plan does not say what one replica alone has"
        return Routing(broken=None, text=text, found=found)
    fallen = found.reference is not None and found.rate <= found.reference.rate - limits.points
    state = "not lost in each of the last minutes" if fallen else "not lost"
    return Routing(broken=False, text=f"{_rate(found)}{_compared(found)}: {state}", found=found)


def _rate(found: CurrentHitRate) -> str:
    return f"prefix hits are {found.rate:.0%} over {len(found.replicas)} replicas"


def _compared(found: CurrentHitRate) -> str:
    return f", {found.reference.rate:.0%} {found.reference.words}" if found.reference else ""


def _broken(found: CurrentHitRate) -> str:
    change = prefix_locality.lengths_change(found)
    lengths = (
        "prompt lengths before are not known" if change is None else f"prompts are {change:.2f} times as long as before"
    )
    counts = prefix_locality.shares(found)
    least, most = (end(counts) / sum(counts) for end in (min, max))
    share = f"{least:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%} to {most:.0%}"
    return (
        f"{_rate(found)}{_compared(found)}: about what is left when any replica gets any prompt "
        f"({prefix_locality.expected_rate(found):.0%}); every replica lost hits, {lengths}, "
        f"{number(prefix_locality.eviction_rate(found), 'ratio')} preemptions a request, "
        f"and each replica gets {share} of the requests"
    )


def _lost_and(
    check: Callable[[CurrentHitRate, LocalityThresholds], bool],
) -> Callable[[CurrentHitRate, LocalityThresholds], bool]:
    return lambda found, limits: prefix_locality.is_locality_lost(found, limits) and check(found, limits)


def _longer_or_shorter(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    change = prefix_locality.lengths_change(found)
    return change is not None and not 1 / limits.length_change <= change <= limits.length_change


EXCUSES: tuple[
    tuple[Callable[[CurrentHitRate, LocalityThresholds], bool], Callable[[CurrentHitRate, LocalityThresholds], str]],
    ...,
] = (
    (
        lambda found, limits: len(found.replicas) < 2,
        lambda found, limits: f"one replica with a warm cache ({found.rate:.0%} prefix hits): no routing to break",
    ),
    (
        _lost_and(lambda found, limits: bool(prefix_locality.find_warm_replicas(found, limits))),
        lambda found, limits: (
            f"{_rate(found)}{_compared(found)}, but not lost on {', '.join(prefix_locality.find_warm_replicas(found, limits))}"
        ),
    ),
    (
        _lost_and(lambda found, limits: prefix_locality.eviction_rate(found) > limits.eviction_rate),
        lambda found, limits: (
            f"{_rate(found)}{_compared(found)}, with {number(prefix_locality.eviction_rate(found), 'ratio')} preemptions "
            "a request: the KV cache has no room"
        ),
    ),
    (
        _lost_and(_longer_or_shorter),
        lambda found, limits: (
            f"{_rate(found)}{_compared(found)}, and prompts changed: their mean length is "
            f"{prefix_locality.lengths_change(found) or 0.0:.2f} times that of before"
        ),
    ),
    (
        _lost_and(lambda found, limits: not prefix_locality.is_near_rate(found, limits)),
        lambda found, limits: (
            f"{_rate(found)}{_compared(found)}; routing alone would leave about {prefix_locality.expected_rate(found):.0%}: "
            "prompts changed, or the caches did"
        ),
    ),
    (
        _lost_and(lambda found, limits: not prefix_locality.spread_evenly(found, limits)),
        lambda found, limits: f"{_rate(found)}{_compared(found)}, but requests are not spread evenly: prompts changed",
    ),
)
"""What is asked, in order, and what is said where it applies."""


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
    seen = assess_routing(case.slices, case.view, case.rule)
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
