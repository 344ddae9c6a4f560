"""Local time on a grid of bins, against the clock of the standard library; public holidays and events."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecast.series.calendar import (
    CalendarEvent,
    event_factors,
    local_days,
    occurrences,
    public_holidays,
    recurrence,
    time_of_week,
)

BERLIN = "Europe/Berlin"
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca")


def unix(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def slot_by_the_clock(t: float, bin_seconds: float, zone: str) -> int:
    local = datetime.fromtimestamp(t, UTC).astimezone(ZoneInfo(zone))
    since = timedelta(days=local.weekday(), hours=local.hour, minutes=local.minute, seconds=local.second)
    return math.floor(since.total_seconds() / bin_seconds)


@settings(max_examples=60, deadline=None)
@given(
    start=st.integers(min_value=0, max_value=2_000_000_000),
    bin_seconds=st.sampled_from((60, 300, 600, 900, 3600)),
    zone=st.sampled_from(ZONES),
)
def test_slots_follow_the_wall_clock(start: int, bin_seconds: int, zone: str) -> None:
    stride = 40 * 86_400 // bin_seconds
    slots = time_of_week(float(start), bin_seconds, stride, zone)
    for index in range(0, stride, 97):
        assert slots[index] == slot_by_the_clock(start + index * bin_seconds, bin_seconds, zone)


@pytest.mark.parametrize(
    ("start", "zone", "bin_seconds", "slots"),
    [
        ("2026-11-16T00:00", BERLIN, 300, range(2016)),
        # In spring an hour is left out, in autumn one comes twice.
        ("2026-03-29T01:30", BERLIN, 1800, (6 * 48 + 3, 6 * 48 + 6, 6 * 48 + 7)),
        ("2026-10-25T02:00", BERLIN, 1800, (6 * 48 + 4, 6 * 48 + 5, 6 * 48 + 4, 6 * 48 + 5, 6 * 48 + 6)),
        ("2026-11-16T00:07", "UTC", 300, (1, 2)),
        ("2026-11-16T05:45", "Asia/Kathmandu", 3600, (5,)),
    ],
)
def test_week_begins_monday_midnight(start: str, zone: str, bin_seconds: float, slots: Sequence[int]) -> None:
    assert time_of_week(unix(start, zone), bin_seconds, len(slots), zone).tolist() == list(slots)


@pytest.mark.parametrize("bin_seconds", [0, -60, 8 * 86_400])
def test_bins_that_cut_no_week_are_refused(bin_seconds: float) -> None:
    with pytest.raises(ValueError, match="do not cut a week"):
        time_of_week(0.0, bin_seconds, 1, "UTC")


def test_holidays_have_sunday_slots() -> None:
    start = unix("2026-12-24T00:00", "Europe/Berlin")  # a Thursday
    christmas = (date(2026, 12, 25), date(2026, 12, 26))
    slots = time_of_week(start, 3600, 4 * 24, "Europe/Berlin", christmas)
    hours = list(range(24))
    of_days = [[24 * day + hour for hour in hours] for day in (3, 6, 6, 6)]
    assert slots.tolist() == [slot for day in of_days for slot in day]
    assert time_of_week(start, 3600, 24, "Europe/Berlin", christmas).tolist() == of_days[0]


def test_grid_days_follow_zone_clock() -> None:
    start = unix("2026-12-24T22:30")
    assert local_days(start, 1800, 2, "Europe/Berlin") == (date(2026, 12, 24), date(2026, 12, 25))
    assert local_days(start, 1800, 2, "UTC") == (date(2026, 12, 24),)
    assert local_days(start, 1800, 0, "UTC") == ()


def days(first: str, count: int) -> list[date]:
    return [date.fromisoformat(first) + timedelta(days=i) for i in range(count)]


def test_holidays_are_those_of_country() -> None:
    assert list(public_holidays("DE", days("2026-12-20", 14))) == [
        date(2026, 12, 25),
        date(2026, 12, 26),
        date(2027, 1, 1),
    ]
    assert public_holidays("DE", days("2026-01-05", 3)) == {}
    assert list(public_holidays("DE-BY", days("2026-01-05", 3))) == [date(2026, 1, 6)]
    assert public_holidays("DE", days("2026-12-20", 5)) == {}
    assert public_holidays("DE", []) == {}


@pytest.mark.parametrize(
    ("country", "said"),
    [
        ("XQ", "'XQ' is no country with known holidays"),
        ("DE-BX", "DE has no part 'BX' with holidays of its own; known: BB, BE, BW, BY"),
        ("de", "'de' is no country"),
        ("", "'' is no country with known holidays; write the two letters"),
    ],
)
def test_unknown_country_is_refused(country: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        public_holidays(country, days("2026-01-01", 1))


@dataclass(frozen=True)
class Event:
    name: str
    start: datetime
    duration_seconds: float
    factor: float
    recurrence: str = ""


def event(start: str, hours: float = 1.0, factor: float = 3.0, recurrence: str = "") -> Event:
    return Event("sale", datetime.fromisoformat(start), 3600.0 * hours, factor, recurrence)


def shown(one: CalendarEvent, since: str, until: str, zone: str = BERLIN) -> list[tuple[str, float]]:
    """Each time by the clock, with its hours."""
    return [
        (datetime.fromtimestamp(a, UTC).astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M"), (b - a) / 3600)
        for a, b in occurrences(one, unix(since, zone), unix(until, zone), zone)
    ]


def factors(
    *several: CalendarEvent, start: str = "2026-03-02T00:00", n: int = 24, bin_seconds: float = 3600.0
) -> list[float]:
    found: list[float] = event_factors(several, unix(start, BERLIN), bin_seconds, n, BERLIN).tolist()
    return found


def test_events_multiply_the_bins_they_fill() -> None:
    assert factors(event("2026-03-02T08:00", hours=2)) == [1.0] * 8 + [3.0, 3.0] + [1.0] * 14
    assert factors(event("2026-03-02T08:00"), event("2026-03-02T08:00", factor=0.5))[8] == 1.5
    assert factors(event("2026-03-02T08:00", factor=0.0))[7:10] == [1.0, 0.0, 1.0]
    partly = factors(event("2026-03-02T08:15", hours=1.25, factor=5.0))
    assert partly[8:11] == pytest.approx([1 + 4 * 0.75, 1 + 4 * 0.5, 1.0])


def test_overlapping_recurrence_counts_once() -> None:
    daily = event("2026-03-01T00:00", hours=30, recurrence="FREQ=DAILY")
    assert factors(daily) == [3.0] * 24


def test_recurrence_follows_the_clock() -> None:
    weekly = event("2026-03-01T09:00", hours=8, recurrence="FREQ=WEEKLY;BYDAY=SU")
    assert shown(weekly, "2026-03-22T00:00", "2026-04-06T00:00") == [
        ("03-22 09:00", 8.0),
        ("03-29 09:00", 8.0),
        ("04-05 09:00", 8.0),
    ]
    over_the_change = event("2026-03-01T01:00", hours=4, recurrence="FREQ=WEEKLY;BYDAY=SU")
    assert shown(over_the_change, "2026-03-29T00:00", "2026-03-30T00:00") == [("03-29 01:00", 3.0)]
    assert shown(event("2026-10-25", hours=24), "2026-10-20T00:00", "2026-10-30T00:00") == [("10-25 00:00", 25.0)]


def test_recurrence_has_begin_and_end() -> None:
    monthly = event("2026-03-01T00:00", recurrence="RRULE:FREQ=MONTHLY;BYMONTHDAY=1;COUNT=2")
    assert shown(monthly, "2026-01-01T00:00", "2027-01-01T00:00") == [("03-01 00:00", 1.0), ("04-01 00:00", 1.0)]
    until = event("2026-03-01T00:00", recurrence="FREQ=DAILY;UNTIL=20260302")
    assert len(shown(until, "2026-01-01T00:00", "2027-01-01T00:00")) == 2


def test_only_occurrences_within_span_are_given() -> None:
    daily = event("2026-03-01T10:00", recurrence="FREQ=DAILY")
    assert shown(daily, "2026-03-05T11:00", "2026-03-06T10:00") == []
    assert shown(daily, "2026-03-05T10:59", "2026-03-06T10:01") == [("03-05 10:00", 1.0), ("03-06 10:00", 1.0)]


RULES = {
    **dict.fromkeys(("every monday", "FREQ=SOMETIMES", "FREQ=DAILY;BYDAY=XX", "", "INTERVAL=2"), "event sale: "),
    "FREQ=DAILY;UNTIL=20260302T000000Z": "event sale: ",
    "RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY": "must be one rule",
}


@pytest.mark.parametrize("text", RULES)
def test_bad_recurrence_names_the_event(text: str) -> None:
    with pytest.raises(ValueError, match=RULES[text]):
        recurrence(event("2026-03-01T10:00", recurrence=text))


@settings(max_examples=50, deadline=None)
@given(
    begin=st.integers(-20 * 60, 60 * 60),
    minutes=st.integers(1, 40 * 60),
    factor=st.floats(0.0, 20.0),
    bin_seconds=st.sampled_from((60.0, 300.0, 3600.0)),
)
def test_event_adds_its_length_within_grid(begin: int, minutes: int, factor: float, bin_seconds: float) -> None:
    start, n = unix("2026-03-02T00:00", BERLIN), 24 * 3600 // int(bin_seconds)
    when = datetime(2026, 3, 2) + timedelta(minutes=begin)
    one = Event("e", when, 60.0 * minutes, factor)
    within = max(0, min(24 * 60, begin + minutes) - max(0, begin)) * 60
    added = float((event_factors([one], start, bin_seconds, n, BERLIN) - 1).sum()) * bin_seconds
    assert math.isclose(added, (factor - 1) * within, abs_tol=1e-3)
