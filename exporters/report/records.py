"""Document of the re-size report: what report.json has, with the records of `rules` as they are.

Times are unix seconds, ratios are 0-1, money is in the plan's currency. `sizewatch render` writes the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from exporters.report.findings import DataQuality, FindingRow, IncidentRow, Prewarming, RestartRow
from exporters.report.guide_tables import MonitoredValue, Question, RuleOutcome
from rules.plan.guardrails import Guardrail
from rules.plan.replica_count import ReplicaCount
from rules.plan.schema import Point
from rules.resize.fleet_cost import FleetCost, Lever
from rules.resize.production_summary import ProductionPoint
from rules.resize.proposal import Proposal
from rules.resize.workload import WorkloadNow
from rules.telemetry.work import Capacity

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePart:
    """Curve of a replica. `headroom` is 1 less the peak's share of what the planned replicas can take: 0.2 is a fifth
    left. `days` is the range of the production points, which ends at `until`: the days that `usable` rests on. `remark` is
    on a predicted curve.
    """

    days: float
    until: float
    production: tuple[ProductionPoint, ...]
    planned: tuple[Point, ...]
    ttft_slo_seconds: float | None
    usable: Capacity | None
    benchmark_refuted: bool
    headroom: float | None
    lengths: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekHour:
    """Mean fleet utilisation and idle replicas of an hour of the week (0 is Monday), by `count` hours that were seen."""

    weekday: int
    hour: int
    utilization: float | None
    idle_replicas: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """Tier in reading order. `lengths` are of the whole period; curve lengths are of the last days.

    `grouped_incidents` has a row for each root cause; `incidents` has the findings behind them. `saves_a_day` is the
    proposal's, negative for a cost, None without a price. `left` names plan keys for which production gives only a
    bound. `hourly` are the mean arrivals (requests/s) of the hours from unix seconds. `count` is step 11.
    """

    tier: str
    model: str
    gpu: str
    currency: str
    status: str
    verdict: str
    lengths: str
    monitoring: tuple[MonitoredValue, ...]
    workload: WorkloadNow
    hourly: tuple[tuple[float, float], ...]
    drift: tuple[RuleOutcome, ...]
    curve: CurvePart
    count: ReplicaCount | None
    costs: tuple[FleetCost, ...]
    trap: RuleOutcome
    levers: tuple[Lever, ...]
    week: tuple[WeekHour, ...]
    prewarming: Prewarming
    guardrails: tuple[Guardrail, ...]
    grouped_incidents: tuple[IncidentRow, ...]
    incidents: tuple[FindingRow, ...]
    restarts: tuple[RestartRow, ...]
    quality: DataQuality
    questions: tuple[Question, ...]
    proposal: Proposal
    saves_a_day: float | None
    changes: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report over [since, until). `headline` comes first. `simulated` marks simulated history."""

    schema: int
    version: str
    made_at: float
    since: float
    until: float
    zone: str
    simulated: bool
    headline: str
    remarks: tuple[str, ...]
    tiers: tuple[TierReport, ...]
    plan_changes: tuple[str, ...]


ADAPTER = TypeAdapter(Report)


def report_json(report: Report) -> str:
    """Return report.json, by `report_schema`. A number without an end is null."""
    return ADAPTER.dump_json(report, indent=2).decode() + "\n"


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:sizewatch:report:{SCHEMA}"}
    return {**head, **ADAPTER.json_schema(mode="serialization"), "title": "sizewatch re-size report"}
