"""Days of production, hour by hour: the table from a rule's name to its judgement (guide 9.2, 9.3).

Owns the table only: what these rules have in common is `rules.methods.utilization`; the judgements are
`rules.methods.utilization` and `rules.methods.headroom`. A new one is a function there, a row here and a row of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rules.methods.headroom import judge_falling, judge_headroom
from rules.methods.utilization import judge_empty_cache, judge_empty_queue, judge_trap
from rules.telemetry.signals import Gap
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult

JUDGES: Mapping[str, Callable[[RuleContext], RuleResult]] = {
    "KvCacheUnderused": judge_empty_cache,
    "UtilizationTrap": judge_trap,
    "NoHeadroom": judge_headroom,
    "TokensPerGpuHourFalling": judge_falling,
    "QueueAlwaysEmpty": judge_empty_queue,
}
"""By the rule's name: each looks at other numbers of its hours."""


def judge_long(case: RuleContext) -> RuleResult:
    """The rule's answer over the hours of its days (of a short hold: over its minutes)."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    return JUDGES[case.rule.name](case)
