"""Delivery of alerts to one Alertmanager, from a thread per Alertmanager.

Alerts are state. A failed post is not stored: the next round posts the state of that moment. A round is due when an
alert starts, escalates or ends, and before posted alerts expire. After a failure the retry interval doubles up to the
resend interval.

Alertmanager's API v2 answers 400 for a batch with one bad alert, but stores the good alerts (api/v2/api.go, 0.25). A
proxy may refuse the whole batch. Posting is idempotent, so a refused batch is halved and posted again. Halving ends
when the refusal belongs to a single alert.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from agent.durations import retry_delay
from agent.errors import ScrapeError, ScrapeFailure, SizewatchError
from agent.http_client.client import HttpClient
from agent.http_client.errors import place_of
from agent.http_client.options import Peer
from exporters.alertmanager.payload import AlertPayload
from exporters.status.records import AlertmanagerHealth

PATH = "/api/v2/alerts"
BATCH = 64
"""Alerts per request. Prometheus posts up to 256. This size stays below the 1 MB limit of a proxy."""

ROUND_SECONDS = 30.0
"""Time limit in seconds for all requests of one round together."""

REFUSALS = frozenset({400, 413, 422})
"""HTTP status codes that refuse the body, not the sender. A smaller batch may be accepted."""

_MOVED = "it redirects, which is not followed: give the final address as url"
HINTS = {
    **dict.fromkeys((301, 302, 303, 307, 308), _MOVED),
    401: "set bearer_token_file or basic_auth of this Alertmanager, or renew what is in them",
    403: "these credentials may not post alerts",
    404: "is the url that of an Alertmanager 0.16 or newer, with the path it is served under?",
    405: "is the url that of an Alertmanager?",
    429: "it takes no more at the moment",
}


Present = Callable[[], Sequence[AlertPayload]]
"""Builder of the present alerts. It runs when a round begins, so that the payload is current."""

FIRST_RETRY_SECONDS = 1.0
CLOSE_SECONDS = 2.0
"""Maximum wait in seconds for a running round at shutdown. The thread is a daemon thread and loses no state."""

_log = logging.getLogger(__name__)


class DeliveryError(SizewatchError):
    """Failed round. The next round posts all alerts again."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Refused(Exception):
    """Refused body, with the status."""


@dataclass(slots=True)
class PostResult:
    """Result of one round: the number of accepted alerts, and the reason for each refused alert by title."""

    taken: int = 0
    refused: dict[str, str] = field(default_factory=dict)


class AlertmanagerClient:
    """Client of one Alertmanager. Each round opens a new connection and uses renewed secrets."""

    def __init__(self, peer: Peer) -> None:
        self._client = HttpClient(peer)
        self.place = place_of(peer.url).rstrip("/")

    def round(self, alerts: Sequence[AlertPayload], suspects: frozenset[str] = frozenset()) -> PostResult:
        """Post all alerts. Post each of `suspects`, which were refused before, in a batch of its own.

        Post an empty list if there are no alerts, to detect an unavailable Alertmanager before the first alert. Raise
        DeliveryError if the round fails.
        """
        done = PostResult()
        deadline = time.monotonic() + ROUND_SECONDS
        try:
            self._client.load_if_changed()
        except ScrapeError as error:
            raise DeliveryError(error.text) from error
        good = [one for one in alerts if one.title not in suspects]
        batches = [good[place : place + BATCH] for place in range(0, len(good), BATCH)]
        batches += [[one] for one in alerts if one.title in suspects]
        waiting = batches or [[]]
        with closing(self._client):
            while waiting:
                batch = waiting.pop(0)
                try:
                    self._post(batch, deadline)
                    done.taken += len(batch)
                except _Refused as refused:
                    if not batch:
                        text = f"{self.place} answered an empty list of alerts with {refused}"
                        raise DeliveryError(text) from refused
                    if len(batch) == 1:
                        done.refused[batch[0].title] = str(refused)
                    else:
                        middle = len(batch) // 2
                        waiting[:0] = batch[:middle], batch[middle:]
        return done

    def _post(self, batch: Sequence[AlertPayload], deadline: float) -> None:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise DeliveryError(f"{self.place}: a round of posts did not end within {ROUND_SECONDS:.0f} s")
        client = self._client
        body = json.dumps([alert.body for alert in batch]).encode()
        request = client.prepare("POST", client.peer.url.rstrip("/") + PATH, {"Content-Type": "application/json"}, body)
        seconds = min(client.peer.timeout_seconds, left_seconds)
        try:
            with client.send(request, seconds) as response:
                client.read(response)
        except ScrapeError as error:
            if error.kind is ScrapeFailure.TIMEOUT:
                raise DeliveryError(f"{self.place} did not answer within {seconds:g} s") from error
            raise DeliveryError(error.text) from error
        status = response.status_code
        if status in REFUSALS:
            raise _Refused(f"{status}: Alertmanager's log has the reason")
        if not 200 <= status < 300:
            raise DeliveryError(f"{self.place} answered {status}: {HINTS.get(status, 'look into its log')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """State to post. `marks` are the titles of all alerts, and whether each fires."""

    present: Present
    marks: frozenset[tuple[str, bool]]


class AlertDelivery:
    """Delivery thread of one Alertmanager. The first offer starts it. Any thread may read `health`."""

    def __init__(
        self, poster: AlertmanagerClient, resend_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._poster = poster
        self._resend_seconds = resend_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._posted: frozenset[tuple[str, bool]] | None = None
        self._closed = False
        self._suspects: frozenset[str] = frozenset()
        self._failures_in_a_row = 0
        self._thread: threading.Thread | None = None
        self.health = AlertmanagerHealth(alertmanager=poster.place)

    def offer(self, present: Present, alerts: Sequence[AlertPayload]) -> None:
        """Set the state after a cycle. `present` builds the payload when it is posted; `alerts` is the state now."""
        marks = frozenset((one.title, one.firing) for one in alerts)
        with self._changed:
            self._offer = _Offer(present=present, marks=marks)
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Signal the thread to end. Firing alerts are not resolved: they expire if no agent comes back."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        """Wait up to CLOSE_SECONDS for the thread to end."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while (offer := self._awaited(due)) is not None:
            try:
                self._round(offer)
            except Exception as error:  # noqa: BLE001 - a defect costs one round; it is logged, counted and retried
                _log.exception("alert delivery crashed alertmanager=%s", self._poster.place)
                self._failed(f"defect in sizewatch: {type(error).__name__}, see its log")
            due = time.monotonic() + self._pause()

    def _awaited(self, due: float) -> _Offer | None:
        """Wait for the next due offer and return it. Return None at shutdown."""
        with self._changed:
            while not self._closed:
                left = due - time.monotonic()
                # After a failure a change waits too: an unavailable Alertmanager gets no request in every cycle.
                changed = self._offer is not None and self._offer.marks != self._posted
                if self._offer is not None and (left <= 0 or (changed and not self._failures_in_a_row)):
                    return self._offer
                self._changed.wait(max(left, 0.0) if self._offer is not None else None)
        return None

    def _pause(self) -> float:
        if not self._failures_in_a_row:
            return self._resend_seconds
        return retry_delay(self._failures_in_a_row, FIRST_RETRY_SECONDS, self._resend_seconds)

    def _round(self, offer: _Offer) -> None:
        alerts = tuple(offer.present())
        try:
            done = self._poster.round(alerts, self._suspects)
        except DeliveryError as error:
            self._failed(error.text)
            return
        if self.health.trouble is not None:
            _log.info("alert delivery recovered alertmanager=%s", self._poster.place)
        for title, reason in done.refused.items():
            if title not in self._suspects:
                _log.error('alert refused alertmanager=%s alert=%s error="%s"', self._poster.place, title, reason)
        self._failures_in_a_row = 0
        self._suspects = frozenset(done.refused)
        self._posted = offer.marks
        self.health = replace(
            self.health,
            posts=self.health.posts + 1,
            alerts=self.health.alerts + done.taken,
            firing=sum(one.firing for one in alerts) - sum(one.firing for one in alerts if one.title in done.refused),
            refused=tuple(f"{title}: {reason}" for title, reason in done.refused.items()),
            trouble=None,
            last_success_at=self._clock(),
        )

    def _failed(self, text: str) -> None:
        if self.health.trouble is None:
            _log.error('alert delivery failed, retrying error="%s"', text)
        self._failures_in_a_row += 1
        self.health = replace(self.health, failures=self.health.failures + 1, trouble=text)
