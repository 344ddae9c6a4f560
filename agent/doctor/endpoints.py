"""What the doctor says of alerts: does each Alertmanager answer with these credentials, can the webhook's token be used?

Owns looking and judging of this one part, which few installations have; nothing is posted. How findings are worded and
counted is `agent.doctor.check_result`'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.config.keys import Config
from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok
from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from agent.http_client.error_text import place_of
from agent.http_client.pages import JSON, PageFetcher
from agent.http_client.target_options import TargetOptions
from agent.http_server.credentials import token_gate
from agent.http_server.options import WEBHOOK
from exporters.render.text import quote_external_text

STATUS = "/api/v2/status"

ADDRESS = "mend its url in alerting.alertmanagers: it is what /api/v2 stands under"

ALERTING_ADVICE: Mapping[ScrapeFailure, str] = {
    ScrapeFailure.CONNECT: "start it, or mend its url in alerting.alertmanagers",
    ScrapeFailure.TIMEOUT: "see what it is busy with, or raise its timeout in alerting.alertmanagers",
    ScrapeFailure.AUTH: "give what it asks for in alerting.alertmanagers: bearer_token_file or basic_auth",
    ScrapeFailure.TLS: "mend its tls or url in alerting.alertmanagers",
    ScrapeFailure.HTTP_STATUS: f"look into its log, or {ADDRESS}",
}
"""What to do by what failed; with every other failure it is not the address of an Alertmanager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerProbe:
    """One Alertmanager: its version, or why it gave none."""

    place: str
    version: str = ""
    trouble: str = ""
    failure: ScrapeFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingProbe:
    """All that was looked at; `receives` says whether there is a webhook."""

    alertmanagers: tuple[AlertmanagerProbe, ...] = ()
    receives: bool = False
    token_troubles: tuple[str, ...] = ()


def probe_alerting(config: Config) -> AlertingProbe:
    """Asks each Alertmanager for its status, one after the other, and reads the webhook's token."""
    alerting = config.alerting
    troubles: tuple[str, ...] = ()
    if alerting.receiver is not None:
        try:
            token_gate("alerting.receiver.bearer_token_file", alerting.receiver.bearer_token_file)
        except ConfigError as bad:
            troubles = bad.problems
    return AlertingProbe(
        alertmanagers=tuple(_alertmanager(one.options(STATUS)) for one in alerting.alertmanagers),
        receives=alerting.receiver is not None,
        token_troubles=troubles,
    )


def _alertmanager(options: TargetOptions) -> AlertmanagerProbe:
    place, fetcher = place_of(options.url).removesuffix(STATUS), PageFetcher(options, JSON)
    try:
        version = json.loads(fetcher.fetch())["versionInfo"]["version"]
    except ScrapeError as error:
        return AlertmanagerProbe(place=place, trouble=error.text, failure=error.kind)
    except (ValueError, KeyError, TypeError, RecursionError):
        return AlertmanagerProbe(place=place, trouble=f"{place} does not answer as Alertmanager's API v2 does")
    finally:
        fetcher.close()
    return AlertmanagerProbe(place=place, version=quote_external_text(str(version), 40))


def check_alerting(seen: AlertingProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    """A line for each Alertmanager, and one for the webhook."""
    for one in seen.alertmanagers:
        if one.trouble:
            advice = ALERTING_ADVICE.get(one.failure, ADDRESS) if one.failure else ADDRESS
            yield fail("alerting", one.trouble, f"{advice}; alerts reach nobody by it")
        else:
            yield ok("alerting", f"{one.place}: Alertmanager {one.version}")
    for trouble in seen.token_troubles:
        yield fail("alerting", trouble, "put a token of at least 16 characters into it, the same in Alertmanager")
    if seen.receives and not seen.token_troubles:
        yield ok("alerting", f"alerts of others are taken at {WEBHOOK}")
