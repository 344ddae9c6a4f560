"""Sections of the report, in reading order: what to do and the money first, then each tier.

Both formats write them with one loop. A new section is a function here and a row of SECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from exporters.report import charts
from exporters.report.data_quality import NEARLY, blind_lines
from exporters.report.findings import incident_lines, restart_line
from exporters.report.inputs import Prewarming
from exporters.report.monitoring import MonitoredValue
from exporters.report.records import Line, Report, Section, Table, TierReport
from exporters.report.wording import (
    FLEET_USE,
    INSTANTS,
    SIMULATED,
    best,
    days_words,
    instant,
    lower_first,
    money,
    number_text,
    seen_words,
    verdict_words,
    words,
)
from rules.plan.money import figure
from rules.plan.replica_count import ReplicaCount
from rules.resize.proposal import ProposalKind
from rules.telemetry.signals import BY_NAME, Missing, Reading, SignalKind
from rules.telemetry.windows import DAY_SECONDS, group_by
from rules.telemetry.wording import format_count
from rules.verdicts.verdict import FIRING

BOUNDS = "Bounds are those of what was measured; “likely” is a best estimate, “certain” holds whatever lies inside the bounds."

NEXT = "What to do: read plan.next.yaml, then `sizewatch plan check plan.next.yaml`, then take it over as the plan."
UNTIL_THEN = (
    "Until then plan.next.yaml holds what production takes: read it, run `sizewatch plan check plan.next.yaml`, then take it "
    "over as the plan."
)
NOTHING_TO_DO = "Nothing is to be done: the plan stays as it is."


def list_sections(report: Report) -> list[Section]:
    """Return the sections of the report and of all tiers."""
    sections = [_head(report)]
    for tier in report.tiers:
        sections.append(_tier_head(tier, report.zone))
        sections += [section for build in SECTIONS if (section := build(tier, report)) is not None]
    return [*sections, Section(title="Reading this report", text=(BOUNDS,), level=2)]


def _head(report: Report) -> Section:
    span = f"{instant(report.since, report.zone)} to {instant(report.until, report.zone)}"
    period = (
        f"{span} ({days_words((report.until - report.since) / DAY_SECONDS)}); made by sizewatch {report.version} at "
    )
    text: list[Line] = [SIMULATED] if report.simulated else []
    text += [next_step(report), *report.remarks, f"{period}{instant(report.made_at, report.zone)}."]
    return Section(title=report.headline, text=tuple(text), level=1)


def next_step(report: Report) -> str:
    """Return what the reader does next."""
    lacking = ", ".join(tier.tier for tier in report.tiers if tier.proposal.kind is ProposalKind.NONE)
    refuted = ", ".join(tier.tier for tier in report.tiers if tier.curve.benchmark_refuted)
    if refuted:
        return (
            f"What to do: first benchmark {refuted} again, production takes less than its benchmark says. {UNTIL_THEN}"
        )
    if report.plan_changes:
        return NEXT
    if lacking:
        return (
            f"What to do: the plan stays as it is. What is lacking for {lacking} stands under its proposal; "
            "then report again."
        )
    return NOTHING_TO_DO


def _tier_head(tier: TierReport, zone: str) -> Section:
    lengths = f"All numbers{':' if tier.lengths.startswith('lengths') else ''} {tier.lengths}."
    if tier.curve.lengths != tier.lengths:
        lengths += f" The curve is of {_curve_period(tier, zone)}, {tier.curve.lengths}."
    facts = " · ".join(filter(None, (tier.model, tier.gpu)))
    text = (tier.verdict, *tier.quality.remarks, lengths, facts)
    return Section(title=tier.tier, text=tuple(filter(None, text)), level=2, tone=tier.status)


def _list(title: str, lines: Iterable[str], picture: tuple[str, str] | None = None) -> Section:
    return Section(title=title, text=tuple((line,) for line in lines if line), picture=picture)


def _cost(tier: TierReport, report: Report) -> Section:
    rows = [
        (
            cost.name,
            f"{cost.replicas:.3g}",
            f"{cost.replicas * cost.price.gpus_per_replica:.3g}",
            f"{cost.gpu_hours_a_day:,.0f}",
            money(cost.money_a_day, tier.currency),
            money(cost.per_million_tokens, tier.currency),
            number_text(cost.utilization, "ratio"),
        )
        for cost in tier.costs
    ]
    text = [f"needed: not known; {'; '.join(tier.proposal.needed)}"]
    if tier.count is not None:
        needed = f"needed: {format_count(tier.count.replicas, 'replica')}"
        text = ["; ".join((needed, *_other_counts(tier, tier.count)))]
    head = ("fleet", "replicas", "GPUs", "GPU-hours a day", "a day", "a million output tokens", FLEET_USE)
    table = Table(head, tuple(rows)) if rows else None
    return Section(title="Replicas and cost (steps 11 and 12)", text=tuple(text), table=table)


def _monitoring(tier: TierReport, report: Report) -> Section:
    kinds = group_by(tier.monitoring, _kind)
    shown, text = kinds.get("", []), list[str]()
    for kind in ("ok", "No rule judges"):
        if rows := kinds.get(kind):
            within = [f"{row.title} {observed_text(row, tier.currency)} ({row.target.text})" for row in rows]
            text.append(f"{kind}: {'; '.join(within)}.")
    for why, rows in group_by(kinds.get("Not known", ()), _missing_words).items():
        named = [row.title for row in rows if row.rules]
        more = [f"{len(rows) - len(named)} that no rule judges"] if len(named) < len(rows) else []
        text.append(f"Not known: {', '.join(named + more)} ({why}).")
    if all(row.change is None for row in tier.monitoring):
        text.append("There is no trend: nothing that could be compared was seen in as long a time before.")
    cells = tuple((row.title, row.target.text, observed_text(row, tier.currency), _row_verdict(row)) for row in shown)
    tones = tuple("note" if row.status == "ok" else row.status for row in shown)
    table = Table(("what", "target", "observed, and its trend", "verdict"), cells, tones) if cells else None
    return Section(title="Plan against production", text=tuple(text), table=table)


def _kind(row: MonitoredValue) -> str:
    """Return how a row is told: "" for the table. What lies outside its target is never ok (DESIGN 3.23)."""
    if row.status in FIRING or row.meets_target is False:
        return ""
    if isinstance(row.observed, Missing):
        return "Not known"
    return {"ok": "ok", "not_judged": "No rule judges"}.get(row.status, "")


def _missing_words(row: MonitoredValue) -> str:
    return row.observed.text if isinstance(row.observed, Missing) and row.observed.text else words(row.observed, "")


def observed_text(row: MonitoredValue, currency: str) -> str:
    """Return the observed value of a row with its trend, bounds where it is not ok, and money with its currency."""
    text = best(row.observed, row.unit)
    if row.status not in ("ok", "not_judged"):
        levels = (SignalKind.LEVEL, SignalKind.TOTAL_LEVEL)
        text = words(row.observed, row.unit, INSTANTS if BY_NAME[row.key].how in levels else "")
    text += f" {currency}" if row.unit == "money" and isinstance(row.observed, Reading) else ""
    return text if row.change is None or abs(row.change) < 0.005 else f"{text}, {row.change:+.0%}"


def _row_verdict(row: MonitoredValue) -> str:
    text = verdict_words(row.status, row.certainty)
    if row.status not in FIRING and row.meets_target is False:
        text = "outside the target, no finding"
    return f"{text}: {row.sentence.partition('. First suspect: ')[0]}"


def _proposal(tier: TierReport, report: Report) -> Section:
    proposal = tier.proposal
    # The sentence names what is lacking where that is one thing.
    lacking = proposal.needed if len(proposal.needed) > 1 else ()
    lines = [f"lacking: {text}" for text in lacking]
    lines += [*proposal.evidence, *(f"but: {text}" for text in proposal.against)]
    left = ", ".join(text.partition(":")[0] for text in tier.left)
    lines += [f"not taken over, for production shows only a bound: {left}"] if left else []
    rows: list[tuple[str, ...]] = [(line,) for line in lines]
    if tier.changes:
        rows.append(("Changes of the plan", *(text.removeprefix(f"{tier.tier}: ") for text in tier.changes)))
    return Section(title="Proposal", text=tuple(rows))


def _workload(tier: TierReport, report: Report) -> Section:
    part = tier.workload
    lines = []
    for what, lengths in group_by(part.lengths, lambda length: length.what).items():
        names = ", ".join(length.quantile.upper() for length in lengths)
        seen = ", ".join(best(length.observed, "") for length in lengths)
        planned = ", ".join(number_text(length.planned) for length in lengths)
        lines.append(f"{what} {names}: {seen} tokens; planned {planned}")
    rates = (("average", part.average_rps, part.planned_average_rps), ("peak", part.peak_rps, part.planned_peak_rps))
    seen = "; ".join(f"{name} {_rps(rate)}, planned {_rps(planned)}" for name, rate, planned in rates)
    moving = f", moving towards {part.towards}" if part.towards else ""
    lines.append(f"{part.requests:,.0f} requests; {seen}; archetype {part.archetype or 'not in the plan'}{moving}")
    lines += [outcome.sentence for outcome in tier.drift if outcome.status in FIRING]
    picture = charts.rates_chart(part, tier.hourly, report.since, report.until, report.zone)
    return _list("Workload (step 1)", lines, (picture, "Requests per second that arrived, by hour."))


def _rps(rate: float | None) -> str:
    return number_text(rate, "per_second")


def _curve_period(tier: TierReport, zone: str) -> str:
    return f"the {days_words(tier.curve.days)} to {instant(tier.curve.until, zone)}"


def _curve(tier: TierReport, report: Report) -> Section:
    picture = (charts.curve_chart(tier.curve), "TTFT P99 of a replica by its load: production and the plan's curve.")
    rows = [
        (
            _rps(point.rps),
            best(point.ttft_p99, "seconds"),
            number_text(point.planned_ttft_p99, "seconds"),
            best(point.tpot_p99, "seconds"),
            point.kept.value.replace("_", " "),
        )
        for point in tier.curve.production
    ]
    head = ("load", "TTFT P99", "benchmark", "TPOT P99", "SLO")
    table = Table(head, tuple(rows)) if rows else None
    text = [curve_sentence(tier)]
    if tier.curve.remark:
        text.append(f"{tier.curve.remark.capitalize()}.")
    return Section(title="Capacity of a replica", text=tuple(text), table=table, picture=picture)


def curve_sentence(tier: TierReport) -> str:
    """Return the present capacity of a replica with bounds, and the headroom."""
    part, usable = tier.curve, tier.curve.usable
    if usable is None:
        return "What a replica can take is not known: neither production nor the plan tells what a replica can take."
    high = "open" if usable.high is None else _rps(usable.high)
    text = f"A replica keeps the SLO up to {_rps(usable.rps)} ({usable.certainty.value}; {_rps(usable.low)} to {high}; "
    text += f"planned {_rps(usable.planned_rps)}). The knee was {'' if usable.knee_seen else 'not '}reached."
    if part.headroom is not None:
        left = f"{part.headroom:.0%} headroom is left" if part.headroom >= 0 else f"{-part.headroom:.0%} is missing"
        text += f" At the peak the planned replicas, none lost, are used to {1 - part.headroom:.0%}: {left}."
    return text


def _other_counts(tier: TierReport, count: ReplicaCount) -> Iterator[str]:
    """Yield every other replica count of the tier's plan or proposal, with its purpose."""
    workload, proposal = tier.workload, tier.proposal
    if proposal.now is not None and proposal.now != count.replicas:
        made = f"the plan has {proposal.now}"
        if workload.planned_peak_rps is not None and count.capacity.planned_rps is not None:
            made += f", for a peak of {_rps(workload.planned_peak_rps)} at {_rps(count.capacity.planned_rps)} a replica"
        yield made
    if proposal.replicas is not None and proposal.replicas != count.replicas:
        yield f"{proposal.replicas} is proposed: {lower_first(proposal.sentence)}"
    if count.without_safety != count.replicas:
        yield f"the peak alone needs {count.without_safety}, the rest is the plan's safety factor"
    if count.bounds_text:
        yield f"{count.bounds_text} at the bounds of what a replica takes"


def _trap(tier: TierReport, report: Report) -> Section:
    lines = [busiest_idle(tier, report.zone)]
    for lever in tier.levers:
        worth = f"{number_text(lever.gpu_hours_a_day)} GPU-hours"
        if lever.money_a_day is not None:
            worth = money(lever.money_a_day, tier.currency)
        if lever.replicas:
            basis = lever.basis.partition(": ")[0]
            lines.append(
                f"{lever.name}: {lever.replicas:.1f} replicas, {worth} a day ({lever.certainty.value}): {basis}"
            )
    without = ", ".join(lever.name for lever in tier.levers if not lever.replicas)
    lines += [f"no worth here: {without}"] if without else []
    picture = (charts.week_chart(tier.week), f"Fleet utilisation by hour of the week, {report.zone}: darker is busier.")
    return _list("Idle capacity, and levers that overlap", lines, picture)


def busiest_idle(tier: TierReport, zone: str) -> str:
    """Return the quietest four hours of the average day for batch work, and the idle replicas then."""
    idle = group_by((hour for hour in tier.week if hour.idle_replicas is not None), lambda hour: hour.hour)
    if len(idle) < 24:
        return ""
    means = [sum(hour.idle_replicas or 0.0 for hour in idle[clock]) / len(idle[clock]) for clock in range(24)]
    stretch = [(sum(means[(start + step) % 24] for step in range(4)) / 4, start) for start in range(24)]
    most, start = max(stretch, key=lambda pair: (pair[0], -pair[1]))
    if most < 0.05:
        return ""
    when = f"from {start}:00 to {(start + 4) % 24}:00 ({zone})"
    return f"Idle most {when}: {most:.1f} replicas on average"


def _prewarming(tier: TierReport, report: Report) -> Section:
    part = tier.prewarming
    lines = tuple((line,) for line in prewarm_lines(part, tier.currency))
    if part.worth is None:
        return Section(title="Pre-warming", text=lines)
    named = (part.worth.reacting, part.worth.ours, part.worth.with_margin, part.worth.perfect)
    rows = [
        (
            strategy.name,
            figure(strategy.violation_minutes),
            figure(strategy.late_requests),
            figure(strategy.replica_hours),
            money(strategy.money, tier.currency),
        )
        for strategy in part.worth.strategies
        if strategy.name in named
    ]
    head = ("strategy", "minutes too few", "late requests", "replica-hours", "cost")
    return Section(title="Pre-warming", text=lines, table=Table(head, tuple(rows)))


def prewarm_lines(part: Prewarming, currency: str) -> Iterator[str]:
    """Yield what pre-warming saved against reacting to load, and the forecast's quality, or why nothing is known."""
    if part.missing:
        yield f"Not known: {part.missing}"
    if part.worth is not None and part.saved is not None:
        saved = part.saved
        paid = "" if saved.money is None else f" ({money(abs(saved.money), currency)})"
        hours = (
            f"{figure(abs(saved.replica_hours))} replica-hours {'less' if saved.replica_hours >= 0 else 'more'}{paid}"
        )
        late = f"{figure(abs(saved.late_requests))} late requests {'fewer' if saved.late_requests >= 0 else 'more'}"
        days = format_count(round((part.worth.end - part.worth.start) / DAY_SECONDS), "day")
        yield f"against reacting to load: {hours}, {late}; the last {days}: {part.worth.short_reason}"
    if part.failed:
        yield f"The forecast was no better than none: {part.failed}. Do not pre-warm by it until that is over."
    elif part.method:
        text = f"Forecast by {part.method}"
        if part.covered_ratio is not None:
            text += f": {part.covered_ratio:.0%} of {part.forecasts:,} were high enough (95% are meant to be)"
        if part.error_ratio is not None:
            text += f"; error {part.error_ratio:.2f} times that of {part.naive}"
        yield text


def _guardrails(tier: TierReport, report: Report) -> Section | None:
    lines = []
    for status, rows in group_by(tier.guardrails, lambda row: row.status).items():
        if status == "ok":
            lines.append(f"ok: {', '.join(f'{row.key} {row.planned:,.6g}' for row in rows)}")
        else:
            lines += [f"{verdict_words(status, row.certainty.value)}: {row.sentence} (`{row.key}`)" for row in rows]
    return _list("Guardrails", lines) if lines else None


def _incidents(tier: TierReport, report: Report) -> Section | None:
    lines = tuple(incident_lines(tier.grouped_incidents, tier.incidents, report.zone, tier.currency))
    restarts = restart_line(tier.restarts)
    text = (*lines, *((restarts,) if restarts else ()))
    return Section(title="Incidents and restarts", text=text) if text else None


def _quality(tier: TierReport, report: Report) -> Section | None:
    part = tier.quality
    lines = list(blind_lines(part))
    if part.hours_seen < NEARLY * part.hours or lines:
        lines.insert(0, f"{seen_words(part.hours_seen, part.hours)} were seen")
    return _list("Data quality", lines) if lines else None


def _questions(tier: TierReport, report: Report) -> Section:
    rows = tuple((row.question, row.answer) for row in tier.questions)
    return Section(title="Questions of the sizing guide (8.4)", table=Table(("question", "answer"), rows))


SECTIONS: tuple[Callable[[TierReport, Report], Section | None], ...] = (
    _cost,
    _proposal,
    _monitoring,
    _incidents,
    _workload,
    _curve,
    _trap,
    _prewarming,
    _guardrails,
    _quality,
    _questions,
)
"""Sections of a tier, in reading order. One without content is None."""
