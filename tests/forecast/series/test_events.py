"""Known events: when they are by the clock, and what they make of the usual traffic."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecast.series.calendar import CalendarEvent, event_factors, occurrences, recurrence

BERLIN = "Europe/Berlin"


def unix(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


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
    found: list[float] = event_factors(several, unix(start), bin_seconds, n, BERLIN).tolist()
    return found


def test_an_event_multiplies_the_bins_it_fills() -> None:
    assert factors(event("2026-03-02T08:00", hours=2)) == [1.0] * 8 + [3.0, 3.0] + [1.0] * 14


def test_partly_filled_bin_gets_a_part() -> None:
    found = factors(event("2026-03-02T08:15", hours=1.25, factor=5.0))
    assert found[8:11] == pytest.approx([1 + 4 * 0.75, 1 + 4 * 0.5, 1.0])


def test_simultaneous_events_multiply() -> None:
    assert factors(event("2026-03-02T08:00"), event("2026-03-02T08:00", factor=0.5))[8] == 1.5
    assert factors(event("2026-03-02T08:00", factor=0.0))[7:10] == [1.0, 0.0, 1.0]


def test_event_across_grid_edge_counts_within() -> None:
    assert factors(event("2026-03-01T20:00", hours=6))[:4] == [3.0, 3.0, 1.0, 1.0]
    assert factors(event("2026-03-02T23:00", hours=48))[22:] == [1.0, 3.0]
    assert factors(event("2026-02-01T00:00")) == [1.0] * 24


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


def test_event_day_follows_the_clock() -> None:
    whole = event("2026-10-25", hours=24)
    assert shown(whole, "2026-10-20T00:00", "2026-10-30T00:00") == [("10-25 00:00", 25.0)]


def test_recurrence_has_begin_and_end() -> None:
    monthly = event("2026-03-01T00:00", recurrence="RRULE:FREQ=MONTHLY;BYMONTHDAY=1;COUNT=2")
    assert shown(monthly, "2026-01-01T00:00", "2027-01-01T00:00") == [("03-01 00:00", 1.0), ("04-01 00:00", 1.0)]
    until = event("2026-03-01T00:00", recurrence="FREQ=DAILY;UNTIL=20260302")
    assert len(shown(until, "2026-01-01T00:00", "2027-01-01T00:00")) == 2


def test_only_occurrences_within_span_are_given() -> None:
    daily = event("2026-03-01T10:00", recurrence="FREQ=DAILY")
    assert shown(daily, "2026-03-05T11:00", "2026-03-06T10:00") == []
    assert shown(daily, "2026-03-05T10:59", "2026-03-06T10:01") == [("03-05 10:00", 1.0), ("03-06 10:00", 1.0)]


@pytest.mark.parametrize(
    "text",
    ["every monday", "FREQ=SOMETIMES", "FREQ=DAILY;BYDAY=XX", "", "FREQ=DAILY;UNTIL=20260302T000000Z", "INTERVAL=2"],
)
def test_bad_recurrence_names_the_event(text: str) -> None:
    with pytest.raises(ValueError, match="event sale: "):
        recurrence(event("2026-03-01T10:00", recurrence=text))


def test_several_rules_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="must be one rule"):
        recurrence(event("2026-03-01T10:00", recurrence="RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY"))


@settings(max_examples=50, deadline=None)
@given(
    begin=st.integers(-20 * 60, 60 * 60),
    minutes=st.integers(1, 40 * 60),
    factor=st.floats(0.0, 20.0),
    bin_seconds=st.sampled_from((60.0, 300.0, 3600.0)),
)
def test_event_adds_its_length_within_grid(begin: int, minutes: int, factor: float, bin_seconds: float) -> None:
    start, n = unix("2026-03-02T00:00"), 24 * 3600 // int(bin_seconds)
    when = datetime(2026, 3, 2) + timedelta(minutes=begin)
    one = Event("e", when, 60.0 * minutes, factor)
    within = max(0, min(24 * 60, begin + minutes) - max(0, begin)) * 60
    added = float((event_factors([one], start, bin_seconds, n, BERLIN) - 1).sum()) * bin_seconds
    assert math.isclose(added, (factor - 1) * within, abs_tol=1e-3)
