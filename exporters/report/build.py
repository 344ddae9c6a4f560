"""Report of an installation: every tier, the next plan, the headline and the message.

The message is plain text; the delivery escapes it for HTML or Markdown. It is made from report.json on disk, so a report
that waited through an upgrade can be sent. Monitoring table, data quality, findings and questions have their own modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import fsum
from typing import Any

from exporters.documents.check import HEADS, result_words
from exporters.documents.plan_diff import plan_diff, tier_diff
from exporters.documents.prewarm import Strategy
from exporters.render.text import copy_fields, printable_line, shorten
from exporters.report.data_quality import quality, quality_summary
from exporters.report.findings import list_findings, list_incidents, restarts, worst_titles
from exporters.report.inputs import Prewarming, ReportInputs, TierPast
from exporters.report.monitoring import judge_row, monitoring_rows
from exporters.report.next_plan import is_benchmark_refuted, next_plan, unchanged_lengths
from exporters.report.questions import lengths_words, questions
from exporters.report.records import SCHEMA, CurvePart, Report, TierReport, WeekHour
from exporters.report.wording import SIMULATED, instant, lower_first, money
from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.money import HOURS_A_DAY
from rules.plan.schema import Plan
from rules.resize.fleet_cost import group_by_hour_of_week
from rules.resize.production_summary import ProductionSummary, Rate
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import list_guardrails
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, group_by, sum_windows
from rules.verdicts.finding import Finding, severity_of
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Verdict


def report(past: ReportInputs) -> tuple[Report, Plan | None]:
    """Return the report and the proposed plan (None without a plan)."""
    proposed = next_plan(past.plan, past.tiers) if past.plan else None
    tiers = tuple(tier_report(tier, past.zone, past.plan, proposed) for tier in past.tiers)
    whole = Report(
        schema=SCHEMA,
        **copy_fields(past, "version", "made_at", "since", "until", "zone", "simulated", "remarks"),
        headline=_headline(tiers),
        tiers=tiers,
        plan_changes=plan_diff(past.plan, proposed) if past.plan and proposed else (),
    )
    return whole, proposed


_DONE = {
    ProposalKind.GROW: "grow",
    ProposalKind.SHRINK: "shrink",
    ProposalKind.KEEP: "keep",
    ProposalKind.NONE: "no recommendation for",
}


def _headline(tiers: tuple[TierReport, ...]) -> str:
    """Return the recommended actions by kind, changes first."""
    if not tiers:
        return "No tier is watched: the configuration names none."
    by_kind = group_by(tiers, lambda tier: tier.proposal.kind)
    parts = [
        f"{word} {', '.join(tier.tier for tier in by_kind[kind])}" for kind, word in _DONE.items() if kind in by_kind
    ]
    text = "; ".join(parts)
    paid = ""
    for currency, rows in group_by(tiers, lambda tier: tier.currency).items():
        saved = sum(tier.saves_a_day or 0.0 for tier in rows)
        if round(saved):
            way = "less" if saved > 0 else "more"
            paid += f"{', ' if paid else ': '}{money(abs(saved), currency)} a day {way}"
    return f"{text[:1].upper()}{text[1:]}{paid}."


SHOWN = 3
"""Maximum number of findings in the verdict. Their section shows all."""

REACHED = 0.9
"""Share of the usable load. Below it production did not reach the capacity of a replica, which the verdict states."""


def tier_report(past: TierPast, zone: str, plan: Plan | None, proposed: Plan | None) -> TierReport:
    """Return the report of a tier. `proposed` is the whole next plan, None without a plan."""
    resize, name = past.resize, past.resize.seen.context.name
    context = resize.seen.context
    tier = context.plan
    monitoring = monitoring_rows(past)
    before, after = (candidate.tiers.get(name) if candidate else None for candidate in (plan, proposed))
    costs = (resize.planned, resize.measured, resize.proposed)
    return TierReport(
        tier=name,
        model=tier.model if tier else "",
        gpu=f"{tier.gpu.per_replica} x {tier.gpu.product}" if tier else "",
        currency=tier.cost.currency if tier and tier.cost else "",
        status=_status(past, [row.status for row in monitoring]),
        verdict=verdict(past, zone),
        lengths=lengths_words(resize.seen.total, context.basis),
        monitoring=monitoring,
        workload=resize.workload,
        hourly=_hourly(resize.seen.rates),
        drift=tuple(judge_row((rule,), past) for rule in ("WorkloadDrift", "OutputLengthDrift")),
        curve=_curve(resize),
        count=resize.sized,
        costs=tuple(cost for cost in costs if cost is not None),
        trap=judge_row(("UtilizationTrap",), past),
        levers=resize.levers,
        week=tuple(_week(resize.seen, zone)) if context.capacity else (),
        prewarming=_prewarming(past, context.limits),
        guardrails=list_guardrails(resize.seen, resize.workload),
        grouped_incidents=list_incidents(past),
        incidents=list_findings(past),
        restarts=restarts(past),
        quality=quality(past, zone),
        questions=questions(past),
        proposal=resize.proposal,
        saves_a_day=_saves(resize),
        changes=tier_diff(name, before, after) if before and after else (),
        left=unchanged_lengths(resize),
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
    text = lower_first(proposal.sentence)
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


def _hourly(rates: Iterable[Rate]) -> tuple[tuple[float, float], ...]:
    hours = group_by(rates, lambda rate: rate.start // HOUR_SECONDS * HOUR_SECONDS)
    return tuple((t, sum(rate.rps for rate in hours[t]) / len(hours[t])) for t in sorted(hours))


def _curve(resize: Resize) -> CurvePart:
    context, usable = resize.seen.context, resize.usable
    fleet = context.plan.fleet if context.plan else None
    peak = resize.workload.peak_rps
    windows = [binned.window for binned in resize.seen.bins]
    measured = sum_windows(windows) if windows else resize.seen.lately
    return CurvePart(
        days=measured.span / DAY_SECONDS if measured else 0.0,
        until=measured.end if measured else resize.seen.until,
        production=resize.points,
        planned=context.curve.points if context.curve else (),
        ttft_slo_seconds=context.basis.ttft_slo_seconds,
        usable=usable,
        benchmark_refuted=is_benchmark_refuted(resize),
        headroom=1 - peak / (fleet.instances * usable.rps) if fleet and usable and peak else None,
        lengths=lengths_words(measured, context.basis),
        remark=context.curve.written.remark if context.curve else "",
    )


def _week(seen: ProductionSummary, zone: str) -> Iterable[WeekHour]:
    """Yield the means of all 168 hours of the week from Monday 0:00 on."""
    grouped = group_by_hour_of_week(seen, zone)
    for weekday, hour in product(range(7), range(24)):
        rows = grouped.get((weekday, hour), ())
        used, idle = [fsum(column) / len(rows) for column in zip(*rows, strict=True)] or (None, None)
        yield WeekHour(weekday=weekday, hour=hour, utilization=used, idle_replicas=idle, count=len(rows))


def _prewarming(past: TierPast, limits: Mapping[str, Mapping[str, float]]) -> Prewarming:
    """Return pre-warming against reacting to load. Unknown values stay null."""
    if past.prewarming is None:
        return Prewarming(missing=past.no_prewarming)
    worth, saved = past.prewarming.worth, None
    if worth is not None:
        by_name = {strategy.name: strategy for strategy in worth.strategies}
        saved = _subtract(by_name[worth.reacting], by_name[worth.ours])
    return replace(past.prewarming, saved=saved, failed=_failed(past.prewarming, limits))


def _subtract(more: Strategy, less: Strategy) -> Strategy:
    return Strategy(
        name=f"{more.name} less {less.name}",
        violation_minutes=more.violation_minutes - less.violation_minutes,
        late_requests=more.late_requests - less.late_requests,
        replica_hours=more.replica_hours - less.replica_hours,
        money=None if more.money is None or less.money is None else more.money - less.money,
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


MOST_LETTERS = 180
"""Maximum length of a subject, in characters."""

MOST_TIERS = 12
"""Maximum number of tiers in a message. The shortest unsplit chat message holds about 2000 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Report message. `subject` is a single line."""

    subject: str
    body: str


def message(mapping: Mapping[str, Any], link: str) -> Message:
    """Return the message of a report.json object. `link` is the address of the report, "" if unknown.

    Raise KeyError, TypeError or ValueError if the object is not a report.
    """
    return Message(subject=_line(str(mapping["headline"]), MOST_LETTERS), body="\n\n".join(_paragraphs(mapping, link)))


def _paragraphs(mapping: Mapping[str, Any], link: str) -> Iterator[str]:
    if mapping["simulated"]:
        yield SIMULATED
    tiers = mapping["tiers"]
    yield from (_line(str(tier["verdict"])) for tier in tiers[:MOST_TIERS])
    if len(tiers) > MOST_TIERS:
        yield f"{len(tiers) - MOST_TIERS} more tiers are in the report."
    yield from (_line(str(remark)) for remark in mapping["remarks"][:3])
    zone = str(mapping["zone"])
    yield f"{instant(float(mapping['since']), zone)} to {instant(float(mapping['until']), zone)}{f': {link}' if link else ''}"


def _line(text: str, most: int = 1000) -> str:
    return shorten(printable_line(text), most)
