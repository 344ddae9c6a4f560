"""Sink that stores minutes, findings, external alerts and events in the history (`agent.history.service`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from agent.history.service import HistoryService
from agent.pipeline.interfaces import Source
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.observation import ClosedMinute, StepResult
from rules.verdicts.finding import ClosedSpan, Finding

_log = logging.getLogger(__name__)


class HistorySink:
    """History of one evaluation loop. `versions` are the plan versions by tier, `external` returns changed alerts."""

    def __init__(
        self,
        service: HistoryService,
        source: Source,
        versions: Mapping[str, str],
        external: Callable[[], tuple[ExternalAlert, ...]] = tuple,
    ) -> None:
        self.service = service
        self._source = source
        self._versions = versions
        self._external = external
        self._minutes: list[ClosedMinute] = []
        self._closed: list[ClosedSpan] = []
        self._open: tuple[Finding, ...] = ()

    def accept(self, result: StepResult) -> None:
        """Collect a step's minutes and findings."""
        for event in result.events:
            self.service.event(event.t, event.kind, event.text, event.tier, event.replica)
        if result.observation is not None or result.closed:
            self._open = result.open
        # Not `+=`: another thread may publish an event while a cycle ends.
        self._minutes.extend(one for one in result.minutes if one.kept)
        self._closed.extend(result.closed)

    def end_cycle(self, now: float) -> None:
        """Write what was collected. What cannot be written now waits in memory."""
        minutes, self._minutes = self._minutes, []
        ended, self._closed = (*self._closed, *self._external()), []
        before = self.service.error
        pools = {target.key: target.pool for target in self._source.targets}
        still_open = self._open if minutes or ended else ()
        self.service.write_cycle(minutes, self._versions, ended, still_open, pools=pools, now=now)
        if self.service.error is not None and before is None:
            _log.error('history write failed, buffering in memory error="%s"', self.service.error)
        elif before is not None and self.service.error is None:
            _log.info("history write recovered")

    def close(self) -> None:
        """Close the history. What still waits is lost, and logged."""
        self.service.close()
