"""report.md for terminals, tickets and repositories, and report.html: a single file without scripts or other resources.

Both are written from the same sections, in reading order: what to do and the money first, then each tier. The template of
the page escapes every text and draws the charts.
A new section is a function here and a row of SECTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from exporters.render import text as render
from exporters.render.safe_text import strip_control_characters
from exporters.report.findings import blind_lines, incident_lines, restart_line, worst_status
from exporters.report.guide_tables import NO_SLO, MonitoredValue
from exporters.report.records import Report, TierReport
from exporters.status.page import render_template, trace
from rules.plan.money import figure
from rules.resize.proposal import ProposalKind
from rules.telemetry.signals import BY_NAME, Missing, Reading, SignalKind
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, group_by
from rules.telemetry.wording import format_count, join_range, number
from rules.verdicts.verdict import FIRING

BOUNDS = "Bounds are those of what was measured; “likely” is a best estimate, “certain” holds whatever lies inside the bounds."

NEXT = "read plan.next.yaml, then `sizewatch plan check plan.next.yaml`, then take it over as the plan."

TREND = 0.05
"""Smallest change that is shown, as a share of the earlier value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Section of a report: paragraphs, entries of a list with others below them, a table, a chart with its caption.

    `level` 1 is the report, 2 a tier with its status as `tone`. `tones` has a status for each row, or is empty. `chart` is
    a macro of the template with its argument, None without data.
    """

    title: str
    text: tuple[str, ...] = ()
    entries: tuple[tuple[str, ...], ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    tones: tuple[str, ...] = ()
    chart: tuple[str, Any] = ("", None)
    caption: str = ""
    level: int = 3
    tone: str = ""


def report_markdown(report: Report) -> str:
    lines: list[str] = []
    for section in list_sections(report):
        if section.level == 3 and not (section.text or section.entries or section.rows):
            continue
        lines.append(f"{'#' * section.level} {section.title}")
        for line in section.text:
            lines += ["", line]
        lines += [""] if section.entries else []
        for entry, *below in section.entries:
            lines += [f"- {entry}", *(f"  - {line}" for line in below)]
        if section.rows:
            lines += ["", render.table(section.head, section.rows)]
        lines.append("")
    # A name must not inject HTML or links.
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", strip_control_characters("\n".join(lines)))
    return text.replace("](", "]\\(").rstrip() + "\n"


def report_html(report: Report) -> str:
    icon = render.icon(worst_status(tier.status for tier in report.tiers))
    return render_template("report/report.html.j2", sections=list_sections(report), icon=icon)


def list_sections(report: Report) -> list[Section]:
    since, until, made = (render.instant(t, report.zone) for t in (report.since, report.until, report.made_at))
    days = render.days_words((report.until - report.since) / DAY_SECONDS)
    text = [render.SIMULATED] if report.simulated else []
    text += [next_step(report), *report.remarks]
    text.append(f"{since} to {until} ({days}); made by sizewatch {report.version} at {made}.")
    sections = [Section(title=report.headline, text=tuple(text), level=1)]
    for tier in report.tiers:
        sections.append(_tier_head(tier, report.zone))
        built = (build(tier, report) for build in SECTIONS)
        sections += [part for part in built if part.text or part.entries or part.rows or part.chart[1]]
    return [*sections, Section(title="Reading this report", text=(BOUNDS,), level=2)]


def next_step(report: Report) -> str:
    lacking = ", ".join(tier.tier for tier in report.tiers if tier.proposal.kind is ProposalKind.NONE)
    refuted = ", ".join(tier.tier for tier in report.tiers if tier.curve.benchmark_refuted)
    if refuted:
        first = f"first benchmark {refuted} again, production takes less than its benchmark says"
        return f"What to do: {first}. Until then the next plan holds what production takes: {NEXT}"
    if report.plan_changes:
        return f"What to do: {NEXT}"
    text = "the plan stays as it is."
    if lacking:
        return f"What to do: {text} What is lacking for {lacking} stands with its replicas; then report again."
    return f"Nothing is to be done: {text}"


def _tier_head(tier: TierReport, zone: str) -> Section:
    lengths = f"All numbers{':' if tier.lengths.startswith('lengths') else ''} {tier.lengths}."
    if tier.curve.lengths != tier.lengths:
        period = f"the {render.days_words(tier.curve.days)} to {render.instant(tier.curve.until, zone)}"
        lengths += f" The curve is of {period}, {tier.curve.lengths}."
    facts = " · ".join(filter(None, (tier.model, tier.gpu)))
    text = (tier.verdict, *tier.quality.remarks, lengths, facts)
    return Section(title=tier.tier, text=tuple(filter(None, text)), level=2, tone=tier.status)


def _list(title: str, lines: Iterable[str], **more: Any) -> Section:
    return Section(title=title, entries=tuple((line,) for line in lines if line), **more)


def _cost(tier: TierReport, report: Report) -> Section:
    rows = []
    for cost in tier.costs:
        counts = (f"{cost.replicas:.3g}", f"{cost.replicas * cost.price.gpus_per_replica:.3g}")
        paid = (render.money(amount, tier.currency) for amount in (cost.money_a_day, cost.per_million_tokens))
        used = render.number_text(cost.utilization, "ratio")
        rows.append((cost.name, *counts, f"{cost.gpu_hours_a_day:,.0f}", *paid, used))
    head = ("fleet", "replicas", "GPUs", "GPU-hours a day", "a day", "a million output tokens", render.FLEET_USE)
    return _list("Replicas and cost (steps 11 and 12)", _count_lines(tier), head=head, rows=tuple(rows))


def _count_lines(tier: TierReport) -> Iterator[str]:
    proposal, count = tier.proposal, tier.count
    if proposal.needed:
        yield f"lacking for a proposal: {'; '.join(proposal.needed)}"
    if count is not None:
        peak = format_count(count.without_safety, "replica")
        text = f"the peak needs {peak} ({count.arithmetic_text})"
        if count.without_safety != count.replicas:
            text += f"; with the plan's safety factor {count.replicas}"
        yield f"{text}; {count.bounds_text} at the bounds of what a replica takes" if count.bounds_text else text
        if proposal.replicas not in (None, count.replicas):
            yield f"proposed: {proposal.replicas}"
            yield from proposal.evidence
    yield from (f"but: {text}" for text in proposal.against)
    if tier.left:
        yield f"not taken over, only bounds: {', '.join(text.partition(':')[0] for text in tier.left)}"
    if tier.changes:
        yield f"plan.next.yaml: {format_count(len(tier.changes), 'change')}, with old values and reasons"


def _monitoring(tier: TierReport, report: Report) -> Section:
    kinds, text = group_by(tier.monitoring, _kind), list[str]()
    for kind in ("ok", "No rule judges"):
        within = []
        for row in kinds.get(kind, ()):
            within.append(f"{row.title} {observed_text(row, tier.currency)} ({row.target.text})")
        if within:
            text.append(f"{kind}: {'; '.join(within)}.")
    unknown = kinds.get("Not known", ())
    reasons = group_by(unknown, lambda row: getattr(row.observed, "text", "") or render.best(row.observed, ""))
    for why, rows in reasons.items():
        text.append(f"Not known: {', '.join(row.title for row in rows)} ({why}).")
    cells, tones = [], []
    for row in kinds.get("", ()):
        verdict = render.verdict_words(row.status, row.certainty)
        if row.status not in FIRING and row.meets_target is False:
            verdict = "outside the target, no finding"
        verdict += f": {row.sentence.partition('. First suspect: ')[0]}"
        cells.append((row.title, row.target.text, observed_text(row, tier.currency), verdict))
        tones.append("note" if row.status in ("ok", "not_judged") else row.status)
    head = ("what", "target", "observed", "verdict")
    return Section(title="Plan against production", text=tuple(text), head=head, rows=tuple(cells), tones=tuple(tones))


def _kind(row: MonitoredValue) -> str:
    """Return where a row stands: "" is the table. What lies outside its target is never ok (DESIGN 3.23)."""
    if row.status in FIRING or row.meets_target is False:
        return ""
    if isinstance(row.observed, Missing):
        return "Not known" if row.rules else "report.json alone"
    if row.status == "not_judged":
        return "No rule judges" if row.target.text not in ("", NO_SLO) else "report.json alone"
    return "ok" if row.status == "ok" else ""


def observed_text(row: MonitoredValue, currency: str) -> str:
    """Return the observed value of a row with its trend, bounds where it is not ok, and money with its currency."""
    text = render.best(row.observed, row.unit)
    if row.status not in ("ok", "not_judged"):
        text = render.format_reading(row.observed, row.unit).replace("_", " ")
        if BY_NAME[row.key].how in (SignalKind.LEVEL, SignalKind.TOTAL_LEVEL):
            # The bounds of a mean level are its lowest and highest instant.
            text = text.replace(" (", " (instants ", 1)
    text += f" {currency}" if row.unit == "money" and isinstance(row.observed, Reading) else ""
    return text if row.change is None or abs(row.change) < TREND else f"{text}, {row.change:+.0%}"


def _workload(tier: TierReport, report: Report) -> Section:
    part = tier.workload
    lines = []
    for what, lengths in group_by(part.lengths, lambda length: length.what).items():
        names = ", ".join(length.quantile.upper() for length in lengths)
        seen = ", ".join(render.best(length.observed, "") for length in lengths) + " tokens"
        if not any(isinstance(length.observed, Reading) for length in lengths):
            seen = render.best(lengths[0].observed, "")
            if part.average_rps is None:
                seen = "nothing was seen"
        planned = ", ".join(render.number_text(length.planned) for length in lengths)
        lines.append(f"{what} {names}: {seen}; planned {planned}")
    rates = (("average", part.average_rps, part.planned_average_rps), ("peak", part.peak_rps, part.planned_peak_rps))
    seen = "; ".join(f"{name} {_rps(rate)}, planned {_rps(planned)}" for name, rate, planned in rates)
    moving = f", moving towards {part.towards}" if part.towards else ""
    lines.append(f"{part.requests:,.0f} requests; {seen}; archetype {part.archetype or 'not in the plan'}{moving}")
    incidents = {incident.root for incident in tier.grouped_incidents}
    for outcome in tier.drift:
        if outcome.status in FIRING and outcome.rule not in incidents:
            lines.append(outcome.sentence)
    chart = ("rates_chart", _draw_rates(tier, report))
    return _list("Workload (step 1)", lines, chart=chart, caption="Requests per second that arrived, by hour.")


def _rps(rate: float | None) -> str:
    return render.number_text(rate, "per_second")


MOST_LOADS = 3
"""Number of loads in the table, the highest: they bound what a replica takes."""


def _curve(tier: TierReport, report: Report) -> Section:
    rows = []
    for point in tier.curve.production[-MOST_LOADS:]:
        planned, kept = render.number_text(point.planned_ttft_p99, "seconds"), point.kept.value.replace("_", " ")
        rows.append((_rps(point.rps), render.best(point.ttft_p99, "seconds"), planned, kept))
    text = [curve_sentence(tier)]
    if tier.curve.remark:
        text.append(f"{tier.curve.remark.capitalize()}.")
    head = ("load", "TTFT P99", "benchmark", "SLO")
    return Section(title="Capacity of a replica", text=tuple(text), head=head, rows=tuple(rows))


def curve_sentence(tier: TierReport) -> str:
    """Return the present capacity of a replica with bounds, and the headroom."""
    part, usable = tier.curve, tier.curve.usable
    if usable is None:
        return "What a replica can take is not known: neither production nor the plan tells what a replica can take."
    high = "open" if usable.high is None else _rps(usable.high)
    bounds = join_range(_rps(usable.low), high)
    text = f"A replica keeps the SLO up to {_rps(usable.rps)} ({usable.certainty.value}; {bounds}; "
    text += f"planned {_rps(usable.planned_rps)}): {usable.reason}. "
    text += f"The knee was {'' if usable.knee_seen else 'not '}reached."
    if part.headroom is not None:
        left = f"{part.headroom:.0%} headroom is left" if part.headroom >= 0 else f"{-part.headroom:.0%} is missing"
        text += f" At the peak the planned replicas, none lost, are used to {1 - part.headroom:.0%}: {left}."
    return text


def _trap(tier: TierReport, report: Report) -> Section:
    lines = []
    for lever in tier.levers:
        if lever.replicas:
            worth = f"{render.number_text(lever.gpu_hours_a_day)} GPU-hours"
            if lever.money_a_day is not None:
                worth = render.money(lever.money_a_day, tier.currency)
            text = f"{lever.name}: {lever.replicas:.1f} replicas, {worth} a day ({lever.certainty.value})"
            lines.append(f"{text}: {lever.basis.partition(': ')[0]}")
    caption = f"Fleet utilisation by hour of the week, {report.zone}: the busier, the more it stands out."
    week = tier.week if any(hour.utilization is not None for hour in tier.week) else None
    return _list("Idle capacity, and levers that overlap", lines, chart=("week_chart", week), caption=caption)


def _prewarming(tier: TierReport, report: Report) -> Section:
    part = tier.prewarming
    lines = [f"Not known: {part.missing}"] if part.missing else []
    if part.worth is not None and part.saved is not None:
        saved, worth = part.saved, part.worth
        late = f"{figure(abs(saved.late_requests))} late requests {'fewer' if saved.late_requests >= 0 else 'more'}"
        if round(saved.replica_hours):
            price = "" if saved.money is None else f" ({render.money(abs(saved.money), tier.currency)})"
            word = "less" if saved.replica_hours >= 0 else "more"
            late = f"{figure(abs(saved.replica_hours))} replica-hours {word}{price}, {late}"
        days = format_count(round((worth.end - worth.start) / DAY_SECONDS), "day")
        lines.append(f"against reacting to load: {late}; the last {days}: {worth.short_reason}")
        costs = []
        for strategy in worth.strategies:
            if strategy.name in (worth.reacting, worth.ours, worth.with_margin, worth.perfect):
                cost = f"{figure(strategy.replica_hours)} replica-hours"
                if strategy.money is not None:
                    cost = render.money(strategy.money, tier.currency)
                costs.append(f"{strategy.name} {cost}")
        lines.append("; ".join(costs))
    if part.failed:
        lines.append(f"The forecast was no better than none: {part.failed}. Do not pre-warm by it until that is over.")
    elif part.method:
        text = f"Forecast by {part.method}"
        if part.covered_ratio is not None:
            text += f": {part.covered_ratio:.0%} of {part.forecasts:,} were high enough (95% are meant to be)"
        if part.error_ratio is not None:
            text += f"; error {part.error_ratio:.2f} times that of {part.naive}"
        lines.append(text)
    return _list("Pre-warming", lines)


def _guardrails(tier: TierReport, report: Report) -> Section:
    lines = []
    for status, rows in group_by(tier.guardrails, lambda row: row.status).items():
        if status == "ok":
            lines.append(f"ok: {', '.join(f'{row.key} {row.planned:,.6g}' for row in rows)}")
        else:
            for row in rows:
                lines.append(f"{render.verdict_words(status, row.certainty.value)}: {row.sentence} (`{row.key}`)")
    return _list("Guardrails", lines)


def _incidents(tier: TierReport, report: Report) -> Section:
    lines = tuple(incident_lines(tier.grouped_incidents, tier.incidents, report.zone, tier.currency))
    restarts = tuple(filter(None, [restart_line(tier.restarts)]))
    return Section(title="Incidents and restarts", text=restarts, entries=lines)


def _quality(tier: TierReport, report: Report) -> Section:
    return _list("Data quality", blind_lines(tier.quality))


def _questions(tier: TierReport, report: Report) -> Section:
    rows = tuple((row.question, row.answer) for row in tier.questions)
    return Section(title="Questions of the sizing guide (8.4)", head=("question", "answer"), rows=rows)


SECTIONS = (_cost, _monitoring, _incidents, _workload, _curve, _trap, _prewarming, _guardrails, _quality, _questions)
"""Sections of a tier, in reading order. A section without content is left out."""


def _draw_rates(tier: TierReport, report: Report) -> dict[str, Any] | None:
    since, until, planned = report.since, report.until, tier.workload.planned_peak_rps or 0.0
    if len(tier.hourly) < 2:
        return None
    highest = max(rps for _, rps in tier.hourly)
    top = max(planned, highest) * 1.12 or 1.0
    points = [(t + HOUR_SECONDS / 2, rps) for t, rps in tier.hourly]
    hours = [since + HOUR_SECONDS * step for step in range(round((until - since) / HOUR_SECONDS))]
    midnights = [t for t in hours if render.format_local(t, report.zone, "%H") == "00"]
    days = []
    # Only some of them in a long time.
    for t in midnights[:: max(1, round((until - since) / DAY_SECONDS / 8))]:
        days.append(((t - since) / (until - since), render.format_local(t, report.zone, "%a %d")))
    return {
        "hours": len(points),
        "lines": trace(points, since, until, HOUR_SECONDS, top),
        "days": days,
        "highest": number(highest, "per_second"),
        "planned": number(planned, "per_second") if planned else "",
        "limit": 1 - planned / top,
    }
