"""When a weekly report is due: over changes of the clock, at the very instant, in every zone."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest

from agent.reporting.service import weekly_times

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def utc(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%m-%d %H:%M")


def test_weekly_report_is_due_to_the_second() -> None:
    due = at("2026-11-23 07:00", "Europe/Berlin")
    assert weekly_times(0, time(7), BERLIN, due) == (due, due + WEEK)
    assert weekly_times(0, time(7), BERLIN, due - 1) == (due - WEEK, due)


@pytest.mark.parametrize(
    ("weekday", "of_day", "now", "expected"),
    [
        # 2026-03-29 and 2026-10-25 are Sundays. The time on the wall stays.
        (0, time(7), "2026-03-29 12:00", ("03-23 06:00", "03-30 05:00")),
        (0, time(7), "2026-10-20 12:00", ("10-19 05:00", "10-26 06:00")),
        # The hour from 02:00 to 03:00 is left out on 29 March: the report comes an hour later on the wall.
        (6, time(2, 30), "2026-03-28 12:00", ("03-22 01:30", "03-29 01:30")),
        (6, time(2, 30), "2026-03-29 01:10", ("03-22 01:30", "03-29 01:30")),
        (6, time(2, 30), "2026-03-29 01:30", ("03-29 01:30", "04-05 00:30")),
        # The same hour comes twice on 25 October: the second is not another report.
        (6, time(2, 30), "2026-10-25 00:29", ("10-18 00:30", "10-25 00:30")),
        (6, time(2, 30), "2026-10-25 01:30", ("10-25 00:30", "11-01 01:30")),
        # A day of 23 hours comes before this Monday.
        (0, time(0, 15), "2026-03-29 12:00", ("03-22 23:15", "03-29 22:15")),
    ],
)
def test_due_times_over_changes_of_the_clock(weekday: int, of_day: time, now: str, expected: tuple[str, str]) -> None:
    latest, following = weekly_times(weekday, of_day, BERLIN, at(now))
    assert (utc(latest), utc(following)) == expected


@pytest.mark.parametrize(
    "zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "America/St_Johns", "UTC"]
)
def test_every_instant_lies_between_two_reports(zone: str) -> None:
    for day in range(366):
        now = at("2026-01-01 00:10") + day * DAY
        latest, following = weekly_times(2, time(0, 15), ZoneInfo(zone), now)
        assert latest <= now < following
        assert abs(following - latest - WEEK) <= HOUR
        assert weekly_times(2, time(0, 15), ZoneInfo(zone), following)[0] == following
        assert datetime.fromtimestamp(latest, ZoneInfo(zone)).weekday() == 2
