"""Section `report`: schedule, storage and recipients of the weekly report.

A destination's address is a secret, so keys name its file or environment variable and never read it.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from agent.config.forecast import Zone
from agent.config.sections import ConfigSection, repeats
from agent.config.values import Entries, EnvironmentFileName, FileName, Seconds, duration_range, full_match
from rules.plan.validation import Contradictions

DAY = 86_400.0

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[str, ...] = get_args(Weekday)
Part = Literal["report", "markdown", "json", "plan"]

# YAML 1.1 reads an unquoted 17:00 as a base-60 number.
_TIME = full_match("([01][0-9]|2[0-3]):[0-5][0-9]", 'must be a time of the day such as "07:00", in quotes')
At = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$", title="time of the day"), _TIME]
Variable = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", title="environment variable")]
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", title="name")]
Since = Annotated[Seconds, duration_range(3600.0, 91 * DAY)]
"""Seconds, at most the retention of the history."""
RetryFor = Annotated[Seconds, duration_range(60.0, 7 * DAY)]


class Destination(ConfigSection):
    """Each entry is a recipient of the report. Its address is a secret, in a file or an environment variable."""

    name: Name = Field(description="What it is called on pages, in metrics and in the log.")
    url_file: EnvironmentFileName | None = Field(None, description="File that holds its address as an Apprise URL.")
    url_env: Variable | None = Field(None, description="Environment variable that holds it instead.")
    attached: Entries[Part] = Field(
        ("report",),
        alias="with",
        description="What goes along, where the service takes attachments: report (HTML), markdown, json, plan.",
        json_schema_extra={"default": ["report"]},
    )

    def _contradictions(self) -> Contradictions:
        if (self.url_file is None) == (self.url_env is None):
            yield (), "needs url_file or url_env, one of them: where its address is read from"


class ReportConfig(ConfigSection):
    """The weekly re-size report of the daemon, if a history is kept."""

    enabled: bool = Field(True, description="Write it every week, in a process of its own.")
    weekday: Weekday = Field("monday", description="The day on which it is written.")
    at: At = Field("07:00", description="The time of that day.")
    zone: Zone | None = Field(None, description="The clock of that time; default forecast.zone.")
    since_seconds: Since = Field(7 * DAY, description="How far back it looks.")
    directory: FileName | None = Field(None, description="Where reports stand, by date; default reports in data_dir.")
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(26, description="How many are kept; the oldest go.")
    retry_seconds: RetryFor = Field(DAY, alias="retry_for", description="How long a failed delivery is tried again.")
    deliver: Entries[Destination] = Field((), description="To whom it is sent.")

    def _contradictions(self) -> Contradictions:
        for place, before in repeats(entry.name for entry in self.deliver):
            yield ("deliver", place, "name"), f"is that of deliver[{before}]; give each its own name"
