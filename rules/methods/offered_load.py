"""Offered load: the work that arrives at a replica against its capacity (DESIGN 3.12), and whether load is what is wrong.

Owns the one answer to "is it the load?" that LoadBeyondBenchmark and PastTheKnee share: for the same minutes they must name
the same action. Completed requests saturate, so arrivals count. Capacity is `rules.plan.capacity`'s, work is
`rules.telemetry.work`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rules.telemetry import windows
from rules.telemetry.arrivals import UNSERVED, unserved
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.wording import number
from rules.telemetry.work import Capacity, work_of
from rules.verdicts.context import RuleContext
from rules.verdicts.latency_pattern import LatencyPattern

FAMILIES = families_of(BY_NAME["fleet_utilization"]) | {NET_CHANGE, *UNSERVED}

MOST = 0.5
"""Of the last quarter of the hold load must be above capacity for so large a share: as LoadBeyondBenchmark asks."""

SAME = 1.05
"""Work within so many times the requests is that many requests: it is not said twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """What arrives at one replica: requests per second, and the same as work, in requests of the capacity's lengths."""

    arriving_rps: float
    work_rps: float
    capacity_rps: float

    @property
    def is_above(self) -> bool:
        return self.work_rps > self.capacity_rps

    def __str__(self) -> str:
        text = f"{number(self.arriving_rps, 'per_second')} arrive at a replica"
        if not self.arriving_rps / SAME <= self.work_rps <= self.arriving_rps * SAME:
            text += f" (by their tokens the work of {number(self.work_rps, 'per_second')})"
        return f"{text}, {number(self.capacity_rps, 'per_second')} are usable"


def offered_load(several: Iterable[Window], capacity: Capacity) -> OfferedLoad | None:
    """Return what arrived at a replica in these windows; None where finished requests are not known.

    Failed and refused requests arrived too. Those that did not finish are taken to be as long as those that finished.
    """
    whole = windows.sum_families(several, FAMILIES)
    finished, work = replica_rate(whole, "requests_finished"), work_of(whole, capacity.lengths)
    if finished is None or work is None:
        return None
    turned_away = unserved(whole.counters) / whole.covered_seconds if whole.covered_seconds > 0 else 0.0
    arriving = max(0.0, finished + turned_away + (replica_rate(whole, NET_CHANGE) or 0.0))
    each = work.total.value / finished if finished > 0 and work.total.value is not None else 1.0
    return OfferedLoad(arriving_rps=arriving, work_rps=arriving * each, capacity_rps=capacity.rps)


def is_it_the_load(case: RuleContext) -> tuple[str, LatencyPattern]:
    """Return the load of the last quarter of the hold in words, and KNEE where it was above capacity for most of that time, TAIL
    where it was not, EITHER where capacity or load is not known. Replicas of the tier count together: what they could
    take if it were spread evenly needs no further replica.
    """
    capacity, last = case.view.capacity, case.last_quarter(case.slices)
    if capacity is None:
        return "what load a replica can take is not known", LatencyPattern.EITHER
    whole = offered_load((one.window for one in last), capacity)
    if whole is None:
        return "what load arrives is not known", LatencyPattern.EITHER
    seconds = above = 0.0
    for group in case.periods(last):
        found = offered_load((one.window for one in group), capacity)
        if found is not None:
            covered = math.fsum(one.window.covered_seconds for one in group)
            seconds += covered
            above += covered if found.is_above else 0.0
    return str(whole), LatencyPattern.KNEE if above > 0 and above >= MOST * seconds else LatencyPattern.TAIL
