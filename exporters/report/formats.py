"""report.md for terminals, tickets and repositories, and report.html: a single file without scripts or other resources.

Both are written from the same sections, in reading order: what to do and the money first, then each tier. A new section is
a function here and a row of SECTIONS. The layout of the page is `report.html.j2`, its style `report.css`. The template
escapes every text; only the pictures, whose colours are CSS classes of the page, are markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from exporters.render import text as render
from exporters.render.safe_text import strip_control_characters
from exporters.report.findings import NEARLY, blind_lines, incident_lines, restart_line
from exporters.report.guide_tables import NO_SLO, MonitoredValue
from exporters.report.records import Report, TierReport, WeekHour
from rules.plan.money import figure
from rules.plan.replica_count import ReplicaCount
from rules.resize.proposal import ProposalKind
from rules.telemetry.signals import BY_NAME, Missing, Reading, SignalKind
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS, group_by
from rules.telemetry.wording import format_count, join_range, number
from rules.verdicts.verdict import FIRING, Status

HERE = Path(__file__).parent

BOUNDS = "Bounds are those of what was measured; “likely” is a best estimate, “certain” holds whatever lies inside the bounds."

NEXT = "What to do: read plan.next.yaml, then `sizewatch plan check plan.next.yaml`, then take it over as the plan."
UNTIL = (
    "Until then plan.next.yaml holds what production takes: read it, run `sizewatch plan check plan.next.yaml`, then take it "
    "over as the plan."
)
LACKING = "What to do: the plan stays as it is. What is lacking for {} stands under its proposal; then report again."
NOTHING_TO_DO = "Nothing is to be done: the plan stays as it is."


TREND = 0.05
"""Smallest change that is shown, as a share of the earlier value. report.json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Section of a report: paragraphs, entries of a list with others below them, a table, an SVG with its caption.

    `level` 1 is the report, 2 a tier with its status as `tone`. `tones` has a status for each row, or is empty.
    """

    title: str
    text: tuple[str, ...] = ()
    entries: tuple[tuple[str, ...], ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    tones: tuple[str, ...] = ()
    picture: tuple[str, str] | None = None
    level: int = 3
    tone: str = ""


def report_markdown(report: Report) -> str:
    """Return report.md."""
    lines: list[str] = []
    for section in list_sections(report):
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
    """Return the whole page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["coded"] = _coded
    states = {tier.status for tier in report.tiers}
    order = (Status.CRITICAL, Status.WARNING, Status.OK)
    page = environment.get_template("report.html.j2").render(
        sections=list_sections(report),
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        icon=render.icon(next((status for status in order if status.value in states), Status.UNKNOWN)),
        signs=render.SIGNS,
        markup=Markup,
    )
    return strip_control_characters(page)


def _coded(text: str) -> Markup:
    """Return the text with backtick spans as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def list_sections(report: Report) -> list[Section]:
    """Return the sections of the report and of all tiers."""
    since, until, made = (render.instant(t, report.zone) for t in (report.since, report.until, report.made_at))
    days = render.days_words((report.until - report.since) / DAY_SECONDS)
    text = [render.SIMULATED] if report.simulated else []
    text += [next_step(report), *report.remarks]
    text.append(f"{since} to {until} ({days}); made by sizewatch {report.version} at {made}.")
    sections = [Section(title=report.headline, text=tuple(text), level=1)]
    for tier in report.tiers:
        sections.append(_tier_head(tier, report.zone))
        sections += [section for build in SECTIONS if (section := build(tier, report)) is not None]
    return [*sections, Section(title="Reading this report", text=(BOUNDS,), level=2)]


def next_step(report: Report) -> str:
    """Return what the reader does next."""
    lacking = ", ".join(tier.tier for tier in report.tiers if tier.proposal.kind is ProposalKind.NONE)
    refuted = ", ".join(tier.tier for tier in report.tiers if tier.curve.benchmark_refuted)
    if refuted:
        return f"What to do: first benchmark {refuted} again, production takes less than its benchmark says. {UNTIL}"
    if report.plan_changes:
        return NEXT
    if lacking:
        return LACKING.format(lacking)
    return NOTHING_TO_DO


def _tier_head(tier: TierReport, zone: str) -> Section:
    lengths = f"All numbers{':' if tier.lengths.startswith('lengths') else ''} {tier.lengths}."
    if tier.curve.lengths != tier.lengths:
        period = f"the {render.days_words(tier.curve.days)} to {render.instant(tier.curve.until, zone)}"
        lengths += f" The curve is of {period}, {tier.curve.lengths}."
    facts = " · ".join(filter(None, (tier.model, tier.gpu)))
    text = (tier.verdict, *tier.quality.remarks, lengths, facts)
    return Section(title=tier.tier, text=tuple(filter(None, text)), level=2, tone=tier.status)


def _list(title: str, lines: Iterable[str], picture: tuple[str, str] | None = None) -> Section:
    return Section(title=title, entries=tuple((line,) for line in lines if line), picture=picture)


def _cost(tier: TierReport, report: Report) -> Section:
    rows = []
    for cost in tier.costs:
        counts = (f"{cost.replicas:.3g}", f"{cost.replicas * cost.price.gpus_per_replica:.3g}")
        paid = (render.money(amount, tier.currency) for amount in (cost.money_a_day, cost.per_million_tokens))
        used = render.number_text(cost.utilization, "ratio")
        rows.append((cost.name, *counts, f"{cost.gpu_hours_a_day:,.0f}", *paid, used))
    text = f"needed: not known; {'; '.join(tier.proposal.needed)}"
    if tier.count is not None:
        needed = f"needed: {format_count(tier.count.replicas, 'replica')}"
        text = "; ".join((needed, *_other_counts(tier, tier.count)))
    head = ("fleet", "replicas", "GPUs", "GPU-hours a day", "a day", "a million output tokens", render.FLEET_USE)
    return Section(title="Replicas and cost (steps 11 and 12)", text=(text,), head=head, rows=tuple(rows))


def _monitoring(tier: TierReport, report: Report) -> Section:
    kinds, text = group_by(tier.monitoring, _kind), list[str]()
    for kind in ("ok", "No rule judges"):
        within = []
        for row in kinds.get(kind, ()):
            target = f" ({row.target.text})" if row.target.text else ""
            within.append(f"{row.title} {observed_text(row, tier.currency)}{target}")
        if within:
            text.append(f"{kind}: {'; '.join(within)}.")
    for why, rows in group_by(kinds.get("Not known", ()), _missing_words).items():
        text.append(f"Not known: {', '.join(row.title for row in rows)} ({why}).")
    if all(row.change is None for row in tier.monitoring):
        text.append("There is no trend: nothing that could be compared was seen in as long a time before.")
    cells, tones = [], []
    for row in kinds.get("", ()):
        cells.append((row.title, row.target.text, observed_text(row, tier.currency), _row_verdict(row)))
        tones.append("note" if row.status == "ok" else row.status)
    head = ("what", "target", "observed", "verdict")
    title = "Plan against production"
    return Section(title=title, text=tuple(text), head=head, rows=tuple(cells), tones=tuple(tones))


def _kind(row: MonitoredValue) -> str:
    """Return where a row stands: "" is the table. What lies outside its target is never ok (DESIGN 3.23)."""
    if row.status in FIRING or row.meets_target is False:
        return ""
    if isinstance(row.observed, Missing):
        return "Not known" if row.rules else "report.json alone"
    if row.status == "not_judged":
        return "No rule judges" if row.target.text not in ("", NO_SLO) else "report.json alone"
    return "ok" if row.status == "ok" else ""


def _missing_words(row: MonitoredValue) -> str:
    return (
        row.observed.text if isinstance(row.observed, Missing) and row.observed.text else render.best(row.observed, "")
    )


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


def _row_verdict(row: MonitoredValue) -> str:
    text = render.verdict_words(row.status, row.certainty)
    if row.status not in FIRING and row.meets_target is False:
        text = "outside the target, no finding"
    return f"{text}: {row.sentence.partition('. First suspect: ')[0]}"


def _proposal(tier: TierReport, report: Report) -> Section:
    proposal = tier.proposal
    # The sentence names what is lacking where that is one thing.
    lacking = proposal.needed if len(proposal.needed) > 1 else ()
    lines = [f"lacking: {text}" for text in lacking]
    if tier.count is not None and proposal.kind is not ProposalKind.NONE:
        needed = format_count(tier.count.without_safety, "replica")
        lines.append(f"the peak needs {needed} ({tier.count.arithmetic_text})")
        if proposal.replicas != tier.count.replicas:
            lines += proposal.evidence
    lines += [f"but: {text}" for text in proposal.against]
    left = ", ".join(text.partition(":")[0] for text in tier.left)
    lines += [f"not taken over, only bounds: {left}"] if left else []
    if tier.changes:
        lines.append(f"plan.next.yaml: {format_count(len(tier.changes), 'change')}, with old values and reasons")
    return _list("Proposal", lines)


def _workload(tier: TierReport, report: Report) -> Section:
    part = tier.workload
    lines = []
    for what, lengths in group_by(part.lengths, lambda length: length.what).items():
        names = ", ".join(length.quantile.upper() for length in lengths)
        seen = ", ".join(render.best(length.observed, "") for length in lengths)
        planned = ", ".join(render.number_text(length.planned) for length in lengths)
        lines.append(f"{what} {names}: {seen} tokens; planned {planned}")
    rates = (("average", part.average_rps, part.planned_average_rps), ("peak", part.peak_rps, part.planned_peak_rps))
    seen = "; ".join(f"{name} {_rps(rate)}, planned {_rps(planned)}" for name, rate, planned in rates)
    moving = f", moving towards {part.towards}" if part.towards else ""
    lines.append(f"{part.requests:,.0f} requests; {seen}; archetype {part.archetype or 'not in the plan'}{moving}")
    incidents = {incident.root for incident in tier.grouped_incidents}
    for outcome in tier.drift:
        if outcome.status in FIRING and outcome.rule not in incidents:
            lines.append(outcome.sentence)
    picture = rates_chart(tier, report)
    return _list("Workload (step 1)", lines, (picture, "Requests per second that arrived, by hour."))


def _rps(rate: float | None) -> str:
    return render.number_text(rate, "per_second")


MOST_LOADS = 3
"""Number of loads in the table, the highest: they bound what a replica takes. report.json has all."""


def _curve(tier: TierReport, report: Report) -> Section:
    rows = []
    for point in tier.curve.production[-MOST_LOADS:]:
        planned = render.number_text(point.planned_ttft_p99, "seconds")
        rows.append(
            (_rps(point.rps), render.best(point.ttft_p99, "seconds"), planned, point.kept.value.replace("_", " "))
        )
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


def _other_counts(tier: TierReport, count: ReplicaCount) -> Iterator[str]:
    """Yield every other replica count of the tier's plan or proposal, with its purpose."""
    proposal = tier.proposal
    if proposal.now is not None and proposal.now != count.replicas:
        yield f"the plan has {proposal.now}"
    if proposal.replicas is not None and proposal.replicas != count.replicas:
        yield f"{proposal.replicas} is proposed: {render.lower_first(proposal.sentence)}"
    if count.without_safety != count.replicas:
        yield f"the peak alone needs {count.without_safety}, the rest is the plan's safety factor"
    if count.bounds_text:
        yield f"{count.bounds_text} at the bounds of what a replica takes"


def _trap(tier: TierReport, report: Report) -> Section:
    lines = [busiest_idle(tier, report.zone)]
    for lever in tier.levers:
        if lever.replicas:
            worth = f"{render.number_text(lever.gpu_hours_a_day)} GPU-hours"
            if lever.money_a_day is not None:
                worth = render.money(lever.money_a_day, tier.currency)
            text = f"{lever.name}: {lever.replicas:.1f} replicas, {worth} a day ({lever.certainty.value})"
            lines.append(f"{text}: {lever.basis.partition(': ')[0]}")
    without = ", ".join(lever.name for lever in tier.levers if not lever.replicas)
    lines += [f"no worth here: {without}"] if without else []
    caption = f"Fleet utilisation by hour of the week, {report.zone}: the busier, the more it stands out."
    return _list("Idle capacity, and levers that overlap", lines, (week_chart(tier.week), caption))


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
    """Return what pre-warming saved against reacting to load, and the forecast's quality, or why nothing is known."""
    part = tier.prewarming
    lines = [f"Not known: {part.missing}"] if part.missing else []
    if part.worth is not None and part.saved is not None:
        saved, worth = part.saved, part.worth
        hours = f"{figure(abs(saved.replica_hours))} replica-hours {'less' if saved.replica_hours >= 0 else 'more'}"
        if saved.money is not None:
            hours += f" ({render.money(abs(saved.money), tier.currency)})"
        late = f"{figure(abs(saved.late_requests))} late requests {'fewer' if saved.late_requests >= 0 else 'more'}"
        days = format_count(round((worth.end - worth.start) / DAY_SECONDS), "day")
        lines.append(f"against reacting to load: {hours}, {late}; the last {days}: {worth.short_reason}")
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


def _guardrails(tier: TierReport, report: Report) -> Section | None:
    lines = []
    for status, rows in group_by(tier.guardrails, lambda row: row.status).items():
        if status == "ok":
            lines.append(f"ok: {', '.join(f'{row.key} {row.planned:,.6g}' for row in rows)}")
        else:
            lines += [
                f"{render.verdict_words(status, row.certainty.value)}: {row.sentence} (`{row.key}`)" for row in rows
            ]
    return _list("Guardrails", lines) if lines else None


def _incidents(tier: TierReport, report: Report) -> Section | None:
    lines = tuple(incident_lines(tier.grouped_incidents, tier.incidents, report.zone, tier.currency))
    restarts = restart_line(tier.restarts)
    if not lines and not restarts:
        return None
    return Section(title="Incidents and restarts", text=(restarts,) if restarts else (), entries=lines)


def _quality(tier: TierReport, report: Report) -> Section | None:
    part = tier.quality
    lines = list(blind_lines(part))
    if part.hours_seen < NEARLY * part.hours or lines:
        lines.insert(0, f"{render.seen_words(part.hours_seen, part.hours)} were seen")
    return _list("Data quality", lines) if lines else None


def _questions(tier: TierReport, report: Report) -> Section:
    rows = tuple((row.question, row.answer) for row in tier.questions)
    return Section(title="Questions of the sizing guide (8.4)", head=("question", "answer"), rows=rows)


SECTIONS: tuple[Callable[[TierReport, Report], Section | None], ...] = (
    *(
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
    ),
)
"""Sections of a tier, in reading order. A section without content is None."""


WIDTH, BOTTOM = 620.0, 200.0
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def rates_chart(tier: TierReport, report: Report) -> str:
    """Return an inline SVG of hourly arrivals with the plan's peak. Unknown hours stay open."""
    hourly, since, until = tier.hourly, report.since, report.until
    if len(hourly) < 2:
        return ""
    planned = tier.workload.planned_peak_rps or 0.0
    highest = max(rps for _, rps in hourly)
    top = max(planned, highest) * 1.12 or 1.0
    scale = WIDTH / (until - since)
    parts = [_line("grid", 0, BOTTOM, WIDTH, BOTTOM)]
    hours = [since + HOUR_SECONDS * step for step in range(round((until - since) / HOUR_SECONDS))]
    midnights = [t for t in hours if render.format_local(t, report.zone, "%H") == "00"]
    # Only some of them in a long time.
    for t in midnights[:: max(1, round((until - since) / DAY_SECONDS / 8))]:
        x = (t - since) * scale
        parts.append(_line("grid", x, 0, x, BOTTOM))
        if x < WIDTH - 40:
            parts.append(_text(x + 4, BOTTOM + 16, render.format_local(t, report.zone, "%a %d")))
    last = 0.0
    path = ""
    for t, rps in hourly:
        step = "L" if t - last <= 1.5 * HOUR_SECONDS else "M"
        path += f"{step}{(t + HOUR_SECONDS / 2 - since) * scale:.1f},{BOTTOM * (1 - rps / top):.1f}"
        last = t
    parts.append(f'<path class="rate" d="{path}"/>')
    parts.append(_text(WIDTH - 160, 12, f"highest hour {number(highest, 'per_second')}"))
    if planned:
        y = BOTTOM * (1 - planned / top)
        parts.append(_line("limit", 0, y, WIDTH, y))
        parts.append(_text(6, y - 5, f"planned peak {number(planned, 'per_second')}"))
    return _svg(parts, f"requests per second by hour, {len(hourly)} hours", BOTTOM + 24)


def week_chart(week: Sequence[WeekHour]) -> str:
    """Return seven rows of 24 cells: mean fleet utilisation by hour of the week in local time."""
    if all(hour.utilization is None for hour in week):
        return ""
    parts = [_text(4, 20 * day + 17, name) for day, name in enumerate(DAYS)]
    parts += [_text(24 * hour + 40, 160, f"{hour}:00") for hour in range(0, 24, 3)]
    for hour in week:
        kind, text = "none", "not seen"
        if hour.utilization is not None:
            kind, text = f"u{min(4, int(hour.utilization * 5))}", f"{hour.utilization:.0%} used"
        parts.append(
            f'<rect class="{kind}" x="{24 * hour.hour + 40}" y="{20 * hour.weekday + 4}" width="22" height="18">'
            f"<title>{DAYS[hour.weekday]} {hour.hour}:00: {text}</title></rect>"
        )
    return _svg(parts, "fleet utilisation by hour of the week", 166)


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(parts: Sequence[str], spoken: str, height: float) -> str:
    head = f'<svg class="chart" role="img" aria-label="{escape(spoken)}" viewBox="0 0 {WIDTH:g} {height:g}">'
    return f"{head}{''.join(parts)}</svg>"
