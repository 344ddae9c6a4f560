"""The simulated fleet with two weeks behind it, filled once a run: every test that goes on with it gets a copy."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

from simulation_truth import fill_with_truth

from agent.demo.simulation.scenario import DAY, HOUR
from agent.demo.simulation.weeks import SimulatedHistory

END = 1_795_248_000.0
"""Saturday, 21 November 2026, 08:00 UTC."""

SECONDS = 14 * DAY


class PastFleet:
    """Two weeks, of which the last hour is there in minutes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._past = fill_with_truth(folder, seconds=SECONDS, end=END + 61.0, seed=3, fine_seconds=HOUR)

    def into(self, folder: Path) -> SimulatedHistory:
        """Puts a copy of its files into a folder that is not there yet, and gives a copy of the fleet."""
        shutil.copytree(self._folder, folder)
        return replace(self._past, runs=copy.deepcopy(self._past.runs))
