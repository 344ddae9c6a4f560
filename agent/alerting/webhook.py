"""Webhook for alerts of other systems: authentication, limits, payload parsing and the queue for the next cycle.

A payload (version 4) is used as a whole or not at all. Impossible times are replaced by the time of arrival.
Format: prometheus.io/docs/alerting/latest/configuration/#webhook_config (0.25; names in UTF-8: 0.27).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, FailFast, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from agent.http_server.credentials import Authenticator
from exporters.render.safe_text import quote_external_text
from exporters.status.records import WebhookHealth
from rules.evaluator.external_alerts import OURS, ExternalAlert

WEBHOOK_BYTES = 1024 * 1024
"""The longest body that is read."""

LONGEST_SUMMARY, LONGEST_LABEL = 300, 1_000
SUMMARIES = ("summary", "message", "title", "description")

AHEAD_SECONDS = 300.0
"""Tolerated clock difference of the sender. A later start becomes the time of arrival."""

MOST_WAITING = 5_000
"""Maximum number of alerts in the queue. A hanging cycle must not fill the memory."""

LabelName = Annotated[str, Field(max_length=200), AfterValidator(lambda t: t if t.isprintable() else repr(t)[1:-1])]
"""Invisible signs are written as their numbers: names that differ stay different."""


class _Alert(BaseModel):
    model_config = ConfigDict(strict=True)

    status: Literal["firing", "resolved"]
    labels: dict[LabelName, Annotated[str, Field(max_length=LONGEST_LABEL)]] = Field(max_length=64)
    annotations: dict[LabelName, str] = Field({}, max_length=64)
    starts_at: AwareDatetime = Field(alias="startsAt")
    ends_at: AwareDatetime = Field(alias="endsAt")


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    version: Literal["4"]
    alerts: Annotated[list[_Alert], FailFast()]
    left_out: int = Field(0, alias="truncatedAlerts", ge=0, lt=1_000_000)


def read(body: bytes, now: float) -> tuple[tuple[ExternalAlert, ...], int]:
    """Return the external alerts of a body received at `now` (unix seconds), and the number that its sender left out.

    Our own alerts, which come back, are ignored. Raise ValueError for an unusable body, without a part of it.
    """
    try:
        message = _Message.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # Deeper parts of the place may be names of labels.
        place = ".".join(map(str, problem["loc"][:3]))
        raise ValueError(": ".join(filter(None, (place, problem["msg"])))) from None
    alerts = (_external_alert(alert, now) for alert in message.alerts)
    return tuple(alert for alert in alerts if OURS not in alert.labels), message.left_out


def _external_alert(alert: _Alert, now: float) -> ExternalAlert:
    # Go's zero time is in the year 1.
    started_at, ended_at = (
        t if 0 < t <= now + AHEAD_SECONDS else now for t in (alert.starts_at.timestamp(), alert.ends_at.timestamp())
    )
    summary = next((alert.annotations[name] for name in SUMMARIES if alert.annotations.get(name)), "")
    return ExternalAlert(
        name=quote_external_text(alert.labels.get("alertname") or "alert without a name", 200),
        labels=tuple(sorted((name, quote_external_text(text, LONGEST_LABEL)) for name, text in alert.labels.items())),
        summary=quote_external_text(summary, LONGEST_SUMMARY),
        started_at=started_at,
        ended_at=max(started_at, ended_at) if alert.status == "resolved" else None,
        heard_at=now,
    )


class WebhookReceiver:
    """Receiver of webhook bodies from web server threads. `waiting` returns the queued alerts to a cycle.

    `gate` has the tokens of the next request. The queue and the counts of `before` go on.
    """

    def __init__(
        self, gate: Authenticator, clock: Callable[[], float] = time.time, before: WebhookReceiver | None = None
    ) -> None:
        self.gate = gate
        self._clock = clock
        self._lock: threading.Lock = before._lock if before else threading.Lock()
        self._waiting: deque[ExternalAlert] = before._waiting if before else deque()
        self._counts: Counter[str] = before._counts if before else Counter()
        self._refused: Counter[str] = before._refused if before else Counter()

    async def receive(self, request: Request) -> None:
        """Queue the alerts of a request for the next cycle. Raise HTTPException for one that is refused."""
        length = request.headers.get("content-length", "")
        if not self.gate.has_token(request.headers.get("authorization", "")):
            raise self._refusal(401, "credentials", "the webhook's token is needed")
        if not length:
            raise self._refusal(411, "length", "Content-Length is needed")
        if int(length) > WEBHOOK_BYTES:
            raise self._refusal(413, "length", f"a body of more than {WEBHOOK_BYTES} bytes is not read")
        try:
            await run_in_threadpool(self.take, await request.body())
        except ClientDisconnect:
            raise HTTPException(400, "the body ended before its announced length") from None
        except ValueError as error:
            raise self._refusal(400, "payload", f"the payload cannot be used: {error}") from None

    def take(self, body: bytes) -> None:
        """Queue the alerts of a body for the next cycle. Raise ValueError for one that cannot be used."""
        alerts, left_out = read(body, self._clock())
        with self._lock:
            room = max(0, MOST_WAITING - len(self._waiting))
            self._waiting.extend(alerts[:room])
            self._counts.update(taken=1, left_out=len(alerts[room:]) + left_out)

    def waiting(self) -> tuple[ExternalAlert, ...]:
        with self._lock:
            alerts = tuple(self._waiting)
            self._waiting.clear()
        return alerts

    def health(self, left_out: int = 0) -> WebhookHealth:
        """Return the counts since the start. `left_out` is the number of alerts dropped after the queue."""
        with self._lock:
            left_out += self._counts["left_out"]
            return WebhookHealth(taken=self._counts["taken"], refused=dict(self._refused), left_out=left_out)

    def _refusal(self, status: int, reason: str, text: str) -> HTTPException:
        with self._lock:
            self._refused[reason] += 1
        # What is left of a body is not read.
        headers = {"Connection": "close", **({"WWW-Authenticate": self.gate.challenge} if status == 401 else {})}
        return HTTPException(status, text, headers)
