"""Section `forecast`: known future traffic, and the value types of calendars.

Only the forecast itself can check a subdivision of a country.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator, Field, WithJsonSchema

from agent.durations import duration_text
from agent.sections import (
    ConfigSection,
    Contradictions,
    Name,
    Seconds,
    Text,
    duration_range,
    parse_seconds,
    repeats,
    validation_error,
)
from rules.plan.schema import Plan
from rules.problems import find_close_name

DAY_SECONDS = 86_400.0

YEARS = range(2000, 2200)
"""Valid years. A rule is expanded from its start, so an early start is slow; no calendar goes beyond 9999."""

MOST_A_DAY = 24
"""Maximum number of occurrences per day: each is expanded, and bins are minutes long."""

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
"""Frequencies of RFC 5545, 3.3.10, of a day and more. Shorter ones are lists: BYHOUR=8,12,16."""

_OF_A_DAY = frozenset({"BYHOUR", "BYMINUTE", "BYSECOND"})

_LIMITS = {
    "INTERVAL": (1, 9999),
    "COUNT": (1, 99_999),
    "BYMONTH": (1, 12),
    "BYMONTHDAY": (-31, 31),
    "BYYEARDAY": (-366, 366),
    "BYWEEKNO": (-53, 53),
}
"""Limits that dateutil does not check: it looks for the month 13 until the year 9999."""

_RULE_TEXT = re.compile(r"(RRULE:)?[A-Z]+=[A-Z0-9,+-]+(;[A-Z]+=[A-Z0-9,+-]+)*", re.ASCII)


def _zone(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise validation_error("must be a time zone such as Europe/Berlin or UTC")
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        close = find_close_name(value, available_timezones())
        raise validation_error(
            f"is no time zone{f'; did you mean {close}?' if close else ' such as Europe/Berlin'}"
        ) from None
    return value


Zone = Annotated[str, BeforeValidator(_zone), WithJsonSchema({"type": "string", "title": "time zone", "minLength": 1})]


def _country(value: object) -> str:
    hint = "; YAML reads a bare NO as false: write 'NO'" if value is False else ""
    match = re.fullmatch(r"([A-Z]{2})(-[\w .'-]+)?", value) if isinstance(value, str) else None
    if match is None:
        raise validation_error(f"must be a country by ISO 3166 such as DE, or a part of one such as DE-BY{hint}")
    # 8 MiB that only an agent with holidays needs.
    import holidays

    known = holidays.list_supported_countries(include_aliases=False)
    if match[1] not in known:
        meant = "GB" if match[1] == "UK" else find_close_name(match[1], known)
        raise validation_error(f"{match[1]} is no country of ISO 3166{f'; did you mean {meant}?' if meant else ''}")
    return match[0]


_COUNTRY = WithJsonSchema({"type": "string", "title": "country", "pattern": r"^[A-Z]{2}(-.+)?$"})

Country = Annotated[str, BeforeValidator(_country), _COUNTRY]


def _local_time(value: object) -> datetime:
    """Parse a local time. YAML itself parses an unquoted time."""
    given = value
    if isinstance(value, str):
        try:
            given = datetime.fromisoformat(value) if re.match(r"\d{4}-\d\d-\d\d", value) else None
        except ValueError:
            given = None
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day)
    if not isinstance(given, datetime):
        raise validation_error("must be a day or a time such as 2026-11-27 or 2026-11-27T08:00")
    if given.tzinfo is not None:
        raise validation_error("must have no offset: it is what the clock in forecast.zone shows")
    if given.year not in YEARS:
        raise validation_error(f"must be in a year from {YEARS[0]} to {YEARS[-1]}")
    return given


LocalTime = Annotated[
    datetime,
    BeforeValidator(_local_time),
    WithJsonSchema(
        {"type": "string", "title": "day or time", "pattern": r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?$"},
    ),
]
"""Time without a zone, by the clock in `forecast.zone`."""


def _recurrence(value: object) -> str:
    text = value.upper() if isinstance(value, str) else ""
    if not _RULE_TEXT.fullmatch(text):
        raise validation_error("must be a recurrence rule such as FREQ=WEEKLY;BYDAY=MO or FREQ=MONTHLY;BYMONTHDAY=1")
    pairs = [part.split("=") for part in text.removeprefix("RRULE:").split(";")]
    parts = dict(pairs)
    if parts.get("FREQ") not in _FREQUENCIES:
        raise validation_error(f"needs FREQ, one of {', '.join(_FREQUENCIES)} (more often than daily: BYHOUR=8,12,16)")
    if len(parts) < len(pairs) or {"COUNT", "UNTIL"} <= parts.keys():
        raise validation_error("has a part twice, or both COUNT and UNTIL")
    a_day = math.prod(len(set(parts[name].split(","))) for name in _OF_A_DAY & parts.keys())
    if a_day > MOST_A_DAY:
        raise validation_error(f"comes {a_day} times a day; at most {MOST_A_DAY}: one event may last longer")
    from dateutil.rrule import rrulestr

    try:
        rrulestr(text, dtstart=datetime(YEARS[0], 1, 1))
        wrong = [name for name in _LIMITS.keys() & parts.keys() if not _within(parts[name], *_LIMITS[name])]
    except (ValueError, OverflowError) as error:
        raise validation_error(f"is no recurrence rule of RFC 5545 in local time ({error})") from None
    if wrong:
        raise validation_error(f"{wrong[0]} of the rule is not as RFC 5545 has it")
    return text


def _within(numbers: str, low: int, high: int) -> bool:
    return all(low <= int(number) <= high and int(number) != 0 for number in numbers.split(","))


_RULE = WithJsonSchema({"type": "string", "title": "recurrence rule", "pattern": "FREQ="})

Recurrence = Annotated[str, BeforeValidator(_recurrence), _RULE]
"""RRULE of RFC 5545; `start` sets its beginning."""

Length = Annotated[Seconds, duration_range(60.0, 92 * DAY_SECONDS)]
"""Duration in seconds."""

Hold = Annotated[Seconds, duration_range(0.0, DAY_SECONDS)]


def _bin(value: object) -> float:
    # Single minutes would give too many bins for a day ahead.
    seconds = parse_seconds(value, 120.0, 3600.0)
    if seconds % 60 or 3600 % seconds:
        raise validation_error(
            f"must be whole minutes that an hour holds a whole number of, such as 2m, 5m or 15m, not {duration_text(seconds)}"
        )
    return seconds


Bin = Annotated[Seconds, BeforeValidator(_bin)]
"""Bin width in seconds."""


class EventConfig(ConfigSection):
    """Each entry is a known event with more or less traffic than usual."""

    name: Name = Field(description="What it is called.")
    start: LocalTime = Field(description="When it begins (the first time, where it comes again), by the clock in zone.")
    duration_seconds: Length = Field(description="How long it lasts, by the same clock.")
    factor: Annotated[float, Field(ge=0, le=1000)] = Field(
        description="Traffic that is expected by what is usual at that time: 3 is three times as much, 0 is none."
    )
    recurrence: Recurrence | None = Field(
        None, description="When it comes again, as an RRULE of RFC 5545, such as FREQ=MONTHLY;BYMONTHDAY=1."
    )


class ForecastConfig(ConfigSection):
    """Known future traffic, and the required certainty of capacity. The lead is the plan's cold_start_seconds, until
    enough cold starts were timed from the request for the replica."""

    enabled: bool = Field(True, description="Forecast in a process of its own, wherever a history is kept.")
    zone: Zone = Field("UTC", description="The clock that the users live by; days and weeks are cut by it.")
    country: Country | None = Field(
        None, description="Whose public holidays count as Sundays: DE, or DE-BY of a part of a country; default none."
    )
    events: Annotated[tuple[EventConfig, ...], Field(strict=False)] = Field((), description="Known events.")
    bin_seconds: Bin = Field(
        300.0,
        description="The traffic is forecast in sums over so long.",
    )
    quantile: Annotated[float, Field(ge=0.5, le=0.999)] | None = Field(
        None,
        description="Share of the time in which the forecast demand must be enough, where no costs say it; default what is "
        "worth its price by the lead (docs/prewarming.md).",
    )
    late_request_cost: dict[Text, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="By tier: what a request costs that comes while no replica has room for it, in the plan's currency.",
    )
    scale_down_hold_seconds: Hold | None = Field(
        None,
        description="Replicas are given up only when none of the time before needed them; default a lead and a minute, and "
        "never less: one that is given up earlier has not served.",
    )

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield events of one name."""
        for place, before in repeats(event.name for event in self.events):
            text = f"is that of events[{before}]; a time that comes again is one event with a recurrence"
            yield ("events", place, "name"), text
