"""Sections `alerting` and `report`: what is sent to whom, and the alerts of other systems that are received.

The address of a report's recipient is a secret, so keys name its file or environment variable and never read it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import Field

from agent.config.forecast import Zone
from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection, repeats
from agent.config.values import Entries, ExpandedFile, FileName, Seconds, Text, Timeout, duration_range, full_match
from exporters.alertmanager.payload import OWN_LABELS, AlertSettings
from rules.plan.validation import Contradictions
from rules.telemetry.windows import DAY_SECONDS

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[str, ...] = get_args(Weekday)
Part = Literal["report", "markdown", "json", "plan"]
Parts = Annotated[Entries[Part], Field(json_schema_extra={"default": ["report"]})]

# YAML 1.1 reads an unquoted 17:00 as a base-60 number.
_TIME = full_match("([01][0-9]|2[0-3]):[0-5][0-9]", 'must be a time of the day such as "07:00", in quotes')
At = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$", title="time of the day"), _TIME]
Variable = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", title="environment variable")]
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", title="name")]
Since = Annotated[Seconds, duration_range(3600.0, 91 * DAY_SECONDS)]
RetryFor = Annotated[Seconds, duration_range(60.0, 7 * DAY_SECONDS)]
Resend = Annotated[Seconds, duration_range(1.0, 300.0)]


class Alertmanager(PeerKeys):
    """Alertmanager to post alerts to. Each member of a cluster gets all alerts."""

    url: Url = Field(description="Its address, with the path it is served under; such as http://127.0.0.1:9093.")
    timeout_seconds: Timeout = Field(10.0, description="For one request.")


class WebhookConfig(ConfigSection):
    """POST /webhook/alertmanager: an Alertmanager webhook receiver for alerts of other systems."""

    bearer_token_file: ExpandedFile = Field(description="File with the token that the Alertmanager must send.")


class AlertingConfig(ConfigSection):
    """Alert delivery, on one path for the installation, and reception of external alerts."""

    path: Literal["rules", "posts"] = Field("rules", description="rules: Prometheus alerts; posts: this agent posts.")
    alertmanagers: Entries[Alertmanager] = Field((), description="For path posts.")
    resend_seconds: Resend = Field(60.0, description="How often an alert is posted again; it ends after four times.")
    external_labels: dict[str, Text] = Field({}, description="Labels that every posted alert gets, such as cluster.")
    external_url: Url | None = Field(None, description="The status page's address for people, linked from alerts.")
    runbook_url: Url | None = Field(None, description="A page with runbooks, in place of external_url's /runbooks/.")
    receiver: WebhookConfig | None = None

    def settings(self) -> AlertSettings:
        same = self.model_dump(include={"resend_seconds", "external_labels", "external_url"})
        return AlertSettings(**same, runbooks=self.runbook_url)

    def _contradictions(self) -> Contradictions:
        if self.path == "posts" and not self.alertmanagers:
            yield ("alertmanagers",), "is missing; path posts needs the url of at least one Alertmanager"
        if self.path == "rules" and self.alertmanagers:
            yield ("alertmanagers",), "is given, but path: rules posts nothing; write path: posts"
        if re.search(r"[?#]", self.external_url or ""):
            yield ("external_url",), "must have no ? or #: alerts add a path to it"
        for place, before in repeats(manager.url.rstrip("/") for manager in self.alertmanagers):
            text = f"has the url of alerting.alertmanagers[{before}]; each Alertmanager is posted to once"
            yield ("alertmanagers", place), text
        for name in self.external_labels:
            if name in OWN_LABELS or not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name, re.ASCII):
                text = f"is no name of a label, or one that alerts have already ({', '.join(sorted(OWN_LABELS))})"
                yield ("external_labels", name), text


class Destination(ConfigSection):
    """Recipient of the report. Its address is a secret, in a file or an environment variable."""

    name: Name = Field(description="What it is called on pages, in metrics and in the log.")
    url_file: ExpandedFile | None = Field(None, description="File that holds its address as an Apprise URL.")
    url_env: Variable | None = Field(None, description="Environment variable that holds it instead.")
    attached: Parts = Field(("report",), alias="with", description="What goes along; report is the HTML.")

    def _contradictions(self) -> Contradictions:
        if (self.url_file is None) == (self.url_env is None):
            yield (), "needs url_file or url_env, one of them: where its address is read from"


class ReportConfig(ConfigSection):
    """The weekly re-size report of the daemon, if a history is kept."""

    enabled: bool = Field(True, description="Write it every week, in a process of its own.")
    weekday: Weekday = Field("monday", description="The day on which it is written.")
    at: At = Field("07:00", description="The time of that day.")
    zone: Zone | None = Field(None, description="The clock of that time; default forecast.zone.")
    since_seconds: Since = Field(7 * DAY_SECONDS, description="How far back it looks.")
    directory: FileName | None = Field(None, description="Where reports stand, by date; default reports in data_dir.")
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(26, description="How many are kept; the oldest go.")
    retry_seconds: RetryFor = Field(
        DAY_SECONDS, alias="retry_for", description="How long a failed delivery is tried again."
    )
    deliver: Entries[Destination] = Field((), description="To whom it is sent.")

    def _contradictions(self) -> Contradictions:
        for place, before in repeats(entry.name for entry in self.deliver):
            yield ("deliver", place, "name"), f"is that of deliver[{before}]; give each its own name"
