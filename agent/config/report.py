"""Section `report`: schedule, storage and recipients of the weekly report.

A destination's address is a secret, so keys name its file or environment variable and never read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from agent.config.forecast import Zone
from agent.config.values import (
    ConfigSection,
    EnvironmentFileName,
    FileName,
    Found,
    Seconds,
    as_mapping,
    duration_range,
    find_repeated_names,
    full_match,
    validation_error,
)

HOUR, DAY = 3600.0, 86_400.0

LONGEST = 91 * DAY
"""Longest report in seconds: the retention of the history."""

WRITING_ROLES = ("standalone", "fleet")
"""Roles with the history a report needs."""

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def _refuse_picture(part: object) -> object:
    if part == "picture":
        raise validation_error("must not be picture: a report has none; report (HTML) has the charts")
    return part


Part = Annotated[Literal["report", "markdown", "json", "plan"], BeforeValidator(_refuse_picture)]


def _text(title: str, pattern: str) -> Any:
    return WithJsonSchema({"type": "string", "title": title, "pattern": pattern})


At = Annotated[
    str,
    # YAML 1.1 reads an unquoted 07:00 as a base-60 number.
    full_match(r"([01][0-9]|2[0-3]):[0-5][0-9]", 'must be a time of the day such as "07:00", in quotes'),
    _text("time of the day", r"^([01][0-9]|2[0-3]):[0-5][0-9]$"),
]
Variable = Annotated[
    str,
    full_match(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "must be the name of an environment variable; the address itself stands in that variable",
    ),
    _text("environment variable", r"^[A-Za-z_][A-Za-z0-9_]*$"),
]
Name = Annotated[
    str,
    full_match(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}",
        "must be a name of letters, digits, - _ and . (at most 63); it stands on pages, never the address",
    ),
    _text("name", r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"),
]
Since = Annotated[Seconds, duration_range(HOUR, LONGEST)]

RetryFor = Annotated[Seconds, duration_range(60.0, 7 * DAY)]


class Destination(ConfigSection):
    """Each entry is a recipient of the report. Its address is a secret and comes from a file or an environment
    variable."""

    name: Name = Field(description="What it is called on pages, in metrics and in the log.")
    url_file: EnvironmentFileName | None = Field(
        None, description="File that holds its address, as Apprise writes them: mailtos://..., slack://..., json://..."
    )
    url_env: Variable | None = Field(None, description="Environment variable that holds it instead.")
    attached: Annotated[tuple[Part, ...], Field(strict=False)] = Field(
        ("report",),
        alias="with",
        description="What goes along, where the service takes attachments: report (HTML), markdown, json, plan.",
        json_schema_extra={"default": ["report"]},
    )

    @model_validator(mode="after")
    def _one_address(self) -> Destination:
        if (self.url_file is None) == (self.url_env is None):
            raise validation_error("needs url_file or url_env, one of them: where its address is read from")
        return self


class ReportConfig(ConfigSection):
    """The weekly re-size report of the daemon, if a history is kept."""

    enabled: bool = Field(True, description="Write it every week, in a process of its own.")
    weekday: Weekday = Field("monday", description="The day on which it is written.")
    at: At = Field("07:00", description="The time of that day.")
    zone: Zone | None = Field(None, description="The clock of that time; default forecast.zone.")
    since_seconds: Since = Field(7 * DAY, description="How far back it looks.")
    directory: FileName | None = Field(
        None, description="Where reports stand, each in a folder of its date; default reports in data_dir."
    )
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(26, description="How many are kept; the oldest go.")
    retry_seconds: RetryFor = Field(
        DAY,
        alias="retry_for",
        description="A delivery that fails is tried again, ever more rarely, for so long.",
    )
    deliver: Annotated[tuple[Destination, ...], Field(strict=False)] = Field((), description="To whom it is sent.")


def find_report_of_node(data: Mapping[str, Any]) -> Found:
    report, role = as_mapping(data.get("report")), data.get("role")
    if role == "node" and report and report.get("enabled") is not False:
        why = f"is given, but role {role} writes no report: it lacks the history of weeks; move it to role standalone or fleet"
        yield ("report",), why


def find_repeated_destinations(data: Mapping[str, Any]) -> Found:
    return find_repeated_names(data, ("report", "deliver"), "is that of deliver[{}]; give each its own name")
