"""Evaluation of the simulated weeks: live rules every two hours, long-term rules every twelve hours.

A calm hour consists of quarters, so a live rule gets the last hour with quarters as periods. A cascade is evaluated
page by page with the evaluator of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.alerting.service import ExternalAlertStore
from agent.demo.simulation.scenario import QUARTER, ScriptedCascade
from agent.demo.simulation.tier_run import TierRun
from agent.history.codec import Span
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
from rules.methods.burn_rate import judge_burn
from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.errors import judge_availability
from rules.methods.tiers import judge_tiers
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import HOUR_SECONDS
from rules.verdicts import finding
from rules.verdicts.finding import ClosedSpan, Finding, RuleState
from rules.verdicts.verdict import RuleResult, Verdict

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
