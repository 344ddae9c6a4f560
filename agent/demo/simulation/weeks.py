"""Simulated weeks in a history, as the daemon would have recorded them.

Calm time is a window each quarter of an hour, in the newest days each minute. Around a restart and a cascade the
evaluator of the daemon gets a page every 15 seconds. The rules over days are those of the daemon, once a day. Of what
is found page by page only the cascade is kept: deployments would fill the timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from agent.demo.simulation.scenario import (
    CASCADE_SECONDS,
    DAY,
    HOUR,
    QUARTER,
    ScriptedCascade,
    TierScenario,
    find_outage,
    stories,
)
from agent.demo.simulation.tier_run import TierRun
from agent.history import daily_queries
from agent.history.codec import Span
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord
from agent.version import VERSION
from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.evaluator import long_rules
from rules.evaluator.external_alerts import ExternalAlert, attach_finding
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.tier_rules import evaluate_rule
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Plan, TierPlan, plan_version
from rules.replicas.starts import ReplicaStart
from rules.telemetry import gauges, windows
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.wording import format_count
from rules.verdicts import finding
from rules.verdicts.finding import Finding, RuleState
from rules.verdicts.verdict import Verdict

SCRAPE_SECONDS = 15.0

SCENE_BEFORE, SCENE_AFTER = 1800.0, 1500.0
"""Seconds before and after a cascade in which its tier is watched page by page."""

BEFORE_SAFETY = 1.5
"""Safety factor of the plan that was replaced: of a new deployment (guide 9.1, step 11)."""

ALERT = "InferenceLatencyHigh"
SUMMARY = "P95 request duration above 10 s for 2 minutes (simulated)"

LIVE = ("WorkloadDrift", "TtftDivergence")
"""Rules over minutes that the story makes fire: here they judge quarters of an hour."""

Progress = Callable[[float], None]


def build_window(earlier: Snapshot, later: Snapshot) -> Window:
    """Return the window of many minutes as close pages make it: gauges move in a straight line."""
    window = windows.diff_snapshots(earlier, later)
    levels = {
        family: gauges.interpolate(earlier.gauges[family], value, later.t - earlier.t)
        for family, value in later.gauges.items()
        if family in earlier.gauges
    }
    gaps = {family: reason for family, reason in window.gaps.items() if family not in levels}
    return replace(window, gauges=levels, gaps=gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is watched page by page until `end` (unix seconds), and the findings that ended in it."""

    end: float
    evaluator: Evaluator
    state: EvaluatorState = field(default_factory=EvaluatorState)
    findings: list[Finding] = field(default_factory=list)


class WatchedTier:
    """A tier as sizewatch sees it, under the plan of the moment. `minutes`, `spans` and `events` wait to be written."""

    def __init__(self, run: TierRun, plan: TierPlan, fine_from: float) -> None:
        self.run, self.tier = run, run.story.tier
        self.rules: dict[str, RuleState] = {}
        self.set_plan(plan)
        self._fine_from = fine_from
        self._scenes = dict(_scenes(run.story))
        self._scene: Scene | None = None
        self._starts: tuple[ReplicaStart, ...] = ()
        self._newest: dict[str, BinnedWindow] = {}
        self.minutes: list[MinuteRecord] = []
        self.spans: list[Span] = []
        self.events: list[TimelineEvent] = []
        self.skip()

    def set_plan(self, plan: TierPlan) -> None:
        self.context, self.version = load_bins.build_tier_context(self.tier, plan), plan_version(plan)

    def instants(self, begin: float, end: float) -> list[float]:
        """Return the times of pages in (begin, end]."""
        step = MINUTE_SECONDS if end > self._fine_from else QUARTER
        times = {begin + n * step for n in range(1, round((end - begin) / step) + 1)}
        for first, last in self._scenes.items():
            close = (first + n * SCRAPE_SECONDS for n in range(round((last - first) / SCRAPE_SECONDS) + 1))
            times.update(t for t in close if begin < t <= end)
        return sorted(times)

    def skip(self) -> None:
        """Go on from the present pages, without a window up to them: nobody watched."""
        self._pages = self.run.pages()

    def watch(self, t: float) -> None:
        """Take the pages at `t`, page by page in a scene."""
        if self._scene is not None:
            self._step(self._scene, t)
        else:
            pages = self.run.pages()
            for replica, page in pages.items():
                before = self._pages[replica]
                assert page is not None, "a replica is down in a scene only"
                assert before is not None, "a replica is down in a scene only"
                binned = load_bins.bin_window(build_window(before, page), self.context.curve, replica)
                self._newest[replica] = binned = load_bins.mark_backlog(binned, self._newest.get(replica))
                self._book(binned)
            self._pages = pages
        if t in self._scenes:
            self._scene = Scene(end=self._scenes[t], evaluator=Evaluator({self.tier: self.context}))
            self._scene.state.restore_starts(self.tier, self._starts)
            self._step(self._scene, t)

    def _step(self, scene: Scene, t: float) -> None:
        scrapes = tuple(
            ReplicaScrape(tier=self.tier, replica=replica, t=t, snapshot=page)
            for replica, page in self.run.pages().items()
        )
        result = scene.evaluator.step(scene.state, Observation(now=t, scrapes=scrapes))
        result.raise_defects()
        ended, closed = list(result.closed), result.minutes
        self.events += result.events
        if t == scene.end:
            closed += scene.evaluator.flush(scene.state)
            ended += (span for rule in scene.state.rules.values() for span in finding.close_rule_state(rule, t))
            self._starts, self._scene = scene.state.starts(self.tier), None
            self.skip()
        scene.findings.extend(span for span in ended if isinstance(span, Finding))
        for minute in closed:
            self._book(minute.slice)
        cascade = self.run.story.cascade
        if self._scene is None and cascade is not None and t == _cascade_end(cascade):
            self.spans += (*scene.findings, self._alert(cascade, scene.findings, t))

    def _book(self, binned: BinnedWindow) -> None:
        self.minutes.append(MinuteRecord(tier=self.tier, plan_version=self.version, slice=binned))

    def _alert(self, cascade: ScriptedCascade, findings: list[Finding], t: float) -> ExternalAlert:
        """Return the alert of another system about the cascade, with its diagnosis."""
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
        return attach_finding(alert, findings, t)


def _cascade_end(cascade: ScriptedCascade) -> float:
    return cascade.begin + CASCADE_SECONDS + SCENE_AFTER


def _scenes(story: TierScenario) -> Iterator[tuple[float, float]]:
    """Yield begin and end, in full minutes, of what is watched page by page."""
    for restart in story.restarts:
        yield (
            (restart.gone // MINUTE_SECONDS - 1) * MINUTE_SECONDS,
            (restart.ready // MINUTE_SECONDS + 2) * MINUTE_SECONDS,
        )
    if story.cascade is not None:
        yield story.cascade.begin - SCENE_BEFORE, _cascade_end(story.cascade)


def fill_weeks(
    store: HistoryStore, plan: Plan, begin: float, end: float, seed: int, fine_seconds: float, progress: Progress
) -> dict[str, TierRun]:
    """Fill [begin, end) (unix seconds, full quarters of an hour), the last `fine_seconds` in minutes.

    Return the engines of each tier, which may go on. `progress` gets the share of the weeks that is done. Raise
    HistoryError.
    """
    tiers = []
    for story in stories(begin, end, seed):
        tier_plan = plan.tiers[story.tier]
        before = tier_plan if story.replanned_at is None else _plan_before(tier_plan)
        run = TierRun(story, tier_plan, begin, seed)
        tiers.append(WatchedTier(run, before, end - fine_seconds))
    outage = find_outage(begin, end)
    count = format_count(sum(len(tier.run.names) for tier in tiers), "target")
    began = f"sizewatch {VERSION} began to watch {count}"
    store.add_event(
        _event(begin, TimelineKind.START, began),
        _event(outage[0], TimelineKind.STOP, "sizewatch ended in order"),
        _event(outage[1], TimelineKind.START, began),
    )
    service, hour = HistoryService(lambda: store), begin
    while hour < end:
        until = min(end, (hour // HOUR + 1) * HOUR)
        for tier in tiers:
            if tier.run.story.replanned_at == hour:
                store.add_event(_replan(tier, plan.tiers[tier.tier], hour))
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
    lasting = [rule.finding for tier in tiers for rule in tier.rules.values()]
    store.save_episode(*(span for span in lasting if span is not None))
    return {tier.tier: tier.run for tier in tiers}


def _event(t: float, kind: TimelineKind, text: str, tier: str | None = None) -> TimelineEvent:
    return TimelineEvent(t=t, kind=kind, tier=tier, replica=None, text=text)


def _plan_before(plan: TierPlan) -> TierPlan:
    """Return the plan that was replaced."""
    assert plan.fleet is not None, "a simulated tier has a fleet"
    return plan.model_copy(update={"fleet": plan.fleet.model_copy(update={"safety_factor": BEFORE_SAFETY})})


def _replan(tier: WatchedTier, plan: TierPlan, t: float) -> TimelineEvent:
    before = tier.version
    tier.set_plan(plan)
    text = f"the plan of {tier.tier} changed from version {before} to {tier.version}"
    return _event(t, TimelineKind.PLAN, text, tier.tier)


def _judge_days(store: HistoryStore, service: HistoryService, tiers: list[WatchedTier], now: float) -> None:
    """Do the daemon's work of a day: retention, Step 13, rules over days, and LIVE rules over two hours."""
    store.prune(now)
    service.upkeep({tier.tier: tier.context for tier in tiers}, {tier.tier: tier.version for tier in tiers}, now)
    for tier in tiers:
        days = daily_queries.evaluate_days(store, tier.context, tier.version, now)
        quarters = store.replica_bins(tier.tier, now - 2 * HOUR, now)
        live = (evaluate_rule(BY_NAME[rule], tier.context, quarters, now, QUARTER) for rule in LIVE)
        causes = (explain.add_causes(one, tier.context, quarters) if isinstance(one, Verdict) else one for one in live)
        for result in (*long_rules.long_only_results(days), *causes):
            tier.rules[result.rule], ended = finding.step_rule_state(tier.rules.get(result.rule), result)
            tier.spans += (span for span in ended if isinstance(span, Finding))
        if tier.spans:
            store.save_episode(*tier.spans)
        if tier.events:
            store.add_event(*sorted(tier.events, key=lambda event: event.t))
        tier.spans, tier.events = [], []
