"""`sizewatch demo`: recorded engines served over HTTP as three tiers, watched live by the real daemon."""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
from pathlib import Path

from agent.assembly import assemble
from agent.config import Loaded, parse_config
from agent.config_files import load_plan
from agent.daemon import Daemon, Surroundings
from agent.demo.narrator import Narrator
from agent.demo.stage import CAST, PLAN, Clock, Stage

BANNER = "Demo: recorded engines at {speed:g} times their speed, simulated GPUs, made-up prices."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=9095, help="port of the status page on 127.0.0.1; 0: any free one")
    parser.add_argument("--speed", type=float, default=10.0, help="how many times faster than recorded (default 10)")
    parser.add_argument("--seconds", type=float, metavar="N", help="end after N seconds; default: until Ctrl-C")


def run(options: argparse.Namespace) -> int:
    clock = Clock(options.speed)
    stage = Stage(clock)
    stage.player.start()
    narrator = Narrator(clock())
    with tempfile.TemporaryDirectory(prefix="sizewatch-demo-") as folder:
        loaded = _loaded(stage, Path(folder), options.port)
        daemon = Daemon(
            loaded,
            Surroundings(
                assemble=lambda of: assemble(of, clock=clock, gpu_source=stage.gpus),
                clock=clock,
                speed=options.speed,
                simulated=BANNER.format(speed=options.speed),
                on_turn=lambda d: narrator.listen(list(d.turns.watcher.standings.values()), list(d.turns.past)),
            ),
        )
        print(BANNER.format(speed=options.speed))
        if daemon.web is not None:
            print(
                f"Three tiers: {', '.join(part.tier for part in CAST)}. Status page: {daemon.web.url}  (Ctrl-C ends)\n",
                flush=True,
            )
        if options.seconds:
            threading.Timer(options.seconds, daemon.stop).start()
        try:
            daemon.run()
        finally:
            stage.player.stop()
    print("Ended; nothing was left behind.")
    return 0


def _loaded(stage: Stage, folder: Path, port: int) -> Loaded:
    """The demo's configuration, as a file would give it."""
    plan = load_plan(PLAN)
    data = {
        "plan": str(PLAN),
        "data_dir": str(folder),
        "scrape_interval": "15s",
        "targets": [
            {
                "url": stage.player.url(part.tier),
                "tier": part.tier,
                "replica": f"{part.tier}-0",
                "gpus": [f"stand-in-{part.tier}"],
            }
            for part in CAST
        ],
        "web": {"listen": f"127.0.0.1:{port or _free_port()}"},
    }
    return Loaded(
        path=folder / "sizewatch.yaml", config=parse_config(data, folder=folder, plan=plan), plan=plan, warnings=()
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
