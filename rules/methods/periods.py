"""Days of production hour by hour (a short hold: minute by minute): what the rules about the fleet's use share.

Owns the sum of each period, the fullest of them, and how many replicas were ready. It judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.work import weighing_words, work_of
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import Unknown


def sums(case: RuleContext, *signals: str) -> tuple[Window, ...]:
    """One window for each period of the case, oldest first; with `signals` only as far as these are concerned."""
    groups = [[one.window for one in group] for group in case.periods(case.slices)]
    if not signals:
        return tuple(windows.sum_windows(group) for group in groups)
    families = frozenset(family for name in signals for family in families_of(BY_NAME[name]))
    return tuple(windows.sum_families(group, families) for group in groups)


def select_last_quarter(case: RuleContext) -> tuple[Window, ...]:
    """The windows of the last quarter of the hold."""
    return tuple(one.window for one in case.last_quarter(case.slices))


def reading(case: RuleContext, several: Sequence[Window], signal: str = "") -> SignalValue:
    """A signal (else the rule's own) over the sum of windows; no traffic where there is none of them."""
    if not several:
        return Missing(gap=Gap.NO_TRAFFIC)
    wanted = BY_NAME[signal or case.rule.signal]
    return read(wanted, windows.sum_families(several, families_of(wanted)), case.view.basis)


def value(case: RuleContext, several: Sequence[Window], signal: str = "") -> float | None:
    """The same as a number, None where it is not known."""
    found = reading(case, several, signal)
    return found.value if isinstance(found, Reading) else None


def weighing(case: RuleContext, several: Sequence[Window]) -> str:
    """How far apart the bounds of fleet utilisation over these windows are, and why, in words; "" where they are not."""
    basis, signal = case.view.basis, BY_NAME["fleet_utilization"]
    capacity = basis.capacity
    if not several or capacity is None:
        return ""
    work = work_of(windows.sum_families(several, families_of(signal)), capacity.lengths)
    return weighing_words(work, capacity.lengths, capacity.rps) if work else ""


def nearest_rank(values: Sequence[float], q: float) -> float:
    """The quantile q (0-1) of what periods had, by nearest rank ceil(q n) (DESIGN, words). Raises ValueError on none."""
    if not values:
        raise ValueError("no periods")
    return sorted(values)[max(0, math.ceil(round(q * len(values), 9)) - 1)]


def hours_of_fullest(several: Sequence[Window], family: str, q: float) -> tuple[float, float] | None:
    """Quantile q of the hourly means, and of the hourly maxima, of a gauge; None where no hour has it."""
    gauges = [gauge for w in several if (gauge := w.gauge(family)) is not None]
    if not gauges:
        return None
    return nearest_rank([g.integral / g.seconds for g in gauges], q), nearest_rank([g.maximum for g in gauges], q)


def observed_seconds(period: Window, longest: float) -> float:
    """Of a period at most so long: the seconds in which the tier was seen, as far as its replicas were covered."""
    return min(period.span, longest) * period.coverage


def mean_ready_replicas(several: Sequence[Window]) -> float:
    """Mean number of replicas that were seen: covered replica-seconds by the seconds of the periods."""
    seconds = math.fsum(w.span for w in several)
    return math.fsum(w.covered_seconds for w in several) / seconds if seconds > 0 else 0.0


def is_covered(several: Sequence[Window]) -> bool:
    """Whether enough of the replicas was seen in these periods to speak for all of them; they need not be neighbours."""
    due = math.fsum(w.due_seconds for w in several)
    return due > 0 and math.fsum(w.covered_seconds for w in several) >= FULL_COVERAGE * due


def explain_pool_gap(case: RuleContext) -> Unknown | None:
    """Why fleet utilisation means nothing for a tier whose pools are served apart: usable rps is a whole replica's."""
    if case.view.serves_whole_requests:
        return None
    return case.unknown(
        Gap.NOT_IN_PLAN, "the plan's usable rps is that of a mixed replica; this tier serves prefill and decode apart"
    )
