"""Evaluation loops as the daemon makes them, without history and alerts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.daemon.assembly import Assembly
from agent.daemon.status_builder import status
from agent.gpu.collector import GpuCollector
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.interfaces import Sink
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import Scrapers, Target
from agent.sources.scrape import ScrapeSource
from agent.sources.store import StoreSource
from exporters.status.records import AgentHealth, AgentStatus
from rules.plan.load_bins import TierContext


class Bare(Assembly):
    """Parts of a loop alone, whose pages have no word about forecasts."""

    no_forecasts = ""


@dataclass(slots=True)
class LoopParts:
    """A loop, its source and its runtime state."""

    loop: EvaluationLoop
    source: Any
    runtime: RuntimeState

    def status(self, now: float, role: str = "node") -> AgentStatus:
        loaded = LoadedConfig(
            path=Path("sizewatch.yaml"), config=Config.model_construct(role=role), plan=None, warnings=()
        )
        parts = Bare(loaded=loaded, loop=self.loop, runtime=self.runtime, log=ChangeLog(), versions={})
        return status(parts, now, AgentHealth())


def scrape_loop(
    targets: Sequence[Target],
    tiers: Mapping[str, TierContext],
    scrapers: Scrapers,
    clock: Callable[[], float],
    gpus: GpuCollector | None = None,
    before: LoopParts | None = None,
) -> LoopParts:
    source = ScrapeSource(targets, scrapers, gpus or GpuCollector(None), clock=clock)
    runtime = before.runtime if before is not None else RuntimeState()
    loop = EvaluationLoop(
        source=source,
        tiers=tiers,
        sinks=(runtime, ChangeLog()),
        clock=clock,
        before=before.loop if before is not None else None,
    )
    return LoopParts(loop, source, runtime)


def store_loop(
    source: StoreSource, tiers: Mapping[str, TierContext], clock: Callable[[], float], *sinks: Sink
) -> LoopParts:
    runtime = RuntimeState(source.agent_tiers)
    loop = EvaluationLoop(
        source=source, tiers=tiers, sinks=(runtime, ChangeLog(log_targets=False), *sinks), clock=clock
    )
    return LoopParts(loop, source, runtime)
