"""Rule: one row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rules.thresholds import CatalogueRow
from rules.verdicts.verdict import RuleResult

Method = Callable[[Any], RuleResult]
"""Function that evaluates a rule: `RuleContext` in, result out. The context holds a rule, so its type is not named here."""


class LatencyPattern(StrEnum):
    """What makes requests wait."""

    KNEE = "knee"  # the load
    HELD_UP = "held_up"  # something in the system
    SLOWED = "slowed"  # requests wait at every replica below capacity: the replicas take less than they did
    EITHER = "either"  # capacity is not known
    UNCOUNTED = "uncounted"


class Severity(StrEnum):
    """The label `severity` of alerts: critical pages, warning is a ticket, info a note (PEERS 6.1)."""

    PAGE = "critical"
    TICKET = "warning"
    REPORT = "info"


class Scope(StrEnum):
    TIER = "tier"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(CatalogueRow):
    """Row of the catalogue: what `method` evaluates over the last `window_seconds`, from `minimum_seconds` of data on.

    The default hold is 15 minutes, evaluated from three minutes on. `severity` is the label of its alerts, by
    default a ticket. `family` and `signal` name what is read from windows and from the curve. `per_request`: each
    request is observed once. An observation that is made many times a request is not independent, and counts as
    one. `serving_only`: minutes without a request count for nothing. `online_only`: not asked of a batch tier,
    where a long queue is wanted (guide 1.4). `explains_failures`: its findings explain failed requests. `needs` is
    a dotted path below the tier of the plan, else the result is not_in_plan. `about` names the reading in sentences.
    `reads_windows`: without any the result is scrape_failed. `levers` are the actions of each pattern.
    `stage` is how far downstream the rule lies: a finding near in time of a rule with a lower one explains it.
    Rules of one stage do not explain each other. 0 is a note that explains nothing and is not explained.
    """

    method: Method
    stage: int = 0
    scope: Scope = Scope.TIER
    severity: Severity = Severity.TICKET
    window_seconds: float = 900.0
    minimum_seconds: float = 180.0
    signal: str
    unit: str = "ratio"
    family: str = ""
    per_request: bool = True
    serving_only: bool = False
    online_only: bool = False
    explains_failures: bool = False
    needs: str = ""
    about: str = ""
    reads_windows: bool = True
    title: str
    meaning: str
    actions: tuple[str, ...]
    levers: Mapping[LatencyPattern, tuple[str, ...]] = field(default_factory=dict)

    @property
    def per_scrape(self) -> bool:
        """Return whether the rule follows single scrapes: it has no window."""
        return self.window_seconds == 0
