"""Report of an installation: every tier, the next plan, the headline and the message.

The message is plain text; the delivery escapes it for HTML or Markdown. It is made from report.json on disk, so a report
that waited through an upgrade can be sent. Monitoring table, findings and questions have their own modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from math import fsum
from statistics import fmean
from typing import Any

from exporters.documents.plan_show import plan_diff, tier_diff
from exporters.documents.prewarm import Strategy
from exporters.documents.replay import HEADS, result_words
from exporters.render.text import (
    SIMULATED,
    copy_fields,
    instant,
    lower_first,
    money,
    printable_line,
    shorten,
    upper_first,
)
from exporters.report.findings import (
    list_alerting,
    list_findings,
    list_incidents,
    quality,
    quality_summary,
    restarts,
    worst_titles,
)
from exporters.report.guide_tables import judge_row, lengths_words, monitoring_rows, questions
from exporters.report.inputs import Prewarming, ReportInputs, TierPast
from exporters.report.next_plan import is_benchmark_refuted, next_plan, unchanged_lengths
from exporters.report.records import SCHEMA, CurvePart, Report, TierReport, WeekHour
from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.money import HOURS_A_DAY
from rules.plan.schema import Plan
from rules.resize.fleet_cost import group_by_hour_of_week
from rules.resize.production_summary import ProductionSummary
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import list_guardrails
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, group_by, sum_windows
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Verdict, severity_of


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
    parts, paid = [], []
    for kind, word in _DONE.items():
        names = [tier.tier for tier in tiers if tier.proposal.kind is kind]
        if names:
            parts.append(f"{word} {', '.join(names)}")
    for currency, rows in group_by(tiers, lambda tier: tier.currency).items():
        saved = sum(tier.saves_a_day or 0.0 for tier in rows)
        if round(saved):
            paid.append(f"{money(abs(saved), currency)} a day {'less' if saved > 0 else 'more'}")
    text = ": ".join(filter(None, ("; ".join(parts), ", ".join(paid))))
    return f"{upper_first(text)}."


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
    hours = group_by(resize.seen.rates, lambda rate: rate.start // HOUR_SECONDS * HOUR_SECONDS)
    hourly = [(t, fmean(rate.rps for rate in hours[t])) for t in sorted(hours)]
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
        hourly=tuple(hourly),
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
    resize, step13 = past.resize, past.step13
    name, proposal = resize.seen.context.name, resize.proposal
    if not resize.seen.hours:
        return f"{name}: nothing was seen in this time, so nothing is known and nothing is proposed."
    odd = quality_summary(past, zone)
    text = f"{name} ({odd}): " if odd else f"{name}: "
    text += lower_first(proposal.sentence)
    if proposal.kind is not ProposalKind.NONE:
        text += f" ({proposal.certainty.value})"
    measured, saves = resize.measured, _saves(resize)
    if measured is not None and measured.money_a_day is not None:
        text += f"; it costs {money(measured.money_a_day, measured.price.currency)} a day"
        if saves:
            change = money(abs(saves), measured.price.currency)
            text += f", the proposal saves {change} a day" if saves > 0 else f", the proposal costs {change} a day more"
    if step13.status is Status.UNKNOWN and not step13.is_learning:
        text += f"; whether production confirms the benchmark {HEADS[Status.UNKNOWN]}"
    else:
        text += f"; {result_words(step13)}{_suspect(past)}"
    if step13.status is Status.OK and step13.highest_share is not None and step13.highest_share < REACHED:
        text += f" up to {step13.highest_share:.0%} of the usable load"
    if critical := worst_titles(past):
        text += f"; critical in this time: {', '.join(critical[:SHOWN])}"
    return f"{text}."


def _suspect(past: TierPast) -> str:
    """Return the first cause of a difference from the benchmark, without numbers. Return "" if unknown."""
    fires = [result for result in past.step13.results if isinstance(result, Verdict) and result.status in FIRING]
    causes = max(
        (result for result in fires if result.causes), key=lambda result: SEVERITY[result.status], default=None
    )
    texts = causes.causes[0].evidence if causes is not None else ()
    return f" ({texts[0].partition(':')[0]})" if texts else ""


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
        lasting = [finding for finding in list_alerting(past) if finding.ended_at is None]
        if not any(severity_of(finding.worst, finding) for finding in lasting):
            texts.discard(Status.WARNING.value)
    return next((s.value for s in (Status.CRITICAL, Status.WARNING, Status.OK) if s.value in texts), "unknown")


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
    """Return pre-warming against reacting to load, and why the forecast missed the limits of its rule."""
    part, rule = past.prewarming, RULES["ForecastDegraded"]
    if part is None:
        return Prewarming(missing=past.no_prewarming)
    failed = []
    if part.forecasts >= rule.limit("minimum_forecasts", limits):
        if part.error_ratio is not None and part.error_ratio >= rule.limit("error_ratio", limits):
            failed.append(f"its error is {part.error_ratio:.2f} times that of the simplest one, {part.naive}")
        if part.covered_ratio is not None and part.covered_ratio < rule.limit("coverage", limits):
            failed.append(f"only {part.covered_ratio:.0%} of what came lay at or below its 95 % quantile")
    saved = None
    if part.worth is not None:
        by_name = {strategy.name: strategy for strategy in part.worth.strategies}
        more, less = by_name[part.worth.reacting], by_name[part.worth.ours]
        numbers: dict[str, Any] = {}
        for name in ("violation_minutes", "late_requests", "replica_hours", "money"):
            before, after = getattr(more, name), getattr(less, name)
            numbers[name] = None if before is None or after is None else before - after
        saved = Strategy(name=f"{more.name} less {less.name}", **numbers)
    return replace(part, saved=saved, failed=" and ".join(failed))


MOST_LETTERS = 180
"""Maximum length of a subject, in characters."""

MOST_TIERS = 12
"""Maximum number of tiers in a message. The shortest unsplit chat message holds about 2000 characters."""


def message(mapping: Mapping[str, Any], link: str) -> tuple[str, str]:
    """Return subject (a single line) and body of the message of a report.json object. `link` is its address, or "".

    Raise KeyError, TypeError or ValueError if the object is not a report.
    """
    verdicts, zone = [tier["verdict"] for tier in mapping["tiers"]], str(mapping["zone"])
    lines = verdicts[:MOST_TIERS]
    if len(verdicts) > MOST_TIERS:
        lines.append(f"{len(verdicts) - MOST_TIERS} more tiers are in the report.")
    lines += mapping["remarks"][:3]
    paragraphs = [SIMULATED] if mapping["simulated"] else []
    paragraphs += [shorten(printable_line(str(line)), 1000) for line in lines]
    span = f"{instant(float(mapping['since']), zone)} to {instant(float(mapping['until']), zone)}"
    paragraphs.append(f"{span}: {link}" if link else span)
    return shorten(printable_line(str(mapping["headline"])), MOST_LETTERS), "\n\n".join(paragraphs)
