"""Section `forecast`: known future traffic, and the value types of calendars.

Validation loads no forecast library, so its problems appear with all others. Only the forecast itself can check a
subdivision of a country.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator, Field, WithJsonSchema

from agent.config.values import (
    ConfigSection,
    Found,
    Name,
    Seconds,
    Text,
    duration_range,
    find_repeated_names,
    parse_seconds,
    validation_error,
)
from agent.durations import duration_text
from rules.problems import find_close_name

COUNTRIES = frozenset(
    re.findall(
        "[A-Z]{2}",
        """
        AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT
        BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH
        ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT
        HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS
        LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI
        NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG
        SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG
        UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW
        """,
    )
)
"""Country codes of ISO 3166-1, and XK."""

DAY_SECONDS = 86_400.0

YEARS = range(2000, 2200)
"""Valid years. A rule is expanded from its start, so an early start is slow; no calendar goes beyond 9999."""

MOST_A_DAY = 24
"""Maximum number of occurrences per day: each is expanded, and bins are minutes long."""

_RULE_PARTS = {
    "FREQ": "YEARLY|MONTHLY|WEEKLY|DAILY",
    "INTERVAL": "[1-9][0-9]{0,3}",
    "COUNT": "[1-9][0-9]{0,4}",
    "UNTIL": "[0-9]{8}(T[0-9]{6})?",
    "WKST": "MO|TU|WE|TH|FR|SA|SU",
    "BYMONTH": "0?[1-9]|1[0-2]",
    "BYMONTHDAY": "-?(0?[1-9]|[12][0-9]|3[01])",
    "BYDAY": "([+-]?[1-5]?[0-9])?(MO|TU|WE|TH|FR|SA|SU)",
    "BYYEARDAY": "-?[1-9][0-9]{0,2}",
    "BYWEEKNO": "-?[1-9][0-9]?",
    "BYSETPOS": "-?[1-9][0-9]{0,2}",
    "BYHOUR": "0?[0-9]|1[0-9]|2[0-3]",
    "BYMINUTE": "[0-5]?[0-9]",
    "BYSECOND": "[0-5]?[0-9]",
}
"""Patterns of RFC 5545, 3.3.10. Frequencies below a day are excluded (use BYHOUR). Lists are separated by commas."""

_EXPECTED = {
    "FREQ": "must be YEARLY, MONTHLY, WEEKLY or DAILY (more often than daily: add BYHOUR=8,12,16)",
    "UNTIL": "must be a day or a local time such as 20261231 or 20261231T180000, without Z",
    "BYDAY": "must be days such as MO,TU or 1MO (the first Monday) or -1FR (the last Friday)",
}

_OF_A_DAY = frozenset({"BYHOUR", "BYMINUTE", "BYSECOND"})

_SINGLE = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST"})


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
    found = re.fullmatch(r"([A-Z]{2})(-[\w .'-]+)?", value) if isinstance(value, str) else None
    if found is None:
        hint = "; YAML reads a bare NO as false: write 'NO'" if value is False else ""
        raise validation_error(f"must be a country by ISO 3166 such as DE, or a part of one such as DE-BY{hint}")
    if found[1] not in COUNTRIES:
        raise validation_error(
            f"{found[1]} is no country of ISO 3166{'; did you mean GB?' if found[1] == 'UK' else ''}"
        )
    return str(value)


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
    if not isinstance(value, str) or not value:
        raise validation_error("must be a recurrence rule such as FREQ=WEEKLY;BYDAY=MO or FREQ=MONTHLY;BYMONTHDAY=1")
    names: list[str] = []
    a_day = 1
    for part in value.upper().removeprefix("RRULE:").split(";"):
        name, equals, text = part.partition("=")
        if name not in _RULE_PARTS or not equals:
            known = find_close_name(name, _RULE_PARTS) or ", ".join(_RULE_PARTS)
            raise validation_error(f"has a part that no recurrence rule has; it may have {known}")
        texts = [text] if name in _SINGLE else text.split(",")
        if not all(re.fullmatch(_RULE_PARTS[name], one, re.ASCII) for one in texts):
            raise validation_error(f"{name} of the rule {_EXPECTED.get(name, 'is not as RFC 5545 has it')}")
        names.append(name)
        a_day *= len(set(texts)) if name in _OF_A_DAY else 1
    if "FREQ" not in names:
        raise validation_error("has no FREQ; write one, such as FREQ=WEEKLY;BYDAY=MO")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise validation_error(f"has {twice} twice")
    if {"COUNT", "UNTIL"} <= set(names):
        raise validation_error("has COUNT and UNTIL; only one of them may end it")
    if a_day > MOST_A_DAY:
        raise validation_error(f"comes {a_day} times a day; at most {MOST_A_DAY}: one event may last longer")
    return value.upper()


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


def find_repeated_events(data: Mapping[str, Any]) -> Found:
    text = "is that of events[{}]; a time that comes again is one event with a recurrence"
    return find_repeated_names(data, ("forecast", "events"), text)
