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


def report_markdown(found: Report) -> str:
    lines = ["# Re-size report", "", w.period(found), "", f"**{found.headline}**"]
    lines += ["", f"> {w.SIMULATED}"] if found.simulated else []
    lines += [line for remark in found.remarks for line in ("", f"- {remark}")]
    lines += ["", *(f"1. {tier.verdict}" for tier in found.tiers), "", w.next_step(found)]
    for tier in found.tiers:
        lines += ["", f"## {tier.tier}", "", f"**{tier.verdict}**"]
        lines += [line for text in filter(None, (h.loud_incidents(tier, found.zone),)) for line in ("", text)]
        lines += [line for text in tier.quality.remarks for line in ("", f"> {text}")]
        lines += ["", *_cost(tier), "", w.lengths_line(tier), *_sections(tier, MAIN)]
    for tier in found.tiers:
        lines += ["", f"## Appendix: {tier.tier}", *_sections(tier, APPENDIX)]
    lines += ["", w.BOUNDS]
    return _harmless("\n".join(lines)) + "\n"


def _sections(tier: TierReport, several: Sections) -> Iterator[str]:
    for title, section in several:
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
            f"{one.what} {one.quantile.upper()}",
            w.number_text(one.planned, "tokens"),
            w.words(one.observed, "tokens"),
            w.times(one.factors),
        )
        for one in part.lengths
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
            w.number_text(one.rps, "per_second"),
            w.number_text(one.in_system),
            f"{one.requests or 0:,.0f}",
            w.words(one.ttft_p50_seconds, "seconds"),
            w.words(one.ttft_p99_seconds, "seconds"),
            w.words(one.tpot_p99_seconds, "seconds"),
            one.slo.replace("_", " "),
        )
        for one in part.production
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
                    w.number_text(one.rps, "per_second"),
                    w.number_text(one.in_system),
                    w.words(one.ttft_p99_seconds, "seconds"),
                    w.words(one.tpot_p99_seconds, "seconds"),
                )
                for one in part.planned
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
            one.name,
            f"{one.replicas:.3g}",
            f"{one.gpu_hours_a_day:,.0f}",
            w.money(one.money_a_day, tier.currency),
            w.money(one.per_million_tokens, tier.currency),
            w.number_text(one.utilization, "ratio"),
        )
        for one in tier.costs
    ]
    yield table(("", "replicas", "GPU-hours a day", "a day", "a million output tokens", w.FLEET_USE), rows)


def _arithmetic(tier: TierReport) -> Iterator[str]:
    yield from (f"- {one.name}: {w.sum_line(one.arithmetic)}" for one in tier.costs if one.arithmetic)


def _trap(tier: TierReport) -> Iterator[str]:
    part = tier.trap
    yield w.trap_sentence(part)
    idle = w.busiest_idle(part)
    yield from ("", idle) if idle else ()
    if part.levers:
        yield ""
        rows = [
            (
                one.name,
                w.number_text(None if one.replicas is None else round(one.replicas, 1)),
                w.money(one.money_a_day, tier.currency)
                if one.money_a_day is not None
                else f"{w.number_text(one.gpu_hours_a_day)} GPU-hours",
                one.certainty,
                one.basis or one.missing,
            )
            for one in part.levers
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
                    f"{one.name}{' (ours)' if one.is_ours else ''}{' (cheaper or as good)' if one.is_recommended else ''}",
                    figure(one.violation_minutes),
                    figure(one.late_requests),
                    figure(one.replica_hours),
                    w.money(one.money, tier.currency),
                )
                for one in tier.prewarming.strategies
            ],
        )


def _guardrails(tier: TierReport) -> Iterator[str]:
    for one in tier.guardrails.judged:
        found = f"{one.title}: " if one.status in ("warning", "critical") else ""
        if one.rule:
            yield f"- {w.verdict_words(one.status, one.certainty)}: {found}{one.sentence} ({one.rule})"
    for fit in tier.guardrails.fits:
        yield f"- {w.verdict_words(fit.status, fit.certainty)}: {fit.sentence} (`{fit.key}`)"


def _incidents(tier: TierReport) -> Iterator[str]:
    if not tier.grouped_incidents:
        yield "None."
    for one in tier.grouped_incidents:
        yield f"- **{one.title}**: {h.incident_line(one, tier.trap.zone, tier.currency)}"


def _findings(tier: TierReport) -> Iterator[str]:
    zone = tier.trap.zone
    if not tier.incidents:
        yield "None."
    for one in tier.incidents:
        place, said = h.affected_replicas(one), w.verdict_words(one.status, one.certainty)
        yield f"- **{one.title}**{f' {place}' if place else ''}: {said}, {h.period_text(one, zone)}. {h.finding_text(one, zone)}"
        yield from (f"  - {line}" for line in h.stage_lines(one, zone))
        yield from (f"  - {h.foreign_line(alert, zone)}" for alert in one.foreign)
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
    for one in tier.questions:
        yield f"- **{one.question}** {one.answer}."


def _proposal(tier: TierReport) -> Iterator[str]:
    one = tier.proposal
    yield f"**{one.sentence}**{f' ({one.certainty})' if one.certainty else ''}."
    yield from (f"- lacking: {text}" for text in w.lacking(one))
    yield from (f"- {text}" for text in one.evidence)
    yield from (f"- but: {text}" for text in one.against)
    if one.changes:
        yield from ("", "Changes of the plan:", "")
        yield from (f"- {text.removeprefix(f'{tier.tier}: ')}" for text in one.changes)
    if one.left:
        yield from ("", "Not taken over:", "")
        yield from (f"- {text}" for text in one.left)


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
