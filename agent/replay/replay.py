"""Replay of a recording or of a store's past, evaluated like in the daemon.

The scrapes of a cycle are a step (`rules.evaluator.step`); the step option only sets the width of the shown windows. A
tier of a store (`agent.sources.past_store`) is read replica by replica at any size. That is exact, and latency is no
concern.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.errors import ScrapeError, ScrapeFailure
from agent.fleet.tier_readers import AGENTS, build_replica_reader
from agent.prometheus.api import SampleClient
from agent.prometheus.errors import StoreError
from agent.scrape.page_engines import name_replica
from agent.scrape.scrapers import PageReader
from agent.sources.past_store import PastQueryClient, PastReader
from agent.sources.recording import Recording, Scrape, add_problem, scrapes
from rules.engines.registry import ENGINES, itl_comparable
from rules.evaluator import long_rules
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan
from rules.replicas.track import BRIDGE_SECONDS
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.finding import ClosedSpan, Finding, RuleState

DEFAULT_STEP_SECONDS = 60.0

_LABELS = {(engine.name, engine.generation): engine.label for engine in ENGINES}
# Agents report no generation.
_LABELS |= {(engine.name, ""): engine.title for engine in ENGINES}

DAYS_ARE_NEEDED = "a recording is judged by its minutes, this needs days of history"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWindow:
    """Window of the step grid. `replica` is None for a whole tier."""

    tier: str
    replica: str | None
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay.

    `rule_states` are the rule states at the end, `ended` the spans that ended before. `engines` are the engine labels of
    each tier. `of_cut_minute` are the findings that began or ended with the last minute, which is not over. `cut_short`
    is the reason why the replay ended early, else empty.
    """

    name: str
    start: float
    end: float
    windows: tuple[ShownWindow, ...]
    ended: tuple[ClosedSpan, ...]
    rule_states: tuple[RuleState, ...]
    contexts: Mapping[str, TierContext]
    engines: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]
    of_cut_minute: tuple[Finding, ...] = ()
    cut_short: str = ""

    def unseen(self) -> str:
        """Return why no window has data, or "" if any has."""
        if any(shown.window.covered_seconds > 0 for shown in self.windows):
            return ""
        reasons = sorted({gap.value for shown in self.windows for gap in shown.window.gaps.values()})
        text = f"nothing was seen: {', '.join(reasons) or 'a replica needs two pages of one process'}"
        if Gap.NOT_SCRAPED.value in reasons:
            text += f"; at most {BRIDGE_SECONDS:.0f} s between two scrapes are bridged"
        return text

    def total_by_tier(self) -> dict[str, Window]:
        """Return each tier's windows, summed."""
        tiers: dict[str, list[Window]] = {}
        for shown in self.windows:
            if shown.replica is None:
                tiers.setdefault(shown.tier, []).append(shown.window)
        return {tier: windows.sum_windows(group) for tier, group in tiers.items()}


class ReplayRun:
    """Evaluation of observations, with windows on a step grid. `engines` are the labels of the pages by tier."""

    def __init__(self, contexts: Mapping[str, TierContext], step_seconds: float) -> None:
        self.evaluator = Evaluator(contexts)
        self.state = EvaluatorState()
        self.engines: dict[str, dict[str, None]] = {}
        self._step_seconds = step_seconds
        self._cells: dict[tuple[str, str, int], list[Window]] = {}
        self._ended: list[ClosedSpan] = []
        self._start = self._end = math.nan

    def evaluate(self, observation: Observation) -> None:
        """Evaluate an observation. They must be in order of time."""
        for scrape in observation.scrapes:
            self._start = scrape.t if math.isnan(self._start) else self._start
            self._end = scrape.t
            met, page = self.engines.setdefault(scrape.tier, {}), scrape.snapshot
            if page is not None:
                met[_LABELS.get((page.engine, page.generation), page.engine)] = None
        result = self.evaluator.step(self.state, observation)
        result.raise_defects()
        self._ended.extend(result.closed)
        for (tier, replica), window in result.windows:
            # By its midpoint, so that the edges of a cell stay scrape times.
            cell = math.floor((window.middle - self._start) / self._step_seconds)
            self._cells.setdefault((tier, replica, cell), []).append(window)

    def finish(self, name: str, problems: Sequence[str], cut_short: str = "") -> ReplayResult:
        ended, lasting = len(self._ended), self.state.open_findings()
        self.evaluator.flush(self.state)
        if not math.isnan(self._end):
            for context in self.evaluator.tiers.values():
                self.state.set_long_term_results(
                    long_rules.unknown_results(context, self._end, Gap.TOO_FEW_REQUESTS, DAYS_ARE_NEEDED)
                )
            self.evaluate(Observation(now=self._end))
        began = {(one.rule, one.subject): one for one in self.state.open_findings()}
        for one in lasting:
            began.pop((one.rule, one.subject), None)
        return ReplayResult(
            name=name,
            start=self._start,
            end=self._end,
            windows=_shown_windows(self._cells),
            ended=tuple(self._ended),
            rule_states=tuple(self.state.rules.values()),
            contexts=self.evaluator.tiers,
            engines={tier: tuple(labels) for tier, labels in self.engines.items() if labels},
            problems=tuple(problems),
            of_cut_minute=(*(one for one in self._ended[ended:] if isinstance(one, Finding)), *began.values()),
            cut_short=cut_short,
        )


def replay(
    recording: Recording, plan: Plan | None, step_seconds: float = DEFAULT_STEP_SECONDS, problems: tuple[str, ...] = ()
) -> ReplayResult:
    """Evaluate a recording against a plan. Unusable lines and pages are listed in the result's problems."""
    tiers, met = plan.tiers if plan is not None else {}, list(problems)
    contexts: dict[str, TierContext] = {}
    for target in recording.targets:
        tier = tiers.get(target.tier)
        comparable = itl_comparable(target.engine or (tier.engine if tier else None))
        pools = {other.replica: other.pool for other in recording.targets if other.tier == target.tier}
        contexts[target.tier] = build_tier_context(target.tier, tier, comparable, pools=pools)
    if plan is not None:
        text = "is not in the plan: it is compared with nothing"
        met += [f"{recording.folder}: tier {tier} {text}" for tier in sorted(contexts.keys() - tiers.keys())]
    run = ReplayRun(contexts, step_seconds)
    readers = [PageReader(target.engine, target.engine_version) for target in recording.targets]
    for cycle in _cycles(scrapes(recording, met)):
        read = tuple(one for scrape in cycle for one in _read(recording, readers, scrape, met))
        run.evaluate(Observation(now=cycle[-1].t, scrapes=read))
    return run.finish(recording.name, met)


def _cycles(recorded: Iterable[Scrape]) -> Iterator[list[Scrape]]:
    """Yield the scrapes of each cycle. A target's second scrape begins the next one.

    A tier whose replicas are evaluated one by one would be judged by minutes that only some of them have closed."""
    cycle: list[Scrape] = []
    for scrape in recorded:
        if any(scrape.target == one.target for one in cycle):
            yield cycle
            cycle = []
        cycle.append(scrape)
    if cycle:
        yield cycle


def _read(
    recording: Recording, readers: list[PageReader], scrape: Scrape, problems: list[str]
) -> Iterator[ReplicaScrape]:
    """Yield the scrape of a target, or of each engine of its page. A page that is of no engine is no replica's."""
    target, reader = recording.targets[scrape.target], readers[scrape.target]
    error_text, kind = scrape.error, None
    if scrape.body is not None:
        try:
            for name, page in reader.read_engines(scrape.body, scrape.t).items():
                yield ReplicaScrape(
                    tier=target.tier, replica=name_replica(target.replica, name), t=scrape.t, snapshot=page
                )
            return
        except ScrapeError as error:
            add_problem(problems, f"{target.path}: page at {scrape.t:.3f}: {error}")
            error_text, kind = str(error), error.kind
    yield ReplicaScrape(
        tier=target.tier,
        replica=target.replica,
        t=scrape.t,
        error=error_text,
        no_engine=kind is ScrapeFailure.NOT_ONE_ENGINE,
    )


def _shown_windows(cells: Mapping[tuple[str, str, int], list[Window]]) -> tuple[ShownWindow, ...]:
    """Return the sum of each cell of the step grid, of each replica and of the whole tier, in order of time."""
    tiers: dict[tuple[str, int], list[Window]] = {}
    shown = []
    for (tier, replica, cell), group in cells.items():
        window = windows.sum_windows(group)
        shown.append(ShownWindow(tier=tier, replica=replica, window=window))
        tiers.setdefault((tier, cell), []).append(window)
    shown += (ShownWindow(tier=t, replica=None, window=windows.sum_windows(group)) for (t, _), group in tiers.items())
    return tuple(sorted(shown, key=lambda s: (s.window.start, s.tier, s.replica or "")))


def replay_store(
    loaded: LoadedConfig, api: SampleClient, since: float, until: float, step_seconds: float
) -> ReplayResult:
    """Evaluate (since, until] (unix seconds) of a store: all tiers of the configuration and its plan.

    Missing data is a gap. If the store fails, the replay ends there with `cut_short` set."""
    contexts = build_tier_contexts(loaded)
    past = PastQueryClient(api, until)
    reader = PastReader(
        [
            build_replica_reader(tier, loaded.config.tiers.get(tier, AGENTS), context, past)
            for tier, context in contexts.items()
        ],
        since,
    )
    run = ReplayRun(contexts, step_seconds)
    cut_short = ""
    try:
        for observation in reader.observations(until):
            run.evaluate(observation)
    except StoreError as error:
        begin, end = (datetime.fromtimestamp(t).astimezone().isoformat(" ", "seconds") for t in (reader.reached, until))
        cut_short = f"{error}; the replay ends at {begin} instead of {end}"
    problems = [f"{tier}: the store has nothing of it in that time" for tier in contexts if tier not in run.engines]
    return run.finish(" and ".join(contexts), () if cut_short else problems, cut_short)
