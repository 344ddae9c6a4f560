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
from rules.confidence import Certainty
from rules.replicas.cascade import STAGES
from rules.verdicts.finding import Finding, RuleState, severity_of, severity_words
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Subject, Verdict

NARROWEST, WIDEST = 40, 100
INDENT = " " * 8
"""As wide as the time at the beginning of a line."""

Known = tuple[str, Subject]


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """What is written on: how wide it is."""

    width: int

    @staticmethod
    def detect_terminal() -> TerminalStyle:
        """Standard output as it is now."""
        columns = shutil.get_terminal_size((WIDEST, 24)).columns
        return TerminalStyle(max(NARROWEST, min(WIDEST, columns - 1)))

    def wrap_text(self, text: str, indent: str = "", further: str | None = None) -> str:
        """The text in lines of that width; `further` begins each line but the first."""
        rest = indent if further is None else further
        wrapper = textwrap.TextWrapper(
            self.width,
            initial_indent=indent,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return wrapper.fill(text)


class DemoConsole:
    """Told the standings after each turn. `began` is the demo's first instant, on the daemon's clock."""

    def __init__(self, began: float, paper: TerminalStyle, say: Callable[[str], None]) -> None:
        self._began = began
        self._paper = paper
        self._say = say
        self._open: dict[Known, tuple[float, Verdict]] = {}
        self._met: set[Known] = set()
        self._rounds: dict[str, int] = {}

    def listen(self, rule_states: Iterable[RuleState], ended: Iterable[Finding]) -> None:
        """Says what is new."""
        for finding in ended:
            self._over(finding)
        for rule_state in rule_states:
            if rule_state.finding is not None and BY_NAME[rule_state.finding.rule].loudness is not Severity.REPORT:
                self._tell(rule_state.finding)

    def played(self, t: float, rounds: dict[str, int]) -> None:
        """Says which recordings began anew; `rounds` is how often each has."""
        for tier, times in rounds.items():
            if times > self._rounds.get(tier, 0):
                self._rounds[tier] = times
                self._line(t, f"{tier}: the recording begins anew, as an engine that restarts")

    def _tell(self, finding: Finding) -> None:
        known, worst = (finding.rule, finding.subject), finding.worst
        started, before = self._open.get(known, (None, None))
        if started != finding.started_at:
            before = None
        last = before and (before.status, before.stage, before.certainty)
        if last == (worst.status, worst.stage, worst.certainty):
            return
        self._open[known] = finding.started_at, worst
        if known in self._met:
            self._briefly(before, worst)
        else:
            self._in_full(before, worst)
        if worst.certainty is Certainty.CERTAIN:
            self._met.add(known)

    def _in_full(self, before: Verdict | None, worst: Verdict) -> None:
        self._head(worst, "" if before is None else " now")
        if before is None or (before.status, before.stage) != (worst.status, worst.stage):
            self._say(self._paper.wrap_text(worst.sentence_with_suspect(), INDENT))
        if before is None and worst.actions:
            self._say(self._paper.wrap_text(f"do: {worst.actions[0].text}", INDENT, f"{INDENT}    "))

    def _briefly(self, before: Verdict | None, worst: Verdict) -> None:
        """It was told in full: that it is back, and each step for the worse."""
        if before is None or (before.status, before.stage) != (worst.status, worst.stage):
            self._head(worst, " again" if before is None else " now")

    def _head(self, verdict: Verdict, how: str) -> None:
        stage = f", stage {verdict.stage} ({STAGES[verdict.stage]})" if verdict.stage else ""
        severity = severity_words(severity_of(verdict, None)).partition(", ")
        text = f"{severity[0].upper()} {verdict.rule}{how} in {verdict.subject}{stage}"
        self._line(verdict.t, "".join((text, *severity[1:])))

    def _over(self, finding: Finding) -> None:
        known = (finding.rule, finding.subject)
        if finding.ended_at is None or self._open.get(known, (None,))[0] != finding.started_at:
            return
        del self._open[known]
        lasted = _clock(finding.ended_at - finding.started_at).strip()
        self._line(finding.ended_at, f"OVER {finding.rule} in {finding.subject}, after {lasted}")

    def _line(self, t: float, text: str) -> None:
        """The time, and the text in lines."""
        self._say(self._paper.wrap_text(f"{_clock(t - self._began)}  {text}", further=INDENT))


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
        web=lambda loaded: Web.model_construct(listen=f"127.0.0.1:{port}"),
        reloads=False,
        on_start=begin,
        on_turn=listen,
    )


def _listener(narrator: DemoConsole, show: DemoRun) -> Callable[[Daemon], None]:
    def listen(daemon: Daemon) -> None:
        try:
            narrator.played(show.clock(), show.rounds())
            narrator.listen(list(daemon.loop.state.rules.values()), list(daemon.runtime.past))
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
