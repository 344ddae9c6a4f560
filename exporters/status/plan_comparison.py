"""Plan of a tier against its present, number by number: reading, planned value, rules and the state of the tile.

The worst active finding about a number sets its colour, else the worst result of its rules. Pages and JSON print the
rows. A new number is a row of ROWS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporters.render.text import Tone, describe_gap, format_duration
from exporters.status.active_findings import ActiveFinding, list_findings
from exporters.status.records import TierStatus
from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.thresholds import BURNS
from rules.confidence import Certainty
from rules.methods.bands import judge_excess
from rules.methods.divergence import judge_mean, judge_tail
from rules.plan.curve import Curve, operating_point
from rules.plan.schema import TierPlan
from rules.sizing import cost_per_million_tokens
from rules.telemetry.gpu_windows import gpu_utilization
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.telemetry.work import CapacitySource
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, RuleResult, Status, Unknown, Verdict

AT_EQUAL_LOAD = frozenset({judge_tail, judge_mean, judge_excess})
"""Methods whose verdicts expect the benchmark value at the same load."""

SLO = "SLO"
"""Label of a planned value that is an objective."""

HELD_BACK = ("QueueGrowing", "KvCacheCascade", "EngineStalled")
"""Rules that find requests held back: a completed rate below the usable one is no good sign while one of them fires."""

OVERLOAD = (*HELD_BACK, *BURNS, "AvailabilityBurn", "LoadBeyondBenchmark", "DemandExceedsCapacity", "TierDown")
"""Rules of an overloaded tier: none of its numbers is as planned while one of them fires, for certain or likely."""

NOTHING_SEEN = "no data in the last 5 minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """Planned number and its label ("SLO", "at usable load")."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Compared number: signal, unit, rules, and its readers from windows and plan.

    `seen` describes the bounds of the reading: bucket edges of a quantile or extremes of a level. The rules are all
    page and ticket rules about the number, so tiles and findings agree. Notes about the `signals` stand at the number.
    With `more_is_better`, below the plan is worse.
    A `judged_by_plan` number has no rule: its planned value is its limit.
    """

    key: str
    title: str
    unit: str
    rules: tuple[str, ...]
    signals: tuple[str, ...]
    now: Callable[[TierStatus, Window], SignalValue]
    planned: Callable[[TierStatus], PlannedValue | None]
    seen: str = ""
    more_is_better: bool = False
    optional: bool = False
    judged_by_plan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Row of a tier. `finding` is the worst active finding of its rules, else the worst likely one. `judged` is the worst
    result of its rules, None without a result. `note` is a finding about its signals that does not alert.
    `is_overloaded` says that a finding of OVERLOAD is active. `window_seconds` is the time that `now` describes.
    `at_this_load` is the benchmark value at equal load if a rule compared with it. `wait_seconds` is the longest wait of
    a rule about it that only time will answer (DESIGN 3.23), None without one.
    """

    row: ComparisonRow
    now: SignalValue
    planned: PlannedValue | None
    judged: RuleResult | None
    at_this_load: Reading | None
    window_seconds: float | None = None
    finding: ActiveFinding | None = None
    note: ActiveFinding | None = None
    is_overloaded: bool = False
    wait_seconds: float | None = None

    @property
    def window(self) -> str:
        """Return the window of the number in words, "" without one."""
        return "" if self.window_seconds is None else f"last {format_duration(self.window_seconds)}"

    @property
    def state(self) -> tuple[Tone, str]:
        """Return the tone of the number and its word. Only a planned value that holds is "as planned"."""
        if self.row.judged_by_plan:
            return self._state_by_plan()
        if self.finding is not None:
            return self.finding.tone, self.finding.named
        result = self.judged
        if result is None:
            return Status.UNKNOWN, ""
        if self.wait_seconds is not None:
            return Status.UNKNOWN, f"not judged yet, {format_duration(self.wait_seconds)}"
        if isinstance(result, Unknown):
            why = "" if result.reason is Gap.NOT_IN_PLAN else f": {describe_gap(result.reason, result.text, '{gap}')}"
            return Status.UNKNOWN, f"not judged{why}"
        if self.note is not None:
            return self.note.tone, self.note.named
        if self.planned is None or isinstance(self.now, Missing):
            return result.status, "no finding"
        if not self.is_worse:
            if self.planned.text != SLO:
                return result.status, self._as_planned
            # Its bounds lie on both sides.
            beyond = (self.now.value or 0.0) > self.planned.value
            return (Status.UNKNOWN, "may be beyond the SLO") if beyond else (result.status, "within the SLO")
        return (
            (Status.UNKNOWN, "beyond the SLO, no finding yet")
            if self.planned.text == SLO
            else (result.status, "no finding")
        )

    def _state_by_plan(self) -> tuple[Tone, str]:
        times = self.times_planned
        if times is None:
            return Status.UNKNOWN, ""
        return ("note", f"{number(times, '')}x the plan") if self.is_worse else (Status.OK, self._as_planned)

    @property
    def _as_planned(self) -> str:
        return "no finding" if self.is_overloaded else "as planned"

    @property
    def times_planned(self) -> float | None:
        """Return the surest ratio of the number to its planned value, None if one is not known."""
        if self.planned is None or isinstance(self.now, Missing) or not self.planned.value:
            return None
        value = self.now.low if self.now.low is not None else self.now.value
        return None if value is None else value / self.planned.value

    @property
    def is_worse(self) -> bool:
        """Return whether the number is certainly worse than the plan, independent of its rules."""
        if self.planned is None or isinstance(self.now, Missing):
            return False
        end = self.now.high if self.row.more_is_better else self.now.low
        if end is None:
            return False
        return end < self.planned.value if self.row.more_is_better else end > self.planned.value


def compare_with_plan(tier: TierStatus, rows: Iterable[ComparisonRow] = ()) -> tuple[PlanComparison, ...]:
    """Return `rows`, by default every row of ROWS, for a tier, in order.

    An optional row is left out where the plan has no value for it.
    """
    shown = [row for row in rows or ROWS if not row.optional or row.planned(tier) is not None]
    active = list_findings(tier, RULES)
    return tuple(_compared(row, tier, active) for row in shown)


def _compared(row: ComparisonRow, tier: TierStatus, active: Iterable[ActiveFinding]) -> PlanComparison:
    now: SignalValue = Missing(gap=Gap.SCRAPE_FAILED, text=NOTHING_SEEN)
    if tier.recent is not None:
        now = row.now(tier, tier.recent)
    findings = [finding for finding in active if finding.verdict.rule in row.rules]
    results = (
        *(finding.verdict for finding in findings),
        *(result for result in tier.results if result.rule in row.rules),
    )
    notes = (finding for finding in active if finding.is_note and RULES[finding.verdict.rule].signal in row.signals)
    return PlanComparison(
        row=row,
        now=now,
        planned=row.planned(tier),
        finding=next(iter(findings), None),
        judged=worst_result(results),
        note=next(notes, None),
        is_overloaded=any(finding.verdict.rule in OVERLOAD for finding in active),
        at_this_load=_at_this_load(results),
        window_seconds=None if tier.recent is None else tier.recent.end - tier.recent.start,
        wait_seconds=max((r.wait_seconds for r in results if isinstance(r, Unknown) and r.wait_seconds), default=None),
    )


def _at_this_load(results: tuple[RuleResult, ...]) -> Reading | None:
    judged = worst_result(tuple(result for result in results if RULES[result.rule].method in AT_EQUAL_LOAD))
    return judged.expected if isinstance(judged, Verdict) and isinstance(judged.expected, Reading) else None


def worst_result(results: tuple[RuleResult, ...]) -> RuleResult | None:
    """Return the worst result by severity, then certainty. Any verdict precedes an unknown."""
    return max(results, key=_gravity, default=None)


def _gravity(result: RuleResult) -> tuple[bool, int, bool]:
    if isinstance(result, Unknown):
        return False, 0, False
    fires = result.status in FIRING
    return True, SEVERITY[result.status], fires and result.certainty is Certainty.CERTAIN


def _signal(name: str) -> Callable[[TierStatus, Window], SignalValue]:
    return lambda tier, window: read(BY_NAME[name], window, tier.context.basis)


def _rps(tier: TierStatus, window: Window) -> SignalValue:
    """Return completed requests per second of a replica: the mean of the seen replicas."""
    rate = replica_rate(window, "requests_finished")
    if rate is None:
        return Missing(gap=window.explain_missing("requests_finished"))
    return Reading(value=rate, low=rate, high=rate, n=window.counters["requests_finished"])


def _gpu(tier: TierStatus, window: Window) -> SignalValue:
    """Return the GPU signal of the kind that the benchmark measured. Kinds cannot be compared (DESIGN 3.4)."""
    kind = tier.context.curve.written.gpu_utilization_kind if tier.context.curve else None
    return gpu_utilization(window, kind) if kind else _signal("gpu_utilization")(tier, window)


def _usable(tier: TierStatus) -> PlannedValue | None:
    """Return the present capacity of a replica, which replica counts are based on."""
    capacity = tier.context.capacity
    if capacity is None:
        return None
    text = "usable" if capacity.high is not None else "usable, at least"
    if capacity.source is CapacitySource.PRODUCTION:
        text += ", by production"
        text += "" if capacity.planned_rps is None else f" ({capacity.planned_rps:.3g} by the plan)"
    return PlannedValue(value=capacity.rps, text=text)


def _slo(name: str) -> Callable[[TierPlan], PlannedValue | None]:
    def planned(plan: TierPlan) -> PlannedValue | None:
        limit = getattr(plan.slo, name)
        return None if limit is None else PlannedValue(value=limit, text=SLO)

    return planned


def _at_usable_load(metric: str) -> Callable[[TierPlan], PlannedValue | None]:
    def planned(plan: TierPlan) -> PlannedValue | None:
        value = _measured(plan, metric)
        return None if value is None else PlannedValue(value=value, text="at usable load")

    return planned


def _measured(plan: TierPlan, metric: str) -> float | None:
    curve, point = Curve.from_plan(plan), operating_point(plan)
    return curve.value_at(metric, point) if curve and point else None


def _prefix_hits(plan: TierPlan) -> PlannedValue | None:
    if plan.workload is not None and plan.workload.prefix_hit_ratio is not None:
        return PlannedValue(value=plan.workload.prefix_hit_ratio, text="of prompt tokens")
    return _at_usable_load("prefix_hit_ratio")(plan)


def _cost(plan: TierPlan) -> PlannedValue | None:
    """Return the cost of a million output tokens at planned utilisation of the usable load (guide 9.1, step 12)."""
    tokens = _measured(plan, "output_tokens_per_second")
    if plan.cost is None or plan.cost.planned_utilization is None or not tokens:
        return None
    hourly = tokens * 3600 * plan.cost.planned_utilization
    value = cost_per_million_tokens(plan.gpu.per_replica, plan.cost.gpu_hour_price, hourly)
    return PlannedValue(value=value, text=f"at {plan.cost.planned_utilization:.0%} of capacity")


def _energy(plan: TierPlan) -> PlannedValue | None:
    value = plan.cost.joules_per_generated_token if plan.cost else None
    return None if value is None else PlannedValue(value=value, text="planned")


def _about(*signals: str) -> tuple[str, ...]:
    """Return the page and ticket rules that judge one of the signals. Report rules never colour a number."""
    return tuple(
        name for name, rule in RULES.items() if rule.signal in signals and rule.severity is not Severity.REPORT
    )


def _row(
    key: str,
    title: str,
    unit: str,
    planned: Callable[[TierPlan], PlannedValue | None],
    *rules: str,
    now: Callable[[TierStatus, Window], SignalValue] | None = None,
    seen: str = "",
    more_is_better: bool = False,
    optional: bool = False,
    judged_by_plan: bool = False,
) -> ComparisonRow:
    """Return a row that reads the signal `key` unless `now` is given. `rules` add to those that judge this signal."""
    return ComparisonRow(
        key=key,
        title=title,
        unit=unit,
        rules=tuple(dict.fromkeys((*_about(key), *rules))),
        signals=(key,),
        now=now or _signal(key),
        planned=lambda tier: planned(tier.context.plan) if tier.context.plan else None,
        seen=seen,
        more_is_better=more_is_better,
        optional=optional,
        judged_by_plan=judged_by_plan,
    )


COST = _row("cost_per_million_tokens", "Cost per million tokens", "money", _cost, judged_by_plan=True)
"""Cost of tokens. It also tells an oversized tier."""

ROWS: tuple[ComparisonRow, ...] = (
    _row("ttft_p99_seconds", "TTFT P99", "seconds", _slo("ttft_p99_seconds"), seen="known within"),
    _row("tpot_p99_seconds", "TPOT P99", "seconds", _slo("tpot_p99_seconds"), seen="known within"),
    _row("itl_p99_seconds", "ITL P99", "seconds", _slo("itl_p99_seconds"), seen="known within", optional=True),
    _row("e2e_p99_seconds", "E2E P99", "seconds", _slo("e2e_p99_seconds"), seen="known within", optional=True),
    ComparisonRow(
        key="completed_rps_per_replica",
        title="Requests per replica",
        unit="per_second",
        rules=(*_about("completed_rps", "arrival_rps", "fleet_utilization"), *HELD_BACK),
        signals=("completed_rps", "fleet_utilization"),
        now=_rps,
        planned=_usable,
    ),
    _row("kv_utilization", "KV cache in use", "ratio", _at_usable_load("kv_utilization"), seen="seen"),
    _row("prefix_hit_ratio", "Prefix cache hits", "ratio", _prefix_hits, more_is_better=True),
    _row("eviction_rate", "Evictions per request", "ratio", _at_usable_load("eviction_rate"), "KvCacheCascade"),
    _row(
        "gpu_utilization",
        "GPU utilisation",
        "ratio",
        _at_usable_load("gpu_utilization"),
        now=_gpu,
        seen="seen",
        more_is_better=True,
    ),
    COST,
    _row(
        "energy_per_generated_token",
        "Energy per generated token",
        "joules_per_token",
        _energy,
        optional=True,
        judged_by_plan=True,
    ),
)
