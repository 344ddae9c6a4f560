"""The re-size report as plain records: what report.json holds, key by key, and what the other formats are written from.

Owns the shape and its schema; nothing is computed here. Times are unix seconds, ratios 0-1, money in the plan's currency. A new
fact of the report is a field here, filled by the module of its section, and `sizewatch render` writes the schema anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from exporters.report.period_records import QualityPart, ReportFinding, RestartRow

SCHEMA = 1
SCHEMA_ID = "https://sizewatch.dev/schemas/report-1.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNumber:
    """A reading: the best estimate within [low, high] (null: open or not known) from `n` observations; or `gap` says why not."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: float = 0.0
    gap: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredValue:
    """A row of the monitoring table (guide 9.3). `change` is observed by the time before, less 1; null where not comparable."""

    key: str
    title: str
    target: str
    unit: str
    observed: ReportNumber
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
    """Mean requests a second that arrived in the hour from `t`."""

    t: float
    rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPart:
    """Step 1 again."""

    lengths: tuple[LengthRow, ...]
    requests: float
    average_rps: float | None
    peak_rps: float | None
    p95_rps: float | None
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
    """A load of one replica, in production or in the benchmark. `slo` says whether it keeps the SLO."""

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
    """`headroom` is the peak's share of what the replicas of the plan can take, less 1, negated: 0.2 is a fifth left. `source` is
    where the usable rps come from: benchmark, operator or production; "" where nobody tells. `days` is how far back
    production's points reach: other tables of a longer report are about more."""

    days: float
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
    """A formula, its terms and its result."""

    formula: str
    terms: tuple[TermRow, ...]
    result: TermRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Step 11 again. `fewest` and `most` are the replicas at the ends of the usable rate's bounds; null: open. `for_peak` is what
    the peak needs with the margin, without the plan's safety factor."""

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
    """Step 12 for one fleet: planned, measured or proposed."""

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
    """The utilization trap (guide 9.2): what idles, when, and what each lever is worth."""

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
    """What pre-warming saved and cost, and how good its forecast was; `missing` says why that is not known.

    `saved_money` and `saved_late_requests` are against reacting to load; negative where it cost more. `failed` says why the
    forecast was no better than none, "" while it was.
    """

    strategies: tuple[StrategyRow, ...]
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
    """What a rule says over the time: of guardrails, and of anything that has no number of its own."""

    rule: str
    title: str
    status: str
    certainty: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRow:
    """A guardrail of the plan, and between what it would fit the traffic that was seen."""

    key: str
    planned: float | None
    low: float
    high: float
    proposed: int
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailPart:
    judged: tuple[RuleOutcome, ...]
    fits: tuple[GuardrailRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """A question of the guide's 8.4 with its answer, and the lengths without which no number of it means anything."""

    key: str
    question: str
    answer: str
    numbers: tuple[TermRow, ...]
    lengths: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalPart:
    """keep, grow, shrink, move or no_recommendation. `saves_a_day` is negative where it costs; null without a price. `left` says
    which keys of the plan do not follow production, for it tells a bound of them and no number."""

    kind: str
    certainty: str
    now: int | None
    replicas: int | None
    to_tier: str
    sentence: str
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    needed: tuple[str, ...]
    saves_a_day: float | None
    changes: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """One tier, in the order in which it is read. `lengths` are those of all requests of the time; those of the last days,
    which the curve was measured at, stand beside it."""

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
    incidents: tuple[ReportFinding, ...]
    restarts: tuple[RestartRow, ...]
    quality: QualityPart
    questions: tuple[QuestionAnswer, ...]
    proposal: ProposalPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report over [since, until). `headline` is the first thing to read; `simulated` says that none of it is real."""

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
    """The JSON Schema (2020-12) of report.json."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return {**head, **TypeAdapter(Report).json_schema(), "title": "sizewatch re-size report"}
