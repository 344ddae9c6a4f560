"""Thresholds and times that rules of several subjects share."""

from __future__ import annotations

from rules.plan.curve import CERTAIN_REQUESTS
from rules.verdicts.rule import Threshold

DAY = 86_400.0
WEEK = 7 * DAY
SEEN = 0.9
"""Share of the days that must have been seen: what is missing could be the other half of the story."""

MINIMUM_REQUESTS = Threshold(100, "requests", "1 % of fewer is less than one request")
SUPPORTED_REQUESTS = Threshold(CERTAIN_REQUESTS, "requests", "DESIGN 3.3: a point with fewer supports at most `likely`")
ALLOWED_SLOW = Threshold(0.01, "ratio", "a P99 allows 1 % (DESIGN 3.3)")
TTFT_SLO = Threshold(2.0, "seconds", "guide 8.3's objective, where the plan has none")
FULLEST = Threshold(0.95, "ratio", "DESIGN 3.12: P95 of the hours; one bad hour of twenty says nothing")
ENOUGH_FOR_P99 = Threshold(100, "requests", "of fewer a P99 is the slowest one or none at all")
LONGER = Threshold(
    1.2,
    "ratio",
    "guide 9.1, step 1 gives no number; the safety factor of well-known traffic, 20 % (step 11), covers no more",
)
