"""Outcomes of a rule: status and certainty of a verdict, or why it is unknown."""

from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Status

EARLY, UNPLANNED = Gap.TOO_FEW_REQUESTS, Gap.NOT_IN_PLAN
UNSEEN, HIDDEN = Gap.NO_TRAFFIC, Gap.NOT_EXPOSED

WARNED, GUESSED = (Status.WARNING, Certainty.CERTAIN), (Status.WARNING, Certainty.LIKELY)
PAGED, PAGE_GUESSED = (Status.CRITICAL, Certainty.CERTAIN), (Status.CRITICAL, Certainty.LIKELY)
FINE, FAIRLY = (Status.OK, Certainty.CERTAIN), (Status.OK, Certainty.LIKELY)

Wanted = tuple[Status, Certainty] | Gap
