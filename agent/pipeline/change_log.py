"""What the daemon's log says of the world: one line when something begins or ends, nothing while it lasts.

Owns the words and which change is loud. It compares what was with what is, as the turns hand it over, and judges nothing.
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
    """A target that stopped or began to give pages."""
    # What a page lacks may be worded with a number that changes every time: only the kind of trouble is compared.
    if now and now.partition(":")[0] != before.partition(":")[0]:
        _log.warning("%s/%s gives no usable page: %s", *key, now)
    elif before and not now:
        _log.info("%s/%s gives pages again", *key)


def log_gpu_change(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    """Troubles with reading GPUs."""
    if bool(now) and not before:
        _log.warning("GPUs: %s", "; ".join(now))
    elif before and not now:
        _log.info("GPUs are read again")


def log_history_change(before: str | None, now: str | None) -> None:
    """The history, when it cannot be written and when it can again."""
    if now is not None and before is None:
        _log.error("the history cannot be written, minutes wait in memory: %s", now)
    elif before is not None and now is None:
        _log.info("the history is written again")


def log_finding_changes(before: Open, standings: Iterable[RuleState], ended: Iterable[ClosedSpan]) -> None:
    """Episodes that began, became worse, or ended."""
    for standing in standings:
        if standing.episode is not None:
            _tell(before.get((standing.episode.rule, standing.episode.subject)), standing.episode)
    for episode in ended:
        if isinstance(episode, Finding):
            _log.info("%s of %s is over", episode.rule, episode.subject)


def _tell(before: Finding | None, now: Finding) -> None:
    worst = now.worst
    same = before is not None and before.started_at == now.started_at
    if same and before is not None and before.worst.status is worst.status and before.worst.stage == worst.stage:
        return
    said = (now.rule, now.subject, worst.status.value, worst.certainty.value, worst.sentence)
    rule = BY_NAME.get(now.rule)
    loud = rule is None or rule.loudness is not Severity.REPORT
    _log.log(logging.WARNING if loud else logging.INFO, "%s of %s is %s (%s): %s", *said)
