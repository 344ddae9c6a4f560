"""Replay of a recording or of a store's past, evaluated like in the daemon.

The scrapes of a cycle are a step (`rules.evaluator.step`); the step option only sets the width of the shown windows. A
tier of a store (`agent.sources.past_store`) is read replica by replica at any size. That is exact, and latency is no
concern.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.errors import ScrapeError, ScrapeFailure
from agent.fleet.tier_readers import AGENTS, build_replica_reader
from agent.prometheus.api import SampleClient
from agent.prometheus.errors import StoreError
from agent.scrape.page_engines import name_replica
from agent.scrape.scrapers import PageReader
from agent.sources.past_store import PastQueryClient, observe_past
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


class Replay:
    """Evaluation of observations in order of time, with windows on a step grid, and its result.

    `state` is the present state, `ended` are the spans that ended, `engines` the engine labels of each tier, `problems`
    what could not be read. After `finish`, `of_cut_minute` are the findings that began or ended with the last minute,
    which is not over. `cut_short` is the reason why the replay ended early, else empty. `start` and `end` are the times
    of the first and last scrape (unix seconds).
    """

    def __init__(self, name: str, contexts: Mapping[str, TierContext], step_seconds: float) -> None:
        self.name = name
        self.start = self.end = math.nan
        self.ended: list[ClosedSpan] = []
        self.engines: dict[str, dict[str, None]] = {}
        self.problems: list[str] = []
        self.of_cut_minute: tuple[Finding, ...] = ()
        self.cut_short = ""
        self._evaluator = Evaluator(contexts)
        self.state = EvaluatorState()
        self._step_seconds = step_seconds
        self._cells: dict[tuple[str, str, int], list[Window]] = {}

    @property
    def contexts(self) -> Mapping[str, TierContext]:
        """Return the context of each tier."""
        return self._evaluator.tiers

    @property
    def rule_states(self) -> tuple[RuleState, ...]:
        """Return the present state of each rule."""
        return tuple(self.state.rules.values())

    def evaluate(self, observation: Observation) -> None:
        """Evaluate an observation. Raise what a page's evaluation raised."""
        for scrape in observation.scrapes:
            self.start = scrape.t if math.isnan(self.start) else self.start
            self.end = scrape.t
            page = scrape.snapshot
            if page is not None:
                label = _LABELS.get((page.engine, page.generation), page.engine)
                self.engines.setdefault(scrape.tier, {})[label] = None
        result = self._evaluator.step(self.state, observation)
        result.raise_defects()
        self.ended.extend(result.closed)
        for (tier, replica), window in result.windows:
            # By its midpoint, so that the edges of a cell stay scrape times.
            cell = math.floor((window.middle - self.start) / self._step_seconds)
            self._cells.setdefault((tier, replica, cell), []).append(window)

    def finish(self) -> None:
        """Close the last minute, and set the results of the rules over days to unknown."""
        ended, lasting = len(self.ended), {(span.rule, span.subject) for span in self.state.open_findings()}
        self._evaluator.flush(self.state)
        if not math.isnan(self.end):
            for context in self.contexts.values():
                unknown = long_rules.unknown_results(context, self.end, Gap.TOO_FEW_REQUESTS, DAYS_ARE_NEEDED)
                self.state.set_long_term_results(unknown)
            self.evaluate(Observation(now=self.end))
        began = [span for span in self.state.open_findings() if (span.rule, span.subject) not in lasting]
        self.of_cut_minute = (*(span for span in self.ended[ended:] if isinstance(span, Finding)), *began)

    @cached_property
    def windows(self) -> tuple[ShownWindow, ...]:
        """Return the sum of each cell of the step grid, of each replica and of the whole tier, in order of time."""
        tiers: dict[tuple[str, int], list[Window]] = {}
        shown = []
        for (tier, replica, cell), group in self._cells.items():
            window = windows.sum_windows(group)
            shown.append(ShownWindow(tier=tier, replica=replica, window=window))
            tiers.setdefault((tier, cell), []).append(window)
        shown += [
            ShownWindow(tier=tier, replica=None, window=windows.sum_windows(group))
            for (tier, _), group in tiers.items()
        ]
        return tuple(sorted(shown, key=lambda s: (s.window.start, s.tier, s.replica or "")))

    def total_by_tier(self) -> dict[str, Window]:
        """Return each tier's windows, summed."""
        tiers: dict[str, list[Window]] = {}
        for (tier, _, _), group in self._cells.items():
            tiers.setdefault(tier, []).extend(group)
        return {tier: windows.sum_windows(group) for tier, group in tiers.items()}

    def unseen(self) -> str:
        """Return why no window has data, or "" if any has."""
        cells = [window for group in self._cells.values() for window in group]
        if any(window.covered_seconds > 0 for window in cells):
            return ""
        reasons = sorted({gap.value for window in cells for gap in window.gaps.values()})
        text = f"nothing was seen: {', '.join(reasons) or 'a replica needs two pages of one process'}"
        if Gap.NOT_SCRAPED.value in reasons:
            text += f"; at most {BRIDGE_SECONDS:.0f} s between two scrapes are bridged"
        return text


def replay(
    recording: Recording, plan: Plan | None, step_seconds: float = DEFAULT_STEP_SECONDS, problems: tuple[str, ...] = ()
) -> Replay:
    """Evaluate a recording against a plan. Unusable lines and pages are listed in the result's problems."""
    tiers = plan.tiers if plan is not None else {}
    contexts: dict[str, TierContext] = {}
    for target in recording.targets:
        tier = tiers.get(target.tier)
        comparable = itl_comparable(target.engine or (tier.engine if tier else None))
        pools = {other.replica: other.pool for other in recording.targets if other.tier == target.tier}
        contexts[target.tier] = build_tier_context(target.tier, tier, comparable, pools=pools)
    run = Replay(recording.name, contexts, step_seconds)
    run.problems += problems
    if plan is not None:
        text = "is not in the plan: it is compared with nothing"
        run.problems += [f"{recording.folder}: tier {tier} {text}" for tier in sorted(contexts.keys() - tiers.keys())]
    readers = [PageReader(target.engine, target.engine_version) for target in recording.targets]
    cycle: dict[int, tuple[ReplicaScrape, ...]] = {}
    for scrape in scrapes(recording, run.problems):
        # A target's second scrape begins the next cycle. Step by step only some of a tier's replicas would have closed a
        # minute.
        if scrape.target in cycle:
            run.evaluate(_observation(cycle))
            cycle = {}
        cycle[scrape.target] = tuple(_read(recording, readers, scrape, run.problems))
    if cycle:
        run.evaluate(_observation(cycle))
    run.finish()
    return run


def _observation(cycle: Mapping[int, tuple[ReplicaScrape, ...]]) -> Observation:
    several = tuple(chain.from_iterable(cycle.values()))
    return Observation(now=several[-1].t, scrapes=several)


def _read(
    recording: Recording, readers: list[PageReader], scrape: Scrape, problems: list[str]
) -> Iterator[ReplicaScrape]:
    """Yield the scrape of a target, or of each engine of its page. A page that is of no engine is no replica's."""
    target = recording.targets[scrape.target]
    error_text, kind = scrape.error, None
    if scrape.body is not None:
        try:
            for name, page in readers[scrape.target].read_engines(scrape.body, scrape.t).items():
                replica = name_replica(target.replica, name)
                yield ReplicaScrape(tier=target.tier, replica=replica, t=scrape.t, snapshot=page)
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


def replay_store(loaded: LoadedConfig, api: SampleClient, since: float, until: float, step_seconds: float) -> Replay:
    """Evaluate (since, until] (unix seconds) of a store: all tiers of the configuration and its plan.

    Missing data is a gap. If the store fails, the replay ends there with `cut_short` set."""
    contexts = build_tier_contexts(loaded)
    past = PastQueryClient(api, until)
    tiers = loaded.config.tiers
    readers = [build_replica_reader(tier, tiers.get(tier, AGENTS), contexts[tier], past) for tier in contexts]
    run = Replay(" and ".join(contexts), contexts, step_seconds)
    try:
        for observation in observe_past(readers, since, until):
            run.evaluate(observation)
    except StoreError as error:
        reached = since if math.isnan(run.end) else run.end
        begin, end = (datetime.fromtimestamp(t).astimezone().isoformat(" ", "seconds") for t in (reached, until))
        run.cut_short = f"{error}; the replay ends at {begin} instead of {end}"
    else:
        missing = [tier for tier in contexts if tier not in run.engines]
        run.problems += [f"{tier}: the store has nothing of it in that time" for tier in missing]
    run.finish()
    return run
