"""What is known of the time to come, as the forecast takes it: events, and days that are like Sundays.

Owns the way from plain keys (the configuration's, or those of a question) to the forecast's records. A country that the
forecast's library does not know is found out here, when the days are asked for, and told with its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Protocol

from agent.errors import ConfigError
from forecast.series.calendar import CalendarEvent, local_days
from forecast.series.public_holidays import public_holidays


class EventFields(Protocol):
    """An event in plain keys; `start` is local time."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> datetime: ...
    @property
    def duration_seconds(self) -> float: ...
    @property
    def factor(self) -> float: ...
    @property
    def recurrence(self) -> str | None: ...


class CalendarFields(Protocol):
    """The clock, the country and the events in plain keys: a configuration's `forecast`, or a question."""

    @property
    def zone(self) -> str: ...
    @property
    def country(self) -> str | None: ...
    @property
    def events(self) -> Sequence[EventFields]: ...


def list_calendar_events(said: CalendarFields) -> tuple[CalendarEvent, ...]:
    """The events."""
    return tuple(
        CalendarEvent(
            name=one.name,
            start=one.start,
            duration=timedelta(seconds=one.duration_seconds),
            factor=one.factor,
            recurrence=one.recurrence or "",
        )
        for one in said.events
    )


def sundays(said: CalendarFields, start: float, bin_seconds: float, n: int) -> Mapping[date, str]:
    """The days of a grid of bins that are like Sundays, with their names: public holidays of the country.

    Raises BadConfig where its holidays are not known.
    """
    if said.country is None:
        return {}
    try:
        return public_holidays(said.country, local_days(start, bin_seconds, n, said.zone))
    except ValueError as error:
        raise ConfigError((f"forecast.country: {error}",)) from None
