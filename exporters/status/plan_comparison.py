"""Plan of a tier against its present, number by number: reading, planned value, rules and the state of the tile.

The worst active finding about a number sets its colour, else the worst result of its rules.
A new number is a row of ROWS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from exporters.render.text import Tone, describe_gap
from exporters.status.records import TierStatus
from rules.catalogue.registry import BURNS
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.bands import judge_excess
from rules.methods.divergence import judge_mean, judge_tail
from rules.plan.curve import operating_point
from rules.plan.load_bins import TierContext
from rules.resize.fleet_cost import planned_cost
from rules.telemetry.gpu_windows import gpu_utilization
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import format_duration, number
from rules.telemetry.work import Capacity, CapacitySource
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, RuleResult, Status, Unknown, Verdict

AT_EQUAL_LOAD = {name for name, rule in RULES.items() if rule.method in (judge_tail, judge_mean, judge_excess)}
"""Rules whose verdicts expect the benchmark value at the same load."""

SLO = "SLO"
LABELS = {"slo": SLO, "workload": "of prompt tokens", "cost": "planned"}
"""Labels of planned values by their part of the plan."""

HELD_BACK = ("QueueGrowing", "KvCacheCascade", "EngineStalled")
"""Rules of requests held back: a completed rate below the usable one is no good sign while one fires."""

OVERLOAD = (*HELD_BACK, *BURNS, "AvailabilityBurn", "LoadBeyondBenchmark", "DemandExceedsCapacity", "TierDown")
"""Rules of an overloaded tier: none of its numbers is as planned while one of them fires."""


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """Planned number and its label ("SLO", "at usable load")."""

    value: float
    text: str


@dataclass(frozen=True)
class ComparisonRow:
    """Compared number, a signal, and its value in the plan, at `path` or else in the curve at usable load.

    With `more_is_better`, below the plan is worse. An `optional` number needs a planned value. `judged` are other signals,
    and `more_rules` rules, about it. The limit of a number without rules is its planned value.
    """

    key: str
    title: str
    path: str = ""
    in_curve: bool = False
    more_is_better: bool = False
    optional: bool = False
    judged: tuple[str, ...] = ()
    more_rules: tuple[str, ...] = ()

    @property
    def signal(self) -> str:
        """Return the signal whose minutes are drawn: the first of `judged` if the number itself is none."""
        return self.key if self.key in SIGNALS else self.judged[0]

    @property
    def unit(self) -> str:
        return SIGNALS[self.signal].unit

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """Return all page and ticket rules about the number. Rules for the report never colour one."""
        about = {self.key, *self.judged}
        rules = (r.name for r in RULES.values() if r.signal in about and r.severity is not Severity.REPORT)
        return tuple(dict.fromkeys([*rules, *self.more_rules]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Row of a tier. `now` is of the last minutes, `state` its tone and word. `at_this_load` is the benchmark's value."""

    row: ComparisonRow
    now: SignalValue
    planned: PlannedValue | None
    state: tuple[Tone, str]
    at_this_load: Reading | None


def compare_with_plan(tier: TierStatus) -> tuple[PlanComparison, ...]:
    compared = [_compare(row, tier) for row in ROWS]
    return tuple(number for number in compared if number.planned is not None or not number.row.optional)


def _compare(row: ComparisonRow, tier: TierStatus) -> PlanComparison:
    now = _read(row, tier)
    planned = _read_plan(row, tier.context)
    findings = [finding for finding in tier.active if finding.verdict.rule in row.rules]
    judged: list[RuleResult] = [finding.verdict for finding in findings]
    judged += [result for result in tier.results if result.rule in row.rules]
    if not findings:
        is_overloaded = any(finding.verdict.rule in OVERLOAD for finding in tier.active)
        state = judge_number(row, now, planned, judged, is_overloaded)
    else:
        state = findings[0].tone, findings[0].named
    at_load = worst_result(result for result in judged if result.rule in AT_EQUAL_LOAD)
    expected = at_load.expected if isinstance(at_load, Verdict) else None
    at_this_load = expected if isinstance(expected, Reading) else None
    return PlanComparison(row=row, now=now, planned=planned, state=state, at_this_load=at_this_load)


def judge_number(
    row: ComparisonRow, now: SignalValue, planned: PlannedValue | None, judged: list[RuleResult], is_overloaded: bool
) -> tuple[Tone, str]:
    """Return the tone of a number without a finding, and its word, by the worst result of its rules.

    Only a planned value that holds is "as planned". `is_overloaded` says that a finding of OVERLOAD is active.
    """
    best, is_worse = None, False
    if planned is not None and isinstance(now, Reading):
        best = now.value if now.low is None else now.low
        is_worse = now.low is not None and now.low > planned.value
        if row.more_is_better:
            is_worse = now.high is not None and now.high < planned.value
    plan_words = "no finding" if is_worse or is_overloaded else "as planned"
    if not row.rules:
        if best is None or planned is None or not planned.value:
            return Status.UNKNOWN, ""
        return ("note", f"{number(best / planned.value, '')}x the plan") if is_worse else (Status.OK, plan_words)
    result = worst_result(judged)
    if result is None:
        return Status.UNKNOWN, ""
    waits = [unknown.wait_seconds for unknown in judged if isinstance(unknown, Unknown) and unknown.wait_seconds]
    if waits:
        return Status.UNKNOWN, f"not judged yet, {format_duration(max(1.0, *waits))}"
    if isinstance(result, Unknown):
        why = "" if result.reason is Gap.NOT_IN_PLAN else f": {describe_gap(result.reason, result.text, '{gap}')}"
        return Status.UNKNOWN, f"not judged{why}"
    if planned is None or isinstance(now, Missing):
        return result.status, "no finding"
    if planned.text != SLO:
        return result.status, plan_words
    if is_worse:
        return Status.UNKNOWN, "beyond the SLO, no finding yet"
    # Its bounds may lie on both sides.
    if (now.value or 0.0) > planned.value:
        return Status.UNKNOWN, "may be beyond the SLO"
    return result.status, "within the SLO"


def worst_result(results: Iterable[RuleResult]) -> RuleResult | None:
    """Return the worst result by severity, then certainty. Any verdict precedes an unknown."""
    return max(results, key=_rank_result, default=None)


def _rank_result(result: RuleResult) -> tuple[bool, int, bool]:
    if isinstance(result, Unknown):
        return False, 0, False
    return True, SEVERITY[result.status], result.status in FIRING and result.certainty is Certainty.CERTAIN


def _read(row: ComparisonRow, tier: TierStatus) -> SignalValue:
    window = tier.recent
    if window is None:
        return Missing(gap=Gap.SCRAPE_FAILED, text="no data in the last 5 minutes")
    if row.key != PER_REPLICA:
        return read_comparable(row.key, window, tier.context)
    rate = replica_rate(window, "requests_finished")
    if rate is None:
        return Missing(gap=window.explain_missing("requests_finished"))
    return Reading(value=rate, low=rate, high=rate, n=window.counters["requests_finished"])


def read_comparable(signal: str, window: Window, context: TierContext) -> SignalValue:
    """Return a signal. GPU utilisation is of the benchmark's kind (DESIGN 3.4)."""
    kind = context.curve.written.gpu_utilization_kind if context.curve else None
    if signal == "gpu_utilization" and kind:
        return gpu_utilization(window, kind)
    return read(SIGNALS[signal], window, context.basis)


def _read_plan(row: ComparisonRow, context: TierContext) -> PlannedValue | None:
    plan, curve = context.plan, context.curve
    if row.key == PER_REPLICA and context.capacity is not None:
        return PlannedValue(context.capacity.rps, _describe_capacity(context.capacity))
    if plan is None:
        return None
    value = plan.value_at(row.path) if row.path else None
    text = LABELS.get(row.path.partition(".")[0], "")
    if row is COST and value is not None:
        cost, text = planned_cost(plan), f"at {value:.0%} of capacity"
        value = cost.per_million_tokens if cost is not None else None
    elif value is None and row.in_curve:
        point, text = operating_point(plan), "at usable load"
        value = curve.value_at(row.key, point) if curve is not None and point is not None else None
    return None if value is None else PlannedValue(value, text)


def _describe_capacity(capacity: Capacity) -> str:
    text = "usable" if capacity.high is not None else "usable, at least"
    if capacity.source is not CapacitySource.PRODUCTION:
        return text
    planned = "" if capacity.planned_rps is None else f" ({capacity.planned_rps:.3g} by the plan)"
    return f"{text}, by production{planned}"


PER_REPLICA = "completed_rps_per_replica"
OF_PROMPT = "workload.prefix_hit_ratio"
LOAD = ("completed_rps", "arrival_rps", "fleet_utilization")
COST = ComparisonRow("cost_per_million_tokens", "Cost per million tokens", "cost.planned_utilization")
ENERGY = "cost.joules_per_generated_token"

ROWS: tuple[ComparisonRow, ...] = (
    ComparisonRow("ttft_p99_seconds", "TTFT P99", "slo.ttft_p99_seconds"),
    ComparisonRow("tpot_p99_seconds", "TPOT P99", "slo.tpot_p99_seconds"),
    ComparisonRow("itl_p99_seconds", "ITL P99", "slo.itl_p99_seconds", optional=True),
    ComparisonRow("e2e_p99_seconds", "E2E P99", "slo.e2e_p99_seconds", optional=True),
    ComparisonRow(PER_REPLICA, "Requests per replica", judged=LOAD, more_rules=HELD_BACK),
    ComparisonRow("kv_utilization", "KV cache in use", in_curve=True),
    ComparisonRow("prefix_hit_ratio", "Prefix cache hits", OF_PROMPT, in_curve=True, more_is_better=True),
    ComparisonRow("eviction_rate", "Evictions per request", in_curve=True, more_rules=("KvCacheCascade",)),
    ComparisonRow("gpu_utilization", "GPU utilisation", in_curve=True, more_is_better=True),
    COST,
    ComparisonRow("energy_per_generated_token", "Energy per generated token", ENERGY, optional=True),
)
