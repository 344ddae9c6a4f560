"""The hours of a tier, asked of the history for whoever looks back days.

Owns how they are asked for: piece by piece, each made smaller before the next is read, so that weeks of a busy tier fit into
memory and a turn that wants to book waits for a day's reading at most. The judgement is `rules.evaluator.long_rules`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.history.errors import HistoryOpenError
from agent.history.reader import Reader
from rules.evaluator import long_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import windows
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult

DAY_SECONDS = 86_400.0


def evaluate_days(store: Reader, view: TierContext, version: str, now: float) -> tuple[RuleResult, ...]:
    """What the rules over days say about a tier whose plan has this version now. Raises HistoryTrouble."""
    since = now - long_rules.LOOK_BACK_SECONDS
    others = set(store.plan_versions(view.tier, since, now)) - {version}
    every = _hours(store, view.tier, since, now, None)
    of_plan = _hours(store, view.tier, since, now, version) if others else every
    return long_rules.evaluate_long_rules(view, every, now, of_plan)


def _hours(store: Reader, tier: str, since: float, until: float, version: str | None) -> tuple[BinnedWindow, ...]:
    found: list[BinnedWindow] = []
    for begin, end in pieces(since, until, DAY_SECONDS):
        found += long_rules.sum_by_hour(store.bins(tier, begin, end, version))
    return tuple(found)


def pieces(since: float, until: float, seconds: float) -> Iterator[tuple[float, float]]:
    """[since, until) cut at full multiples of `seconds`, so that no hour (or minute) is asked for in two parts."""
    while since < until:
        end = min(until, (since // seconds + 1) * seconds)
        yield since, end
        since = end


def demand(store: Reader, tier: str, since: float, until: float) -> tuple[MinuteDemand, ...]:
    """What arrived and finished, minute by minute; nothing where an older sizewatch kept none: whoever needs it says so."""
    try:
        return store.requests(tier, since, until)
    except HistoryOpenError:
        return ()


def sum_by_hour(slices: Iterable[BinnedWindow]) -> tuple[BinnedWindow, ...]:
    """The load bins of each hour added up at once; one after the other they would take most of a report's time."""
    grouped: dict[float, list[Window]] = {}
    for one in slices:
        middle = (one.window.start + one.window.end) / 2
        grouped.setdefault(middle // long_rules.HOUR_SECONDS, []).append(one.window)
    return tuple(
        BinnedWindow(replica=None, window=windows.sum_windows(group), rps=None, in_system=None)
        for group in grouped.values()
    )
