"""Demo run: the real daemon with replaced engines, GPUs and clock, and its findings on the terminal."""

from __future__ import annotations

import shutil
import textwrap
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.config.web import Web
from agent.daemon.assembly import Assembly
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.factory import Assemble
from agent.pipeline.interfaces import Sink
from rules.catalogue.registry import BY_NAME
from rules.evaluator.observation import StepResult
from rules.replicas.cascade import STAGES
from rules.verdicts.finding import Finding, severity_of, severity_words
from rules.verdicts.rule import Severity

INDENT = " " * 8
"""As wide as the time at the beginning of a line."""


def say(text: str, first: str = "", further: str = INDENT) -> None:
    """Print a text in lines of the terminal's width. `first` and `further` begin its lines."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns - 1)
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    print("\n".join(lines), flush=True)


class DemoConsole(Sink):
    """Findings of the demo on the terminal. `began` is the demo's first instant, on the daemon's clock.

    `stop` is called when nobody reads the terminal any more.
    """

    def __init__(self, began: float, stop: Callable[[], None]) -> None:
        self._began = began
        self._stop = stop
        self._news: list[Finding] = []

    def accept(self, result: StepResult) -> None:
        """Take findings that ended, began or became worse."""
        self._news += (span for span in (*result.closed, *result.changed) if isinstance(span, Finding))

    def end_cycle(self, now: float) -> None:
        """Print the news of a cycle."""
        news, self._news = self._news, []
        try:
            self.show_findings(news)
        except OSError:
            self._stop()

    def show_findings(self, findings: Iterable[Finding]) -> None:
        """Print findings, but for those that only a report tells."""
        for finding in findings:
            worst = finding.worst
            if BY_NAME[finding.rule].loudness is Severity.REPORT:
                continue
            if finding.ended_at is not None:
                lasted = _clock(finding.ended_at - finding.started_at).strip()
                self._say_at(finding.ended_at, f"OVER {finding.rule} in {finding.subject}, after {lasted}")
                continue
            is_new = len(finding.transitions) == 1
            stage = f", stage {worst.stage} ({STAGES[worst.stage]})" if worst.stage else ""
            severity, *rest = severity_words(severity_of(worst, finding)).partition(", ")
            how = "" if is_new else " now"
            self._say_at(worst.t, f"{severity.upper()} {worst.rule}{how} in {worst.subject}{stage}{''.join(rest)}")
            say(worst.sentence_with_suspect(), INDENT)
            if is_new and worst.actions:
                say(f"do: {worst.actions[0].text}", INDENT, f"{INDENT}    ")

    def _say_at(self, t: float, text: str) -> None:
        say(f"{_clock(t - self._began)}  {text}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes:3}:{rest:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What is watched: its configuration, the daemon's parts, and what is said. `speed` is how much faster `clock` runs."""

    loaded: LoadedConfig
    assemble: Assemble
    clock: Callable[[], float]
    speed: float
    banner: str
    parts: tuple[tuple[str, str], ...]
    ended: str


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
        _say_head(show, daemon.web.url if daemon.web is not None else "")
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


def _say_head(show: DemoRun, url: str) -> None:
    say(show.banner, further="")
    print()
    for name, says in show.parts:
        say(f"  {name:12}{says}", further=" " * 14)
    print(f"\nStatus page: {url}   (Ctrl-C ends)")
    pace = f"{show.speed:g} seconds of theirs pass in one of yours"
    say(f"Times below are the engines' own, minutes:seconds since the start; {pace}.", further="")
    print(flush=True)
