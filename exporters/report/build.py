"""The whole report: every tier, the plan's next version, the headline, and report.json.

Owns what is said of the installation as a whole. Tiers are `exporters.report.tier`'s, other formats are modules beside this one.

The report as a message: the headline as the subject, and the first sentences of each tier.

Owns the words of a message, plain text without markup; what a service makes of it (HTML, Markdown) it escapes itself. It reads
report.json as it stands on the disk, so a report that waited through an upgrade can still be sent. Nothing here knows an address.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exporters.documents.plan_diff import plan_diff
from exporters.report.inputs import ReportInputs
from exporters.report.next_plan import next_plan
from exporters.report.records import SCHEMA, Report, TierReport
from exporters.report.tier import tier_report
from exporters.report.wording import SIMULATED, instant, money
from rules.plan.schema import Plan
from rules.resize.proposal import ProposalKind


def report(past: ReportInputs) -> tuple[Report, Plan | None]:
    """The report, and the proposed plan (None where there is no plan)."""
    proposed = next_plan(past.plan, past.tiers) if past.plan else None
    tiers = tuple(tier_report(one, past.zone, past.plan, proposed) for one in past.tiers)
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


def report_json(found: Report) -> str:
    """report.json, by the schema of `exporters.report.records.report_schema`."""
    return json.dumps(asdict(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_DONE = {
    ProposalKind.GROW.value: "grow",
    ProposalKind.SHRINK.value: "shrink",
    ProposalKind.MOVE.value: "move",
    ProposalKind.KEEP.value: "keep",
    ProposalKind.NONE.value: "no recommendation for",
}


def _headline(tiers: tuple[TierReport, ...]) -> str:
    """What to do, kind by kind, the changes first."""
    if not tiers:
        return "No tier is watched: the configuration names none."
    said = []
    for kind, word in _DONE.items():
        names = [tier.tier for tier in tiers if tier.proposal.kind == kind]
        said += [f"{word} {', '.join(names)}"] if names else []
    text = "; ".join(said)
    saved: dict[str, float] = {}
    for tier in tiers:
        if tier.proposal.saves_a_day:
            saved[tier.currency] = saved.get(tier.currency, 0.0) + tier.proposal.saves_a_day
    amounts = [
        f"{money(abs(amount), currency)} a day {'less' if amount > 0 else 'more'}"
        for currency, amount in saved.items()
        if round(amount)
    ]
    paid = ", ".join(amounts)
    return f"{text[:1].upper()}{text[1:]}{f': {paid}' if paid else ''}."


MOST_LETTERS = 180
"""Of a subject."""

MOST_TIERS = 12
"""The shortest message that a chat takes in one piece holds some 2000 letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`subject` is one line."""

    subject: str
    body: str


def message(found: Mapping[str, Any], link: str) -> Message:
    """From the object in report.json; `link` is where the whole is read, "" where nobody said. Raises KeyError, TypeError,
    ValueError where it is no report."""
    return Message(subject=_line(str(found["headline"]), MOST_LETTERS), body="\n\n".join(_paragraphs(found, link)))


def _paragraphs(found: Mapping[str, Any], link: str) -> Iterator[str]:
    if found["simulated"]:
        yield SIMULATED
    tiers = found["tiers"]
    yield from (_line(str(tier["verdict"])) for tier in tiers[:MOST_TIERS])
    if len(tiers) > MOST_TIERS:
        yield f"{len(tiers) - MOST_TIERS} more tiers are in the report."
    yield from (_line(str(remark)) for remark in found["remarks"][:3])
    zone = str(found["zone"])
    yield f"{instant(float(found['since']), zone)} to {instant(float(found['until']), zone)}{f': {link}' if link else ''}"


def _line(text: str, most: int = 1000) -> str:
    """Without line ends and what else is no letter: a subject must not begin another header."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
