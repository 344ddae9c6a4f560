"""Faults: events that should not happen at all, such as GPU faults and memory errors (guide 9.3; METRICS trap 16).

Owns the count over the hold and its end: one event is a finding for as long as the hold remembers it, for nothing mends
itself meanwhile. Which counter is meant stands in the catalogue.
"""

from __future__ import annotations

import math

from rules.confidence import Certainty
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import RuleContext
from rules.verdicts.hold import watched_seconds
from rules.verdicts.verdict import RuleResult, Status

BY_CODE = {"gpu_fault_events": "gpu_fault_events_by_code"}
"""Families whose events come by code too."""


def judge_faults(case: RuleContext) -> RuleResult:
    """Whether any event was counted in the hold; certain, for events are counted one by one."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    family = case.rule.family
    total = windows.sum_families((one.window for one in case.slices), (family, BY_CODE.get(family, family)))
    if family not in total.counters:
        return case.unknown(total.explain_missing(family), f"{case.rule.about}: not measured here")
    count = total.counters[family]
    status = Status.WARNING if count >= case.limit("events") else Status.OK
    where = sorted({one.replica for one in case.slices if one.window.counters.get(family) and one.replica})
    sentence = f"{case.rule.about}: {count:.0f} in {_minutes(case)}{_codes(case, total)}"
    sentence += f", of {', '.join(where)}" if where and status is not Status.OK else ""
    observed = Reading(value=count, low=count, high=count, n=count)
    return case.verdict(status, Certainty.CERTAIN, observed, Reading(value=0.0, low=0.0, high=0.0, n=count), sentence)


def _minutes(case: RuleContext) -> str:
    return f"{math.ceil(watched_seconds(case.slices) / windows.MINUTE_SECONDS):d} min"


def _codes(case: RuleContext, total: windows.Window) -> str:
    stem = BY_CODE.get(case.rule.family)
    found = {
        name.partition("/")[2]: n for name, n in total.counters.items() if stem and name.startswith(f"{stem}/") and n
    }
    return f" ({', '.join(f'{code} x {n:.0f}' for code, n in sorted(found.items()))})" if found else ""
