"""Report of a tier, section by section, and its verdict.

The re-sizing becomes report records here. Monitoring table, data quality, findings and questions have their own
modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import fsum

from exporters.documents.check import HEADS, result_words
from exporters.documents.plan_diff import tier_diff
from exporters.report.data_quality import quality, quality_summary
from exporters.report.findings import list_findings, list_incidents, restarts, worst_titles
from exporters.report.inputs import Prewarming, TierPast
from exporters.report.monitoring import judge_row, monitoring_rows
from exporters.report.next_plan import is_benchmark_refuted, unchanged_lengths
from exporters.report.questions import lengths_words, questions
from exporters.report.records import (
    CostRow,
    CurvePart,
    CurvePoint,
    FleetPart,
    Formula,
    GuardrailPart,
    GuardrailRow,
    LengthRow,
    LeverRow,
    PrewarmPart,
    ProposalPart,
    RatePoint,
    StrategyRow,
    TermRow,
    TierReport,
    TrapPart,
    WeekHour,
    WorkloadPart,
    row_from,
)
from exporters.report.wording import as_number, exact_number, money
from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.money import HOURS_A_DAY
from rules.plan.replica_count import ReplicaCount
from rules.plan.schema import Plan, Point, TierPlan
from rules.resize.fleet_cost import FleetCost, group_by_hour_of_week
from rules.resize.production_summary import ProductionPoint, ProductionSummary, Rate
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import list_guardrails
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, Window, sum_windows
from rules.verdicts.finding import Finding, severity_of
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Verdict

Term = tuple[str, float, str, str]
"""Number of a formula: name, value, unit and source."""

SHOWN = 3
"""Maximum number of findings in the verdict. Their section shows all."""

REACHED = 0.9
"""Share of the usable load. Below it production did not reach the capacity of a replica, which the verdict states."""


def tier_report(past: TierPast, zone: str, plan: Plan | None, proposed: Plan | None) -> TierReport:
    """Return the report of a tier. `proposed` is the whole next plan, None without a plan."""
    resize, name = past.resize, past.resize.seen.context.name
    tier = resize.seen.context.plan
    monitoring = monitoring_rows(past)
    before, after = (candidate.tiers.get(name) if candidate else None for candidate in (plan, proposed))
    return TierReport(
        tier=name,
        model=tier.model if tier else "",
        gpu=f"{tier.gpu.per_replica} x {tier.gpu.product}" if tier else "",
        currency=tier.cost.currency if tier and tier.cost else "",
        status=_status(past, [monitored_value.status for monitored_value in monitoring]),
        verdict=verdict(past, zone),
        lengths=lengths_words(resize.seen.total, resize.seen.context.basis),
        monitoring=monitoring,
        workload=_workload(past),
        curve=_curve(resize),
        fleet=_fleet(resize),
        costs=tuple(_cost(cost) for cost in (resize.planned, resize.measured, resize.proposed) if cost is not None),
        trap=_trap(past, zone),
        prewarming=_prewarming(past, resize.seen.context.limits),
        guardrails=_guardrails(past),
        grouped_incidents=list_incidents(past),
        incidents=list_findings(past),
        restarts=restarts(past),
        quality=quality(past, zone),
        questions=questions(past),
        proposal=_proposal(resize, tier, tier_diff(name, before, after) if before and after else ()),
    )


def verdict(past: TierPast, zone: str) -> str:
    """Return the first sentence of a tier: the next action, its cost, and whether production confirms the plan."""
    resize = past.resize
    name = resize.seen.context.name
    if not resize.seen.hours:
        return f"{name}: nothing was seen in this time, so nothing is known and nothing is proposed."
    head = result_words(past.step13) + _suspect(past)
    if past.step13.status is Status.UNKNOWN and not past.step13.is_learning:
        head = f"whether production confirms the benchmark {HEADS[Status.UNKNOWN]}"
    share = past.step13.highest_share
    if past.step13.status is Status.OK and share is not None and share < REACHED:
        head += f" up to {share:.0%} of the usable load"
    proposal = resize.proposal
    text = f"{proposal.sentence[:1].lower()}{proposal.sentence[1:]}"
    sure = "" if proposal.kind is ProposalKind.NONE else f" ({proposal.certainty.value})"
    paid = _paid(resize)
    odd = quality_summary(past, zone)
    critical = worst_titles(past)
    happened = f"; critical in this time: {', '.join(critical[:SHOWN])}" if critical else ""
    return f"{name}{f' ({odd})' if odd else ''}: {text}{sure}{f'; {paid}' if paid else ''}; {head}{happened}."


def _suspect(past: TierPast) -> str:
    """Return the first cause of a difference from the benchmark, without numbers. Return "" if unknown."""
    firing = [
        result
        for result in past.step13.results
        if isinstance(result, Verdict) and result.status in FIRING and result.causes
    ]
    loudest = max(firing, key=lambda candidate: SEVERITY[candidate.status], default=None)
    texts = loudest.causes[0].evidence if loudest is not None else ()
    return f" ({texts[0].partition(':')[0]})" if texts else ""


def _paid(resize: Resize) -> str:
    """Return the present cost and the change by the proposal."""
    measured, saves = resize.measured, _saves(resize)
    if measured is None or measured.money_a_day is None:
        return ""
    text = f"it costs {money(measured.money_a_day, measured.price.currency)} a day"
    if saves:
        text += f", the proposal {'saves' if saves > 0 else 'costs'} {money(abs(saves), measured.price.currency)} a day"
        text += " more" if saves < 0 else ""
    return text


def _saves(resize: Resize) -> float | None:
    plan, proposal = resize.seen.context.plan, resize.proposal
    if plan is None or plan.cost is None or proposal.replicas is None or proposal.now is None:
        return None
    each = plan.gpu.per_replica * plan.cost.gpu_hour_price * HOURS_A_DAY
    return (proposal.now - proposal.replicas) * each


def _status(past: TierPast, rows: list[str]) -> str:
    """Return the worst status of the monitoring table and Step 13, unknown without data.

    A tier that is kept needs nothing done: a warning is its status only while a finding of it that alerts is open.
    """
    if not past.resize.seen.hours:
        return Status.UNKNOWN.value
    texts = {*rows, past.step13.status.value}
    if past.resize.proposal.kind is ProposalKind.KEEP and past.step13.status is not Status.WARNING:
        texts -= set() if any(_alerts_still(finding) for finding in past.findings) else {Status.WARNING.value}
    return next((s.value for s in (Status.CRITICAL, Status.WARNING, Status.OK) if s.value in texts), "unknown")


def _alerts_still(finding: Finding) -> bool:
    rule = RULES.get(finding.rule)
    lasts = finding.ended_at is None and rule is not None and rule.severity is not Severity.REPORT
    return lasts and severity_of(finding.worst, finding) is not None


def _workload(past: TierPast) -> WorkloadPart:
    now = past.resize.workload
    return row_from(
        WorkloadPart,
        now,
        lengths=tuple(row_from(LengthRow, length, observed=as_number(length.observed)) for length in now.lengths),
        drift=judge_row(("WorkloadDrift",), past).sentence,
        hourly=_hourly(past.resize.seen.rates),
    )


def _hourly(rates: tuple[Rate, ...]) -> tuple[RatePoint, ...]:
    grouped: dict[float, list[float]] = {}
    for rate in rates:
        grouped.setdefault(rate.start // HOUR_SECONDS * HOUR_SECONDS, []).append(rate.rps)
    return tuple(RatePoint(t=t, rps=sum(values) / len(values)) for t, values in sorted(grouped.items()))


def _curve(resize: Resize) -> CurvePart:
    context, usable = resize.seen.context, resize.usable
    fleet = context.plan.fleet if context.plan else None
    peak = resize.workload.peak_rps
    measured = _curve_window(resize.seen)
    headroom = 1 - peak / (fleet.instances * usable.rps) if fleet and usable and peak else None
    return CurvePart(
        days=measured.span / DAY_SECONDS if measured else 0.0,
        until=measured.end if measured else resize.seen.until,
        production=tuple(_production(point) for point in resize.points),
        planned=tuple(_benchmark(point) for point in context.curve.points) if context.curve else (),
        ttft_slo_seconds=context.basis.ttft_slo_seconds,
        usable_rps=usable.rps if usable else None,
        usable_low=usable.low if usable else None,
        usable_high=usable.high if usable else None,
        planned_usable_rps=context.capacity.planned_rps if context.capacity else None,
        knee_seen=usable.knee_seen if usable else False,
        certainty=usable.certainty.value if usable else "",
        reason=usable.reason if usable else "neither production nor the plan tells what a replica can take",
        source=usable.source.value if usable else "",
        benchmark_refuted=is_benchmark_refuted(resize),
        headroom=headroom,
        lengths=lengths_words(measured, context.basis),
    )


def _curve_window(seen: ProductionSummary) -> Window | None:
    """Return the sum of what the points of the curve were measured in, None without any."""
    windows = [binned.window for binned in seen.bins]
    return sum_windows(windows) if windows else seen.lately


def _production(point: ProductionPoint) -> CurvePoint:
    return CurvePoint(
        rps=point.rps,
        in_system=point.in_system,
        requests=point.requests,
        ttft_p50_seconds=as_number(point.ttft_p50),
        ttft_p99_seconds=as_number(point.ttft_p99),
        tpot_p99_seconds=as_number(point.tpot_p99),
        output_tokens_per_second=point.output_tokens_per_second,
        slo=point.kept.value,
        note=point.outside,
    )


def _benchmark(point: Point) -> CurvePoint:
    return CurvePoint(
        rps=point.completed_rps,
        in_system=point.concurrency,
        requests=point.requests,
        ttft_p50_seconds=exact_number(point.ttft_p50_seconds, point.requests or 0),
        ttft_p99_seconds=exact_number(point.ttft_p99_seconds, point.requests or 0),
        tpot_p99_seconds=exact_number(point.tpot_p99_seconds, point.requests or 0),
        output_tokens_per_second=point.output_tokens_per_second,
        slo="",
        note="",
    )


def _fleet(resize: Resize) -> FleetPart:
    plan, size = resize.seen.context.plan, resize.sized
    return FleetPart(
        planned=plan.fleet.instances if plan and plan.fleet else None,
        ready=resize.seen.observed_replicas,
        needed=size.replicas if size else None,
        for_peak=size.without_safety if size else None,
        fewest=size.fewest if size else None,
        most=size.most if size else None,
        gpus_per_replica=plan.gpu.per_replica if plan else None,
        arithmetic=_count_formula(resize, size) if size else None,
        missing="" if size else "; ".join(resize.proposal.needed) or "the peak or what a replica can take is not known",
    )


def _count_formula(resize: Resize, size: ReplicaCount) -> Formula:
    """Return Step 11 with the source of each number."""
    fleet = resize.seen.context.plan.fleet if resize.seen.context.plan else None
    given = (fleet.safety_factor, fleet.minimum_warm) if fleet else (None, None)
    safety, warm = ("plan" if term else "none in the plan" for term in given)
    days, one_lost = resize.seen.observed_seconds / DAY_SECONDS, size.margin.survives_loss_from
    rows = (
        ("peak", size.demand_rps, "per_second", f"three stretches of five minutes in {days:.1f} days seen"),
        ("capacity", size.capacity.rps, "per_second", size.capacity.reason),
        ("safety factor", size.safety_factor, "", safety),
        ("target utilisation", size.margin.target_utilization, "ratio", "NoHeadroom's limit"),
        ("minimum warm", size.minimum, "replicas", warm),
    )
    formula = "replicas = max(minimum warm, ceil(peak x safety factor / capacity), ceil(peak / (capacity x target utilisation))"
    formula += f"; from {one_lost} replicas on ceil(peak / capacity) + 1)" if one_lost else ")"
    return _formula(formula, rows, ("replicas", size.replicas, "replicas", "guide 9.1, Step 11"))


def _formula(text: str, terms: Iterable[Term], result: Term) -> Formula:
    rows = [TermRow(name=name, value=value, unit=unit, source=source) for name, value, unit, source in (*terms, result)]
    return Formula(formula=text, terms=tuple(rows[:-1]), result=rows[-1])


def _cost(cost: FleetCost) -> CostRow:
    price, arithmetic = cost.price, None
    if cost.per_million_tokens is not None and price.gpu_hour_price is not None and cost.tokens_per_hour is not None:
        source = (
            "benchmark at usable load x planned utilisation" if cost.name == "planned" else "generated tokens, counted"
        )
        terms = (
            ("replicas", cost.replicas, "replicas", cost.name),
            ("GPUs a replica", price.gpus_per_replica, "", "plan"),
            ("price of a GPU-hour", price.gpu_hour_price, price.currency, "plan"),
            ("output tokens an hour", cost.tokens_per_hour, "tokens", source),
        )
        formula = "cost per million = replicas x GPUs a replica x price / tokens an hour x 1,000,000"
        result = ("cost per million tokens", cost.per_million_tokens, price.currency, "guide 9.1, Step 12")
        arithmetic = _formula(formula, terms, result)
    return row_from(CostRow, cost, arithmetic=arithmetic)


def _trap(past: TierPast, zone: str) -> TrapPart:
    resize, judged = past.resize, judge_row(("UtilizationTrap",), past)
    return TrapPart(
        utilization=as_number(resize.utilization),
        status=judged.status,
        certainty=judged.certainty,
        sentence=judged.sentence,
        levers=tuple(row_from(LeverRow, lever, certainty=lever.certainty.value) for lever in resize.levers),
        week=tuple(_week(resize.seen, zone)) if resize.seen.context.capacity else (),
        zone=zone,
    )


def _week(seen: ProductionSummary, zone: str) -> Iterable[WeekHour]:
    """Yield the means of all 168 hours of the week from Monday 0:00 on."""
    grouped = group_by_hour_of_week(seen, zone)
    for weekday, hour in product(range(7), range(24)):
        rows = grouped.get((weekday, hour), ())
        used, idle = [fsum(column) / len(rows) for column in zip(*rows, strict=True)] or (None, None)
        yield WeekHour(weekday=weekday, hour=hour, utilization=used, idle_replicas=idle, count=len(rows))


def _prewarming(past: TierPast, limits: Mapping[str, Mapping[str, float]]) -> PrewarmPart:
    """Return pre-warming against reacting to load. Unknown values stay null."""
    prewarming = past.prewarming or Prewarming()
    worth = prewarming.worth
    ours = next((s for s in worth.strategies if s.name == worth.ours), None) if worth else None
    reacting = next((s for s in worth.strategies if s.name == worth.reacting), None) if worth else None
    both = ours is not None and reacting is not None
    paid = ours.money if ours else None
    instead = reacting.money if reacting else None
    return row_from(
        PrewarmPart,
        prewarming,
        strategies=tuple(
            row_from(
                StrategyRow,
                strategy,
                is_ours=strategy.name == worth.ours,
                is_recommended=strategy.name == worth.recommended,
            )
            for strategy in worth.strategies
        )
        if worth
        else (),
        start=worth.start if worth else None,
        end=worth.end if worth else None,
        sentence=worth.sentence if worth else "",
        saved_replica_hours=reacting.replica_hours - ours.replica_hours if both and ours and reacting else None,
        saved_money=instead - paid if instead is not None and paid is not None else None,
        saved_late_requests=reacting.late_requests - ours.late_requests if both and ours and reacting else None,
        missing="" if past.prewarming else past.no_prewarming,
        failed=_failed(prewarming, limits),
    )


def _failed(prewarming: Prewarming, limits: Mapping[str, Mapping[str, float]]) -> str:
    """Return the reason if the forecast missed the limits of its rule, else ""."""
    rule = RULES["ForecastDegraded"]
    if prewarming.forecasts < rule.limit("minimum_forecasts", limits):
        return ""
    rows = []
    if prewarming.error_ratio is not None and prewarming.error_ratio >= rule.limit("error_ratio", limits):
        rows.append(f"its error is {prewarming.error_ratio:.2f} times that of the simplest one, {prewarming.naive}")
    if prewarming.covered_ratio is not None and prewarming.covered_ratio < rule.limit("coverage", limits):
        rows.append(f"only {prewarming.covered_ratio:.0%} of what came lay at or below its 95 % quantile")
    return " and ".join(rows)


def _guardrails(past: TierPast) -> GuardrailPart:
    return GuardrailPart(
        judged=(judge_row(("OutputLengthDrift",), past),),
        fits=tuple(
            row_from(GuardrailRow, line, certainty="" if line.status == Status.UNKNOWN else line.certainty.value)
            for line in list_guardrails(past.resize.seen, past.resize.workload)
        ),
    )


def _proposal(resize: Resize, tier: TierPlan | None, changes: tuple[str, ...]) -> ProposalPart:
    proposal = resize.proposal
    return row_from(
        ProposalPart,
        proposal,
        kind=proposal.kind.value,
        certainty=proposal.certainty.value if proposal.kind is not ProposalKind.NONE else "",
        saves_a_day=_saves(resize),
        changes=changes,
        left=unchanged_lengths(resize),
    )
