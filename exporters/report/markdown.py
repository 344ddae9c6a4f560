"""Renderer of report.md for terminals, tickets and repositories.

Every sentence and number comes from the records. A new section is a function here and a row of SECTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from exporters.render.text import strip_control_characters, table
from exporters.report import data_quality as q
from exporters.report import findings as h
from exporters.report import wording as w
from exporters.report.records import Report, TierReport
from rules.plan.money import figure


def report_markdown(report: Report) -> str:
    lines = ["# Re-size report", "", w.period(report), "", f"**{report.headline}**"]
    lines += ["", f"> {w.SIMULATED}"] if report.simulated else []
    lines += [line for remark in report.remarks for line in ("", f"- {remark}")]
    lines += ["", *(f"1. {tier.verdict}" for tier in report.tiers), "", w.next_step(report)]
    for tier in report.tiers:
        lines += ["", f"## {tier.tier}", "", f"**{tier.verdict}**"]
        lines += [line for text in filter(None, (h.loud_incidents(tier, report.zone),)) for line in ("", text)]
        lines += [line for text in tier.quality.remarks for line in ("", f"> {text}")]
        lines += ["", *_cost(tier), "", w.lengths_line(tier), *_sections(tier, MAIN)]
    for tier in report.tiers:
        lines += ["", f"## Appendix: {tier.tier}", *_sections(tier, APPENDIX)]
    lines += ["", w.BOUNDS]
    return _harmless("\n".join(lines)) + "\n"


def _sections(tier: TierReport, rows: Sections) -> Iterator[str]:
    for title, section in rows:
        yield from ("", f"### {title}", "", *section(tier))


def _harmless(text: str) -> str:
    """Return the text without HTML and links: a name must not inject them."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", strip_control_characters(text)).replace("](", "]\\(")


Sections = tuple[tuple[str, Callable[[TierReport], Iterator[str]]], ...]


def _monitoring(tier: TierReport) -> Iterator[str]:
    rows = [
        (
            row.title,
            row.target,
            w.observed_text(row, tier.currency),
            w.trend(row.change, row.observed, row.before),
            w.row_words(row),
            row.sentence if w.is_told(row) else "",
        )
        for row in w.main_rows(tier)
    ]
    if rows:
        yield table(("", "target", "observed", "trend", "verdict", ""), rows)
        yield ""
    yield f"{w.unseen_line(tier)} {w.trend_note(tier)}".strip()


def _rules(tier: TierReport) -> Iterator[str]:
    for row in w.calm_rows(tier):
        yield f"- {row.title}: {w.row_words(row)}: {row.sentence}"


def _workload(tier: TierReport) -> Iterator[str]:
    part = tier.workload
    rows = [
        (
            f"{length.what} {length.quantile.upper()}",
            w.number_text(length.planned, "tokens"),
            w.words(length.observed, "tokens"),
            w.times(length.factors),
        )
        for length in part.lengths
    ]
    rates = (
        ("average rate", part.planned_average_rps, part.average_rps),
        ("peak rate, of five minutes", part.planned_peak_rps, part.peak_rps),
    )
    unit = "per_second"
    rows += [(name, w.number_text(plan, unit), w.number_text(seen, unit), w.DASH) for name, plan, seen in rates]
    rows.append(("peak to average", w.DASH, w.number_text(part.peak_to_average), w.DASH))
    yield table(("", "planned", "observed", "factor"), rows)
    yield ""
    moving = f", moving towards {part.towards}" if part.towards else ""
    yield f"{part.requests:,.0f} requests; archetype {part.archetype or 'not in the plan'}{moving}."
    yield f"Drift: {part.drift}."


def _curve(tier: TierReport) -> Iterator[str]:
    part = tier.curve
    rows = [
        (
            w.number_text(point.rps, "per_second"),
            w.number_text(point.in_system),
            f"{point.requests or 0:,.0f}",
            w.words(point.ttft_p50_seconds, "seconds"),
            w.words(point.ttft_p99_seconds, "seconds"),
            w.words(point.tpot_p99_seconds, "seconds"),
            point.slo.replace("_", " "),
        )
        for point in part.production
    ]
    yield from (w.curve_sentence(part), "")
    if rows:
        yield from (f"Production, a replica, in {w.curve_period(tier)}:", "")
        yield table(("load", "in system", "requests", "TTFT P50", "TTFT P99", "TPOT P99", "SLO"), rows)
        yield ""
    if part.planned:
        yield from ("The plan's benchmark:", "")
        yield table(
            ("load", "in system", "TTFT P99", "TPOT P99"),
            [
                (
                    w.number_text(point.rps, "per_second"),
                    w.number_text(point.in_system),
                    w.words(point.ttft_p99_seconds, "seconds"),
                    w.words(point.tpot_p99_seconds, "seconds"),
                )
                for point in part.planned
            ],
        )


def _fleet(tier: TierReport) -> Iterator[str]:
    yield from (f"- {line}" for line in w.fleet_lines(tier))


def _cost(tier: TierReport) -> Iterator[str]:
    if not tier.costs:
        yield "Nothing was seen that could be priced, and the plan has no fleet."
        return
    rows = [
        (
            cost.name,
            f"{cost.replicas:.3g}",
            f"{cost.gpu_hours_a_day:,.0f}",
            w.money(cost.money_a_day, tier.currency),
            w.money(cost.per_million_tokens, tier.currency),
            w.number_text(cost.utilization, "ratio"),
        )
        for cost in tier.costs
    ]
    yield table(("", "replicas", "GPU-hours a day", "a day", "a million output tokens", w.FLEET_USE), rows)


def _arithmetic(tier: TierReport) -> Iterator[str]:
    yield from (f"- {cost.name}: {w.sum_line(cost.arithmetic)}" for cost in tier.costs if cost.arithmetic)


def _trap(tier: TierReport) -> Iterator[str]:
    part = tier.trap
    yield w.trap_sentence(part)
    idle = w.busiest_idle(part)
    yield from ("", idle) if idle else ()
    if part.levers:
        yield ""
        rows = [
            (
                lever.name,
                w.number_text(None if lever.replicas is None else round(lever.replicas, 1)),
                w.money(lever.money_a_day, tier.currency)
                if lever.money_a_day is not None
                else f"{w.number_text(lever.gpu_hours_a_day)} GPU-hours",
                lever.certainty,
                lever.basis or lever.missing,
            )
            for lever in part.levers
        ]
        yield table(("lever", "replicas", "a day", "", "how it was reckoned"), rows)
        yield from ("", "The levers overlap; their sum means nothing.")


def _prewarming(tier: TierReport) -> Iterator[str]:
    yield from w.prewarm_sentences(tier)
    if tier.prewarming.strategies:
        yield ""
        yield table(
            ("strategy", "minutes too few", "late requests", "replica-hours", "cost"),
            [
                (
                    (
                        f"{strategy.name}{' (ours)' if strategy.is_ours else ''}"
                        f"{' (cheaper or as good)' if strategy.is_recommended else ''}"
                    ),
                    figure(strategy.violation_minutes),
                    figure(strategy.late_requests),
                    figure(strategy.replica_hours),
                    w.money(strategy.money, tier.currency),
                )
                for strategy in tier.prewarming.strategies
            ],
        )


def _guardrails(tier: TierReport) -> Iterator[str]:
    for outcome in tier.guardrails.judged:
        text = f"{outcome.title}: " if outcome.status in ("warning", "critical") else ""
        if outcome.rule:
            yield f"- {w.verdict_words(outcome.status, outcome.certainty)}: {text}{outcome.sentence} ({outcome.rule})"
    for fit in tier.guardrails.fits:
        yield f"- {w.verdict_words(fit.status, fit.certainty)}: {fit.sentence} (`{fit.key}`)"


def _incidents(tier: TierReport) -> Iterator[str]:
    if not tier.grouped_incidents:
        yield "None."
    for incident in tier.grouped_incidents:
        yield f"- **{incident.title}**: {h.incident_line(incident, tier.trap.zone, tier.currency)}"


def _findings(tier: TierReport) -> Iterator[str]:
    zone = tier.trap.zone
    if not tier.incidents:
        yield "None."
    for incident in tier.incidents:
        place, text = h.affected_replicas(incident), w.verdict_words(incident.status, incident.certainty)
        period, finding = h.period_text(incident, zone), h.finding_text(incident, zone)
        yield f"- **{incident.title}**{f' {place}' if place else ''}: {text}, {period}. {finding}"
        yield from (f"  - {line}" for line in h.stage_lines(incident, zone))
        yield from (f"  - {h.foreign_line(alert, zone)}" for alert in incident.foreign)
    if tier.restarts:
        yield from ("", "Restarts of engines:", "")
        yield from (f"- {line}" for line in h.restart_lines(tier, zone))


def _quality(tier: TierReport) -> Iterator[str]:
    part = tier.quality
    yield from (q.coverage_sentence(part), "")
    for text in (*part.remarks, h.restarts_in_all(tier)):
        yield from (f"- {text}",) if text else ()
    yield from (f"- {line}" for line in q.blind_lines(part))


def _questions(tier: TierReport) -> Iterator[str]:
    for question in tier.questions:
        yield f"- **{question.question}** {question.answer}."


def _proposal(tier: TierReport) -> Iterator[str]:
    proposal_part = tier.proposal
    yield f"**{proposal_part.sentence}**{f' ({proposal_part.certainty})' if proposal_part.certainty else ''}."
    yield from (f"- lacking: {text}" for text in w.lacking(proposal_part))
    yield from (f"- {text}" for text in proposal_part.evidence)
    yield from (f"- but: {text}" for text in proposal_part.against)
    if proposal_part.changes:
        yield from ("", "Changes of the plan:", "")
        yield from (f"- {text.removeprefix(f'{tier.tier}: ')}" for text in proposal_part.changes)
    if proposal_part.left:
        yield from ("", "Not taken over:", "")
        yield from (f"- {text}" for text in proposal_part.left)


MAIN: Sections = (("Plan against production", _monitoring), ("Proposal", _proposal))
"""Sections of a tier below its verdict and cost, as on the two pages of report.html."""

APPENDIX: Sections = (
    ("What the rules say", _rules),
    ("Step 1: the workload now", _workload),
    ("Latency against throughput", _curve),
    ("Step 11: instances and GPUs", _fleet),
    ("Step 12: cost", _arithmetic),
    ("Utilization trap", _trap),
    ("Pre-warming", _prewarming),
    ("Guardrails", _guardrails),
    ("Incidents", _incidents),
    ("Findings", _findings),
    ("Data quality", _quality),
    ("Questions of the sizing guide (8.4)", _questions),
)
"""Sections of a tier in the appendix, in reading order, as in report.html."""
