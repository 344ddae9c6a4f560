"""Sink that logs one line when a state begins or ends, and none while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

from agent.pipeline.interfaces import Sink
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.observation import Observation, ReplicaKey, StepResult
from rules.verdicts.finding import LIKELY, Finding, severity_of
from rules.verdicts.rule import Severity

_log = logging.getLogger(__name__)


class ChangeLog(Sink):
    """Log of targets, GPUs, tiers of a store, and findings.

    `log_targets` is false in role fleet: a large fleet always has replicas that come and go.
    """

    def __init__(self, log_targets: bool = True) -> None:
        self._log_targets = log_targets
        self._errors: dict[ReplicaKey, str] = {}
        self._gpu_problems: tuple[str, ...] = ()
        self._unavailable: Mapping[str, str] = {}
        self._unavailable_now: Mapping[str, str] = {}

    def accept(self, result: StepResult) -> None:
        """Log the changes of a step."""
        if result.observation is not None:
            self._log_sources(result.observation)
        for finding in result.changed:
            # By the severity that the status page names. What is only likely sends no alert, and is no warning.
            severity, rule = severity_of(finding.worst, finding), BY_NAME.get(finding.rule)
            is_note = severity is None or (rule is not None and rule.loudness is Severity.REPORT)
            status, certainty = (LIKELY, LIKELY) if severity is None else (severity.value, Certainty.CERTAIN.value)
            _log.log(
                logging.INFO if is_note else logging.WARNING,
                "finding rule=%s subject=%s status=%s certainty=%s: %s",
                *(finding.rule, finding.subject, status, certainty, finding.worst.sentence_with_suspect()),
            )
        for closed in result.closed:
            if isinstance(closed, Finding):
                _log.info("finding ended rule=%s subject=%s", closed.rule, closed.subject)

    def end_cycle(self, now: float) -> None:
        """Log the tiers that became unavailable or recovered. A cycle may learn of them with its last observation."""
        for tier, text in self._unavailable_now.items():
            if tier not in self._unavailable:
                _log.warning("store read failed tier=%s error=%s", tier, text)
        for tier in self._unavailable.keys() - self._unavailable_now.keys():
            _log.info("store read recovered tier=%s", tier)
        self._unavailable = self._unavailable_now

    def retain(self, keys: Container[ReplicaKey]) -> None:
        """Drop the errors of replicas that a new configuration does not monitor."""
        self._errors = {key: error for key, error in self._errors.items() if key in keys}

    def _log_sources(self, observation: Observation) -> None:
        for scrape in observation.scrapes if self._log_targets else ():
            if scrape.snapshot is not None:
                self._log_target(scrape.key, "")
            elif scrape.failure:
                self._log_target(scrape.key, scrape.error)
        now, before = observation.gpu_problems, self._gpu_problems
        if now and not before:
            _log.warning('GPU read failed error="%s"', "; ".join(now))
        elif before and not now:
            _log.info("GPU read recovered")
        self._gpu_problems = now
        self._unavailable_now = observation.unavailable

    def _log_target(self, key: ReplicaKey, error: str) -> None:
        before = self._errors.pop(key, "")
        if error:
            self._errors[key] = error
        # A scrape error may contain a number that changes each time. Compare only the text before the colon.
        if error and error.partition(":")[0] != before.partition(":")[0]:
            _log.warning("scrape failed tier=%s replica=%s error=%s", *key, error)
        elif before and not error:
            _log.info("scrape recovered tier=%s replica=%s", *key)
