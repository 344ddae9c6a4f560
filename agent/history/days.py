"""The hours of a tier, asked of the history for the rules that look back days.

Owns how they are asked for: day by day, each day slimmed to what those rules read before the next is read, so that weeks
of a busy tier fit into memory and a turn that wants to book waits for a day at most. The judgement is
`rules.watch_long`'s.
"""

from __future__ import annotations

from agent.history.reader import Reader
from rules import watch_long
from rules.slices import Slice, TierView
from rules.verdicts import Answer

DAY_SECONDS = 86_400.0


def answers(store: Reader, view: TierView, version: str, now: float) -> tuple[Answer, ...]:
    """What the rules over days say about a tier whose plan has this version now. Raises HistoryTrouble."""
    since = now - watch_long.LOOK_BACK_SECONDS
    others = set(store.plan_versions(view.tier, since, now)) - {version}
    every = _hours(store, view.tier, since, now, None)
    of_plan = _hours(store, view.tier, since, now, version) if others else every
    return watch_long.long_answers(view, every, now, of_plan)


def _hours(store: Reader, tier: str, since: float, until: float, version: str | None) -> tuple[Slice, ...]:
    found: list[Slice] = []
    while since < until:
        # From full hour to full hour, so that no hour is asked for in two parts.
        end = min(until, (since // DAY_SECONDS + 1) * DAY_SECONDS)
        found += watch_long.hour_sums(store.bins(tier, since, end, version))
        since = end
    return tuple(found)
