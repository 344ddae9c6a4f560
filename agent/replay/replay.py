"""Replay of a recording or of a store's past, evaluated like in the daemon: the scrapes of a cycle are a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.errors import ScrapeError, ScrapeFailure
from agent.fleet.tier_readers import AGENTS, TierReader, TierReaderKey, build_replica_reader
from agent.prometheus.api import StoreApi
from agent.scrape.scrapers import PageReader, name_replica
from agent.sources.recording import RecordedTarget, Recording, Scrape, scrapes
from agent.sources.store import StoreSource, group_by_cycle
from rules.engines.registry import ITL_PER_TOKEN
from rules.engines.several import MODELS
from rules.evaluator import rule_evaluation
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import ClosedSpan, Finding, RuleState

CYCLE_SECONDS = 60.0
"""Cycle of a past store in seconds. A silent replica is noticed within this time, as in role fleet."""


class ShownWindow(NamedTuple):
    """Window of the step grid. `replica` is None for a whole tier."""

    tier: str
    replica: str | None
    window: Window


class Replay:
    """Evaluation of observations in order of time, with windows on a step grid, and its result.

    `state` is the present state, `ended` are the spans that ended, `problems` what could not be read. After `finish`,
    `of_cut_minute` are the findings that began or ended with the last minute, which is not over. `cut_short` is the
    reason of an early end, else empty. `start` and `end` are the times of the first and last scrape (unix seconds).
    """

    def __init__(self, name: str, contexts: Mapping[str, TierContext], step_seconds: float) -> None:
        self.name = name
        self.start = self.end = math.nan
        self.ended: list[ClosedSpan] = []
        self.problems: list[str] = []
        self.of_cut_minute: tuple[Finding, ...] = ()
        self.cut_short = ""
        self._evaluator = Evaluator(contexts)
        self.contexts: Mapping[str, TierContext] = self._evaluator.tiers
        self.state = EvaluatorState()
        self._step_seconds = step_seconds
        self._cells: dict[tuple[str, str | None, int], list[Window]] = {}

    @property
    def rule_states(self) -> tuple[RuleState, ...]:
        return tuple(self.state.rules.values())

    def evaluate(self, observation: Observation) -> None:
        """Evaluate an observation. Raise what a page's evaluation raised."""
        for scrape in observation.scrapes:
            self.start = scrape.t if math.isnan(self.start) else self.start
            self.end = scrape.t
        result = self._evaluator.step(self.state, observation)
        result.raise_defects()
        self.ended.extend(result.closed)
        for (tier, replica), window in result.windows:
            # By its midpoint, so that the edges of a cell stay scrape times.
            cell = math.floor((window.middle - self.start) / self._step_seconds)
            for name in (replica, None):
                self._cells.setdefault((tier, name, cell), []).append(window)

    def finish(self) -> None:
        """Close the last minute, and set the results of the rules over days to unknown."""
        ended, lasting = len(self.ended), {(span.rule, span.subject) for span in self.state.open_findings()}
        self._evaluator.flush(self.state)
        models: dict[str, set[str]] = {}
        for (tier, _), replica in self.state.replicas.items():
            if replica.track.last is not None and "model" in replica.track.last.facts:
                models.setdefault(tier, set()).add(replica.track.last.facts["model"])
        for tier, names in models.items():
            if len(names) > 1:
                self.problems.append(f"{tier}: {MODELS.format(' and '.join(sorted(names)))}")
        if not math.isnan(self.end):
            text = "a recording is judged by its minutes, this needs days of history"
            for context in self.contexts.values():
                unknown = rule_evaluation.unknown_results(context, self.end, Gap.TOO_FEW_REQUESTS, text)
                self.state.set_long_term_results(unknown)
            self.evaluate(Observation(now=self.end))
        began = [span for span in self.state.open_findings() if (span.rule, span.subject) not in lasting]
        self.of_cut_minute = (*(span for span in self.ended[ended:] if isinstance(span, Finding)), *began)

    @cached_property
    def windows(self) -> tuple[ShownWindow, ...]:
        """Return the sum of each cell of the step grid, of each replica and of the whole tier, in order of time."""
        shown = (
            ShownWindow(tier, replica, windows.sum_windows(group)) for (tier, replica, _), group in self._cells.items()
        )
        return tuple(sorted(shown, key=lambda s: (s.window.start, s.tier, s.replica or "")))

    def unseen(self) -> str:
        """Return why no window has data, or "" if any has."""
        if any(shown.window.covered_seconds > 0 for shown in self.windows):
            return ""
        reasons = sorted({gap.value for shown in self.windows for gap in shown.window.gaps.values()})
        return f"nothing was seen: {', '.join(reasons) or 'a replica needs two pages of one process'}"


def replay(
    recording: Recording, plan: Plan | None, step_seconds: float = 60.0, problems: tuple[str, ...] = ()
) -> Replay:
    """Evaluate a recording against a plan. Unusable lines and pages are listed in the result's problems."""
    tiers = plan.tiers if plan is not None else {}
    contexts: dict[str, TierContext] = {}
    for name, targets in windows.group_by(recording.targets, lambda target: target.tier).items():
        tier = tiers.get(name)
        comparable = (targets[-1].engine or (tier.engine if tier else None)) not in ITL_PER_TOKEN
        pools = {target.replica: target.pool for target in targets}
        contexts[name] = build_tier_context(name, tier, comparable, pools=pools)
    run = Replay(recording.name, contexts, step_seconds)
    run.problems += problems
    if plan is not None:
        text = "is not in the plan: it is compared with nothing"
        run.problems += [f"{recording.folder}: tier {tier} {text}" for tier in sorted(contexts.keys() - tiers.keys())]
    readers = [(target, PageReader(target.engine, target.engine_version)) for target in recording.targets]
    for cycle in group_by_cycle(scrapes(recording, run.problems), lambda scrape: scrape.target):
        pages = [page for scrape in cycle for page in _read(*readers[scrape.target], scrape, run.problems)]
        run.evaluate(Observation(now=pages[-1].t, scrapes=tuple(pages)))
    run.finish()
    return run


def _read(target: RecordedTarget, reader: PageReader, scrape: Scrape, problems: list[str]) -> list[ReplicaScrape]:
    """Return the scrape of a target, or of each engine of its page. A page that is of no engine is no replica's."""
    error_text, kind = scrape.error, None
    if scrape.body is not None:
        try:
            return [
                ReplicaScrape(tier=target.tier, replica=name_replica(target.replica, name), t=scrape.t, snapshot=page)
                for name, page in reader.read_engines(scrape.body, scrape.t).items()
            ]
        except ScrapeError as error:
            problems.append(f"{target.path}: page at {scrape.t:.3f}: {error}")
            error_text, kind = str(error), error.kind
    no_engine = kind is ScrapeFailure.NOT_ONE_ENGINE
    return [ReplicaScrape(tier=target.tier, replica=target.replica, t=scrape.t, error=error_text, no_engine=no_engine)]


def replay_store(loaded: LoadedConfig, api: StoreApi, since: float, until: float, step_seconds: float) -> Replay:
    """Evaluate (since, until] (unix seconds) of a store: all tiers of the configuration and its plan.

    Missing data is a gap. If the store fails, the replay ends there with `cut_short` set."""
    contexts = build_tier_contexts(loaded)
    tiers = loaded.config.tiers
    readers: dict[TierReaderKey, TierReader] = {
        (None, tier): build_replica_reader(tier, tiers.get(tier, AGENTS), contexts[tier], api) for tier in contexts
    }
    source = StoreSource(readers=readers, api=api, agent_tiers=frozenset(), delay_seconds=0.0, begin=since)
    run = Replay(" and ".join(contexts), contexts, step_seconds)
    t = since
    while t < until and source.failed is None:
        t = min(until, t + CYCLE_SECONDS)
        for observation in source.observe(t):
            if source.failed is None and (observation.scrapes or observation.unavailable or observation.removed):
                run.evaluate(observation)
    if source.failed is not None:
        end = datetime.fromtimestamp(since if math.isnan(run.end) else run.end).astimezone()
        run.cut_short = f"{source.failed}; the replay ends at {end.isoformat(' ', 'seconds')}"
    run.finish()
    missing = contexts.keys() - {shown.tier for shown in run.windows} if source.failed is None else ()
    run.problems += [f"{tier}: the store has nothing of it in that time" for tier in sorted(missing)]
    return run
