"""A small fleet under the real daemon, at many times its speed: the demo's tiers, and what they do not show.

Owns the cast (recordings of `tests/recordings` and of the demo), its plan and its stand-in GPUs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import recorded
import yaml
from daemon_runs import running, write

from agent.daemon.daemon import Daemon
from agent.daemon.factory import assemble
from agent.demo.engines import HERE, PLAN, Clock, Player, RecordedTrack, track
from agent.demo.simulation.engine import MEMORY_GAUGES, gpu_sums
from agent.sources.recording import load
from rules.telemetry.snapshots import GpuReadout

CAST: tuple[tuple[str, str, str, float], ...] = (
    ("quiet", "quiet-0", "steady_quiet", 0.0),
    ("quiet", "quiet-1", "diurnal_quiet", 0.0),
    ("noisy", "noisy-0", "diurnal", 30.0),
    ("cascade", "cascade-0", "kv_cascade", 46.0),
    ("code", "code-0", "specdecode", 0.0),
    ("chat", "chat-0", "prefix", 0.0),
    ("tuned", "tuned-0", "lora", 0.0),
    ("flaky", "flaky-0", "restart", 0.0),
)
"""Tier, replica, recording, and the second of it with which it begins."""


class StandInGpus:
    """A GPU for each replica, busy half of the time."""

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        return tuple(_readout(index, replica, now) for index, (_, replica, *_) in enumerate(CAST)), ()

    def close(self) -> None:
        """Nothing is held."""


def _readout(index: int, replica: str, now: float) -> GpuReadout:
    return GpuReadout(
        t=now,
        gpu=f"stand-in-{replica}",
        index=index,
        product="stand-in GPU (simulated)",
        counters=gpu_sums(0.5, now),
        gauges={**MEMORY_GAUGES, "gpu_temperature_celsius": 52.5, "gpu_power_limit_watts": 700.0},
    )


def _folder(name: str) -> Path:
    own = HERE / "recordings" / name
    return own if own.is_dir() else recorded.folder(name)


def _track(replica: str, recording: str, begin: float) -> RecordedTrack:
    found, problems = load(_folder(recording))
    assert problems == ()
    return track(found, replica, begin)


def plan(folder: Path) -> Path:
    """The demo's plan, with the tiers that it has not."""
    data: dict[str, Any] = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    tier = data["tiers"]["quiet"]
    data["tiers"] = dict.fromkeys(dict.fromkeys(name for name, *_ in CAST), tier)
    data["tiers"]["quiet"] = {**tier, "fleet": {**tier["fleet"], "instances": 2}}
    data["tiers"]["noisy"] = {**tier, "slo": {**tier["slo"], "itl_p99_seconds": 0.2, "e2e_p99_seconds": 60.0}}
    data["tiers"]["chat"] = {**tier, "workload": {**tier["workload"], "prefix_hit_ratio": 0.9}}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@contextmanager
def fleet(folder: Path, port: int, speed: float) -> Iterator[Daemon]:
    """The daemon on this port, until the end of the block."""
    clock = Clock(speed)
    player = Player(tuple(_track(replica, *rest) for _, replica, *rest in CAST), clock)  # type: ignore[arg-type]
    targets = [
        {"url": player.url(replica), "tier": tier, "replica": replica, "gpus": [f"stand-in-{replica}"]}
        for tier, replica, *_ in CAST
    ]
    data: dict[str, Any] = {
        "plan": str(plan(folder)),
        "data_dir": str(folder / "data"),
        "scrape_interval": "15s",
        "targets": targets,
    }
    # Whether an hour of minutes is there in time depends on the machine.
    data["forecast"] = {"enabled": False}
    surroundings: dict[str, Any] = {
        "assemble": partial(assemble, clock=clock, gpu_source=StandInGpus()),
        "clock": clock,
        "speed": speed,
        "web": lambda loaded: loaded.config.web.model_copy(update={"listen": f"127.0.0.1:{port}"}),
    }
    try:
        with running(write(folder, data), **surroundings) as daemon:
            yield daemon
            assert daemon.counts.cycle_errors == 0
    finally:
        player.stop()
