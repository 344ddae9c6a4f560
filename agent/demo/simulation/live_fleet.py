"""Simulated fleet after its history: engines go on with the demo's clock, and the real daemon reads their pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agent.config.load import load
from agent.daemon.factory import assemble
from agent.demo.runner import DemoRun
from agent.demo.setup import Clock
from agent.demo.simulation.weeks import CONFIG, SimulatedHistory
from agent.durations import duration_text
from agent.scrape.scrapers import ScrapeResult, Scrapers, StartedScrapes

BANNER = "SIMULATED: made-up engines, GPUs and prices, with {past} of made-up past. None of it was ever measured."

STEP_SECONDS = 60.0
"""Engines that were not read for longer go on in steps of it."""


class SimulatedScrapers(Scrapers):
    """Pages of simulated engines, without HTTP."""

    def __init__(self, past: SimulatedHistory, clock: Callable[[], float]) -> None:
        super().__init__((), clock)
        self._runs = past.runs
        self._now = clock

    def collect_results(self, started: StartedScrapes) -> Mapping[tuple[str, str], ScrapeResult]:
        """Return the present page of every replica."""
        results = {}
        for tier, run in self._runs.items():
            while (left := self._now() - run.t) >= 1.0:
                run.advance(run.t + min(left, STEP_SECONDS))
            for name, page in run.pages().items():
                results[tier, name] = ScrapeResult(t=page.t, seconds=0.0, snapshot=page, error=None)
        return results


def continue_simulation(past: SimulatedHistory, folder: Path, speed: float, temporary: bool) -> DemoRun:
    """Return the demo of a folder that was filled, going on from its end at that speed."""
    clock = Clock(speed, past.end)
    return DemoRun(
        loaded=load(folder / CONFIG, environment={}),
        assemble=partial(assemble, clock=clock, scrapers=SimulatedScrapers(past, clock)),
        clock=clock,
        speed=speed,
        banner=BANNER.format(past=duration_text(past.end - past.begin)),
        parts=tuple((tier, run.story.says) for tier, run in past.runs.items()),
        ended="nothing was left behind" if temporary else f"the history stays in {folder}",
    )
