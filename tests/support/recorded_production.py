"""Production of a recording as commands read it: its minutes, booked into a history."""

from tempfile import TemporaryDirectory

import recorded

from agent.history.daily_queries import read_production
from agent.history.store import HistoryStore
from agent.replay.replay import replay
from agent.sources.recording import load
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.plan.schema import Plan
from rules.resize.production_summary import ProductionSummary
from rules.telemetry.windows import HOUR_SECONDS


def read_recorded(name: str, plan: Plan | None = None) -> ProductionSummary:
    """Return the summary of a recording's first tier."""
    result = replay(load(recorded.folder(name))[0], plan)
    tier, context = next(iter(result.contexts.items()))
    minutes = [shown for shown in result.windows if shown.tier == tier and shown.replica is not None]
    with TemporaryDirectory() as folder, HistoryStore(f"{folder}/history.db") as store:
        store.book(
            ClosedMinute(tier=tier, plan_version="", slice=bin_window(shown.window, context.curve, shown.replica or ""))
            for shown in minutes
        )
        return read_production(store, context, result.start // HOUR_SECONDS * HOUR_SECONDS, result.end)
