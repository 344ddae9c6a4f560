"""Section `alerting`: delivery of alerts, and reception of alerts of other systems."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection, repeats
from agent.config.values import Entries, EnvironmentFileName, Seconds, Text, Timeout, duration_range
from exporters.alertmanager.payload import OWN_LABELS, AlertSettings
from rules.plan.validation import Contradictions

Resend = Annotated[Seconds, duration_range(1.0, 300.0)]
"""Seconds. An alert expires after four intervals, 20 minutes at most."""


class Alertmanager(PeerKeys):
    """Alertmanager to post alerts to. Each member of a cluster gets all alerts."""

    url: Url = Field(description="Its address, with the path it is served under; such as http://127.0.0.1:9093.")
    timeout_seconds: Timeout = Field(10.0, description="For one request.")


class WebhookConfig(ConfigSection):
    """POST /webhook/alertmanager: an Alertmanager webhook receiver for alerts of other systems."""

    bearer_token_file: EnvironmentFileName = Field(description="File with the token that the Alertmanager must send.")


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
        """Return the settings of posted alerts."""
        same = self.model_dump(include={"resend_seconds", "external_labels", "external_url"})
        return AlertSettings(**same, runbooks=self.runbook_url)

    def _contradictions(self) -> Contradictions:
        if self.path == "posts" and not self.alertmanagers:
            yield ("alertmanagers",), "is missing; path posts needs the url of at least one Alertmanager"
        if self.path == "rules" and self.alertmanagers:
            yield ("alertmanagers",), "is given, but path: rules posts nothing; write path: posts"
        for place, before in repeats(manager.url.rstrip("/") for manager in self.alertmanagers):
            text = f"has the url of alerting.alertmanagers[{before}]; each Alertmanager is posted to once"
            yield ("alertmanagers", place), text
        for name in self.external_labels:
            if name in OWN_LABELS or not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name, re.ASCII):
                text = f"is no name of a label, or one that alerts have already ({', '.join(sorted(OWN_LABELS))})"
                yield ("external_labels", name), text
