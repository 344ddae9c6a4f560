"""Report of an installation: every tier, the next plan, the headline and the message.

Tiers are built in `exporters.report.tier`. The message is plain text; the delivery escapes it for HTML or Markdown. It
is made from report.json on disk, so a report that waited through an upgrade can be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.documents.plan_diff import plan_diff
from exporters.render.text import printable_line, shorten
from exporters.report.inputs import ReportInputs
from exporters.report.next_plan import next_plan
from exporters.report.records import SCHEMA, Report, TierReport
from exporters.report.tier import tier_report
from exporters.report.wording import SIMULATED, instant, money
from rules.plan.schema import Plan
from rules.resize.proposal import ProposalKind
from rules.telemetry.windows import group_by


def report(past: ReportInputs) -> tuple[Report, Plan | None]:
    """Return the report and the proposed plan (None without a plan)."""
    proposed = next_plan(past.plan, past.tiers) if past.plan else None
    tiers = tuple(tier_report(tier, past.zone, past.plan, proposed) for tier in past.tiers)
    whole = Report(
        schema=SCHEMA,
        version=past.version,
        made_at=past.made_at,
        since=past.since,
        until=past.until,
        zone=past.zone,
        simulated=past.simulated,
        headline=_headline(tiers),
        remarks=past.remarks,
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
    by_kind = group_by(tiers, lambda tier: tier.proposal.kind)
    parts = [
        f"{word} {', '.join(tier.tier for tier in by_kind[kind])}" for kind, word in _DONE.items() if kind in by_kind
    ]
    text = "; ".join(parts)
    paid = ""
    for currency, rows in group_by(tiers, lambda tier: tier.currency).items():
        saved = sum(tier.saves_a_day or 0.0 for tier in rows)
        if round(saved):
            way = "less" if saved > 0 else "more"
            paid += f"{', ' if paid else ': '}{money(abs(saved), currency)} a day {way}"
    return f"{text[:1].upper()}{text[1:]}{paid}."


MOST_LETTERS = 180
"""Maximum length of a subject, in characters."""

MOST_TIERS = 12
"""Maximum number of tiers in a message. The shortest unsplit chat message holds about 2000 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Report message. `subject` is a single line."""

    subject: str
    body: str


def message(mapping: Mapping[str, Any], link: str) -> Message:
    """Return the message of a report.json object. `link` is the address of the report, "" if unknown.

    Raise KeyError, TypeError or ValueError if the object is not a report.
    """
    return Message(subject=_line(str(mapping["headline"]), MOST_LETTERS), body="\n\n".join(_paragraphs(mapping, link)))


def _paragraphs(mapping: Mapping[str, Any], link: str) -> Iterator[str]:
    if mapping["simulated"]:
        yield SIMULATED
    tiers = mapping["tiers"]
    yield from (_line(str(tier["verdict"])) for tier in tiers[:MOST_TIERS])
    if len(tiers) > MOST_TIERS:
        yield f"{len(tiers) - MOST_TIERS} more tiers are in the report."
    yield from (_line(str(remark)) for remark in mapping["remarks"][:3])
    zone = str(mapping["zone"])
    yield f"{instant(float(mapping['since']), zone)} to {instant(float(mapping['until']), zone)}{f': {link}' if link else ''}"


def _line(text: str, most: int = 1000) -> str:
    return shorten(printable_line(text), most)
