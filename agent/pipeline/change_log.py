"""Sink that logs one line when a state begins or ends, and none while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

from agent.pipeline.interfaces import Sink
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.observation import Observation, ReplicaKey, StepResult
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, severity_of

SCRAPE, STORE, GPU = "scrape", "store read", "GPU read"

_log = logging.getLogger(__name__)


class ChangeLog(Sink):
    """Log of targets, GPUs, tiers of a store, and findings.

    `log_targets` is false in role fleet: a large fleet always has replicas that come and go.
    """

    def __init__(self, log_targets: bool = True) -> None:
        self._log_targets = log_targets
        self._errors: dict[tuple[str, ...], str] = {}
        self._unavailable: Mapping[str, str] = {}

    def accept(self, result: StepResult) -> None:
        if result.observation is not None:
            self._log_sources(result.observation)
        for finding in result.changed:
            # By the severity that the status page names. What is only likely sends no alert, and is no warning.
            severity, rule = severity_of(finding.worst, finding), BY_NAME.get(finding.rule)
            is_note = severity is None or (rule is not None and rule.severity is Severity.REPORT)
            certainty = Certainty.LIKELY if severity is None else Certainty.CERTAIN
            status = severity or finding.worst.status
            _log.log(
                logging.INFO if is_note else logging.WARNING,
                "finding rule=%s subject=%s status=%s certainty=%s: %s",
                *(finding.rule, finding.subject, status.value, certainty.value, finding.worst.sentence_with_suspect()),
            )
        for closed in result.closed:
            if isinstance(closed, Finding):
                _log.info("finding ended rule=%s subject=%s", closed.rule, closed.subject)

    def end_cycle(self, now: float) -> None:
        """Log the tiers that became unavailable or recovered. A cycle may learn of them with its last observation."""
        for tier in self._unavailable.keys() | {key[1] for key in self._errors if key[0] == STORE}:
            self._log_change((STORE, tier), self._unavailable.get(tier, ""))

    def retain(self, keys: Container[ReplicaKey]) -> None:
        """Drop the errors of replicas that a new configuration does not monitor."""
        self._errors = {key: error for key, error in self._errors.items() if key[0] != SCRAPE or key[1:] in keys}

    def _log_sources(self, observation: Observation) -> None:
        for scrape in observation.scrapes if self._log_targets else ():
            if scrape.snapshot is not None or scrape.failure:
                self._log_change((SCRAPE, *scrape.key), "" if scrape.snapshot is not None else scrape.error)
        self._log_change((GPU,), "; ".join(observation.gpu_problems))
        self._unavailable = observation.unavailable

    def _log_change(self, key: tuple[str, ...], error: str) -> None:
        before = self._errors.pop(key, "")
        if error:
            self._errors[key] = error
        labels = "".join(f" {name}={value}" for name, value in zip(("tier", "replica"), key[1:], strict=False))
        # An error may contain a number that changes each time. Compare only the text before the colon.
        if error and error.partition(":")[0] != before.partition(":")[0]:
            _log.warning("%s failed%s error=%s", key[0], labels, error)
        elif before and not error:
            _log.info("%s recovered%s", key[0], labels)
