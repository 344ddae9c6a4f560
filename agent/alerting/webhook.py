"""Webhook for alerts of other systems: authentication, limits, payload parsing and the queue for the next cycle.

Refusals are checked cheapest first: token, length and type of the body, rate, payload. A refused request changes only a
counter. A payload (version 4) is used as a whole or not at all. Names, labels and summary are truncated. Impossible
times are replaced by the time of arrival. Format: prometheus.io/docs/alerting/latest/configuration/#webhook_config,
checked with Alertmanager 0.25.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from agent.http_server.credentials import Authenticator
from agent.http_server.interfaces import WEBHOOK_BYTES, WebhookRejection
from exporters.status.records import WebhookHealth
from rules.evaluator.external_alerts import OURS, ExternalAlert

VERSION = "4"
MOST_PARTS = 20_000
"""Maximum number of brackets in one body. A real alert has three. A body with more is not parsed."""

MOST_ALERTS = 1_000
MOST_TRUNCATED = 1_000_000
MOST_LABELS = 64
LONGEST_NAME = 200
LONGEST_VALUE = 1_000
LONGEST_SUMMARY = 300
LONGEST_LABELS = 4_096
"""Characters of all labels of one alert: 5,000 of them wait at most."""

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
SUMMARIES = ("summary", "message", "title", "description")

AHEAD_SECONDS = 300.0
"""Tolerated clock difference of the sender in seconds. A later start is replaced by the time of arrival."""

PER_SECOND = 10.0
BURST = 100.0
"""Request limits: BURST at once, PER_SECOND sustained. Each alert group is a request per `group_interval`."""

MOST_WAITING = 5_000
"""Maximum number of alerts in the queue. A hanging cycle must not fill the memory."""

_STATUSES = {
    "credentials": 401,
    "length": 411,
    "too_large": 413,
    "content_type": 415,
    "rate": 429,
    "payload": 400,
}
"""HTTP status by the reason of a rejection."""


class PayloadError(Exception):
    """Unusable body. The message quotes nothing of it."""


class Payload(NamedTuple):
    """External alerts of a body, the number of our own, and of those that it or we left out for its size."""

    alerts: tuple[ExternalAlert, ...]
    own: int
    left_out: int


def read(body: bytes, now: float) -> Payload:
    """Return the alerts of a body received at `now` (unix seconds), the first MOST_ALERTS of them.

    Raise PayloadError for an unusable body.
    """
    if body.count(b"[") + body.count(b"{") > MOST_PARTS:
        raise PayloadError(f"more than {MOST_PARTS} parts")
    try:
        data = json.loads(body)
    except RecursionError:
        raise PayloadError("nested too deeply") from None
    except ValueError:
        # Not UTF-8, not JSON, or a number with too many digits.
        raise PayloadError("not JSON") from None
    if not isinstance(data, dict):
        raise PayloadError("must be an object")
    if data.get("version") != VERSION:
        raise PayloadError(f'version must be "{VERSION}"')
    alerts = data.get("alerts")
    if not isinstance(alerts, list):
        raise PayloadError("alerts must be a list")
    found = [_alert(alert, f"alerts[{place}]", now) for place, alert in enumerate(alerts[:MOST_ALERTS])]
    truncated = data.get("truncatedAlerts")
    missing = truncated if type(truncated) is int and 0 < truncated < MOST_TRUNCATED else 0
    foreign = tuple(alert for alert in found if OURS not in alert.labels)
    return Payload(foreign, len(found) - len(foreign), len(alerts[MOST_ALERTS:]) + missing)


def _alert(data: Any, place: str, now: float) -> ExternalAlert:
    if not isinstance(data, dict):
        raise PayloadError(f"{place} must be an object")
    status = data.get("status")
    if status not in ("firing", "resolved"):
        raise PayloadError(f"{place}.status must be firing or resolved")
    labels = _texts(data.get("labels"), f"{place}.labels")
    if sum(len(name) + len(text) for name, text in labels.items()) > LONGEST_LABELS:
        raise PayloadError(f"{place}.labels have more than {LONGEST_LABELS} characters")
    annotations = _texts(data.get("annotations", {}), f"{place}.annotations")
    name = labels.get("alertname", "")
    if not name or len(name) > LONGEST_NAME:
        raise PayloadError(f"{place}.labels.alertname must be a name of at most {LONGEST_NAME} characters")
    started_at = _time(data.get("startsAt"), f"{place}.startsAt", now)
    ended_at = None
    if status == "resolved":
        ended_at = max(started_at, _time(data.get("endsAt"), f"{place}.endsAt", now))
    return ExternalAlert(
        name=_plain(name),
        labels=tuple(sorted((key, _plain(value)) for key, value in labels.items())),
        summary=_plain(next((annotations[key] for key in SUMMARIES if annotations.get(key)), ""))[:LONGEST_SUMMARY],
        started_at=started_at,
        ended_at=ended_at,
        heard_at=now,
    )


def _texts(data: Any, place: str) -> Mapping[str, str]:
    if not isinstance(data, dict) or len(data) > MOST_LABELS:
        raise PayloadError(f"{place} must be an object of at most {MOST_LABELS} texts")
    for key, value in data.items():
        if not LABEL.fullmatch(key) or len(key) > LONGEST_NAME:
            raise PayloadError(f"{place} holds a key that is no label name")
        if not isinstance(value, str):
            raise PayloadError(f"{place}.{key} must be a text")
        if len(value) > LONGEST_VALUE and not place.endswith("annotations"):
            raise PayloadError(f"{place}.{key} is longer than {LONGEST_VALUE} characters")
    return data


def _time(data: Any, place: str, now: float) -> float:
    """Parse an RFC 3339 time. Return `now` for a future time, or one outside unix seconds (Go's year 1)."""
    if not isinstance(data, str) or len(data) > 64:
        raise PayloadError(f"{place} must be a time")
    try:
        instant = datetime.fromisoformat(data)
        if instant.tzinfo is None:
            raise ValueError("no time zone")
        t = instant.timestamp()
    except (ValueError, OverflowError):
        raise PayloadError(f"{place} must be a time") from None
    return t if 0 < t <= now + AHEAD_SECONDS else now


def _plain(text: str) -> str:
    """Return the text as one line without control characters and lone surrogates."""
    shown = "".join(c if c.isprintable() else " " for c in text.encode("utf-8", "replace").decode("utf-8"))
    return " ".join(shown.split())


class TokenBucket:
    """Rate limiter with a `burst` and a sustained rate `per_second`. `seconds` is a monotonic clock."""

    def __init__(self, per_second: float, burst: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst = per_second, burst
        self._seconds = seconds
        self._left, self._at = burst, seconds()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Return whether a request may pass now, and count it."""
        with self._lock:
            now = self._seconds()
            self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class WebhookReceiver:
    """Receiver of webhook bodies from web server threads. `waiting` returns the queued alerts to a cycle."""

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
        self._taken = self._own = self._left_out = 0
        self._refused: Counter[str] = Counter()

    @property
    def challenges(self) -> tuple[str, ...]:
        return self._gate.challenges

    def change_gate(self, gate: Authenticator) -> None:
        """Ask for other tokens from the next request on."""
        self._gate = gate

    def refuses(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        """Return the reason to refuse a request before its body is read. Return None to accept it."""
        if not self._gate.has_token(authorization):
            return self._reject("credentials", "the webhook's token is needed")
        if not length.isdecimal():
            return self._reject("length", "Content-Length is needed")
        if len(length) > 12 or int(length) > WEBHOOK_BYTES:
            return self._reject("too_large", f"a body of more than {WEBHOOK_BYTES} bytes is not read")
        if content_type.partition(";")[0].strip().lower() != "application/json" or content_encoding:
            return self._reject("content_type", "only application/json, not compressed")
        if not self._bucket.take():
            return self._reject("rate", f"more than {PER_SECOND:.0f} requests a second")
        return None

    def take(self, body: bytes) -> WebhookRejection | None:
        """Queue the alerts of a body for the next cycle. Return the reason if the body is refused."""
        try:
            alerts, own, missing = read(body, self._clock())
        except PayloadError as error:
            return self._reject("payload", f"the payload cannot be used: {error}")
        with self._lock:
            room = max(0, MOST_WAITING - len(self._waiting))
            self._waiting.extend(alerts[:room])
            self._left_out += len(alerts[room:]) + missing
            self._taken += 1
            self._own += own
        return None

    def waiting(self) -> tuple[ExternalAlert, ...]:
        """Return and clear the queue, in order of arrival."""
        with self._lock:
            found = tuple(self._waiting)
            self._waiting.clear()
        return found

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
