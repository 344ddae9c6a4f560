"""Report of an installation: every tier, the next plan, the headline and the message.

The message is plain text, made from report.json on disk: a report that waited through an upgrade can be sent.
Apprise escapes it for HTML or Markdown.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import fsum
from statistics import fmean
from typing import Any, TypeGuard

from exporters.documents.forecast import Strategy
from exporters.documents.plan_files import DUMP_WIDTH, scalar
from exporters.documents.plan_show import plan_diff, tier_diff
from exporters.documents.replay import HEADS, result_words
from exporters.render import text as render
from exporters.render.safe_text import printable_line, shorten
from exporters.report import findings
from exporters.report.findings import Prewarming, ReportInputs, TierPast
from exporters.report.guide_tables import KEYS, judge_row, lengths_words, monitoring_rows, questions
from exporters.report.records import SCHEMA, CurvePart, Report, TierReport, WeekHour
from rules.catalogue.registry import CATALOGUE
from rules.confidence import Certainty
from rules.methods.evidence import capitalize, join_names
from rules.plan.capacity import planned_capacity
from rules.plan.guardrails import judge_guardrails
from rules.plan.money import HOURS_A_DAY
from rules.plan.schema import Guardrails, Plan, TierPlan, Workload, parse_plan
from rules.plan.validation import impossible_means
from rules.resize.fleet_cost import group_by_hour_of_week
from rules.resize.production_summary import ProductionSummary
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import Length, list_guardrails
from rules.telemetry.signals import Reading
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, group_by, sum_windows
from rules.telemetry.wording import format_count, number
from rules.telemetry.work import SAME, Capacity, CapacitySource, computed_share, weigh
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Verdict, severity_of


def report(past: ReportInputs) -> tuple[Report, Plan | None]:
    """Return the report and the proposed plan (None without a plan)."""
    proposed = next_plan(past.plan, past.tiers) if past.plan else None
    tiers = tuple(tier_report(tier, past.zone, past.plan, proposed) for tier in past.tiers)
    whole = Report(
        schema=SCHEMA,
        **render.copy_fields(past, "version", "made_at", "since", "until", "zone", "simulated", "remarks"),
        headline=_headline(tiers),
        tiers=tiers,
        plan_changes=plan_diff(past.plan, proposed) if past.plan and proposed else (),
    )
    return whole, proposed


def _headline(tiers: tuple[TierReport, ...]) -> str:
    if not tiers:
        return "No tier is watched: the configuration names none."
    parts, paid = [], []
    for kind in (ProposalKind.GROW, ProposalKind.SHRINK, ProposalKind.KEEP, ProposalKind.NONE):
        names = [tier.tier for tier in tiers if tier.proposal.kind is kind]
        if names:
            verb = kind.value.replace("no_recommendation", "no recommendation for")
            parts.append(f"{verb} {join_names(names, SHOWN)}")
    for currency, rows in group_by(tiers, lambda tier: tier.currency).items():
        saved = sum(tier.saves_a_day or 0.0 for tier in rows)
        if round(saved, 6):
            paid.append(f"{render.money(abs(saved), currency)} a day {'less' if saved > 0 else 'more'}")
    text = ": ".join(filter(None, ("; ".join(parts), ", ".join(paid))))
    return f"{capitalize(text)}."


SHOWN = 3
"""Maximum number of findings in a verdict, and of tiers of a kind in the headline."""

REACHED = 0.9
"""Share of the usable load below which the verdict says how far production came."""


def tier_report(past: TierPast, zone: str, plan: Plan | None, proposed: Plan | None) -> TierReport:
    """Return the report of a tier. `proposed` is the whole next plan, None without a plan."""
    resize, context = past.resize, past.resize.seen.context
    name, tier = context.name, context.plan
    monitoring = monitoring_rows(past)
    before, after = (candidate.tiers.get(name) if candidate else None for candidate in (plan, proposed))
    hours = group_by(resize.seen.rates, lambda rate: rate.start // HOUR_SECONDS * HOUR_SECONDS)
    left: tuple[str, ...] = ()
    if resize.proposal.kind is not ProposalKind.NONE:
        left = tuple(length.left for length in next_lengths(resize) if length.left)
    return TierReport(
        tier=name,
        model=tier.model if tier else "",
        gpu=f"{tier.gpu.per_replica} x {tier.gpu.product}" if tier else "",
        currency=tier.cost.currency if tier and tier.cost else "",
        status=_status(past, [row.status for row in monitoring]),
        verdict=verdict(past, zone),
        lengths=lengths_words(resize.seen.total, context.basis),
        monitoring=monitoring,
        hourly=tuple((t, fmean(rate.rps for rate in hours[t])) for t in sorted(hours)),
        drift=tuple(judge_row((rule,), past) for rule in ("WorkloadDrift", "OutputLengthDrift")),
        curve=_curve(resize),
        count=resize.sized,
        costs=tuple(filter(None, (resize.planned, resize.measured, resize.proposed))),
        trap=judge_row(("UtilizationTrap",), past),
        week=tuple(_week(resize.seen, zone)) if context.capacity else (),
        prewarming=_prewarming(past, context.limits),
        guardrails=list_guardrails(resize.seen, resize.workload),
        grouped_incidents=findings.list_incidents(past, zone),
        incidents=findings.list_findings(past),
        restarts=findings.restarts(past),
        quality=findings.quality(past, zone),
        questions=questions(past),
        saves_a_day=_saves(resize),
        changes=tier_diff(name, before, after) if before and after else (),
        left=left,
        **render.copy_fields(resize, "workload", "levers", "proposal"),
    )


def verdict(past: TierPast, zone: str) -> str:
    resize, step13 = past.resize, past.step13
    name, proposal = resize.seen.context.name, resize.proposal
    if not resize.seen.hours:
        return f"{name}: nothing was seen in this time, so nothing is known and nothing is proposed."
    odd = ", ".join(short for short, _ in findings.list_remarks(past, zone) if short)
    text = f"{name} ({odd}): " if odd else f"{name}: "
    text += render.lower_first(proposal.sentence)
    if proposal.kind is not ProposalKind.NONE:
        text += f" ({proposal.certainty.value})"
    measured, saves = resize.measured, _saves(resize)
    if measured is not None and measured.money_a_day is not None:
        text += f"; it costs {render.money(measured.money_a_day, measured.price.currency)} a day"
        if saves:
            change = render.money(abs(saves), measured.price.currency)
            text += f", the proposal saves {change} a day" if saves > 0 else f", the proposal costs {change} a day more"
            if round(measured.replicas) != proposal.now:
                text += f" against the {format_count(proposal.now or 0, 'planned replica')}"
        elif round(measured.replicas) != proposal.now:
            text += f" at {format_count(round(measured.replicas, 1), 'replica')} on average"
    elif measured is not None:
        text += "; the plan has no price"
    if step13.status is Status.UNKNOWN and not step13.is_learning:
        text += f"; whether production confirms the benchmark {HEADS[Status.UNKNOWN]}"
    else:
        text += f"; {result_words(step13)}{_suspect(past)}"
    reached, usable = step13.highest_share, resize.usable
    if usable is not None and usable.kept_rps is not None:
        reached = usable.kept_rps / usable.rps
    if step13.status is Status.OK and reached is not None and reached < REACHED:
        text += f" up to {reached:.0%} of the usable load"
    sure = (Status.CRITICAL, Certainty.CERTAIN)
    alerting = findings.list_alerting(past)
    critical = dict.fromkeys(row.rule for row in alerting if (row.worst.status, row.worst.certainty) == sure)
    if critical:
        text += f"; critical in this time: {', '.join(map(render.rule_title, list(critical)[:SHOWN]))}"
    return f"{text}."


def _suspect(past: TierPast) -> str:
    fires = [result for result in past.step13.results if isinstance(result, Verdict) and result.status in FIRING]
    suspected = sorted((result for result in fires if result.causes), key=lambda result: -SEVERITY[result.status])
    texts = [cause.evidence[0] for result in suspected[:1] for cause in result.causes[:1] if cause.evidence]
    return f" ({texts[0].partition(':')[0]})" if texts else ""


def _saves(resize: Resize) -> float | None:
    plan, proposal = resize.seen.context.plan, resize.proposal
    if plan is None or plan.cost is None or proposal.replicas is None or proposal.now is None:
        return None
    return (proposal.now - proposal.replicas) * plan.gpu.per_replica * plan.cost.gpu_hour_price * HOURS_A_DAY


def _status(past: TierPast, rows: list[str]) -> str:
    """Return the worst status of the monitoring table and Step 13, unknown without data.

    A warning is the status of a kept tier only while a finding of it that alerts is open.
    """
    if not past.resize.seen.hours:
        return Status.UNKNOWN.value
    texts = {*rows, past.step13.status.value}
    if past.resize.proposal.kind is ProposalKind.KEEP and past.step13.status is not Status.WARNING:
        lasting = [finding for finding in findings.list_alerting(past) if finding.ended_at is None]
        if not any(severity_of(finding.worst, finding) for finding in lasting):
            texts.discard(Status.WARNING.value)
    return findings.worst_status(texts).value


def _curve(resize: Resize) -> CurvePart:
    context, usable = resize.seen.context, resize.usable
    fleet = context.plan.fleet if context.plan else None
    peak = resize.sized.demand_rps if resize.sized else None
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
    grouped = group_by_hour_of_week(seen, zone)
    for weekday, hour in product(range(7), range(24)):
        rows = grouped.get((weekday, hour), ())
        used, idle = [fsum(column) / len(rows) for column in zip(*rows, strict=True)] or (None, None)
        yield WeekHour(weekday=weekday, hour=hour, utilization=used, idle_replicas=idle, count=len(rows))


def _prewarming(past: TierPast, limits: Mapping[str, Mapping[str, float]]) -> Prewarming:
    part, rule = past.prewarming, CATALOGUE["ForecastDegraded"]
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
    paragraphs = [render.SIMULATED] if mapping["simulated"] else []
    paragraphs += [shorten(printable_line(str(line)), 1000) for line in lines]
    span = f"{render.instant(float(mapping['since']), zone)} to {render.instant(float(mapping['until']), zone)}"
    paragraphs.append(f"{span}: {link}" if link else span)
    return shorten(printable_line(str(mapping["headline"])), MOST_LETTERS), "\n\n".join(paragraphs)


MEASURE = "take it from the requests that a gateway logs, and write it into the plan by hand"


@dataclass(frozen=True, slots=True)
class NextLength:
    """Quantile or mean of prompts or outputs. `value` is in tokens, None if the plan gets no value.

    `left` is why production's value is not used, or "". `upper` is the edge of its bucket above `value`, or None.
    """

    what: str
    quantile: str
    value: float | None
    left: str = ""
    upper: float | None = None


def next_lengths(resize: Resize) -> tuple[NextLength, ...]:
    """Return the planned quantile if it lies in the observed bucket, else the best estimate.

    The mean is exact (tokens by requests) and follows production.
    """
    rows: list[NextLength] = []
    for what in KEYS:
        rows.append(_mean(resize, what))
        floor = 0.0
        for length in resize.workload.lengths:
            if length.what == what:
                rows.append(_next_quantile(length, floor))
                # A plan with a quantile below the previous one is refused.
                floor = rows[-1].value or floor
    return tuple(rows)


def _mean(resize: Resize, what: str) -> NextLength:
    plan, now = resize.seen.context.plan, resize.workload
    given = plan.value_at(f"workload.{KEYS[what]}.mean") if plan else None
    seen = {"prompts": now.prompt_mean, "outputs": now.generation_mean}[what]
    if not seen or (given is not None and abs(seen / given - 1) <= SAME):
        return NextLength(what, "mean", given)
    return NextLength(what, "mean", float(f"{seen:.4g}"))


def _next_quantile(length: Length, floor: float) -> NextLength:
    """Return a planned length within its bucket, else the estimate. Production's value stays out where it is a bound."""
    seen, given, row = length.observed, length.planned, partial(NextLength, length.what, length.quantile)
    if not isinstance(seen, Reading):
        return row(None if given is None else max(given, floor))
    low = seen.low or 0.0
    if given is not None and low <= given and (seen.high is None or given <= seen.high):
        return row(max(given, floor), upper=seen.high)
    if seen.value is not None:
        value = max(floor, float(max(1, round(seen.value))))
        high = seen.high or value
        return row(value, upper=high if high > low else None)
    name, above = f"{length.what} {length.quantile.upper()}", number(low, "")
    text = f"{name}: production tells only that it is above {above} tokens, where the engine's buckets end; "
    if given is None:
        return row(None, f"{text}the plan gets none: {MEASURE}")
    if given < floor:
        why = "cannot stay, the quantile below it is longer"
        return row(None, f"{text}the planned {number(given, '')} {why}: {MEASURE}")
    return row(given, f"{text}the planned {number(given, '')} stays, too low as it is: {MEASURE}")


def next_plan(plan: Plan, tiers: Sequence[TierPast]) -> Plan:
    """Return the plan with every tier as production showed it. A tier without a recommendation is unchanged."""
    known = {past.resize.seen.context.name: past for past in tiers}
    whole = plan.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, tier in whole["tiers"].items():
        if name in known and known[name].resize.proposal.kind is not ProposalKind.NONE:
            _follow(tier, known[name])
    return parse_plan(whole)


BENCHMARKED = {
    "prompt_tokens.mean": "prompt_tokens_mean",
    "generation_tokens.mean": "output_tokens_per_second",
    "prefix_hit_ratio": "prefix_hit_ratio",
}
"""Keys of a point that take the workload's value where the point has none, by the workload's key."""


def _follow(tier: dict[str, Any], past: TierPast) -> None:
    resize, before = past.resize, TierPlan.model_validate(tier)
    workload = tier.setdefault("workload", {})
    rates = workload.setdefault("requests_per_second", {})
    peaks = resize.workload.peak_rps or 0.0, resize.sized.demand_rps if resize.sized else 0.0
    for name, seen in (("average", resize.workload.average_rps), ("peak", max(peaks))):
        if seen and abs(seen / rates.get(name, seen * 2) - 1) > SAME:
            rates[name] = float(f"{seen:.3g}")
    if rates.get("average", 0) > rates.get("peak", float("inf")):
        rates["average"] = rates["peak"]
    if resize.proposal.replicas is not None:
        tier.setdefault("fleet", {})["instances"] = resize.proposal.replicas
    is_broken = _follow_hits(workload, past)
    if refutes_plan(resize.usable) and not is_broken:
        bounds = {"low": resize.usable.low, "usable_rps": resize.usable.rps, "high": resize.usable.high}
        point: dict[str, Any] = {name: float(f"{value:.3g}") for name, value in bounds.items() if value}
        tier["operating_point"] = {**point, "source": CapacitySource.PRODUCTION.value}
    _write_lengths(tier, resize)
    after = TierPlan.model_validate(tier)
    for path, name in BENCHMARKED.items():
        value = before.value_at(f"workload.{path}")
        if value is not None and after.value_at(f"workload.{path}") != value:
            # Keep the curve as measured. Points without lengths were measured at the workload's.
            for point in tier.get("curve", {}).get("points", ()):
                requests = point["completed_rps"] if name == "output_tokens_per_second" else 1.0
                point.setdefault(name, value * requests)
    for part in ("workload", "guardrails"):
        tier[part] = {key: value for key, value in tier.get(part, {}).items() if value != {}}
        if not tier[part]:
            del tier[part]


def _follow_hits(workload: dict[str, Any], past: TierPast) -> bool:
    """Write the hit ratio that the replicas are sized by. Return true if a rule fires on it: a fault is no workload."""
    planned, lately = workload.get("prefix_hit_ratio"), past.resize.seen.lately
    computed = computed_share(lately) if lately is not None else None
    if planned is None or computed is None:
        return False
    fires = {result.rule for result in past.results if isinstance(result, Verdict) and result.status in FIRING}
    is_fault = bool(fires & {"PrefixHitDivergence", "PrefixRoutingBroken"})
    if not is_fault and abs(computed - (1 - planned)) > SAME * (1 - planned):
        workload["prefix_hit_ratio"] = float(f"{1 - computed:.3g}")
    return is_fault


def _write_lengths(tier: dict[str, Any], resize: Resize) -> None:
    """Write lengths, and guardrails that fit them.

    The mean is exact: estimates that exclude it give way to the upper edges of their buckets. Where a quantile has only
    a bound, and stays too low, no mean is written with it.
    """
    workload, lengths = tier["workload"], next_lengths(resize)
    edges = [replace(length, value=length.upper or length.value) for length in lengths]
    quantiles = [length for length in lengths if length.quantile != "mean"]
    workload.update({key: {} for key in KEYS.values()})
    for what, key in KEYS.items():
        for rows in (lengths, edges, quantiles):
            workload[key] = {row.quantile: row.value for row in rows if row.what == what and row.value is not None}
            _guard(tier, resize)
            guardrails = Guardrails.model_validate(tier["guardrails"])
            impossible = impossible_means(Workload.model_validate(workload), guardrails)
            if all(key not in place for place, _ in impossible):
                break


def refutes_plan(capacity: Capacity | None) -> TypeGuard[Capacity]:
    """Return whether production measured a capacity that differs from the plan by more than SAME.

    If no load kept the SLO, nothing was measured. Such a number would become the floor of the next plan.
    """
    if capacity is None or capacity.source is not CapacitySource.PRODUCTION or capacity.kept_rps is None:
        return False
    return capacity.planned_rps is None or abs(capacity.rps / capacity.planned_rps - 1) > SAME


def _guard(tier: dict[str, Any], resize: Resize) -> None:
    """Update guardrails that are missing, or do not fit the lengths and the peak of the next plan.

    Nothing follows from a length that the plan keeps because production's is beyond the engine's last bucket.
    """
    limit = partial(CATALOGUE["Guardrails"].limit, overrides=resize.seen.context.limits)
    lengths = {f"{KEYS[length.what]}_{length.quantile}": length.observed for length in resize.workload.lengths}
    seen = {name: value for name, value in lengths.items() if isinstance(value, Reading) and value.high is None}
    # A mean that the quantiles exclude is dropped later, and no guardrail follows from it.
    quantiles = {key: {**tier["workload"][key], "mean": None} for key in KEYS.values()}
    planned = TierPlan.model_validate({**tier, "workload": {**tier["workload"], **quantiles}})
    present = tier.setdefault("guardrails", {})
    for guardrail in judge_guardrails(planned, limit, seen, None):
        if guardrail.status != Status.OK and guardrail.proposed is not None:
            present[guardrail.key] = guardrail.proposed


def is_benchmark_refuted(resize: Resize) -> bool:
    """Return whether production takes clearly fewer requests than the benchmark, and less work by each kind of token."""
    usable, context = resize.usable, resize.seen.context
    if context.plan is None or context.curve is None or not refutes_plan(usable):
        return False
    planned, own = planned_capacity(context.plan), usable.lengths
    if planned is None:
        return False
    prompts, outputs = (getattr(mean, "low", None) for mean in (own.prompt_tokens, own.generation_tokens))
    computed = None if own.prefix_hit_ratio is None else 1 - own.prefix_hit_ratio
    work = weigh(1.0, prompts, outputs, computed, planned.lengths, n=1.0)
    most = max((1.0, *(load.best for load in (work.by_prompts, work.by_outputs) if load)))
    return usable.rps * most * (1 + SAME) < planned.rps


HEAD = """\
# Written by `sizewatch report` at {made}: the plan with what production showed. Read it before you use it:
# `sizewatch plan check` says what weakens it, `sizewatch plan diff OLD NEW` what changed and what that costs.
{simulated}schema: 1
tiers:
"""


def next_plan_text(report: Report, proposed: Plan) -> str:
    made = render.format_local(report.made_at, "UTC", "%Y-%m-%d %H:%M UTC")
    simulated = "# SIMULATED: none of the traffic behind it is real.\n" if report.simulated else ""
    text = HEAD.format(made=made, simulated=simulated)
    comments = {tier.tier: _comments(tier) for tier in report.tiers}
    for name, tier in proposed.tiers.items():
        fields = tier.model_dump(mode="json", exclude_none=True)
        if tier.curve is not None:
            fields["curve"] = tier.curve.model_dump(mode="json", exclude_defaults=True)
        lines = []
        for comment in comments.get(name, ()):
            line = f"# {printable_line(comment)}"
            lines += textwrap.wrap(line, 110, subsequent_indent="#   ", break_on_hyphens=False)
        lines.append(render.dump_object(fields, allow_unicode=True, default_flow_style=None, width=DUMP_WIDTH))
        text += f"  {scalar(name)}:\n" + textwrap.indent("\n".join(lines), "    ")
    return text


def _comments(tier: TierReport) -> Iterator[str]:
    proposal = tier.proposal
    if tier.curve.benchmark_refuted and tier.curve.usable is not None:
        yield f"First benchmark again: {tier.curve.usable.reason}."
        yield "Until then operating_point has what production measured; the curve stays, to compare at equal load."
    if proposal.kind is ProposalKind.NONE:
        yield f"{proposal.sentence}."
    else:
        yield f"{proposal.sentence} ({proposal.certainty.value})."
    yield from (f"- {text}" for text in proposal.evidence)
    yield from (f"- {text.removeprefix(f'{tier.tier}: ')}" for text in tier.changes)
    yield from (f"{text}." for text in tier.left)
    for length in tier.workload.lengths:
        if tier.changes and isinstance(length.observed, Reading):
            yield f"{length.what} {length.quantile.upper()} in production: {render.format_reading(length.observed, 'tokens')}"
