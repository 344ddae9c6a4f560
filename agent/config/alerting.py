"""Section `alerting`: delivery of alerts, and reception of alerts of other systems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from agent.config.values import (
    BasicAuth,
    ConfigSection,
    EnvironmentFileName,
    Found,
    Resend,
    Text,
    Timeout,
    TlsConfig,
    Url,
    as_mapping,
    credential_options,
    list_entries,
)
from agent.http_client.options import TargetOptions
from exporters.alertmanager.payload import OWN_LABELS, AlertSettings
from rules.plan.validation import path_text


class Alertmanager(ConfigSection):
    """Alertmanager to post alerts to. Each member of a cluster gets all alerts."""

    url: Url = Field(description="Its address, with the path it is served under; such as http://127.0.0.1:9093.")
    timeout_seconds: Timeout = Field(10.0, description="For one request.")
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    def options(self, path: str) -> TargetOptions:
        """Return the connection options for `path`."""
        return TargetOptions(
            url=self.url.rstrip("/") + path,
            timeout_seconds=self.timeout_seconds,
            **credential_options(self),
        )


class WebhookConfig(ConfigSection):
    """POST /webhook/alertmanager: an Alertmanager webhook receiver for alerts of other systems."""

    bearer_token_file: EnvironmentFileName = Field(
        description="File with the token that the Alertmanager must send; it reads no page."
    )


class AlertingConfig(ConfigSection):
    """Alert delivery, on one path for the installation, and reception of external alerts."""

    path: Literal["rules", "posts"] = Field(
        "rules", description="rules: Prometheus alerts by the rule files; posts: this agent posts to Alertmanager."
    )
    alertmanagers: Annotated[tuple[Alertmanager, ...], Field(strict=False)] = Field(
        (), description="Where to post, for path posts."
    )
    resend_seconds: Resend = Field(
        60.0,
        description="How often an alert that fires is posted again; not posted for four times as long it ends.",
    )
    external_labels: dict[str, Text] = Field({}, description="Labels that every posted alert gets, such as cluster.")
    external_url: Url | None = Field(None, description="The status page's address for people, linked from alerts.")
    runbook_url: Url | None = Field(
        None, description="A page with the runbooks, linked from alerts in place of /runbooks/ at external_url."
    )
    receiver: WebhookConfig | None = None

    def settings(self) -> AlertSettings:
        """Return the settings of posted alerts."""
        return AlertSettings(
            resend_seconds=self.resend_seconds,
            external_labels=self.external_labels,
            external_url=self.external_url,
            runbooks=self.runbook_url,
        )


def find_alert_path_contradictions(data: Mapping[str, Any]) -> Found:
    several = dict(list_entries(data, ("alerting", "alertmanagers")))
    path = as_mapping(data.get("alerting")).get("path", "rules")
    if path == "posts" and not several:
        yield ("alerting", "alertmanagers"), "is missing; path posts needs the url of at least one Alertmanager"
    if path == "rules" and several:
        yield ("alerting", "alertmanagers"), "is given, but path: rules posts nothing; write path: posts"
    first: dict[str, str] = {}
    for place, one in several.items():
        url = one.get("url")
        if isinstance(url, str) and first.setdefault(url.rstrip("/"), path_text(place)) != path_text(place):
            yield place, f"has the url of {first[url.rstrip('/')]}; each Alertmanager is posted to once"


def find_wrong_external_labels(data: Mapping[str, Any]) -> Found:
    for name in as_mapping(as_mapping(data.get("alerting")).get("external_labels")):
        path = ("alerting", "external_labels", str(name))
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", str(name), re.ASCII) or str(name).startswith("__"):
            yield path, "is no label name (letters, digits and _, not beginning with a digit or __)"
        elif name in OWN_LABELS:
            yield path, f"is a label that alerts have already; they are {', '.join(sorted(OWN_LABELS))}"
