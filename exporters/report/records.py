"""Records of the re-size report, as in report.json, and their schema.

Times are unix seconds, ratios are 0-1, money is in the plan's currency. A new fact is a field here, filled by the
module of its section. Run `sizewatch render` to update the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

from exporters.report.period_records import QualityPart, ReportFinding, ReportIncident, RestartRow

SCHEMA = 1
SCHEMA_ID = "urn:sizewatch:report:1"

Row = TypeVar("Row")


def row_from(kind: type[Row], record: object, /, **right: Any) -> Row:
    """Return a report row from another record. Fields of the same name are copied; `other` sets the rest."""
    same = {field.name: getattr(record, field.name) for field in fields(cast(Any, kind)) if field.name not in right}
    return kind(**same, **right)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNumber:
    """Reading: best estimate within [low, high] (null: open or unknown) from `n` observations, or the reason `gap`."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: float = 0.0
    gap: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredValue:
    """Row of the monitoring table (guide 9.3). `change` is observed by previous, less 1 (null: not comparable).

    `meets_target` is null where the target has no numbers, or nothing was observed. Outside of it a row is not "as it
    should be", even if no rule found anything (DESIGN 3.23).
    """

    key: str
    title: str
    target: str
    unit: str
    observed: ReportNumber
    meets_target: bool | None
    before: ReportNumber
    change: float | None
    status: str
    certainty: str
    sentence: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    what: str
    quantile: str
    observed: ReportNumber
    planned: float | None
    factor: float | None
    factors: tuple[float, float | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """Mean arrival rate (requests/s) of the hour from `t`."""

    t: float
    rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPart:
    """Workload of step 1, measured in production."""

    lengths: tuple[LengthRow, ...]
    requests: float
    average_rps: float | None
    peak_rps: float | None
    highest_rps: float | None
    planned_average_rps: float | None
    planned_peak_rps: float | None
    peak_to_average: float | None
    archetype: str
    towards: str
    drift: str
    hourly: tuple[RatePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Load of a replica in production or in the benchmark. `slo` is true if it keeps the SLO."""

    rps: float
    in_system: float | None
    requests: float | None
    ttft_p50_seconds: ReportNumber
    ttft_p99_seconds: ReportNumber
    tpot_p99_seconds: ReportNumber
    output_tokens_per_second: float | None
    slo: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePart:
    """Curve of a replica. `headroom` is 1 less the peak's share of what the planned replicas can take: 0.2 is a fifth
    left. `source` of the usable rps is benchmark, operator or production ("" if unknown). `days` is the range of the
    production points, which ends at `until` (unix seconds): the days that the usable rps rest on.
    """

    days: float
    until: float
    production: tuple[CurvePoint, ...]
    planned: tuple[CurvePoint, ...]
    ttft_slo_seconds: float | None
    usable_rps: float | None
    usable_low: float | None
    usable_high: float | None
    planned_usable_rps: float | None
    knee_seen: bool
    certainty: str
    reason: str
    source: str
    benchmark_refuted: bool
    headroom: float | None
    lengths: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRow:
    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Formula, its terms and its result."""

    formula: str
    terms: tuple[TermRow, ...]
    result: TermRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Fleet of step 11, from production. `fewest` and `most` are the replicas at the bounds of the usable rate (null:
    open). `for_peak` is for the peak with the margin, without the plan's safety factor.
    """

    planned: int | None
    ready: float
    needed: int | None
    for_peak: int | None
    fewest: int | None
    most: int | None
    gpus_per_replica: int | None
    arithmetic: Formula | None
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """Cost of step 12 for a fleet: planned, measured or proposed."""

    name: str
    replicas: float
    gpu_hours_a_day: float
    money_a_day: float | None
    per_million_tokens: float | None
    utilization: float | None
    arithmetic: Formula | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverRow:
    name: str
    replicas: float | None
    gpu_hours_a_day: float | None
    money_a_day: float | None
    certainty: str
    basis: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekHour:
    weekday: int
    hour: int
    utilization: float | None
    idle_replicas: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapPart:
    """Utilization trap (guide 9.2): idle capacity, its hours, and the worth of each lever."""

    utilization: ReportNumber
    status: str
    certainty: str
    sentence: str
    levers: tuple[LeverRow, ...]
    week: tuple[WeekHour, ...]
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow:
    name: str
    violation_minutes: float
    late_requests: float
    replica_hours: float
    money: float | None
    is_ours: bool
    is_recommended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmPart:
    """Savings and costs of pre-warming, and its forecast quality. `missing` is the reason if they are unknown.

    `saved_money` and `saved_late_requests` are relative to reacting to load; negative means a loss. `failed` is the
    reason if the forecast was no better than none, else "". `decision` is the recommendation when the report was made.
    """

    strategies: tuple[StrategyRow, ...]
    decision: str
    start: float | None
    end: float | None
    sentence: str
    saved_replica_hours: float | None
    saved_money: float | None
    saved_late_requests: float | None
    method: str
    naive: str
    covered_ratio: float | None
    error_ratio: float | None
    forecasts: int
    missing: str
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """Rule result over the period, for guardrails and rules without a number."""

    rule: str
    title: str
    status: str
    certainty: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRow:
    """Guardrail of the plan against lengths and arrivals: its verdict in a sentence, and the range that fits."""

    key: str
    planned: float | None
    low: int | None
    high: int | None
    state: str
    status: str
    certainty: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailPart:
    judged: tuple[RuleOutcome, ...]
    fits: tuple[GuardrailRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """Question of the guide's 8.4 with its answer and the lengths of its numbers."""

    key: str
    question: str
    answer: str
    numbers: tuple[TermRow, ...]
    lengths: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalPart:
    """Proposal: keep, grow, shrink or no_recommendation. `saves_a_day` is negative for a cost, null without a
    price. `left` names plan keys for which production gives only a bound.
    """

    kind: str
    certainty: str
    now: int | None
    replicas: int | None
    sentence: str
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    needed: tuple[str, ...]
    saves_a_day: float | None
    changes: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """Tier in reading order. `lengths` are of the whole period; curve lengths are of the last days.

    `grouped_incidents` has a row for each root cause; `incidents` has the findings behind them.
    """

    tier: str
    model: str
    gpu: str
    currency: str
    status: str
    verdict: str
    lengths: str
    monitoring: tuple[MonitoredValue, ...]
    workload: WorkloadPart
    curve: CurvePart
    fleet: FleetPart
    costs: tuple[CostRow, ...]
    trap: TrapPart
    prewarming: PrewarmPart
    guardrails: GuardrailPart
    grouped_incidents: tuple[ReportIncident, ...]
    incidents: tuple[ReportFinding, ...]
    restarts: tuple[RestartRow, ...]
    quality: QualityPart
    questions: tuple[QuestionAnswer, ...]
    proposal: ProposalPart


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


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of report.json."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return {**head, **TypeAdapter(Report).json_schema(), "title": "sizewatch re-size report"}
