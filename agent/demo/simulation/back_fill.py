"""Simulated weeks in a history, hour by hour, as the daemon would have recorded them.

Only the change of the plan and the outage of sizewatch come from the scenario. All else results from pages. Live rules
are evaluated every two hours over quarters of an hour, rules over days every twelve hours, and a cascade page by page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.alerting.service import ExternalAlertStore
from agent.demo.simulation.scenario import DAY, HOUR, QUARTER, ScriptedCascade, TierScenario, stories, weekday
from agent.demo.simulation.tier_run import TierRun
from agent.history.codec import Span
from agent.history.schema import MINUTES
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord
from agent.version import VERSION
from rules.catalogue.registry import BY_NAME, RULES
from rules.causes import explain
from rules.evaluator import long_rules
from rules.evaluator.benchmark_check import ASKED
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.tier_minutes import LIVE_SECONDS
from rules.evaluator.tier_rules import evaluate_rule
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.methods.burn_rate import judge_burn
from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.errors import judge_availability
from rules.methods.tiers import judge_tiers
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import Plan, TierPlan, plan_version
from rules.replicas.starts import ReplicaStart
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import HOUR_SECONDS
from rules.telemetry.wording import format_count
from rules.verdicts import finding
from rules.verdicts.finding import ClosedSpan, Finding, RuleState
from rules.verdicts.verdict import RuleResult, Verdict

OUTAGE_SHARE, OUTAGE_HOUR, OUTAGE_SECONDS = 0.4, 2.0, 1.5 * HOUR
"""After this share of the time, in the night from this hour on, and for so long, sizewatch itself does not run."""

BEFORE_SAFETY = 1.5
"""The safety factor of the plan that was replaced: of a new deployment (guide 9.1, step 11)."""

Progress = Callable[[float], None]


LIVE_EVERY_SECONDS = 2 * HOUR_SECONDS
LONG_EVERY_SECONDS = 12 * HOUR_SECONDS

NEEDS_MORE = frozenset({judge_forecast, judge_demand, judge_burn, judge_availability, judge_tiers})
"""A projection, an error budget or other tiers: these are judged by the daemon only."""

HOURLY = tuple(
    rule
    for rule in RULES
    if not rule.per_scrape
    and rule.method not in NEEDS_MORE
    and rule.window_seconds <= LIVE_SECONDS
    and (rule.window_seconds == LIVE_SECONDS or rule.name in ASKED)
)


class SimulatedEvaluation:
    """One tier's standings. Slices and hours are given oldest first."""

    def __init__(self, context: TierContext) -> None:
        self.context = context
        self._standings: dict[str, RuleState] = {}
        self._hours: list[BinnedWindow] = []
        self._planned_since = 0.0

    def replanned(self, context: TierContext, t: float) -> None:
        """Another plan from `t` on: rules that rest on a curve count only hours under it."""
        self.context, self._planned_since = context, t

    @property
    def open(self) -> tuple[Finding, ...]:
        """The episodes that last."""
        return tuple(s.finding for s in self._standings.values() if s.finding is not None)

    def hour(
        self, taken: Sequence[BinnedWindow], now: float, starts: tuple[ReplicaStart, ...], close: bool
    ) -> tuple[ClosedSpan, ...]:
        """The hour that is over at `now`, with what was seen in it; what ended with it. Live rules are left out of an hour
        that was watched more closely (`close`)."""
        self._hours += long_rules.sum_by_hour(taken)
        horizon = now - long_rules.LOOK_BACK_SECONDS - HOUR_SECONDS
        self._hours = [one for one in self._hours if one.window.end > horizon]
        ended: list[ClosedSpan] = []
        if taken and not close and now % LIVE_EVERY_SECONDS == 0:
            ended += self._stand(self._answer(rule.name, taken, now, starts) for rule in HOURLY)
        if now % LONG_EVERY_SECONDS == 0:
            of_plan = [one for one in self._hours if one.window.start >= self._planned_since]
            told = long_rules.evaluate_long_rules(self.context, self._hours, now, of_plan)
            ended += self._stand(long_rules.long_only_results(told))
        return tuple(ended)

    def _answer(
        self, name: str, taken: Sequence[BinnedWindow], now: float, starts: tuple[ReplicaStart, ...]
    ) -> RuleResult:
        result = evaluate_rule(BY_NAME[name], self.context, taken, now, QUARTER, starts=starts)
        return explain.add_causes(result, self.context, taken) if isinstance(result, Verdict) else result

    def _stand(self, results: Iterable[RuleResult]) -> tuple[ClosedSpan, ...]:
        ended: list[ClosedSpan] = []
        for result in results:
            self._standings[result.rule], over = finding.step_rule_state(self._standings.get(result.rule), result)
            ended += over
        return tuple(ended)


ALERT = "InferenceLatencyHigh"
SUMMARY = "P95 request duration above 10 s for 2 minutes (simulated)"


class CascadeRun:
    """One tier and its cascade, turn by turn."""

    def __init__(self, run: TierRun, context: TierContext, cascade: ScriptedCascade) -> None:
        self._run, self._view, self._cascade = run, context, cascade
        self._evaluator, self._state = Evaluator({context.tier: context}), EvaluatorState()
        self._foreign = ExternalAlertStore()
        self._ended: list[Finding] = []
        model = context.plan.model if context.plan is not None else ""
        names = (follower.name for follower in run.followers)
        self._fleet = AlertTargets(
            tiers=frozenset({context.tier}),
            replicas={(context.tier, name): frozenset({name}) for name in names},
            models={model: frozenset({context.tier})},
        )

    def step(
        self, t: float, pages: tuple[tuple[str, Snapshot | None], ...]
    ) -> tuple[tuple[Span, ...], tuple[ClosedMinute, ...]]:
        """The pages of a turn (None: none came); what ended or changed with it, and the minutes that are over."""
        scrapes = (ReplicaScrape(tier=self._view.tier, replica=name, t=t, snapshot=page) for name, page in pages)
        result = self._evaluator.step(self._state, Observation(now=t, scrapes=tuple(scrapes)))
        result.raise_defects()
        over = [one for one in result.closed if isinstance(one, Finding)]
        self._ended += over
        return (*over, *self._alert(t)), result.minutes

    def end(self, t: float) -> tuple[tuple[Span, ...], tuple[ClosedMinute, ...]]:
        """What was still open when nobody looked so closely any more."""
        left = [one for state in self._state.rules.values() for one in finding.close_rule_state(state, t)]
        return tuple(one for one in left if isinstance(one, Finding)), self._evaluator.flush(self._state)

    def _alert(self, t: float) -> tuple[ExternalAlert, ...]:
        findings = (*self._state.open_findings(), *self._ended)
        return self._foreign.update(self._arrived(t), findings, t, lambda: self._fleet)

    def _arrived(self, t: float) -> tuple[ExternalAlert, ...]:
        """Posted every turn while it fires, and once more with its end."""
        begin, until = self._cascade.alert_at, self._cascade.alert_until
        if not begin <= t < until + 60.0:
            return ()
        name = self._run.followers[self._cascade.replica].name
        return (
            ExternalAlert(
                name=ALERT,
                labels=(("alertname", ALERT), ("instance", name), ("severity", "page")),
                summary=SUMMARY,
                started_at=begin,
                ended_at=until if t >= until else None,
                heard_at=t,
            ),
        )


@dataclass(slots=True)
class _FilledTier:
    """One tier while it is filled: its engines, its judge, the plan and version of the moment, the scene if there is one."""

    run: TierRun
    judging: SimulatedEvaluation
    version: str
    starts: tuple[ReplicaStart, ...] = ()
    scene: CascadeRun | None = None


class HistorySimulation:
    """The weeks from `begin` to `end` (unix seconds, full quarters of an hour) into one store; of the last `fine_seconds`
    there are minutes, as the daemon keeps them."""

    def __init__(
        self,
        store: HistoryStore,
        plan: Plan,
        begin: float,
        end: float,
        seed: int,
        fine_seconds: float = MINUTES.keep_seconds,
    ) -> None:
        self._store, self._plan, self._begin, self._end = store, plan, begin, end
        self._seed, self._fine_from = seed, end - fine_seconds
        self.stories = stories(begin, end, seed)
        self.outage = _outage(begin, end)
        self._tiers = {story.tier: self._made(story) for story in self.stories}
        self._keeping = HistoryService(lambda: store)
        self._events: list[TimelineEvent] = []
        self._spans: list[Span] = []

    def _made(self, story: TierScenario) -> _FilledTier:
        plan = self._plan.tiers[story.tier]
        before = plan if story.replanned_at is None else _plan_before(plan)
        return _FilledTier(
            run=TierRun(story, plan, self._begin, self._fine_from, self._seed),
            judging=SimulatedEvaluation(load_bins.build_tier_context(story.tier, before)),
            version=plan_version(before),
        )

    @property
    def runs(self) -> Mapping[str, TierRun]:
        """The tiers' engines, which may go on from the end."""
        return {name: tier.run for name, tier in self._tiers.items()}

    def run(self, progress: Progress = lambda share: None) -> None:
        """Fill the history. `progress` is called with the share of the weeks that is done."""
        replicas = sum(story.replicas for story in self.stories)
        began = f"sizewatch {VERSION} began to watch {format_count(replicas, 'target')}"
        self._say(TimelineEvent(t=self._begin, kind=TimelineKind.START, tier=None, replica=None, text=began))
        hour = self._begin
        while hour < self._end:
            until = min(self._end, (hour // HOUR + 1) * HOUR)
            self._hour(hour, until, began)
            hour = until
            progress((hour - self._begin) / (self._end - self._begin))
        self._store.save_episode(*(one for tier in self._tiers.values() for one in tier.judging.open))

    def _hour(self, hour: float, until: float, began: str) -> None:
        watched = not self._out(hour)
        if self.outage[0] == hour:
            text = "sizewatch ended in order"
            self._say(TimelineEvent(t=hour, kind=TimelineKind.STOP, tier=None, replica=None, text=text))
        bookings: list[MinuteRecord] = []
        for tier in self._tiers.values():
            self._replan(tier, hour)
            quarter, taken = hour, []
            while quarter < until:
                if self._out(quarter):
                    tier.run.skip()
                else:
                    taken += self._quarter(tier, quarter)
                quarter += QUARTER
            bookings += (MinuteRecord(tier=one.tier, plan_version=tier.version, slice=one.slice) for one in taken)
            close = tier.run.scene(hour) or tier.run.scene(until - 1)
            seen = [one.slice for one in taken]
            self._spans += tier.judging.hour(seen, until, tier.starts, close) if watched else ()
        if hour < self.outage[1] <= until:
            self._say(TimelineEvent(t=self.outage[1], kind=TimelineKind.START, tier=None, replica=None, text=began))
        self._book(bookings, until)

    def _out(self, quarter: float) -> bool:
        return self.outage[0] <= quarter < self.outage[1]

    def _quarter(self, tier: _FilledTier, quarter: float) -> list[ClosedMinute]:
        """A quarter of an hour of one tier, by whoever watches it now."""
        cascade, closed = tier.run.story.cascade, list[ClosedMinute]()
        context = tier.judging.context
        if cascade is not None and tier.run.scene(quarter) and tier.scene is None:
            tier.scene = CascadeRun(tier.run, context, cascade)
            closed += self._take(tier.scene.step(quarter, tier.run.pages()))
        for t in tier.run.ticks(quarter):
            tier.run.advance(t)
            if tier.scene is not None:
                closed += self._take(tier.scene.step(t, tier.run.pages()))
            else:
                closed += tier.run.bin_minutes(tier.run.scrape(t), context)
                tier.starts = tier.run.detect_events(t, tier.starts, self._say)
        if tier.scene is not None and not tier.run.scene(quarter + QUARTER):
            closed += self._take(tier.scene.end(quarter + QUARTER))
            tier.run.resume()
            tier.scene = None
        return closed

    def _take(self, cycle: tuple[tuple[Span, ...], tuple[ClosedMinute, ...]]) -> tuple[ClosedMinute, ...]:
        spans, closed = cycle
        self._spans += spans
        return closed

    def _replan(self, tier: _FilledTier, hour: float) -> None:
        story = tier.run.story
        if story.replanned_at is None or not hour - HOUR < story.replanned_at <= hour:
            return
        plan = self._plan.tiers[story.tier]
        before, tier.version = tier.version, plan_version(plan)
        tier.judging.replanned(load_bins.build_tier_context(story.tier, plan), hour)
        replicas = sum(one.replicas for one in self.stories)
        again = f"the configuration was read again: {replicas} targets"
        self._say(TimelineEvent(t=hour, kind=TimelineKind.RELOAD, tier=None, replica=None, text=again))
        text = f"the plan of {story.tier} changed from version {before} to {tier.version}"
        self._say(TimelineEvent(t=hour, kind=TimelineKind.PLAN, tier=story.tier, replica=None, text=text))

    def _book(self, bookings: list[MinuteRecord], now: float) -> None:
        self._store.book(bookings)
        if self._spans:
            self._store.save_episode(*self._spans)
        if self._events:
            self._store.add_event(*sorted(self._events, key=lambda event: event.t))
        self._spans, self._events = [], []
        if now % DAY == 0 or now == self._end:
            self._store.prune(now)
            self._keeping.upkeep(self._views, self._versions, now)

    def _say(self, event: TimelineEvent) -> None:
        self._events.append(event)

    @property
    def _views(self) -> Mapping[str, TierContext]:
        return {name: tier.judging.context for name, tier in self._tiers.items()}

    @property
    def _versions(self) -> Mapping[str, str]:
        return {name: tier.version for name, tier in self._tiers.items()}


def _outage(begin: float, end: float) -> tuple[float, float]:
    """In the first night of a workday after that share, so that it meets no weekend."""
    first = (begin + OUTAGE_SHARE * (end - begin)) // DAY * DAY + DAY
    day = next(t for t in (first + n * DAY for n in range(3)) if weekday(t) < 5)
    return day + OUTAGE_HOUR * HOUR, day + OUTAGE_HOUR * HOUR + OUTAGE_SECONDS


def _plan_before(plan: TierPlan) -> TierPlan:
    """The plan that was replaced."""
    assert plan.fleet is not None
    return plan.model_copy(update={"fleet": plan.fleet.model_copy(update={"safety_factor": BEFORE_SAFETY})})
