"""A filled past as a show: its engines go on from its end, and the daemon that watches them finds the weeks before.

Owns the wiring only: the clock begins where the past ends, the configuration in the folder names the engines' addresses.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from agent.config.load import LoadedConfig, parse_config
from agent.demo.runner import DemoRun
from agent.demo.setup import Clock
from agent.demo.simulation.folder import BANNER, SimulatedHistory, configuration, write_configuration
from agent.demo.simulation.live_fleet import LiveFleet
from agent.demo.simulation.scenario import PARTS
from agent.durations import duration_text


def continue_simulation(
    past: SimulatedHistory, folder: Path, speed: float, temporary: bool, ends: ExitStack
) -> DemoRun:
    """The fleet of a folder that was filled, going on from its end at that speed."""
    clock = Clock(speed, past.end)
    fleet = LiveFleet(past, clock)
    ends.callback(fleet.server.stop)
    fleet.server.start()
    data = configuration(fleet.targets)
    path = write_configuration(folder, data)
    config = parse_config(data, folder=folder, plan=past.plan)
    return DemoRun(
        loaded=LoadedConfig(path=path, config=config, plan=past.plan, warnings=()),
        gpus=fleet.gpus,
        clock=clock,
        speed=speed,
        banner=BANNER.format(past=duration_text(past.seconds)),
        parts=PARTS,
        rounds=dict,
        ended="nothing was left behind" if temporary else f"the history stays in {folder}",
    )
