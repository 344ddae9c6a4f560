"""Card of a tier on the status page: each part is a function from a tier to markup.

All external text is escaped. Colour is a class and always comes with a word. The number tiles come from
`exporters.status.plan_comparison`. The frame is in `exporters.status.page`. A new part is a function here and a row in
PARTS.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from exporters.render.svg_charts import draw_panel, draw_scale
from exporters.render.text import format_clock, format_duration, format_rfc3339, sign
from exporters.status.active_findings import (
    ActiveFinding,
    ActiveIncident,
    ended_findings,
    list_active_incidents,
    place,
    remarks,
    tier_state,
    unknowns,
)
from exporters.status.page_forecast import forecast
from exporters.status.page_tables import replicas
from exporters.status.page_trend import Chart, charts
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import TierStatus
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import number, quantity
from rules.verdicts.finding import Finding
from rules.verdicts.verdict import Cause, Status, Unknown


def numbers(tier: TierStatus, now: float) -> str:
    """Return every row of the comparison as a tile."""
    return f'<dl class="numbers">{"".join(_tile(one, tier) for one in compare_with_plan(tier))}</dl>'


def _tile(one: PlanComparison, tier: TierStatus) -> str:
    row, currency = one.row, _currency(tier)
    unit_text = f" {currency}" if row.unit == "money" and currency else ""
    status, words = _judged(one)
    plan = "not in plan"
    if one.planned is not None:
        plan = f"plan <b>{escape(number(one.planned.value, row.unit) + unit_text)}</b> {escape(one.planned.text)}"
    expected, missing = "", " missing" if isinstance(one.now, Missing) else ""
    if one.at_this_load is not None:
        expected = f'<dd class="expected"><b>{escape(quantity(one.at_this_load, row.unit))}</b> at this load</dd>'
    now, bounds = escape(_now(one) + unit_text), escape(_bounds(one))
    return (
        f'<div class="tile {status.value}{missing}"><dt>{escape(row.title)}</dt><dd class="now">{now}</dd>'
        f'<dd class="bounds">{bounds}</dd><dd>{_scale(one)}</dd><dd class="plan">{plan}</dd>{expected}'
        f'<dd class="judged">{sign(status, words) if words else ""}</dd></div>'
    )


def _currency(tier: TierStatus) -> str:
    plan = tier.context.plan
    return plan.cost.currency if plan and plan.cost else ""


def _now(one: PlanComparison) -> str:
    if isinstance(one.now, Missing):
        return one.now.gap.value.replace("_", " ")
    if one.now.value is not None:
        return number(one.now.value, one.row.unit)
    return quantity(one.now, one.row.unit)


def _bounds(one: PlanComparison) -> str:
    """Return the bounds of the best estimate, or the gap text if it adds to the gap's name."""
    if isinstance(one.now, Missing):
        return one.now.text
    if one.now.value is None or one.now.low is None or one.now.high is None:
        return ""
    if one.now.high <= one.now.low * 1.001:
        return ""
    return f"{one.row.seen} {number(one.now.low, one.row.unit)} to {number(one.now.high, one.row.unit)}".strip()


def _scale(one: PlanComparison) -> str:
    planned = (one.planned.value,) if one.planned else ()
    measured = _ends(one.now)
    known = [*planned, *(end for end in measured or () if end is not None)]
    top = 1.0 if one.row.unit == "ratio" and max(known, default=0.0) > 0.2 else max(known, default=0.0) * 1.25
    return draw_scale(measured, planned, top)


def _ends(value: SignalValue) -> tuple[float, float | None] | None:
    if not isinstance(value, Reading):
        return None
    low = value.low if value.low is not None else value.value
    return None if low is None else (low, value.high)


def _judged(one: PlanComparison) -> tuple[Status, str]:
    """Return the worst result about the number in words. A deviating number is never "as planned"."""
    result = one.judged
    if result is None:
        return Status.UNKNOWN, ""
    if isinstance(result, Unknown):
        why = "" if result.reason is Gap.NOT_IN_PLAN else f": {result.reason.value.replace('_', ' ')}"
        return Status.UNKNOWN, f"not judged{why}"
    if result.status is Status.OK:
        return Status.OK, "no finding" if one.is_worse or one.planned is None else "as planned"
    return result.status, f"{result.status.value}, {result.certainty.value}"


FINDINGS_SHOWN = 6
"""Number of incidents shown in full. Twenty failed replicas must not hide the rest of the page."""

SUSPECTS_SHOWN = 3
SYMPTOMS_NAMED = 3


def card(tier: TierStatus, place: int, now: float) -> str:
    """Return the card of a tier. `place` makes its anchor."""
    status = tier_state(tier)
    parts = "".join(part(tier, now) for part in PARTS)
    return f'<section class="tier {status.value}" id="tier-{place}">{parts}</section>'


def _head(tier: TierStatus, now: float) -> str:
    status, plan = tier_state(tier), tier.context.plan
    up, all_of_them = sum(r.up for r in tier.replicas), len(tier.replicas)
    models = sorted({replica.model for replica in tier.replicas if replica.model}) or ([plan.model] if plan else [])
    engines = sorted({f"{r.engine} {r.versions}".strip() for r in tier.replicas if r.engine})
    facts = [*models, *engines, *_gpu_facts(tier)]
    replicas = f'<b class="{"ok" if up == all_of_them else "short"}">{up} of {all_of_them} replicas up</b>'
    if plan is not None and plan.fleet is not None:
        replicas += f", {plan.fleet.instances} planned"
    said = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    word = {Status.OK: "as planned" if plan else "nothing fires", Status.UNKNOWN: "no verdict yet"}
    return (
        f"<header><h2>{escape(tier.name)}</h2>{sign(status, word.get(status, status.value))}"
        f'<ul class="facts">{said}<li>{replicas}</li></ul></header>'
    )


def _gpu_facts(tier: TierStatus) -> list[str]:
    seen = sorted({gpu.product for replica in tier.replicas for gpu in replica.gpus if gpu.product})
    number_of = sum(len(replica.gpus) for replica in tier.replicas)
    if seen:
        return [f"{number_of} × {', '.join(seen)}"]
    plan = tier.context.plan
    return [f"{plan.gpu.per_replica} × {plan.gpu.product} a replica"] if plan else ["no GPU is read"]


def _findings(tier: TierStatus, now: float) -> str:
    found = list_active_incidents(tier)
    lesser = "".join(f"<li>{_short(one, now)}</li>" for one in remarks(tier))
    noted = _details(f"{len(remarks(tier))} for the report", f'<ul class="past">{lesser}</ul>') if lesser else ""
    if not found:
        return noted
    shown = f'<ol class="findings">{"".join(_incident(one, now) for one in found[:FINDINGS_SHOWN])}</ol>'
    rest = "".join(f"<li>{_short(one.worst, now)}</li>" for one in found[FINDINGS_SHOWN:])
    more = f"{len(found) - FINDINGS_SHOWN} more"
    return shown + (_details(more, f'<ul class="past">{rest}</ul>') if rest else "") + noted


def _short(one: ActiveFinding, now: float) -> str:
    verdict = one.verdict
    since = f"since {format_clock(one.since, now)}: " if one.since is not None else ""
    said = f"{since}{verdict.rule} in {place(verdict.subject)}: {verdict.sentence} {_silence(one)}".rstrip()
    return f"{sign(verdict.status, verdict.status.value)} {escape(said)}"


def _incident(incident: ActiveIncident, now: float) -> str:
    """Return the card of an incident: its root, and its symptoms folded. The colour is that of the worst."""
    one, verdict, worst = incident.root, incident.root.verdict, incident.worst.verdict
    words = f"{worst.status.value}, {worst.certainty.value}"
    where = f'<span class="where">{escape(verdict.subject.replica)}</span>' if verdict.subject.replica else ""
    since = "since this turn"
    if one.since is not None:
        clock = f'<time datetime="{format_rfc3339(one.since)}">{format_clock(one.since, now)}</time>'
        since = f"since {clock} ({format_duration(now - one.since)})"
    silent = f'<p class="silent">{escape(_silence(one))}</p>' if one.silent is not None else ""
    action = verdict.actions[0] if verdict.actions else None
    runbook = action.runbook if action else verdict.rule
    todo = f"<span><b>First:</b> {escape(action.text)}</span>" if action else ""
    return (
        f'<li class="{worst.status.value}"><p class="meta">'
        f"{sign(worst.status, words)}<b>{escape(one.title)}</b>{where}"
        f'<span class="since">{since}</span></p><p class="sentence">{escape(verdict.sentence)}</p>{silent}'
        f'<p class="action">{todo}<span class="runbook">Runbook: <code>{escape(runbook)}</code></span></p>'
        f"{_suspects(verdict.causes)}{_symptoms(incident, now)}</li>"
    )


def _silence(one: ActiveFinding) -> str:
    """Return why a finding's rule has no verdict now, or an empty text."""
    return f"Cannot be judged at the moment: {_why(one.silent)}. This is the worst it said." if one.silent else ""


def _symptoms(incident: ActiveIncident, now: float) -> str:
    if not incident.symptoms:
        return ""
    titles = ", ".join(dict.fromkeys(one.title for one in incident.symptoms[:SYMPTOMS_NAMED]))
    more = len(incident.symptoms) - SYMPTOMS_NAMED
    named = f"{titles} and {more} more" if more > 0 else titles
    rows = "".join(f"<li>{_short(one, now)}</li>" for one in incident.symptoms)
    noun = "symptom" if len(incident.symptoms) == 1 else "symptoms"
    return _details(f"{len(incident.symptoms)} {noun}: {named}", f'<ul class="past">{rows}</ul>')


def _suspects(causes: tuple[Cause, ...]) -> str:
    if not causes:
        return ""
    said = "".join(f"<li>{escape(_suspect(cause))}</li>" for cause in causes[:SUSPECTS_SHOWN])
    return f'<div class="suspects"><b>Suspects</b><ol>{said}</ol></div>'


def _suspect(cause: Cause) -> str:
    evidence = "; ".join(cause.evidence) or cause.cause
    against = f"; but {'; '.join(cause.against)}" if cause.against else ""
    return f"{evidence}{'' if cause.certainty is Certainty.CERTAIN else ' (likely)'}{against}"


def _trend(tier: TierStatus, now: float) -> str:
    return f'<div class="trend">{"".join(_figure(chart) for chart in charts(tier, now))}</div>'


def _figure(chart: Chart) -> str:
    keys = "".join(f'<span class="key {escape(name)}">{escape(text)}</span>' for name, text in chart.key)
    caption = f"<span>{escape(chart.title)}</span><b>{keys or escape(chart.newest)}</b>"
    return f"<figure><figcaption>{caption}</figcaption>{draw_panel(chart.panel)}</figure>"


def _unanswered(tier: TierStatus, now: float) -> str:
    """Return unknown rules grouped by reason. A reason often affects many rules."""
    several: dict[str, list[str]] = {}
    for unknown in unknowns(tier):
        rule = BY_NAME[unknown.rule].title if unknown.rule in BY_NAME else unknown.rule
        where = f" ({unknown.subject.replica})" if unknown.subject.replica else ""
        several.setdefault(_why(unknown), []).append(rule + where)
    if not several:
        return ""
    number = sum(len(rules) for rules in several.values())
    rows = "".join(
        f"<dt>{escape(reason)}</dt><dd>{escape('; '.join(rules))}</dd>" for reason, rules in sorted(several.items())
    )
    noun = "question cannot" if number == 1 else "questions cannot"
    return _details(f"{number} {noun} be answered", f'<dl class="reasons">{rows}</dl>')


def _why(unknown: Unknown) -> str:
    reason = unknown.reason.value.replace("_", " ")
    return f"{reason}: {unknown.text}" if unknown.text else reason


def _past(tier: TierStatus, now: float) -> str:
    past = ended_findings(tier)
    if not past:
        return ""
    rows = "".join(f"<li>{_episode(finding, now)}</li>" for finding in past)
    return _details(f"{len(past)} ended in the last day", f'<ul class="past">{rows}</ul>')


def _episode(finding: Finding, now: float) -> str:
    rule, until = BY_NAME.get(finding.rule), finding.ended_at if finding.ended_at is not None else now
    title = rule.title if rule else finding.rule
    when = f"{format_clock(finding.started_at, now)}, for {format_duration(until - finding.started_at)}"
    words = f"{finding.worst.status.value}, {finding.worst.certainty.value}"
    said = f"{place(finding.subject)}: {title}. {finding.worst.sentence}"
    return f'<span class="since">{escape(when)}</span> {sign(finding.worst.status, words)} {escape(said)}'


def _step13(tier: TierStatus, now: float) -> str:
    if tier.step13 is None:
        return ""
    return _details("Step 13: does production confirm the benchmark?", f"<p>{escape(tier.step13)}</p>")


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


PARTS: tuple[Callable[[TierStatus, float], str], ...] = (
    _head,
    _findings,
    numbers,
    _trend,
    forecast,
    replicas,
    _unanswered,
    _past,
    _step13,
)
"""Parts of a card, from top to bottom."""
