"""Webhook for alerts of other systems: authentication, limits, payload parsing and the queue for the next cycle.

Refusals are checked cheapest first: token, length and type of the body, payload. A refused request changes only a
counter. A payload (version 4) is used as a whole or not at all. Impossible times are replaced by the time of arrival.
Format: prometheus.io/docs/alerting/latest/configuration/#webhook_config, checked with Alertmanager 0.25.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, FailFast, Field, StringConstraints, ValidationError

from agent.http_server.credentials import Authenticator
from agent.http_server.interfaces import WEBHOOK_BYTES, WebhookRejection
from exporters.status.records import WebhookHealth
from rules.evaluator.external_alerts import OURS, ExternalAlert

LONGEST_SUMMARY = 300
SUMMARIES = ("summary", "message", "title", "description")

AHEAD_SECONDS = 300.0
"""Tolerated clock difference of the sender in seconds. A later start is replaced by the time of arrival."""

MOST_WAITING = 5_000
"""Maximum number of alerts in the queue. A hanging cycle must not fill the memory."""

_STATUSES = {"credentials": 401, "length": 411, "too_large": 413, "content_type": 415, "payload": 400}
"""HTTP status by the reason of a rejection."""

LabelName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=200)]


class _Alert(BaseModel):
    model_config = ConfigDict(strict=True)

    status: Literal["firing", "resolved"]
    labels: dict[LabelName, Annotated[str, StringConstraints(max_length=1_000)]] = Field(max_length=64)
    annotations: dict[LabelName, str] = Field({}, max_length=64)
    starts_at: AwareDatetime = Field(alias="startsAt")
    ends_at: AwareDatetime = Field(alias="endsAt")


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    version: Literal["4"]
    alerts: Annotated[list[_Alert], FailFast()]
    left_out: int = Field(0, alias="truncatedAlerts", ge=0, lt=1_000_000)


class Payload(NamedTuple):
    """External alerts of a body, the number of our own, and of those that its sender left out for its size."""

    alerts: tuple[ExternalAlert, ...]
    own: int
    left_out: int


def read(body: bytes, now: float) -> Payload:
    """Return the alerts of a body received at `now` (unix seconds).

    Raise ValueError for an unusable body. Its text names the place and quotes nothing of the body.
    """
    try:
        message = _Message.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # Deeper parts of the place may be names of labels.
        place = ".".join(map(str, problem["loc"][:3]))
        text = "not JSON" if problem["type"] == "json_invalid" else problem["msg"]
        raise ValueError(f"{place}: {text}" if place else text) from None
    alerts = [_external_alert(alert, number, now) for number, alert in enumerate(message.alerts)]
    foreign = tuple(alert for alert in alerts if OURS not in alert.labels)
    return Payload(foreign, len(alerts) - len(foreign), message.left_out)


def _external_alert(alert: _Alert, number: int, now: float) -> ExternalAlert:
    if not alert.labels.get("alertname"):
        raise ValueError(f"alerts.{number}.labels: alertname is missing")
    # Go's zero time is in the year 1.
    started_at, ended_at = (
        t if 0 < t <= now + AHEAD_SECONDS else now for t in (alert.starts_at.timestamp(), alert.ends_at.timestamp())
    )
    summary = next((alert.annotations[name] for name in SUMMARIES if alert.annotations.get(name)), "")
    return ExternalAlert(
        name=_plain(alert.labels["alertname"])[:200],
        labels=tuple(sorted((name, _plain(text)) for name, text in alert.labels.items())),
        summary=_plain(summary)[:LONGEST_SUMMARY],
        started_at=started_at,
        ended_at=max(started_at, ended_at) if alert.status == "resolved" else None,
        heard_at=now,
    )


def _plain(text: str) -> str:
    """Return the text as one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class WebhookReceiver:
    """Receiver of webhook bodies from web server threads. `waiting` returns the queued alerts to a cycle.

    `gate` has the tokens of the next request.
    """

    def __init__(self, gate: Authenticator, clock: Callable[[], float] = time.time) -> None:
        if gate.open:
            raise ValueError("a webhook without credentials would take alerts from anybody")
        self.gate = gate
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[ExternalAlert] = deque()
        self._taken = self._own = self._left_out = 0
        self._refused: Counter[str] = Counter()

    @property
    def challenges(self) -> tuple[str, ...]:
        return self.gate.challenges

    def refuses(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        """Return the reason to refuse a request before its body is read. Return None to accept it."""
        if not self.gate.has_token(authorization):
            return self._reject("credentials", "the webhook's token is needed")
        if not length.isdecimal():
            return self._reject("length", "Content-Length is needed")
        if len(length) > 12 or int(length) > WEBHOOK_BYTES:
            return self._reject("too_large", f"a body of more than {WEBHOOK_BYTES} bytes is not read")
        if content_type.partition(";")[0].strip().lower() != "application/json" or content_encoding:
            return self._reject("content_type", "only application/json, not compressed")
        return None

    def take(self, body: bytes) -> WebhookRejection | None:
        """Queue the alerts of a body for the next cycle. Return the reason if the body is refused."""
        try:
            payload = read(body, self._clock())
        except ValueError as error:
            return self._reject("payload", f"the payload cannot be used: {error}")
        with self._lock:
            room = max(0, MOST_WAITING - len(self._waiting))
            self._waiting.extend(payload.alerts[:room])
            self._left_out += len(payload.alerts[room:]) + payload.left_out
            self._taken += 1
            self._own += payload.own
        return None

    def waiting(self) -> tuple[ExternalAlert, ...]:
        """Return and clear the queue, in order of arrival."""
        with self._lock:
            alerts = tuple(self._waiting)
            self._waiting.clear()
        return alerts

    def health(self, left_out: int = 0) -> WebhookHealth:
        """Return the counts since the start. `left_out` is the number of alerts dropped after the queue."""
        with self._lock:
            return WebhookHealth(
                taken=self._taken, refused=dict(self._refused), own=self._own, left_out=self._left_out + left_out
            )

    def _reject(self, reason: str, text: str) -> WebhookRejection:
        with self._lock:
            self._refused[reason] += 1
        return WebhookRejection(status=_STATUSES[reason], reason=reason, text=text)
