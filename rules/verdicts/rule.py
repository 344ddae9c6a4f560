"""What a rule is: one row of the catalogue. Types, and the row that many share.

The rows are `rules.catalogue`, together `rules.catalogue.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Way(StrEnum):
    """The few ways to judge: functions of slices in `rules.evaluator.judgements`, of single scrapes in
    `rules.methods.availability`."""

    TAIL = "tail"  # share of requests slower than the benchmark allows, at equal load
    SHORTFALL = "shortfall"  # a mean below the benchmark's at equal load
    EXCESS = "excess"  # a ratio of counters above the benchmark's at equal load
    BEYOND = "beyond"  # load outside what was measured
    EVENT_RATIO = "event_ratio"  # events per request above fixed limits
    BAND = "band"  # a reading outside fixed limits
    CASCADE = "cascade"  # the state machine of rules.replicas.cascade
    DRIFT = "drift"  # lengths and shape of the traffic away from the plan's
    REPRESENTATIVE = "representative"  # time in system at equal load away from the benchmark's
    GUARDRAIL = "guardrail"  # limits at the gateway against what is seen
    PRECISION = "precision"  # a format that the GPU has no hardware path for, a speed-up that is not there
    COLD_START = "cold_start"  # measured start against the planned lead
    ECONOMICS = "economics"  # whether speculation pays
    HELD_BACK = "held_back"  # requests that wait for an adapter
    BURN = "burn"  # error budget of an objective spent too fast
    AVAILABILITY = "availability"  # error budget spent by requests that failed
    REFUSED = "refused"  # share of requests refused
    SHAPE = "shape"  # the tail against the median
    LONG = "long"  # days, by hours
    TREND = "trend"  # the end of the hold against its beginning
    REPLICAS = "replicas"  # replicas of a tier against each other
    TIERS = "tiers"  # tiers of one model against each other
    POOLS = "pools"  # prefill against decode
    EXPERTS = "experts"  # experts of a mixture against each other
    DEMAND = "demand"  # what arrives, now and by the forecast, against the capacity of all replicas
    FORECAST = "forecast"  # a forecast against what came
    FAULTS = "faults"  # events that should not happen at all
    DOWN = "down"  # scrapes that fail
    STALE = "stale"  # pages that are served and do not move
    UNKNOWN = "unknown"  # rules that could judge and no longer can


class Condition(StrEnum):
    """Which minutes of the hold are judged."""

    ANY = "any"
    SERVING = "serving"  # with requests in the system or finished


class Severity(StrEnum):
    PAGE = "page"
    TICKET = "ticket"
    REPORT = "report"


class Scope(StrEnum):
    TIER = "tier"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number with its unit and where it comes from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. Judged over the last `window_seconds`, from `minimum_seconds` of data on; `family` and `metric` name
    what is read from windows and from the curve. `per_request` says that each request is observed once: what is seen
    many times a request is not independent, and counts as one. `condition` says which minutes count, `needs` which part of
    the plan (a dotted path below the tier) the rule is about: without it the answer is not_in_plan. `about` names in a
    sentence what is read.
    """

    name: str
    way: Way
    scope: Scope
    loudness: Severity
    window_seconds: float
    minimum_seconds: float
    thresholds: Mapping[str, Threshold]
    signal: str
    unit: str
    family: str = ""
    metric: str = ""
    per_request: bool = True
    condition: Condition = Condition.ANY
    needs: str = ""
    about: str = ""
    title: str
    meaning: str
    actions: tuple[str, ...]

    def limit(self, name: str, overrides: Mapping[str, Mapping[str, float]]) -> float:
        """A threshold's value, or what the configuration of the tier says instead."""
        return overrides.get(self.name, {}).get(name, self.thresholds[name].value)


BAND_SECONDS, BAND_MINIMUM_SECONDS = 900.0, 180.0


def band(name: str, *, unit: str = "ratio", **row: Any) -> Rule:
    """A tier's row of Way.BAND: 15 minutes of a reading, judged from three on; the rest as in `Rule`."""
    return Rule(
        name=name,
        way=Way.BAND,
        scope=Scope.TIER,
        window_seconds=BAND_SECONDS,
        minimum_seconds=BAND_MINIMUM_SECONDS,
        unit=unit,
        **row,
    )
