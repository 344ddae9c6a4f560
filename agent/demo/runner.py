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
from agent.daemon.factory import assemble
from agent.errors import ConfigError
from agent.gpu.collector import GpuReader
from rules.catalogue.registry import BY_NAME
from rules.replicas.cascade import STAGES
from rules.verdicts.finding import Finding, RuleState, severity_of, severity_words
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Subject, Verdict

NARROWEST, WIDEST = 40, 100
INDENT = " " * 8
"""As wide as the time at the beginning of a line."""

Known = tuple[str, Subject]


class DemoConsole:
    """Findings of the demo on the terminal. `began` is the demo's first instant, on the daemon's clock."""

    def __init__(self, began: float, width: int, say: Callable[[str], None]) -> None:
        self._began = began
        self._width = width
        self._say = say
        self._open: dict[Known, tuple[float, Verdict]] = {}
        self._rounds: dict[str, int] = {}

    def show_findings(self, rule_states: Iterable[RuleState], ended: Iterable[Finding]) -> None:
        """Print findings that began, became worse or more certain, or ended."""
        for finding in ended:
            known = (finding.rule, finding.subject)
            if finding.ended_at is not None and known in self._open and self._open[known][0] == finding.started_at:
                del self._open[known]
                lasted = _clock(finding.ended_at - finding.started_at).strip()
                self._line(finding.ended_at, f"OVER {finding.rule} in {finding.subject}, after {lasted}")
        for state in rule_states:
            if state.finding is not None and BY_NAME[state.finding.rule].loudness is not Severity.REPORT:
                self._show(state.finding)

    def show_rounds(self, t: float, rounds: dict[str, int]) -> None:
        """Print which recordings began again. `rounds` is how often each has."""
        for tier, times in rounds.items():
            if times > self._rounds.get(tier, 0):
                self._rounds[tier] = times
                self._line(t, f"{tier}: the recording begins anew, as an engine that restarts")

    def _show(self, finding: Finding) -> None:
        known, worst = (finding.rule, finding.subject), finding.worst
        started, before = self._open.get(known, (None, None))
        is_new = before is None or started != finding.started_at
        changes_level = is_new or before is None or (before.status, before.stage) != (worst.status, worst.stage)
        if not changes_level and before is not None and before.certainty == worst.certainty:
            return
        self._open[known] = finding.started_at, worst
        stage = f", stage {worst.stage} ({STAGES[worst.stage]})" if worst.stage else ""
        severity, *rest = severity_words(severity_of(worst, None)).partition(", ")
        how = "" if is_new else " now"
        self._line(worst.t, f"{severity.upper()} {worst.rule}{how} in {worst.subject}{stage}{''.join(rest)}")
        if changes_level:
            self._say(fill_text(worst.sentence_with_suspect(), self._width, INDENT))
        if is_new and worst.actions:
            self._say(fill_text(f"do: {worst.actions[0].text}", self._width, INDENT, f"{INDENT}    "))

    def _line(self, t: float, text: str) -> None:
        self._say(fill_text(f"{_clock(t - self._began)}  {text}", self._width, further=INDENT))


def terminal_width() -> int:
    """Return the columns to use of standard output."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns - 1))


def fill_text(text: str, width: int, indent: str = "", further: str | None = None) -> str:
    """Return the text in lines of a width. `further` begins each line but the first."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes:3}:{rest:02}"


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
    """Run the real daemon on a show, for so many seconds or until it is stopped. Raise SizewatchError."""
    width = terminal_width()
    console = DemoConsole(show.clock(), width, _say)
    ender = threading.Timer(seconds or 0.0, lambda: daemon.stop())
    ender.daemon = True
    ends.callback(ender.cancel)

    def assembled(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        return assemble(loaded, before, clock=show.clock, gpu_source=show.gpus)

    def begin(daemon: Daemon) -> None:
        _say(_head(width, show, daemon.web.url if daemon.web is not None else ""))
        if seconds:
            ender.start()

    def listen(daemon: Daemon) -> None:
        try:
            console.show_rounds(show.clock(), show.rounds())
            console.show_findings(list(daemon.loop.state.rules.values()), list(daemon.runtime.past))
        except OSError:
            # Nobody reads the terminal any more.
            daemon.stop()

    options = DaemonOptions(
        assemble=assembled,
        clock=show.clock,
        speed=show.speed,
        simulated=show.banner,
        web=lambda loaded: Web.model_construct(listen=f"127.0.0.1:{port}"),
        reloads=False,
        on_start=begin,
        on_cycle=listen,
    )
    daemon = Daemon(show.loaded, options)
    try:
        daemon.run()
    except ConfigError as error:
        raise ConfigError((*error.problems, "give another port with --port, or 0 for any free one")) from error


def _say(text: str) -> None:
    print(text, flush=True)


def _head(width: int, show: DemoRun, url: str) -> str:
    column = max(len(name) for name, _ in show.parts) + 3
    pace = f"{show.speed:g} seconds of theirs pass in one of yours"
    lines = (
        fill_text(show.banner, width),
        "",
        *(fill_text(f"{name:{column}}{says}", width, "  ", " " * (column + 2)) for name, says in show.parts),
        "",
        f"Status page: {url}   (Ctrl-C ends)",
        fill_text(f"Times below are the engines' own, minutes:seconds since the start; {pace}.", width),
        "",
    )
    return "\n".join(lines)
