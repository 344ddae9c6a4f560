"""The past of a store as role fleet would have read it cycle by cycle, booked into a history."""

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.fleet.tier_readers import AGENTS, build_tier_reader
from agent.history.store import HistoryStore
from agent.pipeline.loop import EvaluationLoop
from agent.prometheus.api import StoreApi
from agent.sources.store import StoreSource
from rules.evaluator.observation import ClosedMinute, StepResult

LEAD_SECONDS, SETTLE_SECONDS = 900.0, 300.0


class _Minutes:
    """Sink of the closed minutes."""

    def __init__(self) -> None:
        self.closed: list[ClosedMinute] = []

    def accept(self, result: StepResult) -> None:
        self.closed += result.minutes

    def end_cycle(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass


def read_minutes(loaded: LoadedConfig, api: StoreApi, begin: float, end: float) -> list[ClosedMinute]:
    """The minutes of (begin, end] that the daemon's own source closes."""
    fleet, contexts = loaded.config.fleet, build_tier_contexts(loaded)
    readers = {
        (None, tier): build_tier_reader(tier, loaded.config.tiers.get(tier, AGENTS), context, fleet, api)
        for tier, context in contexts.items()
    }
    now, minutes = begin - LEAD_SECONDS, _Minutes()
    source = StoreSource(readers=readers, api=api, agent_tiers=frozenset(), delay_seconds=0.0)
    loop = EvaluationLoop(source=source, tiers=contexts, sinks=(minutes,), clock=lambda: now)
    while now < end + SETTLE_SECONDS:
        now = min(now + fleet.cycle_seconds, end + SETTLE_SECONDS)
        loop.run_cycle()
        assert not source.errors or all("no sample" in text for text in source.errors.values())
    return [one for one in minutes.closed if begin <= one.slice.window.middle < end]


def book_past(loaded: LoadedConfig, api: StoreApi, store: HistoryStore, begin: float, end: float) -> int:
    """Books them and returns their number."""
    minutes, versions = read_minutes(loaded, api, begin, end), plan_versions(loaded)
    store.book(ClosedMinute(tier=one.tier, plan_version=versions.get(one.tier, ""), slice=one.slice) for one in minutes)
    return len(minutes)
