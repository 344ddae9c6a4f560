"""A demo as the real daemon watches it: what takes the place of a production installation, and what is said meanwhile.

Owns the terminal's head and the daemon's surroundings. What plays engines is the affair of whoever makes the Show:
recordings (`agent.demo.setup`) or simulated engines with a past (`agent.demo.simulation`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.daemon.assembly import Assembly, assemble
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.demo.narrator import DemoConsole, TerminalStyle
from agent.errors import ConfigError
from agent.gpu.collector import GpuReader
from agent.http_server.options import WebOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What is watched: its configuration, what plays GPUs, and what is said. `speed` is how much faster `clock` runs."""

    loaded: LoadedConfig
    gpus: GpuReader
    clock: Callable[[], float]
    speed: float
    banner: str
    parts: tuple[tuple[str, str], ...]
    rounds: Callable[[], dict[str, int]]
    ended: str


def watch(show: DemoRun, port: int, seconds: float | None, ends: ExitStack) -> None:
    """Runs the real daemon on a show, for so many seconds or until it is told to end. Raises SizewatchError."""
    paper = TerminalStyle.detect_terminal()
    narrator = DemoConsole(show.clock(), paper, _say)
    ender = threading.Timer(seconds or 0.0, lambda: daemon.stop())
    ender.daemon = True
    ends.callback(ender.cancel)

    def begin(daemon: Daemon) -> None:
        print(_head(paper, show, daemon.web.url if daemon.web is not None else ""), flush=True)
        if seconds:
            ender.start()

    daemon = Daemon(show.loaded, _surroundings(show, port, begin, _listener(narrator, show)))
    try:
        daemon.run()
    except ConfigError as error:
        raise ConfigError((*error.problems, "give another port with --port, or 0 for any free one")) from error


def _surroundings(
    show: DemoRun, port: int, begin: Callable[[Daemon], None], listen: Callable[[Daemon], None]
) -> DaemonOptions:
    def assembled(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        return assemble(loaded, before, clock=show.clock, gpu_source=show.gpus)

    return DaemonOptions(
        assemble=assembled,
        clock=show.clock,
        speed=show.speed,
        simulated=show.banner,
        web=lambda loaded: WebOptions(host="127.0.0.1", port=port),
        reloads=False,
        on_start=begin,
        on_turn=listen,
    )


def _listener(narrator: DemoConsole, show: DemoRun) -> Callable[[Daemon], None]:
    def listen(daemon: Daemon) -> None:
        try:
            narrator.played(show.clock(), show.rounds())
            narrator.listen(list(daemon.turns.watcher.standings.values()), list(daemon.turns.past))
        except OSError:
            # Nobody reads the terminal any more.
            daemon.stop()

    return listen


def _say(text: str) -> None:
    print(text, flush=True)


def _head(paper: TerminalStyle, show: DemoRun, url: str) -> str:
    width = max(len(name) for name, _ in show.parts) + 3
    lines = [paper.wrap_text(show.banner), ""]
    lines += [paper.wrap_text(f"{name:{width}}{says}", "  ", " " * (width + 2)) for name, says in show.parts]
    pace = f"{show.speed:g} seconds of theirs pass in one of yours"
    lines += [
        "",
        f"Status page: {url}   (Ctrl-C ends)",
        paper.wrap_text(f"Times below are the engines' own, minutes:seconds since the start; {pace}.", further=""),
        "",
    ]
    return "\n".join(lines)
