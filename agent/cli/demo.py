"""Command `sizewatch demo`: recorded engines, or with `--history` a simulated fleet, watched by the real daemon."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click

from agent.cli.arguments import PATH, Exit, Parameters, duration, number, option
from agent.cli.terminal import tell_progress
from agent.config.config import Logging
from agent.config.load import load
from agent.daemon.assembly import assemble
from agent.daemon.logs import set_up
from agent.demo.engines import CAST, PLAN, Clock, build_player
from agent.demo.runner import DemoRun, watch
from agent.errors import ConfigError
from rules.telemetry.windows import DAY_SECONDS

SPEED = 10.0


def parameters() -> Parameters:
    port = "port of the status page on 127.0.0.1; 0: any free one"
    speed = f"how many times faster time runs (default {SPEED:g}; 1 with --out)"
    past = duration(14 * DAY_SECONDS, 84 * DAY_SECONDS)
    return (
        option("--port", "PORT", port, click.IntRange(0, 65535), default=19095),
        option("--speed", "SPEED", speed, number(0.1, 60)),
        option("--seconds", "N", "end after N seconds; default: until Ctrl-C", number(0.1, 1e6)),
        option("--history", "LENGTH", "a simulated fleet with so much past (4w), not recorded engines", past),
        option("--out", "DIR", "with --history: keep it in a new folder; default: thrown away at the end", PATH),
    )


def run(options: SimpleNamespace) -> int:
    if options.history is None and options.out is not None:
        raise ConfigError(("--out goes with --history, such as --history 4w",))
    try:
        # Before the work of a minute.
        socket.create_server(("127.0.0.1", options.port)).close()
    except OSError as error:
        raise ConfigError((f"--port: cannot listen on 127.0.0.1:{options.port}: {error.strerror}",)) from error
    # The narrator prints findings; the log would repeat them.
    set_up(Logging(level="error"))
    with ExitStack() as ends:
        # SIGTERM ends it as Ctrl-C does: the folder is deleted. The daemon has a handler of its own while it runs.
        ends.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        # Entered first and left last: the folder is deleted after its last writer has ended.
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-demo-")))
        show = _recorded(options, folder, ends) if options.history is None else _with_past(options, folder)
        watch(show, options.port, options.seconds, ends)
    print(f"\nEnded; {f'the history stays in {options.out}' if options.out else 'nothing was left behind'}.")
    return Exit.FINE


def _recorded(options: SimpleNamespace, folder: Path, ends: ExitStack) -> DemoRun:
    speed = options.speed or SPEED
    clock = Clock(speed)
    player = build_player(clock)
    ends.callback(player.stop)
    # No forecast: the recordings are minutes long, and it needs days.
    data = {
        "plan": str(PLAN),
        "data_dir": str(folder),
        "gpus": {"source": "none"},
        "forecast": {"enabled": False},
        "targets": [{"url": player.url(tier), "tier": tier, "replica": f"{tier}-0"} for tier, *_ in CAST],
    }
    config = folder / "sizewatch.json"
    config.write_text(json.dumps(data), encoding="utf-8")
    return DemoRun(
        loaded=load(config),
        assemble=partial(assemble, clock=clock),
        clock=clock,
        speed=speed,
        banner=f"Demo: recorded engines at {speed:g} times their speed, made-up prices.",
        parts=tuple((part.tier, part.says) for part in CAST),
    )


def _with_past(options: SimpleNamespace, folder: Path) -> DemoRun:
    # Only this demo needs the simulator.
    from agent.demo.simulation import weeks

    report = partial(tell_progress, note="filling in the past")
    folder = options.out or folder / "fleet"
    past = weeks.fill(folder, seconds=options.history, end=time.time(), progress=report)
    return weeks.continue_simulation(past, folder, options.speed or (SPEED if options.out is None else 1.0))
