"""A schedule as steps of cron: never too few, never too late, and no more steps than anybody reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

import pytest
from scaling_samples import ALL_DAYS, CHAT, RESTLESS, SCHEDULES, UNSCHEDULED, WORKDAYS, asked, needed, times

from exporters.autoscaling import schedule
from exporters.autoscaling.manifests import Scaling
from exporters.autoscaling.schedule import (
    BLOCKS,
    DAY,
    MOST_ENTRIES,
    WEEK,
    CronEntry,
    ScheduleSlot,
    Week,
    cron,
    slots_of,
)


def week_of(scaling: Scaling) -> Week:
    return schedule.week_of(scaling.schedule, scaling.lead_seconds, scaling.minimum_warm, scaling.maximum)


def replayed(week: Week) -> list[int]:
    """The count in each minute of the week: the floor, and the entries above it, which never overlap."""
    counts = [week.floor] * WEEK
    for entry in week.entries:
        for start in times(entry.start):
            for minute in range(start, start + entry.minutes):
                assert counts[minute % WEEK] == week.floor, "windows overlap"
                counts[minute % WEEK] = entry.replicas
        assert sorted((start + entry.minutes) % WEEK for start in times(entry.start)) == times(entry.end)
        assert entry.start != entry.end
    return counts


@pytest.mark.parametrize("name", ["days", "nights", "flat"])
@pytest.mark.parametrize("lead", [0.0, 1.0, 60.0, 207.0, 3600.0])
def test_the_windows_say_what_must_be_asked_for_in_every_minute_of_the_week(name: str, lead: float) -> None:
    scaling = replace(CHAT, schedule=SCHEDULES[name], lead_seconds=lead)
    assert replayed(week_of(scaling)) == asked(scaling)


def test_a_schedule_of_too_many_steps_is_made_coarse_upwards_and_says_so() -> None:
    scaling = replace(CHAT, schedule=RESTLESS)
    week = week_of(scaling)
    assert week.block in BLOCKS[1:]
    assert 5 < len(week.entries) <= MOST_ENTRIES
    assert all(have >= need for have, need in zip(replayed(week), asked(scaling), strict=True))
    assert week_of(CHAT).block == 1


def test_more_is_asked_for_the_lead_before_it_must_be_warm_and_fewer_not_early() -> None:
    week = week_of(CHAT)
    starts = {entry.start: entry.replicas for entry in week.entries if 0 in entry.weekdays}
    assert starts == {"56 7 * * 1-5": 8, "26 12 * * 1-5": 11, "0 19 * * 1-5": 3}


def test_a_lead_reaches_back_over_the_end_of_the_week() -> None:
    scaling = replace(CHAT, schedule=(ScheduleSlot(start=time(0, 1), weekdays=(0,), replicas=9), *CHAT.schedule))
    assert times("57 23 * * 0") == [WEEK - 3]
    assert "57 23 * * 0" in {entry.start for entry in week_of(scaling).entries}


def test_counts_stay_between_the_minimum_warm_and_the_maximum() -> None:
    low = replace(CHAT, minimum_warm=4, maximum=9)
    week = week_of(low)
    assert (min(replayed(week)), max(replayed(week))) == (4, 9)
    assert (week.cut, week_of(CHAT).cut) == (True, False)


def test_the_floor_is_the_least_that_the_week_asks_for() -> None:
    flat = week_of(replace(CHAT, schedule=SCHEDULES["flat"]))
    assert (flat.floor, flat.entries) == (6, ())


def test_without_a_schedule_there_is_only_the_minimum_warm() -> None:
    assert week_of(UNSCHEDULED) == Week(floor=2, entries=(), block=1, cut=False)


def test_two_slots_of_one_minute_count_as_the_higher() -> None:
    slots = tuple(ScheduleSlot(start=time(8), weekdays=ALL_DAYS, replicas=count) for count in (5, 9, 7))
    night = ScheduleSlot(start=time(20), weekdays=ALL_DAYS, replicas=2)
    scaling: Scaling = replace(CHAT, schedule=(*slots, night))
    assert max(needed(replace(scaling, schedule=(slots[1], night)))) == max(replayed(week_of(scaling))) == 9


def test_cron_counts_its_days_from_sunday() -> None:
    assert cron(485, WORKDAYS) == "5 8 * * 1-5"
    assert cron(0, ALL_DAYS) == "0 0 * * *"
    assert cron(1439, (6, 5)) == "59 23 * * 0,6"
    assert cron(60, (0,)) == "0 1 * * 1"
    over_midnight = CronEntry(minute=23 * 60, weekdays=(6,), minutes=DAY + 120, replicas=1)
    assert (over_midnight.start, over_midnight.end) == ("0 23 * * 0", "0 1 * * 2")


def test_the_steps_of_a_day_are_slots_of_every_day_by_the_clock_of_the_zone() -> None:
    summer = datetime(2026, 7, 6, 6, 0, tzinfo=UTC).timestamp()  # a Monday, 08:00 in Berlin
    slots = slots_of([(summer + 3600 * 10, 2), (summer, 8), (summer + 90, 9)], "Europe/Berlin")
    assert slots == (
        ScheduleSlot(start=time(8), weekdays=ALL_DAYS, replicas=8),
        ScheduleSlot(start=time(8, 1), weekdays=ALL_DAYS, replicas=9),
        ScheduleSlot(start=time(18), weekdays=ALL_DAYS, replicas=2),
    )
    assert slots_of([], "UTC") == ()


def test_the_steps_of_a_week_are_slots_of_their_own_days() -> None:
    monday = datetime(2026, 7, 6, 0, 0, tzinfo=UTC).timestamp()
    slots = slots_of([(monday + day * 86400 + 3600, day + 1) for day in range(7)], "UTC")
    assert slots == tuple(ScheduleSlot(start=time(1), weekdays=(day,), replicas=day + 1) for day in range(7))


def test_an_hour_that_comes_twice_counts_as_its_higher_step() -> None:
    back = datetime(2026, 10, 25, 0, 0, tzinfo=UTC).timestamp()  # 02:00 in Berlin, and an hour later again
    (slot,) = slots_of([(back, 7), (back + 3600, 4)], "Europe/Berlin")
    assert (slot.start, slot.replicas) == (time(2), 7)
