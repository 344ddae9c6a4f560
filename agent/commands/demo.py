"""`sizewatch demo`: recorded engines served over HTTP as three tiers, watched live by the real daemon."""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from agent.assembly import Assembly, assemble
from agent.config import Loaded, Logging, parse_config
from agent.config_files import load_plan
from agent.daemon import Daemon, Surroundings
from agent.demo.narrator import Narrator, Paper
from agent.demo.stage import CAST, PLAN, Clock, Stage
from agent.errors import BadConfig
from agent.logs import set_up
from agent.web_config import WebOptions

BANNER = "Demo: recorded engines at {speed:g} times their speed, simulated GPUs, made-up prices."


def _between(low: float, high: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low:g} to {high:g}")
        return value

    return read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=_between(0, 65535, int),
        default=9095,
        help="port of the status page on 127.0.0.1; 0: any free one",
    )
    parser.add_argument(
        "--speed", type=_between(0.1, 60), default=10.0, help="how many times faster than recorded (default 10)"
    )
    parser.add_argument(
        "--seconds", type=_between(0.1, 1e6), metavar="N", help="end after N seconds; default: until Ctrl-C"
    )


def run(options: argparse.Namespace) -> int:
    # Findings are the narrator's; the log's lines would say them once more.
    set_up(Logging(level="error"))
    clock = Clock(options.speed)
    stage = Stage(clock)
    paper = Paper.of_terminal()
    with ExitStack() as ends:
        # Entered first, so left last: the folder goes when nobody writes into it any more.
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-demo-")))
        stage.player.start()
        ends.callback(stage.player.stop)
        narrator = Narrator(clock(), paper, _say)
        ender = threading.Timer(options.seconds or 0.0, lambda: daemon.stop())
        ender.daemon = True
        ends.callback(ender.cancel)

        def begin(daemon: Daemon) -> None:
            print(_head(paper, options.speed, daemon.web.url if daemon.web is not None else ""), flush=True)
            if options.seconds:
                ender.start()

        surroundings = _surroundings(stage, clock, options, begin, _listener(narrator, stage, clock))
        daemon = Daemon(_loaded(stage, folder), surroundings)
        try:
            daemon.run()
        except BadConfig as error:
            raise BadConfig((*error.problems, "give another port with --port, or 0 for any free one")) from error
    print("\nEnded; nothing was left behind.")
    return 0


def _surroundings(
    stage: Stage,
    clock: Clock,
    options: argparse.Namespace,
    begin: Callable[[Daemon], None],
    listen: Callable[[Daemon], None],
) -> Surroundings:
    def assembled(loaded: Loaded, before: Assembly | None) -> Assembly:
        return assemble(loaded, before, clock=clock, gpu_source=stage.gpus)

    return Surroundings(
        assemble=assembled,
        clock=clock,
        speed=options.speed,
        simulated=BANNER.format(speed=options.speed),
        web=lambda loaded: WebOptions(host="127.0.0.1", port=options.port),
        reloads=False,
        on_start=begin,
        on_turn=listen,
    )


def _listener(narrator: Narrator, stage: Stage, clock: Clock) -> Callable[[Daemon], None]:
    def listen(daemon: Daemon) -> None:
        try:
            narrator.played(clock(), stage.player.rounds())
            narrator.listen(list(daemon.turns.watcher.standings.values()), list(daemon.turns.past))
        except OSError:
            # Nobody reads the terminal any more.
            daemon.stop()

    return listen


def _say(text: str) -> None:
    print(text, flush=True)


def _head(paper: Paper, speed: float, url: str) -> str:
    lines = [paper.filled(BANNER.format(speed=speed)), ""]
    lines += [paper.filled(f"{part.tier:10}{part.says}", "  ", " " * 12) for part in CAST]
    pace = f"{speed:g} seconds of theirs pass in one of yours"
    lines += [
        "",
        f"Status page: {url}   (Ctrl-C ends)",
        paper.filled(f"Times below are the engines' own, minutes:seconds since the start; {pace}.", further=""),
        "",
    ]
    return "\n".join(lines)


def _loaded(stage: Stage, folder: Path) -> Loaded:
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
    }
    config = parse_config(data, folder=folder, plan=plan)
    return Loaded(path=folder / "sizewatch.yaml", config=config, plan=plan, warnings=())
