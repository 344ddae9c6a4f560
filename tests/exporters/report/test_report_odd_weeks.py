"""Weeks that are none: the report says so in its first sentence and beside it, and recommends nothing from too little.

A week without data, half a week, a tier that vanished, a tier that is new, a plan that changed, a clock that was set.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from report_samples import HOUR, START, WEEK, hour, hours, past, plan, reported, reported_tier, tier_past

from exporters.report.build import report
from exporters.report.formats import report_html, report_markdown
from exporters.report.records import Report
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.telemetry.windows import Window

PLAN = plan()
THURSDAY = 72
"""Hours after START, which is a Monday."""

CLOCKS = (
    ("Europe/Berlin", "2026-10-19", "2026-10-26", "back", 2),
    ("Europe/Berlin", "2026-03-23", "2026-03-30", "forward", 2),
    ("America/New_York", "2026-10-26", "2026-11-02", "back", 1),
    ("America/New_York", "2026-03-02", "2026-03-09", "forward", 2),
)
"""Zone, two Mondays, which way its clock is set on the Sunday between them, and the hour that comes twice or not at all."""


def says(found: Report, sentence: str) -> bool:
    """Whether report.md and report.html say it before any number of the tier."""
    text, page = report_markdown(found), report_html(found)
    return sentence in text.partition("\n### ")[0] and sentence in page.partition('<section class="level3 ')[0]


HALF = [window for n, window in enumerate(hours()) if not 24 <= n < 108]
BUSY: dict[str, Any] = {"rps": lambda n: 90.0}
BEFORE = hour(-1, 10.0)
NOTHING = "Nothing of this tier was seen"
NEW = hours(168 - THURSDAY, first=THURSDAY)
ODD_WEEKS: dict[str, tuple[list[Window], Window | None, str, str]] = {
    "no data": (
        [],
        None,
        "nothing was seen",
        f"{NOTHING} from Mon 02 Nov 00:00 UTC to Mon 09 Nov 00:00 UTC, nor in as",
    ),
    "half": (
        HALF,
        BEFORE,
        "seen for 84 of 168 hours only",
        "seen for 84 of 168 hours only",
    ),
    "gone before": ([], hour(-5, 10.0), "nothing was seen", "it was last seen at Sun 01 Nov 20:00 UTC. Is it gone?"),
    "gone": (
        hours(96, **BUSY),
        BEFORE,
        "not seen since Fri 06 Nov 00:00 UTC",
        "What is said of this tier ends when it was last seen. Is it gone?",
    ),
    "new": (
        NEW,
        None,
        "new since Thu 05 Nov 00:00 UTC",
        "new since Thu 05 Nov 00:00 UTC",
    ),
    "known before": (
        NEW,
        BEFORE,
        "seen for 96 of 168 hours only",
        "seen for 96 of 168 hours only",
    ),
}
"""Hours that were seen, a window before them, and what the verdict and the first lines say."""


@pytest.mark.parametrize("name", ODD_WEEKS)
def test_odd_weeks_say_why_first(name: str) -> None:
    several, before, short, sentence = ODD_WEEKS[name]
    found, _ = reported(PLAN, several, before=before)
    (tier,) = found.tiers
    assert tier.verdict.startswith(f"t ({short}" if several else f"t: {short}")
    assert says(found, tier.verdict)
    assert says(found, sentence)
    assert (tier.proposal.kind, tier.proposal.replicas, tier.changes) == ("no_recommendation", None, ())
    assert found.headline == "No recommendation for t."
    assert says(found, "What is lacking for t stands with its replicas; then report again.")
    if not several:
        assert {question.answer for question in tier.questions} == {"nothing was seen in this time"}
        assert {row.status for row in tier.monitoring} == {tier.status} == {"unknown"}


def test_last_hours_down_are_not_gone() -> None:
    tier = reported_tier(hours(160, **BUSY))
    assert tier.verdict.startswith("t (not seen since Sun 08 Nov 16:00 UTC, ")
    assert tier.proposal.kind == "grow"


def changed_plan(versions: tuple[str, ...], hours_since: int) -> Report:
    """A week with hours under these versions, of which the last ones are under the present plan."""
    whole = tier_past(PLAN, hours())
    seen = whole.resize.seen
    since = seen.plan_hours[len(seen.plan_hours) - hours_since :]
    seen = replace(seen, versions=versions, plan_hours=since, bins=seen.bins if since else ())
    changed = TimelineEvent(t=START + 68 * HOUR, kind=TimelineKind.PLAN, tier="t", replica=None, text="another plan")
    return report(past(PLAN, replace(whole, resize=replace(whole.resize, seen=seen), events=(changed,))))[0]


def test_changed_plan_says_what_rests_on_which() -> None:
    found = changed_plan(("old", "new"), 100)
    assert found.tiers[0].verdict.startswith("t (under another plan until Wed 04 Nov 20:00 UTC): ")
    sentence = (
        "The plan changed on Wed 04 Nov 20:00 UTC: the comparison with the benchmark, the curve and fleet utilisation rest on "
        "the 100 hours since then; traffic, cost and incidents on the whole time."
    )
    assert says(found, sentence)
    newer = "The present plan is newer than every hour seen: nothing was compared with its benchmark yet."
    assert says(changed_plan(("old",), 0), newer)


def test_whole_week_has_no_remarks() -> None:
    tier = reported_tier(before=BEFORE)
    assert tier.verdict.startswith("t: ")
    assert tier.quality.remarks == ()


def local_week(zone: str, begin: str, end: str) -> tuple[Report, list[Window], float, float]:
    """A week from Monday to Monday by that zone's clock, busy from 9 to 18 by the same clock."""
    place = ZoneInfo(zone)
    since, until = (datetime.fromisoformat(day).replace(tzinfo=place).timestamp() for day in (begin, end))
    several = []
    for n in range(round((until - since) / HOUR)):
        at = datetime.fromtimestamp(since + n * HOUR, place)
        several.append(hour((since - START) / HOUR + n, 30.0 if 9 <= at.hour < 18 else 10.0))
    found, _ = report(past(PLAN, tier_past(PLAN, several, since, until), zone=zone))
    return found, several, since, until


@pytest.mark.parametrize(("zone", "begin", "end", "way", "odd"), CLOCKS)
def test_set_clock_makes_no_holes(zone: str, begin: str, end: str, way: str, odd: int) -> None:
    found, several, since, until = local_week(zone, begin, end)
    assert until - since == WEEK + (HOUR if way == "back" else -HOUR)
    (tier,) = found.tiers
    week = {(row.weekday, row.hour): row for row in tier.week}
    counts = {place: row.count for place, row in week.items()}
    assert counts.pop((6, odd)) == (2 if way == "back" else 0)
    assert set(counts.values()) == {1}
    assert sum(row.count for row in tier.week) == tier.quality.hours_seen == len(several)
    for place, seen in week.items():
        if seen.count:
            assert seen.utilization == pytest.approx((3 if 9 <= place[1] < 18 else 1) / 7.33333333), place
    assert tier.quality.remarks == ()
    assert tier.verdict.startswith("t: ")
    assert tier.workload.requests == sum(window.counters["requests_finished"] for window in several)
    assert f"by hour of the week, {zone}: the busier, the more it stands out" in report_html(found)
