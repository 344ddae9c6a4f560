"""Evaluation loop: observe, evaluate, hand the results to the sinks.

The loop knows neither engines nor stores (`agent.pipeline.interfaces.Source`) and no output (`Sink`). The evaluation is
`rules.evaluator.step`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from agent.pipeline.interfaces import Sink, Source
from rules.catalogue.registry import BY_NAME
from rules.evaluator import alert_state, timeline
from rules.evaluator.observation import ReplicaKey, StepResult
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.verdicts import finding
from rules.verdicts.finding import ClosedSpan, Finding, RuleState
from rules.verdicts.verdict import RuleResult, Unknown

_log = logging.getLogger(__name__)


class EvaluationLoop:
    """Source, evaluator and sinks of one configuration, evaluated in cycles by one thread.

    A cycle holds the lock `memory` while it changes state, never during I/O. Readers in other threads must hold it too.
    `defects` counts unexpected errors in cycles. `before` is the loop of the previous configuration: its state and lock
    go on.
    """

    def __init__(
        self,
        *,
        source: Source,
        tiers: Mapping[str, TierContext],
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.time,
        before: EvaluationLoop | None = None,
    ) -> None:
        self.source = source
        self.evaluator = Evaluator(tiers)
        self.state: EvaluatorState = before.state if before is not None else EvaluatorState()
        self.sinks = tuple(sinks)
        self.defects = 0
        self.memory: threading.Lock = before.memory if before is not None else threading.Lock()
        self._clock = clock

    def run_cycle(self) -> None:
        """Run one cycle. Raise only for a defect of the source or the evaluator."""
        for observation in self.source.observe(self._clock()):
            with self.memory:
                result = self.evaluator.step(self.state, observation)
                self.source.take_windows(result)
                self._log_defects(result.defects)
                self._publish(result)
        self._end_cycle()

    def record_event(self, event: TimelineEvent) -> None:
        """Give an event that happened outside a step to the sinks. The caller holds `memory` in a running daemon."""
        self._publish(StepResult(now=event.t, tiers=self.evaluator.tiers, events=(event,)))

    def restore_findings(
        self, unfinished: Iterable[Finding], past: Iterable[Finding], now: float, recently_alive: bool
    ) -> None:
        """Restore findings that an earlier run left open. They last until a rule is ok, as after any gap.

        A finding of a subject that is no longer monitored ends at `now`, or at its last transition if that run was not
        `recently_alive`. `past` are findings of the last day, whose alerts may still be sent.
        """
        closed: list[ClosedSpan] = []
        for one in unfinished:
            state = _restarted(one, now)
            if recently_alive and one.rule in BY_NAME and self.source.is_monitored(one.subject):
                self.state.rules[one.rule, one.subject] = state
            else:
                closed += finding.close_rule_state(state, now if recently_alive else max(t.t for t in one.transitions))
        ended = [one for one in closed if isinstance(one, Finding)]
        self.state.alerts = alert_state.restore_alerts((*past, *ended, *self.state.open_findings()), now)
        self._publish(
            StepResult(now=now, tiers=self.evaluator.tiers, closed=tuple(closed), open=self.state.open_findings())
        )
        self._end_cycle()

    def restore_starts(self, events: Iterable[TimelineEvent]) -> None:
        """Restore the starts and releases that earlier runs recorded, for tiers that are still monitored."""
        for event in events:
            if event.tier is None or event.tier not in self.source.tiers:
                continue
            start, release = timeline.parse_start_event(event), timeline.parse_release_event(event)
            self.state.restore_starts(event.tier, (start,) if start is not None else ())
            self.state.restore_releases(event.tier, (release,) if release is not None else ())

    def set_long_term_results(self, results: Iterable[RuleResult]) -> None:
        """Set the results of the rules over days. Any thread may call it; the next cycle evaluates them."""
        with self.memory:
            self.state.set_long_term_results(results)

    def monitored_contexts(self) -> dict[str, TierContext]:
        return {tier: self.evaluator.tier(tier) for tier in sorted(self.source.tiers)}

    def interrupt(self) -> None:
        """Let the present cycle close with what came. Any thread may call it, before `stop`."""
        self.source.interrupt()

    def stop(self) -> None:
        """Stop in order: give the open minutes to the sinks, then close sinks and source."""
        with ExitStack() as ends:
            ends.callback(self.source.close)
            for sink in self.sinks:
                ends.callback(sink.close)
            with self.memory:
                minutes = self.evaluator.flush(self.state)
                now = self._clock()
                self._publish(StepResult(now=now, tiers=self.evaluator.tiers, minutes=minutes))
            self._end_cycle()

    def _publish(self, result: StepResult) -> None:
        for sink in self.sinks:
            with self._guard(sink):
                sink.accept(result)

    def _end_cycle(self) -> None:
        now = self._clock()
        for sink in self.sinks:
            with self._guard(sink):
                sink.end_cycle(now)

    @contextmanager
    def _guard(self, sink: Sink) -> Iterator[None]:
        """Count and log a defect: it costs one sink its part, and the minutes of this cycle are still stored."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            self.defects += 1
            _log.exception("sink failed sink=%s", type(sink).__name__)

    def _log_defects(self, defects: Mapping[ReplicaKey, Exception]) -> None:
        for key, defect in defects.items():
            self.defects += 1
            _log.error("scrape evaluation failed tier=%s replica=%s", *key, exc_info=defect)


def _restarted(one: Finding, now: float) -> RuleState:
    text = "sizewatch has just started"
    result = Unknown(t=now, rule=one.rule, subject=one.subject, reason=Gap.RESTARTED, text=text)
    return RuleState(result=result, finding=one, evaluated_at=now)
