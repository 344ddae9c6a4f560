"""The webhook that other systems' alerts come in by: who may send, how often, how much; and where they wait for a turn.

Owns the order of refusals, cheapest first: no token, the wrong kind or length of body, too often, not sound. A refused
request changes nothing but a count. It knows no socket (`agent.http_server.server` does) and no tier (`agent.alerting.foreign`
does).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from agent.alerting.payload import PayloadError, read
from agent.http_server.credentials import Authenticator
from agent.http_server.options import WEBHOOK_BYTES
from exporters.status.records import WebhookHealth
from rules.evaluator.external_alerts import ExternalAlert

PER_SECOND = 10.0
BURST = 100.0
"""Requests at once, and a second for long: one is sent for each group of alerts and `group_interval`."""

MOST_WAITING = 5_000
"""Alerts that wait for a turn; a turn that hangs must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRejection:
    """An answer other than 200: the status line and one sentence."""

    status: str
    reason: str
    text: str


class TokenBucket:
    """Lets `burst` through at once and `per_second` for long. `seconds` is any clock that does not go back."""

    def __init__(self, per_second: float, burst: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst = per_second, burst
        self._seconds = seconds
        self._left, self._at = burst, seconds()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether one more may pass now."""
        with self._lock:
            now = self._seconds()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class WebhookReceiver:
    """Takes bodies from the web server's threads; `waiting` gives a turn what came since the last."""

    def __init__(
        self, gate: Authenticator, clock: Callable[[], float] = time.time, bucket: TokenBucket | None = None
    ) -> None:
        if gate.open:
            raise ValueError("a webhook without credentials would take alerts from anybody")
        self._gate = gate
        self._clock = clock
        self._bucket = bucket or TokenBucket(PER_SECOND, BURST)
        self._lock = threading.Lock()
        self._waiting: deque[ExternalAlert] = deque()
        self._successor: WebhookReceiver | None = None
        self._taken = self._own = self._left_out = 0
        self._refused: Counter[str] = Counter()

    @property
    def challenges(self) -> tuple[str, ...]:
        return self._gate.challenges

    def refuses(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        """Why a request is refused before a byte of its body is read; None where it may be."""
        found = self._refusal(authorization, content_type, content_encoding, length)
        if found is not None:
            self._count(found.reason)
        return found

    def _refusal(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        if not self._gate.admits(authorization):
            return WebhookRejection(
                status="401 Unauthorized", reason="credentials", text="the webhook's token is needed"
            )
        if not length.isdecimal():
            return WebhookRejection(status="411 Length Required", reason="length", text="Content-Length is needed")
        if len(length) > 12 or int(length) > WEBHOOK_BYTES:
            text = f"a body of more than {WEBHOOK_BYTES} bytes is not read"
            return WebhookRejection(status="413 Content Too Large", reason="too_large", text=text)
        if content_type.partition(";")[0].strip().lower() != "application/json" or content_encoding:
            text = "only application/json, not compressed"
            return WebhookRejection(status="415 Unsupported Media Type", reason="content_type", text=text)
        if not self._bucket.take():
            text = f"more than {PER_SECOND:.0f} requests a second"
            return WebhookRejection(status="429 Too Many Requests", reason="rate", text=text)
        return None

    def take(self, body: bytes) -> WebhookRejection | None:
        """The alerts of a body wait for the next turn; or why none of them does."""
        try:
            alerts, own = read(body, self._clock())
        except PayloadError as bad:
            self._count("payload")
            return WebhookRejection(
                status="400 Bad Request", reason="payload", text=f"the payload cannot be used: {bad}"
            )
        with self._lock:
            if self._successor is None:
                room = max(0, MOST_WAITING - len(self._waiting))
                self._waiting.extend(alerts[:room])
                self._left_out += len(alerts[room:])
                self._taken += 1
                self._own += own
                return None
        # The configuration changed while this body was on its way.
        return self._successor.take(body)

    def waiting(self) -> tuple[ExternalAlert, ...]:
        """What came since this was last asked, in the order of arrival."""
        with self._lock:
            found = tuple(self._waiting)
            self._waiting.clear()
        return found

    def health(self, left_out: int = 0) -> WebhookHealth:
        """The counts since the start; `left_out` are those that found no place further on."""
        with self._lock:
            return WebhookHealth(
                taken=self._taken, refused=dict(self._refused), own=self._own, left_out=self._left_out + left_out
            )

    def take_over(self, before: WebhookReceiver) -> None:
        """The counts of another one, what waits in it, and what it is given from now on."""
        with self._lock, before._lock:
            before._successor = self
            self._waiting.extendleft(reversed(before._waiting))
            before._waiting.clear()
            self._taken += before._taken
            self._own += before._own
            self._left_out += before._left_out
            self._refused.update(before._refused)

    def _count(self, reason: str) -> None:
        with self._lock:
            self._refused[reason] += 1
