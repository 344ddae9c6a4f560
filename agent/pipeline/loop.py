"""Evaluation loop: observe, evaluate, hand the results to the sinks.

The loop knows neither engines nor stores (`Source`) and no output (`Sink`). The evaluation is `rules.evaluator.step`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from agent.pipeline.interfaces import Sink, Source
from rules.catalogue.registry import BY_NAME
from rules.evaluator import timeline
from rules.evaluator.observation import StepResult
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import ClosedSpan, Finding, RuleState, Unknown, close_rule_state

ALIVE_SECONDS = 3600.0
"""Time in seconds for which an earlier run counts as interrupted after its last minute: its findings go on."""

_log = logging.getLogger(__name__)


class EvaluationLoop:
    """Source, evaluator and sinks of one configuration, evaluated in cycles by one thread.

    A cycle holds the lock `memory` while it changes state, never during I/O. Readers in other threads must hold it too.
    `defects` counts unexpected errors in cycles. State and lock of `before`, the previous configuration's loop, go on.
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
                for key, defect in result.defects.items():
                    self.defects += 1
                    _log.error("scrape evaluation failed tier=%s replica=%s", *key, exc_info=defect)
                self._publish(result)
        self._end_cycle()

    def record_event(self, event: TimelineEvent) -> None:
        """Give an event that happened outside a step to the sinks. The caller holds `memory` in a running daemon."""
        self._publish(StepResult(now=event.t, tiers=self.evaluator.tiers, events=(event,)))

    def restore_findings(self, unfinished: Iterable[Finding], now: float, seen_at: float) -> None:
        """Restore findings that an earlier run left open. They last until a rule is ok, as after any gap.

        A finding of a subject that is monitored no more ends at `now`. All end at `seen_at`, that run's end, if long ago.
        """
        closed: list[ClosedSpan] = []
        recently_alive = seen_at > now - ALIVE_SECONDS
        # Role fleet has no targets before its first query: any replica of its tiers may be there.
        keys = {target.key for target in self.source.targets}
        for before in unfinished:
            rule, subject, text = before.rule, before.subject, "sizewatch has just started"
            result = Unknown(t=now, rule=rule, subject=subject, reason=Gap.RESTARTED, text=text)
            state = RuleState(result=result, finding=before, evaluated_at=now)
            is_present = subject.replica is None or not keys or (subject.tier, subject.replica) in keys
            if recently_alive and rule in BY_NAME and subject.tier in self.source.tiers and is_present:
                self.state.rules[rule, subject] = state
            else:
                end = now if recently_alive else max((seen_at, *(change.t for change in before.transitions)))
                closed += close_rule_state(state, end)
        self._publish(
            StepResult(now=now, tiers=self.evaluator.tiers, closed=tuple(closed), open=self.state.open_findings())
        )
        self._end_cycle()

    def restore_starts(self, events: Iterable[TimelineEvent]) -> None:
        for event in events:
            start = timeline.parse_start_event(event)
            if event.tier in self.source.tiers and start is not None:
                self.state.add_start(event.tier, start)

    def monitored_contexts(self) -> dict[str, TierContext]:
        return {tier: self.evaluator.tier(tier) for tier in sorted(self.source.tiers)}

    def stop(self) -> None:
        """Stop in order: give the open minutes to the sinks, then close sinks and source."""
        with ExitStack() as ends:
            ends.callback(self.source.close)
            for sink in self.sinks:
                ends.callback(sink.close)
            with self.memory:
                minutes = self.evaluator.flush(self.state)
                self._publish(StepResult(now=self._clock(), tiers=self.evaluator.tiers, minutes=minutes))
            self._end_cycle()

    def _publish(self, result: StepResult) -> None:
        self._call_sinks(lambda sink: sink.accept(result))

    def _end_cycle(self) -> None:
        now = self._clock()
        self._call_sinks(lambda sink: sink.end_cycle(now))

    def _call_sinks(self, call: Callable[[Sink], None]) -> None:
        """Count and log a defect: it costs one sink its part, and the minutes of this cycle are still stored."""
        for sink in self.sinks:
            try:
                call(sink)
            except Exception:  # noqa: BLE001 - see above
                self.defects += 1
                _log.exception("sink failed sink=%s", type(sink).__name__)
