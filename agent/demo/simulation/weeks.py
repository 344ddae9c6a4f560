"""Simulated weeks in a new folder: a history as the daemon would have recorded it, plan and configuration.

Calm time is a window each quarter of an hour, in the newest days each minute. Around a restart and a cascade pages are
15 seconds apart, and the evaluator of the daemon judges those of the cascade. The rules over days are those of the
daemon, once a day. Nothing else is judged: deployments would fill the timeline.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from agent.config.files import load_plan
from agent.config.load import load
from agent.daemon.assembly import assemble
from agent.demo.engines import Clock
from agent.demo.runner import DemoRun
from agent.demo.simulation.scenario import DAY, HOUR, QUARTER, ScriptedCascade, TierRun, find_outage, stories
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.history import daily_queries
from agent.history.schema import MINUTES, Span
from agent.history.service import HistoryService
from agent.history.store import NOTE, HistoryStore
from agent.scrape.scrapers import ScrapeResult, Scrapers, StartedScrapes
from agent.version import VERSION
from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.evaluator import rule_evaluation
from rules.evaluator.external_alerts import ExternalAlert, attach_finding
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaScrape
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent, TimelineKind, start_event
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import TierPlan, plan_version
from rules.replicas.starts import ReplicaStart
from rules.telemetry import gauges, windows
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import EVERYTHING, MINUTE_SECONDS, Window
from rules.verdicts.verdict import Finding, RuleState, Verdict, step_rule_state

PLAN = Path(__file__).parent / "plan.yaml"
CONFIG, HISTORY = "sizewatch.yaml", "history.db"

SCRAPE_SECONDS = 15.0

ALERT = "InferenceLatencyHigh"
SUMMARY = "P95 request duration above 10 s for 2 minutes (simulated)"

LIVE = ("WorkloadDrift", "TtftDivergence")
"""Rules over minutes that the story makes fire: here they judge quarters of an hour."""


def build_window(earlier: Snapshot, later: Snapshot) -> Window:
    """Return the window of many minutes as close pages make it: gauges move in a straight line."""
    window = windows.diff_snapshots(earlier, later)
    if EVERYTHING in window.gaps:
        return window
    levels = {}
    for family, value in later.gauges.items():
        if family in earlier.gauges:
            levels[family] = gauges.interpolate(earlier.gauges[family], value, later.t - earlier.t)
    gaps = {family: reason for family, reason in window.gaps.items() if family not in levels}
    return replace(window, gauges=levels, gaps=gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHistory:
    """Filled weeks: the engines of each tier as they stand at `end` (unix seconds)."""

    runs: Mapping[str, TierRun]
    begin: float
    end: float


class WatchedTier:
    """A tier as sizewatch sees it. `minutes`, `spans` and `events` wait to be written."""

    def __init__(self, run: TierRun, plan: TierPlan, fine_from: float) -> None:
        self.run, self.tier, self.plan = run, run.story.tier, plan
        self.context = load_bins.build_tier_context(self.tier, plan)
        # A plan that was replaced knew a longer cold start.
        earlier = plan.model_copy(update={"cold_start_seconds": 240.0})
        self.version = plan_version(plan if run.story.replanned_at is None else earlier)
        scenes = []
        for restart in run.story.restarts:
            first, last = restart.gone // MINUTE_SECONDS - 1, restart.ready // MINUTE_SECONDS + 2
            scenes.append((first * MINUTE_SECONDS, last * MINUTE_SECONDS))
        if run.story.cascade is not None:
            scenes.append(run.story.cascade.scene)
        self._close: set[float] = set()
        for first, last in scenes:
            self._close.update(first + n * SCRAPE_SECONDS for n in range(round((last - first) / SCRAPE_SECONDS) + 1))
        self._fine_from = fine_from
        self._pages = run.pages()
        self._newest: dict[str, BinnedWindow] = {}
        self._evaluator, self._state = Evaluator({self.tier: self.context}), EvaluatorState()
        self.rules: dict[str, RuleState] = {}
        self.minutes: list[ClosedMinute] = []
        self.spans: list[Span] = []
        self.events: list[TimelineEvent] = []

    def instants(self, begin: float, end: float) -> list[float]:
        """Return the times of pages in (begin, end]."""
        step = MINUTE_SECONDS if end > self._fine_from else QUARTER
        times = {begin + n * step for n in range(1, round((end - begin) / step) + 1)}
        return sorted(times.union(t for t in self._close if begin < t <= end))

    def change_plan(self, t: float) -> None:
        before, self.version = self.version, plan_version(self.plan)
        text = f"the plan of {self.tier} changed from version {before} to {self.version}"
        self.events.append(TimelineEvent(t=t, kind=TimelineKind.PLAN, tier=self.tier, text=text))

    def skip(self) -> None:
        """Go on from the present pages, without a window up to them: nobody watched."""
        self._pages = self.run.pages()

    def watch(self, t: float) -> None:
        """Book the windows up to the pages at `t`, and judge the pages of a cascade."""
        pages = self.run.pages()
        for replica, page in pages.items():
            before = self._pages[replica]
            if windows.is_restart(before, page):
                self._add_restart(replica, before, page)
            binned = load_bins.bin_window(build_window(before, page), self.context.curve, replica)
            self._newest[replica] = binned = load_bins.mark_backlog(binned, self._newest.get(replica))
            self.minutes.append(ClosedMinute(tier=self.tier, plan_version=self.version, slice=binned))
        self._pages |= pages
        cascade = self.run.story.cascade
        if cascade is not None and cascade.scene[0] <= t <= cascade.scene[1]:
            self._judge(cascade, t, pages)

    def _add_restart(self, replica: str, before: Snapshot, page: Snapshot) -> None:
        start = ReplicaStart(
            replica=replica, seen_at=page.t, alive_at=before.t, started_at=page.started_at, ready_at=page.ready_at
        )
        subject = {"tier": self.tier, "replica": replica}
        restart = TimelineEvent(t=page.t, kind=TimelineKind.RESTART, text="the engine restarted", **subject)
        self.events += (restart, start_event(self.tier, start))

    def _judge(self, cascade: ScriptedCascade, t: float, pages: Mapping[str, Snapshot]) -> None:
        """Judge pages by the daemon's evaluator. At the end add another system's alert with its diagnosis."""
        scrapes = (ReplicaScrape(tier=self.tier, replica=name, t=t, snapshot=page) for name, page in pages.items())
        result = self._evaluator.step(self._state, Observation(now=t, scrapes=tuple(scrapes)))
        result.raise_defects()
        self.spans += (span for span in result.closed if isinstance(span, Finding))
        if t < cascade.scene[1]:
            return
        replica = self.run.names[cascade.replica]
        alert = ExternalAlert(
            name=ALERT,
            labels=(("alertname", ALERT), ("instance", replica), ("severity", "page")),
            summary=SUMMARY,
            started_at=cascade.alert_at,
            ended_at=cascade.alert_until,
            heard_at=cascade.alert_until,
            tier=self.tier,
            replica=replica,
        )
        self.spans.append(attach_finding(alert, [span for span in self.spans if isinstance(span, Finding)], t))


def fill(
    folder: Path,
    *,
    seconds: float,
    end: float,
    seed: int = 7,
    progress: Callable[[float], None] = lambda share: None,
    fine_seconds: float = MINUTES.keep_seconds,
) -> SimulatedHistory:
    """Fill so many seconds up to `end` (unix seconds; both are cut to quarters of an hour) into a new folder.

    The last `fine_seconds` are there in minutes. `progress` gets the share that is done. Raise ConfigError where the
    folder exists or cannot be made, HistoryError of its file.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConfigError((f"{folder} cannot be made ({error.strerror}); name a new folder",)) from error
    end = end // QUARTER * QUARTER
    begin = end - seconds // QUARTER * QUARTER
    plan = load_plan(PLAN)
    runs = {story.tier: TierRun(story, plan.tiers[story.tier], begin, seed) for story in stories(begin, end, seed)}
    tiers = [WatchedTier(run, plan.tiers[tier], end - fine_seconds) for tier, run in runs.items()]
    try:
        with HistoryStore(folder / HISTORY) as store:
            store.keep("simulated", "true")
            _fill_weeks(store, tiers, begin, end, progress)
    except BaseException:
        # The next run needs the name, and nothing can go on from half a past.
        shutil.rmtree(folder)
        raise
    shutil.copyfile(PLAN, folder / "plan.yaml")
    # Nobody serves there: the folder is looked at, and the demo reads its engines in memory.
    targets = [
        {"url": f"http://127.0.0.1:9096/{name}/metrics", "tier": tier, "replica": name}
        for tier, run in runs.items()
        for name in run.names
    ]
    data = {"plan": "plan.yaml", "data_dir": ".", "gpus": {"source": "none"}, "targets": targets}
    text = f"# {NOTE}\n{yaml.safe_dump(data, sort_keys=False)}"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return SimulatedHistory(runs=runs, begin=begin, end=end)


def _fill_weeks(
    store: HistoryStore, tiers: list[WatchedTier], begin: float, end: float, progress: Callable[[float], None]
) -> None:
    outage = find_outage(begin, end)
    begun = f"sizewatch {VERSION} began to watch"
    store.book(
        events=[
            TimelineEvent(t=begin, kind=TimelineKind.START, text=begun),
            TimelineEvent(t=outage[0], kind=TimelineKind.STOP, text="sizewatch ended in order"),
            TimelineEvent(t=outage[1], kind=TimelineKind.START, text=begun),
        ]
    )
    service, hour = HistoryService(lambda: store), begin
    while hour < end:
        until = min(end, (hour // HOUR + 1) * HOUR)
        for tier in tiers:
            if tier.run.story.replanned_at == hour:
                tier.change_plan(hour)
            for t in tier.instants(hour, until):
                tier.run.advance(t)
                if outage[0] < t <= outage[1]:
                    tier.skip()
                else:
                    tier.watch(t)
        store.book([minute for tier in tiers for minute in tier.minutes])
        for tier in tiers:
            tier.minutes = []
        if until % DAY == DAY / 2 or until == end:
            _judge_days(store, service, tiers, until)
        hour = until
        progress((hour - begin) / (end - begin))
    store.book(spans=(rule.finding for tier in tiers for rule in tier.rules.values() if rule.finding is not None))


def _judge_days(store: HistoryStore, service: HistoryService, tiers: list[WatchedTier], now: float) -> None:
    service.upkeep({tier.tier: tier.context for tier in tiers}, {tier.tier: tier.version for tier in tiers}, now)
    for tier in tiers:
        days = daily_queries.evaluate_days(store, tier.context, tier.version, now)
        quarters = store.replica_bins(tier.tier, now - 2 * HOUR, now)
        results = list(rule_evaluation.long_only_results(days))
        for rule in LIVE:
            result = evaluate_rule(BY_NAME[rule], tier.context, quarters, now, QUARTER)
            if isinstance(result, Verdict):
                result = explain.add_causes(result, tier.context, quarters)
            results.append(result)
        for result in results:
            tier.rules[result.rule], ended = step_rule_state(tier.rules.get(result.rule), result)
            tier.spans += (span for span in ended if isinstance(span, Finding))
        store.book(spans=tier.spans, events=sorted(tier.events, key=lambda event: event.t))
        tier.spans, tier.events = [], []


class SimulatedScrapers(Scrapers):
    """Pages of simulated engines, without HTTP."""

    def __init__(self, past: SimulatedHistory, clock: Callable[[], float]) -> None:
        super().__init__((), clock)
        self._runs, self._now = past.runs, clock

    def collect_results(self, started: StartedScrapes) -> Mapping[tuple[str, str], ScrapeResult]:
        results = {}
        for tier, run in self._runs.items():
            while (left := self._now() - run.t) >= 1.0:
                run.advance(run.t + min(left, MINUTE_SECONDS))
            for name, page in run.pages().items():
                results[tier, name] = ScrapeResult(t=page.t, seconds=0.0, snapshot=page, error=None)
        return results


def continue_simulation(past: SimulatedHistory, folder: Path, speed: float) -> DemoRun:
    """Return the demo of a folder that was filled, going on from its end at that speed."""
    clock = Clock(speed, past.end)
    length = duration_text(past.end - past.begin)
    return DemoRun(
        loaded=load(folder / CONFIG, environment={}),
        assemble=partial(assemble, clock=clock, scrapers=SimulatedScrapers(past, clock)),
        clock=clock,
        speed=speed,
        banner=f"SIMULATED: made-up engines, GPUs and prices, with {length} of made-up past. None of it was ever measured.",
        parts=tuple((tier, run.story.says) for tier, run in past.runs.items()),
    )
