"""The whole report: every tier, the plan's next version, the headline, and report.json.

Owns what is said of the installation as a whole. Tiers are `exporters.report.tier`'s, other formats are modules beside this one.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from exporters.documents.plan_diff import plan_diff
from exporters.report.inputs import ReportInputs
from exporters.report.next_plan import next_plan
from exporters.report.numbers import money
from exporters.report.records import SCHEMA, Report, TierReport
from exporters.report.tier import tier_report
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
