"""Local time on a grid of bins, against the clock of the standard library; public holidays, which are as Sundays."""

import math
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecast.series.calendar import local_days, public_holidays, time_of_week

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


def test_week_begins_monday_midnight() -> None:
    slots = time_of_week(unix("2026-11-16T00:00", "Europe/Berlin"), 300, 2016, "Europe/Berlin")
    assert slots.tolist() == list(range(2016))


def test_spring_leaves_an_hour_out() -> None:
    slots = time_of_week(unix("2026-03-29T01:30", "Europe/Berlin"), 1800, 3, "Europe/Berlin")
    assert slots.tolist() == [6 * 48 + 3, 6 * 48 + 6, 6 * 48 + 7]


def test_autumn_repeats_an_hour() -> None:
    slots = time_of_week(unix("2026-10-25T02:00", "Europe/Berlin"), 1800, 5, "Europe/Berlin")
    assert slots.tolist() == [6 * 48 + 4, 6 * 48 + 5, 6 * 48 + 4, 6 * 48 + 5, 6 * 48 + 6]


def test_bin_within_slot_belongs_to_it() -> None:
    assert time_of_week(unix("2026-11-16T00:07"), 300, 2, "UTC").tolist() == [1, 2]
    # 00:00 UTC is 05:45 in Kathmandu.
    assert time_of_week(unix("2026-11-16T00:00"), 3600, 1, "Asia/Kathmandu").tolist() == [5]


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
    assert public_holidays("DE", days("2026-12-20", 5)) == {}
    assert public_holidays("DE", []) == {}


def test_region_has_own_holidays() -> None:
    around = days("2026-01-05", 3)
    assert public_holidays("DE", around) == {}
    assert list(public_holidays("DE-BY", around)) == [date(2026, 1, 6)]


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
