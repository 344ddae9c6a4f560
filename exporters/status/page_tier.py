"""Card of a tier on the status page: each part is a function from a tier to markup.

All external text is escaped. Colour is a class and always comes with a word. The number tiles come from
`exporters.status.plan_comparison`. The frame is in `exporters.status.page`. A new part is a function here and a row in
PARTS.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from exporters.render.svg_charts import draw_panel, draw_scale
from exporters.render.text import format_clock, format_duration, sign, tier_anchor
from exporters.status.active_findings import LACKING, ended_findings, list_notes, pending_rules, place, unknowns
from exporters.status.page_incident import describe_finding, describe_unknown, fold
from exporters.status.page_tables import replicas
from exporters.status.page_trend import Chart, charts, forecast
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import AgentStatus, TierStatus
from exporters.status.tier_overview import TierLine, cells, summarize_tier
from rules.catalogue.registry import BY_NAME
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.finding import Finding, severity_of, severity_words


def numbers(tier: TierStatus, now: float) -> str:
    """Return every row of the comparison as a tile."""
    return f'<dl class="numbers">{"".join(_tile(comparison, tier) for comparison in compare_with_plan(tier))}</dl>'


def _tile(comparison: PlanComparison, tier: TierStatus) -> str:
    row, currency = comparison.row, _currency(tier)
    unit_text = f" {currency}" if row.unit == "money" and currency else ""
    tone, words = comparison.state
    plan = "not in plan"
    if comparison.planned is not None:
        plan = f"plan <b>{escape(number(comparison.planned.value, row.unit) + unit_text)}</b> {escape(comparison.planned.text)}"
    expected, missing = "", " missing" if isinstance(comparison.now, Missing) else ""
    if comparison.at_this_load is not None:
        expected = (
            f'<dd class="expected"><b>{escape(quantity(comparison.at_this_load, row.unit))}</b> at this load</dd>'
        )
    now, bounds = escape(_now(comparison) + unit_text), escape(_bounds(comparison))
    window = f"<small>{escape(comparison.window)}</small>" if comparison.window else ""
    return (
        f'<div class="tile {tone}{missing}"><dt>{escape(row.title)}{window}</dt><dd class="now">{now}</dd>'
        f'<dd class="bounds">{bounds}</dd><dd>{_scale(comparison)}</dd><dd class="plan">{plan}</dd>{expected}'
        f'<dd class="judged">{sign(tone, words) if words else ""}</dd></div>'
    )


def _currency(tier: TierStatus) -> str:
    plan = tier.context.plan
    return plan.cost.currency if plan and plan.cost else ""


def _now(comparison: PlanComparison) -> str:
    if isinstance(comparison.now, Missing):
        return comparison.now.gap.value.replace("_", " ")
    if comparison.now.value is not None:
        return number(comparison.now.value, comparison.row.unit)
    return quantity(comparison.now, comparison.row.unit)


def _bounds(comparison: PlanComparison) -> str:
    """Return the bounds of the best estimate, or the gap text if it adds to the gap's name."""
    now, row = comparison.now, comparison.row
    if isinstance(now, Missing):
        return now.text
    if now.value is None or now.low is None or now.high is None or now.high <= now.low * 1.001:
        return ""
    return f"{row.seen} {number(now.low, row.unit)} to {number(now.high, row.unit)}".strip()


def _scale(comparison: PlanComparison) -> str:
    """Return the bar of the number: ratios from 0 to 100 %, other units to a quarter above the largest value."""
    planned = (comparison.planned.value,) if comparison.planned else ()
    measured = _ends(comparison.now)
    known = [*planned, *(end for end in measured or () if end is not None)]
    return draw_scale(measured, planned, 1.0 if comparison.row.unit == "ratio" else max(known, default=0.0) * 1.25)


def _ends(value: SignalValue) -> tuple[float, float | None] | None:
    if not isinstance(value, Reading):
        return None
    low = value.low if value.low is not None else value.value
    return None if low is None else (low, value.high)


PENDING_NAMED = 3


def card(status: AgentStatus, tier: TierStatus, *, folded: bool) -> str:
    """Return the card of a tier below its line of the overview."""
    line, now = summarize_tier(status, tier), status.now
    parts = "".join(part(tier, now) for part in PARTS)
    return (
        f'<details class="tier {line.tone}"{"" if folded else " open"} id="{escape(tier_anchor(tier.name))}">'
        f"<summary>{tier_line(line, now)}</summary>{parts}</details>"
    )


HEADS = (
    '<p class="heads" aria-hidden="true"><span></span><span>Tier</span><span>State</span><span>Up</span><span>Used</span>'
    "<span>TTFT P99</span><span>Cost a day</span></p>"
)
"""Column heads of the overview of many tiers, where lines omit the words."""


def tier_line(line: TierLine, now: float) -> str:
    """Return the line of a tier in the overview: name, state, replicas, use, latency, cost and incident."""
    mapping = cells(line, now)
    what = f'<span class="what">{escape(mapping["Incident"])}</span>' if mapping["Incident"] else ""
    return (
        f"<h2>{escape(line.tier)}</h2>{sign(line.tone, line.words)}"
        f'<span class="up">{escape(mapping["Replicas"])}<i> up</i>{_recommended(line)}</span>'
        f'<span class="used">{escape(mapping["Used"])}<i> used</i></span>'
        f'<span class="ttft"><i>TTFT P99 </i>{escape(mapping["TTFT P99"])}</span>'
        f'<span class="cost">{escape(mapping["Cost a day"])}<i> a day</i></span>'
        f"{what}"
    )


def _recommended(line: TierLine) -> str:
    """Return the recommended number of replicas where it differs from those that are up."""
    return "" if line.recommended in (None, line.replicas_up) else f" → {line.recommended}<i> recommended</i>"


def _facts(tier: TierStatus, now: float) -> str:
    plan, up, total = tier.context.plan, sum(r.up for r in tier.replicas), len(tier.replicas)
    models = sorted({replica.model for replica in tier.replicas if replica.model}) or ([plan.model] if plan else [])
    engines = sorted({f"{r.engine} {r.versions}".strip() for r in tier.replicas if r.engine})
    replicas = f'<b class="{"ok" if up == total else "short"}">{up} of {total} replicas up</b>'
    if plan is not None and plan.fleet is not None:
        replicas += f", {plan.fleet.instances} planned"
    text = "".join(f"<li>{escape(fact)}</li>" for fact in (*models, *engines, *_gpu_facts(tier)))
    return f'<ul class="facts">{text}<li>{replicas}</li></ul>'


def _gpu_facts(tier: TierStatus) -> list[str]:
    seen = sorted({gpu.product for replica in tier.replicas for gpu in replica.gpus if gpu.product})
    gpus = sum(len(replica.gpus) for replica in tier.replicas)
    if seen:
        return [f"{gpus} × {', '.join(seen)}"]
    plan = tier.context.plan
    return [f"{plan.gpu.per_replica} × {plan.gpu.product} a replica"] if plan else ["no GPU is read"]


def _notes(tier: TierStatus, now: float) -> str:
    """Return the findings that send no alert. They are notes: they colour and count nowhere."""
    rows = "".join(f"<li>{describe_finding(note, now)}</li>" for note in list_notes(tier))
    return fold(format_count(len(list_notes(tier)), "note"), f'<ul class="past">{rows}</ul>') if rows else ""


def _trend(tier: TierStatus, now: float) -> str:
    return f'<div class="trend">{"".join(_figure(chart) for chart in charts(tier, now))}</div>'


def _figure(chart: Chart) -> str:
    keys = "".join(f'<span class="key {escape(name)}">{escape(text)}</span>' for name, text in chart.key)
    newest = f"<b>{keys or escape(chart.newest)} <small>last min</small></b>"
    caption = f"<span>{escape(chart.title)}</span>{newest}"
    return f"<figure><figcaption>{caption}</figcaption>{draw_panel(chart.panel)}</figure>"


def _unanswered(tier: TierStatus, now: float) -> str:
    """Return unknown rules grouped by reason. A reason often affects many rules."""
    mapping: dict[str, list[str]] = {}
    for unknown in unknowns(tier):
        rule = BY_NAME[unknown.rule].title if unknown.rule in BY_NAME else unknown.rule
        where = f" ({unknown.subject.replica})" if unknown.subject.replica else ""
        mapping.setdefault(describe_unknown(unknown), []).append(rule + where)
    if not mapping:
        return ""
    rows = "".join(
        f"<dt>{escape(reason)}</dt><dd>{escape('; '.join(rules))}</dd>" for reason, rules in sorted(mapping.items())
    )
    return fold(_pending(tier), f'<dl class="reasons">{rows}</dl>')


def _pending(tier: TierStatus) -> str:
    """Return which page and ticket rules wait for data, and how many rules lack a part of the plan or the engine."""
    names = [BY_NAME[rule].title for rule in pending_rules(tier)]
    more = f" and {len(names) - PENDING_NAMED} more" if len(names) > PENDING_NAMED else ""
    waiting = f"No verdict now: {', '.join(names[:PENDING_NAMED])}{more}" if names else "No verdict is pending"
    lacking = len({unknown.rule for unknown in unknowns(tier) if unknown.reason in LACKING})
    verb = "needs" if lacking == 1 else "need"
    return f"{waiting}. {format_count(lacking, 'rule')} {verb} what plan or engine lacks." if lacking else f"{waiting}."


def _past(tier: TierStatus, now: float) -> str:
    past = ended_findings(tier)
    if not past:
        return ""
    rows = "".join(f"<li>{_episode(finding, now)}</li>" for finding in past)
    return fold(f"{len(past)} ended in the last day", f'<ul class="past">{rows}</ul>')


def _episode(finding: Finding, now: float) -> str:
    rule, until = BY_NAME.get(finding.rule), finding.ended_at if finding.ended_at is not None else now
    title = rule.title if rule else finding.rule
    when = f"{format_clock(finding.started_at, now)}, for {format_duration(until - finding.started_at)}"
    severity = severity_of(finding.worst, finding)
    text = f"{place(finding.subject)}: {title}. {finding.worst.sentence}"
    return (
        f'<span class="since">{escape(when)}</span> {sign(severity or "note", severity_words(severity))} {escape(text)}'
    )


def _step13(tier: TierStatus, now: float) -> str:
    if tier.step13 is None:
        return ""
    return fold("Step 13: did the first week under this plan confirm the benchmark?", f"<p>{escape(tier.step13)}</p>")


PARTS: tuple[Callable[[TierStatus, float], str], ...] = (
    _facts,
    numbers,
    _trend,
    forecast,
    replicas,
    _notes,
    _unanswered,
    _past,
    _step13,
)
"""Parts of a card, from top to bottom."""
