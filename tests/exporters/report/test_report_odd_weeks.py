"""Weeks that are none: the report says so in its first sentence and beside it, and recommends nothing from too little.

A week without data, half a week, a tier that vanished, a tier that is new, a plan that changed, a clock that was set.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from report_samples import HOUR, START, WEEK, hour, hours, past, plan, reported, tier_past

from exporters.report.build import report
from exporters.report.formats import report_html, report_markdown
from exporters.report.records import Report, TierReport
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


def of(several: list[Window], **parts: object) -> tuple[Report, TierReport]:
    found = reported(PLAN, several, **parts)[0]
    return found, found.tiers[0]


def first_lines(found: Report) -> tuple[str, str]:
    """What report.md and report.html say before any number of the tier."""
    text, page = report_markdown(found), report_html(found)
    return text.partition("\n### ")[0], page.partition('<section class="level3 ')[0]


def says(found: Report, sentence: str) -> bool:
    """Whether both texts say it before any number."""
    return all(sentence in lines for lines in first_lines(found))


def test_a_week_without_data_proposes_nothing_and_says_why_everywhere() -> None:
    found, tier = of([])
    assert found.headline == "No recommendation for t."
    assert says(
        found,
        "What to do: the plan stays as it is. What is lacking for t stands under its proposal; then report again.",
    )
    assert says(found, "t: nothing was seen in this time, so nothing is known and nothing is proposed.")
    assert says(
        found, "Nothing of this tier was seen from Mon 02 Nov 00:00 UTC to Mon 09 Nov 00:00 UTC, nor in as long"
    )
    assert (tier.proposal.kind, tier.proposal.replicas, tier.changes) == ("no_recommendation", None, ())
    assert {one.answer for one in tier.questions} == {"nothing was seen in this time"}


def test_half_a_week_says_so_and_proposes_no_fewer_replicas() -> None:
    found, tier = of([one for n, one in enumerate(hours()) if not 24 <= n < 108])
    assert tier.verdict.startswith("t (seen for 84 of 168 hours only): ")
    assert says(found, "the longest hole is 3 d 12 h, Tue 03 Nov 00:00 UTC to Fri 06 Nov 12:00 UTC.")
    assert tier.proposal.kind == "no_recommendation"
    assert tier.proposal.needed == ("84 hours were seen; 152 are needed to propose fewer replicas",)


def test_half_a_week_that_needs_more_replicas_proposes_them() -> None:
    """A peak that was seen is one, however short the time."""
    _, tier = of([one for n, one in enumerate(hours(rps=lambda n: 90.0)) if not 24 <= n < 108])
    assert (tier.proposal.kind, tier.proposal.replicas) == ("grow", 12)


def test_a_few_hours_propose_nothing_at_all() -> None:
    _, tier = of(hours(20, rps=lambda n: 90.0, first=148))
    assert tier.proposal.kind == "no_recommendation"
    assert tier.proposal.needed[0].startswith("20.0 hours were seen, 22 hours are needed to propose more replicas")


def test_a_tier_that_vanished_before_the_week_is_asked_after() -> None:
    found, tier = of([], before=hour(-5, 10.0))
    assert says(found, "it was last seen at Sun 01 Nov 20:00 UTC. Is it gone? Then take it out of the plan.")
    assert tier.proposal.kind == "no_recommendation"


def test_a_tier_that_vanished_within_the_week_proposes_nothing_for_what_is_gone() -> None:
    """However much was seen of it before."""
    found, tier = of(hours(96, rps=lambda n: 90.0), before=hour(-1, 10.0))
    assert tier.verdict.startswith("t (not seen since Fri 06 Nov 00:00 UTC, seen for 96 of 168 hours only): ")
    assert says(found, "Nothing of this tier was seen since Fri 06 Nov 00:00 UTC: what is said of it ends there.")
    assert tier.proposal.kind == "no_recommendation"
    assert tier.proposal.needed == ("nothing was seen of it in the last 72 hours",)


def test_a_tier_that_was_down_for_the_last_hours_alone_is_not_gone() -> None:
    _, tier = of(hours(160, rps=lambda n: 90.0))
    assert tier.verdict.startswith("t (not seen since Sun 08 Nov 16:00 UTC, ")
    assert tier.proposal.kind == "grow"


def test_a_tier_that_is_new_since_thursday_says_so_and_keeps_its_replicas_for_now() -> None:
    found, tier = of(hours(168 - THURSDAY, first=THURSDAY))
    assert tier.verdict.startswith("t (new since Thu 05 Nov 00:00 UTC, seen for 96 of 168 hours only): ")
    assert says(found, "The tier was first seen on Thu 05 Nov 00:00 UTC and never in as long a time before")
    assert tier.proposal.kind == "no_recommendation"
    assert tier.proposal.needed == ("96 hours were seen; 152 are needed to propose fewer replicas",)


def test_a_tier_that_was_watched_before_is_not_new() -> None:
    found, tier = of(hours(168 - THURSDAY, first=THURSDAY), before=hour(-1, 10.0))
    assert tier.verdict.startswith("t (seen for 96 of 168 hours only): ")
    assert not says(found, "first seen")


def test_a_plan_that_changed_on_wednesday_is_told_first_and_what_rests_on_which() -> None:
    whole = tier_past(PLAN, hours())
    versions = ("old", *whole.resize.seen.versions)
    seen = replace(whole.resize.seen, versions=versions, plan_hours=whole.resize.seen.plan_hours[-100:])
    changed = TimelineEvent(t=START + 68 * HOUR, kind=TimelineKind.PLAN, tier="t", replica=None, text="another plan")
    one = replace(whole, resize=replace(whole.resize, seen=seen), events=(changed,))
    found, _ = report(past(PLAN, one))
    assert found.tiers[0].verdict.startswith("t (under another plan until Wed 04 Nov 20:00 UTC): ")
    assert says(found, "rest on the 100 hours since then; traffic, cost and incidents on the whole time.")


def test_a_plan_newer_than_all_that_was_seen_says_that_nothing_was_compared_with_it() -> None:
    whole = tier_past(PLAN, hours())
    seen = replace(whole.resize.seen, versions=("old",), plan_hours=(), bins=())
    found, _ = report(past(PLAN, replace(whole, resize=replace(whole.resize, seen=seen))))
    assert says(found, "The present plan is newer than every hour seen: nothing was compared with its benchmark yet.")


def test_a_whole_week_has_nothing_of_that() -> None:
    _found, tier = of(hours(), before=hour(-1, 10.0))
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
def test_hours_of_the_week_are_right_by_a_clock_that_was_set(
    zone: str, begin: str, end: str, way: str, odd: int
) -> None:
    found, several, since, until = local_week(zone, begin, end)
    assert until - since == WEEK + (HOUR if way == "back" else -HOUR)
    week = {(one.weekday, one.hour): one for one in found.tiers[0].week}
    counts = {place: one.count for place, one in week.items()}
    assert counts.pop((6, odd)) == (2 if way == "back" else 0)
    assert set(counts.values()) == {1}
    for (_, clock), one in week.items():
        if one.count:
            assert one.utilization == pytest.approx((3 if 9 <= clock < 18 else 1) / 7.33333333), one
    assert sum(one.count for one in week.values()) == len(several)


@pytest.mark.parametrize(("zone", "begin", "end", "way", "odd"), CLOCKS)
def test_a_clock_that_was_set_is_told_with_its_day_and_makes_no_hole(
    zone: str, begin: str, end: str, way: str, odd: int
) -> None:
    found, several, _, _ = local_week(zone, begin, end)
    (remark,) = found.tiers[0].quality.remarks
    sunday = datetime.fromisoformat(end) - timedelta(days=1)
    assert remark.startswith(f"The clock in {zone} was set {way} by 1 h on {sunday:%a %d %b}: ")
    assert ("comes twice" if way == "back" else "is missing") in remark
    assert says(found, remark)
    assert found.tiers[0].quality.hours_seen == len(several)
    assert found.tiers[0].verdict.startswith("t: ")
    assert found.tiers[0].workload.requests == sum(one.counters["requests_finished"] for one in several)
    assert f"by hour of the week, {zone}: the busier, the more it stands out" in report_html(found)


def test_two_changes_of_the_clock_in_one_time_are_both_told() -> None:
    """Thirteen weeks of winter hold one; a year would hold both, and the offsets at its ends are alike."""
    place = ZoneInfo("Europe/Berlin")
    since = datetime(2026, 3, 1, tzinfo=place).timestamp()
    until = datetime(2026, 11, 1, tzinfo=place).timestamp()
    several = [hour((until - START) / HOUR - 24 + n, 10.0) for n in range(24)]
    found, _ = report(past(PLAN, tier_past(PLAN, several, since, until), zone="Europe/Berlin"))
    (remark,) = (one for one in found.tiers[0].quality.remarks if one.startswith("The clock"))
    assert "set forward by 1 h on Sun 29 Mar" in remark
    assert "set back by 1 h on Sun 25 Oct" in remark
