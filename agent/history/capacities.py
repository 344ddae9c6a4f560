"""The capacity of each tier, asked of the history: whoever counts replicas or judges use takes it from here.

Owns which days are read: whole ones of UTC, up to the last midnight. The estimate is `rules.resize.measured_capacity`'s. The
daemon and every command ask in this one way, so that they count with the same number, and that number stands for a day.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.history.reader import Reader
from rules.plan.load_bins import TierContext, with_capacity
from rules.resize.measured_capacity import DAY_SECONDS, DAYS, capacity_now
from rules.telemetry.work import Capacity


def read_capacity(store: Reader, view: TierContext, version: str, now: float) -> Capacity | None:
    """Return the capacity of one replica at the last midnight (UTC) before `now` (unix seconds), from hours under the present plan.

    None where neither plan nor production tells. Raises HistoryTrouble.
    """
    until = now // DAY_SECONDS * DAY_SECONDS
    begins = (until - age * DAY_SECONDS for age in range(DAYS, 0, -1))
    return capacity_now(view, (store.bins(view.tier, begin, begin + DAY_SECONDS, version) for begin in begins))


def measured_views(
    store: Reader, views: Mapping[str, TierContext], versions: Mapping[str, str], now: float
) -> dict[str, TierContext]:
    """Return the views with the capacity that production showed by `now`; tiers without a plan as they are."""
    return {
        tier: with_capacity(view, read_capacity(store, view, versions[tier], now)) if tier in versions else view
        for tier, view in views.items()
    }
