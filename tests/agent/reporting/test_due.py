"""When a weekly report is due: over changes of the clock, at the very instant, in every zone."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest

from agent.reporting.service import WeeklyTrigger

BERLIN = WeeklyTrigger(0, time(7), "Europe/Berlin")
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def told(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M")


def test_monday_at_seven_is_due_at_that_second_and_not_before() -> None:
    due = at("2026-11-23 07:00", "Europe/Berlin")
    assert BERLIN.latest(due) == due
    assert BERLIN.latest(due - 1) == due - WEEK
    assert BERLIN.next(due - 1) == due
    assert BERLIN.next(due) == due + WEEK
    assert BERLIN.name(due) == "2026-11-23"


def test_the_time_stays_that_of_the_wall_when_summer_begins_and_ends() -> None:
    # 2026-03-29 and 2026-10-25 are Sundays.
    assert told(BERLIN.next(at("2026-03-24 12:00"))) == "2026-03-30 05:00"
    assert told(BERLIN.latest(at("2026-03-29 12:00"))) == "2026-03-23 06:00"
    assert told(BERLIN.next(at("2026-10-20 12:00"))) == "2026-10-26 06:00"


def test_a_time_that_is_left_out_comes_an_hour_later_and_one_that_comes_twice_counts_once() -> None:
    night = WeeklyTrigger(6, time(2, 30), "Europe/Berlin")
    assert told(night.next(at("2026-03-28 12:00"))) == "2026-03-29 01:30"
    assert night.name(night.next(at("2026-03-28 12:00"))) == "2026-03-29"
    first = at("2026-10-25 02:30", "Europe/Berlin")
    assert night.next(first - 1) == first
    # The same time on the wall comes again an hour later: that is not another report.
    assert night.latest(first + HOUR) == first
    assert night.next(first) == at("2026-11-01 02:30", "Europe/Berlin")


def fires(trigger: WeeklyTrigger, since: str, until: str) -> list[str]:
    """Every time that APScheduler runs a job of the trigger, in UTC."""
    previous, now, times = None, datetime.fromtimestamp(at(since), UTC), []
    while (previous := trigger.get_next_fire_time(previous, now)).timestamp() <= at(until):
        times.append(told(previous.timestamp()))
        now = previous
    return times


@pytest.mark.parametrize(
    ("weekday", "time_of_day", "expected"),
    [
        # The hour from 02:00 to 03:00 is left out on 29 March, and comes twice on 25 October.
        (6, time(2, 30), ["03-22 01:30", "03-29 01:30", "04-05 00:30"]),
        # A day of 23 hours comes before this Monday.
        (0, time(0, 15), ["03-22 23:15", "03-29 22:15"]),
    ],
)
def test_a_job_runs_once_a_week_over_the_hour_that_is_left_out(
    weekday: int, time_of_day: time, expected: list[str]
) -> None:
    times = fires(WeeklyTrigger(weekday, time_of_day, "Europe/Berlin"), "2026-03-20 12:00", "2026-04-05 12:00")
    assert times == [f"2026-{t}" for t in expected]


@pytest.mark.parametrize("now", ["2026-03-29 00:59", "2026-03-29 01:10"])
def test_a_job_that_is_scheduled_in_the_hour_that_is_left_out_runs_in_it(now: str) -> None:
    """The clock on the wall has passed the time already, and the report of the week is still to come."""
    trigger = WeeklyTrigger(6, time(2, 30), "Europe/Berlin")
    assert fires(trigger, now, "2026-03-30 00:00") == ["2026-03-29 01:30"]


def test_a_job_runs_once_over_the_hour_that_comes_twice() -> None:
    times = fires(WeeklyTrigger(6, time(2, 30), "Europe/Berlin"), "2026-10-20 12:00", "2026-11-02 12:00")
    assert times == ["2026-10-25 00:30", "2026-11-01 01:30"]
    again = fires(WeeklyTrigger(6, time(2, 30), "Europe/Berlin"), "2026-10-25 00:40", "2026-11-02 12:00")
    assert again == ["2026-11-01 01:30"]


@pytest.mark.parametrize(
    "zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "America/St_Johns", "UTC"]
)
def test_every_instant_of_a_year_lies_between_two_reports_a_week_apart(zone: str) -> None:
    weekly = WeeklyTrigger(2, time(0, 15), zone)
    for day in range(366):
        now = at("2026-01-01 00:10") + day * DAY
        before, after = weekly.latest(now), weekly.next(now)
        assert before <= now < after
        assert abs(after - before - WEEK) <= HOUR
        assert weekly.latest(after) == after
        assert datetime.fromtimestamp(before, ZoneInfo(zone)).weekday() == 2
