"""The few ways to judge slices of production against the plan: the table from a way's name to its function.

Owns the table only; the ways live in `rules.judging_*`. Each is a pure function of one case. What differs between rules
stands in the catalogue. A new way is a function there, a row here, and a name in `rules.rule.Way`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rules.catalogue import Rule, Way
from rules.judging import Case, Tier
from rules.judging_bands import judge_band
from rules.judging_events import judge_event_ratio, judge_excess
from rules.judging_faults import judge_faults
from rules.judging_load import judge_beyond
from rules.judging_means import judge_mean
from rules.judging_tails import judge_tail
from rules.slices import Slice, TierView
from rules.verdicts import Answer
from rules.windows import MINUTE_SECONDS

_WAYS: dict[Way, Callable[[Case], Answer]] = {
    Way.TAIL: judge_tail,
    Way.SHORTFALL: judge_mean,
    Way.EXCESS: judge_excess,
    Way.EVENT_RATIO: judge_event_ratio,
    Way.BEYOND: judge_beyond,
    Way.BAND: judge_band,
    Way.FAULTS: judge_faults,
}

BY_SLICES = frozenset(_WAYS)
"""The ways that judge slices; the others follow single scrapes (`rules.watch`)."""


def judge(
    rule: Rule,
    view: TierView,
    slices: Sequence[Slice],
    now: float,
    period_seconds: float = MINUTE_SECONDS,
    fleet: Mapping[str, Tier] | None = None,
) -> Answer:
    """The rule's answer about a tier at `now` from the slices of its hold, oldest first, each within one period."""
    case = Case(rule=rule, view=view, slices=tuple(slices), now=now, period_seconds=period_seconds, fleet=fleet or {})
    return _WAYS[rule.way](case)
