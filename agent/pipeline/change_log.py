"""Log lines of the daemon: one line when a state begins or ends, none while it lasts.

Holds the messages and their levels. It compares two states and evaluates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from rules.catalogue.registry import BY_NAME
from rules.evaluator.step import ReplicaKey
from rules.verdicts.finding import ClosedSpan, Finding, RuleState
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Subject

_log = logging.getLogger("agent.pipeline.change_log")

Open = Mapping[tuple[str, Subject], Finding]


def log_target_change(key: ReplicaKey, before: str, now: str) -> None:
    """Log a target that stopped or began to return usable pages."""
    # A scrape error may contain a number that changes each time. Compare only the text before the colon.
    if now and now.partition(":")[0] != before.partition(":")[0]:
        _log.warning("scrape failed tier=%s replica=%s error=%s", *key, now)
    elif before and not now:
        _log.info("scrape recovered tier=%s replica=%s", *key)


def log_gpu_change(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """Log the start and end of GPU read errors."""
    if bool(now) and not before:
        _log.warning('GPU read failed error="%s"', "; ".join(now))
    elif before and not now:
        _log.info("GPU read recovered")


def log_history_change(before: str | None, now: str | None) -> None:
    """Log when history writes fail and when they recover."""
    if now is not None and before is None:
        _log.error('history write failed, buffering in memory error="%s"', now)
    elif before is not None and now is None:
        _log.info("history write recovered")


def log_finding_changes(before: Open, standings: Iterable[RuleState], ended: Iterable[ClosedSpan]) -> None:
    """Log findings that began, became worse or ended."""
    for standing in standings:
        if standing.episode is not None:
            _tell(before.get((standing.episode.rule, standing.episode.subject)), standing.episode)
    for episode in ended:
        if isinstance(episode, Finding):
            _log.info("finding ended rule=%s subject=%s", episode.rule, episode.subject)


def _tell(before: Finding | None, now: Finding) -> None:
    worst = now.worst
    same = before is not None and before.started_at == now.started_at
    if same and before is not None and before.worst.status is worst.status and before.worst.stage == worst.stage:
        return
    said = (now.rule, now.subject, worst.status.value, worst.certainty.value, worst.sentence)
    rule = BY_NAME.get(now.rule)
    loud = rule is None or rule.loudness is not Severity.REPORT
    _log.log(logging.WARNING if loud else logging.INFO, "finding rule=%s subject=%s status=%s certainty=%s: %s", *said)
