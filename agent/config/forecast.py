"""Section `forecast`: known future traffic. Only the forecast itself can check a subdivision of a country."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from itertools import islice
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, NaiveDatetime, WithJsonSchema

from agent.config.sections import ConfigSection, repeats
from agent.config.values import Entries, Name, Seconds, Text, duration_range, full_match
from agent.durations import duration_text
from rules.plan.validation import Contradictions, validation_error
from rules.telemetry.windows import DAY_SECONDS

# A rule is expanded from its start, so an early start is slow; no calendar goes beyond 9999.
EARLIEST, LATEST = datetime(2000, 1, 1), datetime(2200, 1, 1)
MOST_A_DAY = 24
"""Maximum number of occurrences per day: each is expanded, and bins are minutes long."""

_RULE_TEXT = re.compile(
    r"(RRULE:)?(?!.*INTERVAL=[0-])(?=.*FREQ=(YEARLY|MONTHLY|WEEKLY|DAILY)(;|$))[A-Z]+=[A-Z0-9,+-]+(;[A-Z]+=[A-Z0-9,+-]+)*",
    re.ASCII,
)


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise validation_error("is no time zone; write Europe/Berlin or UTC") from None
    return value


Zone = Annotated[str, Field(min_length=1, title="time zone"), AfterValidator(_zone)]


def _country(value: str) -> str:
    # 8 MiB that only an agent with holidays needs.
    import holidays

    known = holidays.list_supported_countries(include_aliases=False)
    if value[:2] not in known:
        raise validation_error(f"{value[:2]} is no country of ISO 3166 (the United Kingdom is GB)")
    return value


# YAML reads a bare NO as false.
_COUNTRY = full_match(r"[A-Z]{2}(-[\w .'-]+)?", "must be a country by ISO 3166 such as 'NO', or a part such as DE-BY")
Country = Annotated[str, Field(pattern="^[A-Z]{2}(-.+)?$", title="country"), AfterValidator(_country), _COUNTRY]

LocalTime = Annotated[
    NaiveDatetime,
    Field(strict=False, ge=EARLIEST, lt=LATEST),
    WithJsonSchema({"type": "string", "title": "day or time", "pattern": r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?$"}),
]
"""Time without a zone, by the clock in `forecast.zone`. YAML itself parses an unquoted time."""


def _recurrence(value: str) -> str:
    text = value.upper()
    names = re.findall(r"(\w+)=", text)
    is_doubtful = len(set(names)) < len(names) or {"COUNT", "UNTIL"} <= set(names)
    if is_doubtful or not _RULE_TEXT.fullmatch(text):
        more = "FREQ is YEARLY, MONTHLY, WEEKLY or DAILY, each part stands once, COUNT without UNTIL"
        raise validation_error(f"must be a recurrence rule such as FREQ=WEEKLY;BYDAY=MO; {more}")
    from dateutil.rrule import rrule, rrulestr

    try:
        rule = rrulestr(text, dtstart=EARLIEST)
        assert isinstance(rule, rrule)
        # dateutil looks for the month 13 until the year 9999; in 28 years every date of the calendar comes.
        bounded = rule.replace(until=datetime(2028, 1, 1), count=None)
        days = Counter(start.date() for start in islice(bounded, 1000))
    except (ValueError, OverflowError) as error:
        raise validation_error(f"is no recurrence rule of RFC 5545 in local time ({error})") from None
    most = max(days.values(), default=0)
    if not 1 <= most <= MOST_A_DAY:
        raise validation_error(f"comes {most} times a day; it must be 1 to {MOST_A_DAY}: one event may last longer")
    return text


Recurrence = Annotated[str, AfterValidator(_recurrence), Field(title="recurrence rule")]

Length = Annotated[Seconds, duration_range(60.0, 92 * DAY_SECONDS)]
Quantile = Annotated[float, Field(ge=0.5, le=0.999)]
Cost = Annotated[float, Field(gt=0)]
Hold = Annotated[Seconds, duration_range(0.0, DAY_SECONDS)]
# Single minutes would give too many bins for a day ahead.
Bin = Annotated[Seconds, duration_range(120.0, 3600.0)]


class EventConfig(ConfigSection):
    """Each entry is a known event with more or less traffic than usual."""

    name: Name = Field(description="What it is called.")
    start: LocalTime = Field(description="When it begins (the first time, where it comes again), by the clock in zone.")
    duration_seconds: Length = Field(description="How long it lasts, by the same clock.")
    factor: Annotated[float, Field(ge=0, le=1000)] = Field(description="Traffic by what is usual: 3 is three times.")
    recurrence: Recurrence | None = Field(None, description="RRULE of RFC 5545, such as FREQ=MONTHLY;BYMONTHDAY=1.")


class ForecastConfig(ConfigSection):
    """Known future traffic, and the required certainty of capacity. The lead is the plan's cold_start_seconds, until
    enough cold starts were timed from the request for the replica."""

    enabled: bool = Field(True, description="Forecast in a process of its own, wherever a history is kept.")
    zone: Zone = Field("UTC", description="The clock that the users live by; days and weeks are cut by it.")
    country: Country | None = Field(None, description="Whose holidays count as Sundays: DE, or DE-BY; default none.")
    events: Entries[EventConfig] = Field((), description="Known events.")
    bin_seconds: Bin = Field(300.0, description="The traffic is forecast in sums over so long.")
    quantile: Quantile | None = Field(None, description="Share of the time with enough capacity; default: by price.")
    late_request_cost: dict[Text, Cost] = Field(
        {}, description="By tier, in the plan's currency: a request without room."
    )
    scale_down_hold_seconds: Hold | None = Field(None, description="Time unneeded before it goes; least: lead and 1m.")

    def _contradictions(self) -> Contradictions:
        if self.bin_seconds % 60 or 3600 % self.bin_seconds:
            why = "must be whole minutes that an hour holds a whole number of, such as 2m, 5m or 15m"
            yield ("bin",), f"{why}, not {duration_text(self.bin_seconds)}"
        for place, before in repeats(event.name for event in self.events):
            text = f"is that of events[{before}]; a time that comes again is one event with a recurrence"
            yield ("events", place, "name"), text
