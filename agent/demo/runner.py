"""Demo run: the real daemon with replaced engines, GPUs and clock, and its findings on the terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.config.web import Web
from agent.daemon.assembly import Assemble, Assembly
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.pipeline.interfaces import Sink
from rules.catalogue.registry import BY_NAME
from rules.evaluator.observation import StepResult
from rules.replicas.cascade import STAGES
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, severity_of, severity_words


class DemoConsole(Sink):
    """Findings of the demo on the terminal, since `began` (the daemon's clock). Without a reader `stop` is called."""

    def __init__(self, began: float, stop: Callable[[], None]) -> None:
        self._began = began
        self._stop = stop

    def accept(self, result: StepResult) -> None:
        try:
            self.show_findings(result.changed)
            for finding in result.closed:
                if isinstance(finding, Finding) and BY_NAME[finding.rule].severity is not Severity.REPORT:
                    print(f"{self._tell_time(result.now)}  ended: {finding.rule} in {finding.subject}", flush=True)
        except OSError:
            self._stop()

    def show_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            worst = finding.worst
            if BY_NAME[finding.rule].severity is Severity.REPORT:
                continue
            stage = f", stage {worst.stage} ({STAGES[worst.stage]})" if worst.stage else ""
            severity, *rest = severity_words(severity_of(worst, finding)).partition(", ")
            head = f"{severity.upper()} {worst.rule} in {worst.subject}{stage}{''.join(rest)}"
            print(f"{self._tell_time(worst.t)}  {head}\n        {worst.sentence_with_suspect()}", flush=True)
            for action in worst.actions[:1]:
                print(f"        do: {action}", flush=True)

    def _tell_time(self, t: float) -> str:
        minutes, seconds = divmod(max(0, round(t - self._began)), 60)
        return f"{minutes:3}:{seconds:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What is watched: its configuration, the daemon's parts, and what is said. `speed` is how much faster `clock` runs."""

    loaded: LoadedConfig
    assemble: Assemble
    clock: Callable[[], float]
    speed: float
    banner: str
    parts: tuple[tuple[str, str], ...]


def watch(show: DemoRun, port: int, seconds: float | None, ends: ExitStack) -> None:
    """Run the real daemon on a show, for so many seconds or until it is stopped. Raise SizewatchError."""
    console = DemoConsole(show.clock(), lambda: daemon.stop())
    ender = threading.Timer(seconds or 0.0, lambda: daemon.stop())
    ender.daemon = True
    ends.callback(ender.cancel)

    def assembled(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        assembly = show.assemble(loaded, before)
        assembly.loop.sinks += (console,)
        return assembly

    def begin(daemon: Daemon) -> None:
        print(f"{show.banner}\n")
        for name, says in show.parts:
            print(f"  {name:12}{says}")
        print(f"\nStatus page: {daemon.web.url if daemon.web is not None else ''}   (Ctrl-C ends)")
        print("Times below are the engines' own, minutes:seconds since the start;", end=" ")
        print(f"theirs run {show.speed:g} times as fast as yours.\n", flush=True)
        console.show_findings(daemon.loop.state.open_findings())
        if seconds:
            ender.start()

    options = DaemonOptions(
        assemble=assembled,
        clock=show.clock,
        speed=show.speed,
        simulated=show.banner,
        web=lambda loaded: Web.model_construct(listen=f"127.0.0.1:{port}"),
        reloads=False,
        on_start=begin,
    )
    daemon = Daemon(show.loaded, options)
    daemon.run()
