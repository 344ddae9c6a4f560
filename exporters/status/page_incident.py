"""Card of an incident on the status page: headline, sentence, strip of time, impact, action, and folded evidence.

All external text is escaped. Colour is a class and always comes with a word. A new row of the evidence is a column of
EVIDENCE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html import escape

from exporters.render.svg_charts import draw_spans
from exporters.render.text import describe_gap, format_clock, format_duration, format_rfc3339, sign
from exporters.status.active_findings import ActiveFinding, ActiveIncident, place
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.alert_severity import alert_severity
from rules.evaluator.incidents import describe_missed
from rules.plan.money import amount
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.error_budget import IMPACT_SECONDS
from rules.verdicts.finding import Finding, severity_of
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, Cause, Unknown, Verdict

INCIDENTS_SHOWN = 6
"""Number of incidents shown in full. Twenty failed replicas must not hide the rest of the page."""

SUSPECTS_SHOWN = 3
BARS_SHOWN = 5
REPLICAS_NAMED = 3


def incidents(rows: Iterable[ActiveIncident], now: float) -> str:
    """Return the cards of the open incidents, worst first, and a line for each of the rest."""
    whole = list(rows)
    if not whole:
        return ""
    shown = "".join(_card(incident, now, number) for number, incident in enumerate(whole[:INCIDENTS_SHOWN], 1))
    rest = "".join(f"<li>{describe_finding(incident.worst, now)}</li>" for incident in whole[INCIDENTS_SHOWN:])
    more = fold(f"{format_count(len(whole) - INCIDENTS_SHOWN, 'more incident')}", f'<ul class="past">{rest}</ul>')
    return f'<section class="incidents" aria-label="Incidents">{shown}{more if rest else ""}</section>'


def _card(incident: ActiveIncident, now: float, number: int) -> str:
    finding, worst, subject = incident.root, incident.worst, incident.root.verdict.subject
    where = f"{escape(subject.tier)} · {escape(subject.replica)}" if subject.replica else escape(subject.tier)
    since = "since this cycle"
    if incident.started_at is not None:
        clock = (
            f'<time datetime="{format_rfc3339(incident.started_at)}">{format_clock(incident.started_at, now)}</time>'
        )
        since = f"since {clock} ({format_duration(now - incident.started_at)})"
    silent = f'<p class="silent">{escape(describe_silence(finding))}</p>' if finding.silent is not None else ""
    return (
        f'<article class="incident {worst.tone}" id="incident-{number}"><p class="meta">'
        f"{sign(worst.tone, worst.words)}"
        f'<span class="where">{where}</span><span class="since">{since}</span></p>'
        f'<h2>{escape(finding.title)}</h2><p class="sentence">{escape(incident.sentence)}</p>{silent}'
        f"{_strip(incident, now)}{_impact(incident)}{_first_suspect(incident)}{_action(incident)}"
        f"{_evidence(incident)}</article>"
    )


def _strip(incident: ActiveIncident, now: float) -> str:
    """Return a bar of time for each rule of the incident, from its begin to its end or now: the root, then by begin.

    Of many rules those are shown that last, and of these the worst.
    """
    if not incident.findings or incident.started_at is None:
        return ""
    grouped: dict[str, list[Finding]] = {}
    for finding in incident.findings:
        grouped.setdefault(finding.rule, []).append(finding)
    root = incident.root.verdict.rule
    order = sorted(grouped, key=lambda rule: (rule != root, *_weight(grouped[rule])))
    shown = [rule for rule in grouped if rule in order[:BARS_SHOWN]]
    bars = "".join(
        _bar(rule, grouped[rule], incident.started_at, now, rule == root)
        for rule in sorted(shown, key=lambda text: text != root)
    )
    hidden = len(grouped) - len(shown)
    more = f'<li class="since">{format_count(hidden, "more symptom")}</li>' if hidden else ""
    return f'<ol class="strip">{bars}{more}</ol>'


def _weight(group: list[Finding]) -> tuple[bool, int]:
    return all(finding.ended_at is not None for finding in group), -max(
        SEVERITY[finding.worst.status] for finding in group
    )


def _bar(rule: str, group: list[Finding], start: float, now: float, is_root: bool) -> str:
    ends = [now if finding.ended_at is None else finding.ended_at for finding in group]
    until = "now" if any(finding.ended_at is None for finding in group) else _clock(max(ends), now)
    replicas = len({finding.subject.replica for finding in group if finding.subject.replica})
    title = BY_NAME[rule].title if rule in BY_NAME else rule
    name = f"{title} ({replicas} replicas)" if replicas > 1 else title
    span = max(now - start, 1.0)
    bar = draw_spans(
        ((finding.started_at - start) / span, (end - start) / span, severity_of(finding.worst, finding) or "note")
        for finding, end in zip(group, ends, strict=True)
    )
    label = f"<b>{escape(name)}</b>" if is_root else escape(name)
    when = f"{_clock(min(finding.started_at for finding in group), now)} to {until}"
    return f'<li><span class="name">{label}</span>{bar}<span class="since">{when}</span></li>'


def _clock(t: float, now: float) -> str:
    return format_clock(t, now).removesuffix(" UTC")


def _impact(incident: ActiveIncident) -> str:
    text = "; ".join(_describe_impact(incident))
    return f'<p class="impact"><b>Impact:</b> {escape(text)}</p>' if text else ""


def _describe_impact(incident: ActiveIncident) -> Iterator[str]:
    """Yield what users feel, on which replicas, and the money that idles."""
    if incident.missed is not None:
        requests, last = f"{incident.missed.share.n:,.0f} requests", f"last {format_duration(IMPACT_SECONDS)}"
        missed = describe_missed(incident.missed).replace("of requests", f"of {requests}", 1)
        most = incident.missed.share.high or 0.0
        # Beside a finding that users feel, "none was missed" would deny it: these requests are of closed minutes.
        none = "" if _is_felt(incident) else f"no objective was missed by {requests}"
        bound = f"up to {number(most, 'ratio')} of {requests} may have missed an objective" if most else none
        if missed or bound:
            yield f"{missed or bound} ({last})"
    if incident.replicas:
        names = ", ".join(incident.replicas[:REPLICAS_NAMED])
        more = len(incident.replicas) - REPLICAS_NAMED
        yield f"on {names} and {more} more" if more > 0 else f"on {names}"
    if incident.idle is not None:
        cost = incident.idle.cost_per_day
        price = f", {amount(cost, incident.idle.currency)} a day" if cost is not None else ""
        yield f"{incident.idle.replicas:.1f} replicas idle{price}"


def _is_felt(incident: ActiveIncident) -> bool:
    """Return whether a certain finding of it pages: only what users feel does (DESIGN 3.10)."""
    active = (finding for finding in (incident.worst, *incident.symptoms) if finding.verdict.rule in BY_NAME)
    return any(
        alert_severity(finding.verdict.rule, finding.severity) is Severity.PAGE
        for finding in active
        if finding.severity
    )


def _first_suspect(incident: ActiveIncident) -> str:
    """Return the first suspected cause of the root, "" without one. What speaks for and against it is folded."""
    causes = incident.root.verdict.causes[:1]
    return "".join(f'<p class="impact"><b>First suspect:</b> {_head(cause)}</p>' for cause in causes)


def _action(incident: ActiveIncident) -> str:
    """Return what helps users at once, then the root's first action: the root may only need a new plan."""
    verdict, relief = incident.root.verdict, incident.relief
    rows = [("At once", relief)] if relief else []
    rows += [("Then" if rows else "Do first", action) for action in verdict.actions[:1]]
    todo = "".join(f"<span><b>{word}:</b> {escape(text)}</span>" for word, text in rows)
    return f'<p class="action">{todo}<span class="runbook">Runbook: {_runbook_link(verdict.rule)}</span></p>'


def _runbook_link(rule: str) -> str:
    """Return a rule's name with a link to its runbook, which the agent serves beside the page."""
    name = f"<code>{escape(rule)}</code>"
    return f'<a href="runbooks/{escape(rule)}">{name}</a>' if rule in BY_NAME else name


def _evidence(incident: ActiveIncident) -> str:
    """Return the folded evidence: a row for the root and each active symptom, and the suspected causes once."""
    findings = (incident.root, *incident.symptoms)
    head = "".join(f'<th scope="col">{column}</th>' for column in ("Finding", *EVIDENCE))
    rows = "".join(_row(finding) for finding in findings)
    table = f'<table class="evidence"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    named = f"Evidence: {format_count(len(findings), 'finding')}"
    return fold(named, table + _suspects(incident.root.verdict.causes))


def _row(finding: ActiveFinding) -> str:
    verdict = finding.verdict
    where = f" on {verdict.subject.replica}" if verdict.subject.replica else ""
    silent = f' <span class="silent">{escape(describe_silence(finding))}</span>' if finding.silent is not None else ""
    name = f"{escape(finding.title + where)} {sign(finding.tone, finding.words)}"
    facts = "".join(f"<li>{escape(text)}</li>" for text in verdict.details)
    listed = f'<ul class="problems">{facts}</ul>' if facts else ""
    words = f'<p class="problems">{escape(verdict.sentence)}{silent}</p>{listed}'
    cells = "".join(f'<td data-column="{column}">{escape(cell(verdict))}</td>' for column, cell in EVIDENCE.items())
    return f'<tr><th scope="row">{name}{words}</th>{cells}</tr>'


def _observed(verdict: Verdict) -> str:
    value = verdict.observed
    if isinstance(value, Reading) and value.value is not None:
        return number(value.value, verdict.unit)
    return quantity(value, verdict.unit)


def _bounds(value: SignalValue, unit: str) -> str:
    """Return the bounds of a reading, "exact" where they agree."""
    if isinstance(value, Missing) or value.low is None:
        return "–"
    if value.high is None:
        return f"from {number(value.low, unit)}"
    if value.high <= value.low * 1.001:
        return "exact"
    return quantity(Reading(value=None, low=value.low, high=value.high, n=value.n), unit)


EVIDENCE: dict[str, Callable[[Verdict], str]] = {
    "Observed": _observed,
    "Bounds": lambda verdict: _bounds(verdict.observed, verdict.unit),
    "Expected": lambda verdict: quantity(verdict.expected, verdict.unit),
    "n": lambda verdict: f"{verdict.observed.n:,.0f}" if isinstance(verdict.observed, Reading) else "–",
}
"""Columns of the evidence, each from a verdict."""


def _suspects(causes: tuple[Cause, ...]) -> str:
    """Return what speaks for and against the first suspect, which is on the card, and the other suspects."""
    if not causes:
        return ""
    first, *rest = causes[:SUSPECTS_SHOWN]
    text = f"<li>{escape(first.cause)}{_rest(first)}</li>" if _rest(first) else ""
    text += "".join(f"<li>{_head(cause)}{_rest(cause)}</li>" for cause in rest)
    return f'<div class="suspects"><b>Suspects</b><ol>{text}</ol></div>' if text else ""


def _head(cause: Cause) -> str:
    likely = "" if cause.certainty is Certainty.CERTAIN else " (likely)"
    return escape(f"{cause.evidence[0] if cause.evidence else cause.cause}{likely}")


def _rest(cause: Cause) -> str:
    """Return the further evidence of a cause, and what speaks against it."""
    rest = "".join(
        f"<li>{escape(text)}</li>" for text in (*cause.evidence[1:], *(f"but {text}" for text in cause.against))
    )
    return f"<ul>{rest}</ul>" if rest else ""


def describe_finding(finding: ActiveFinding, now: float) -> str:
    """Return a finding as a line of markup."""
    verdict = finding.verdict
    since = f"since {format_clock(finding.since, now)}: " if finding.since is not None else ""
    text = (
        f"{since}{finding.title} in {place(verdict.subject)}: {verdict.sentence} {describe_silence(finding)}".rstrip()
    )
    return f"{sign(finding.tone, finding.words if finding.is_note else finding.tone)} {escape(text)}"


def describe_silence(finding: ActiveFinding) -> str:
    """Return why a finding's rule has no verdict now, or an empty text."""
    return f"No verdict now: {describe_unknown(finding.silent)}. The worst verdict is shown." if finding.silent else ""


def describe_unknown(unknown: Unknown) -> str:
    """Return the reason of a missing verdict."""
    return describe_gap(unknown.reason, unknown.text)


def fold(summary: str, content: str) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
